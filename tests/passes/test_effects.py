"""Effects happen once, in the order of the function, in the forward and under every partitioner."""

import pytest
import torch
from torch._higher_order_ops.effects import _EffectType as EffectType
from torch._higher_order_ops.effects import _register_effectful_op

import aotgrad
from tests.numerics.against_eager import AOT, compiled


def speaks(x):
    torch.ops.aten._print("first")
    y = x.sin()
    torch.ops.aten._print("second")
    return y * y


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("partitioner", ["min_cut", "save_all", "recompute_all"])
def test_effects_happen_once_and_in_order(capfd, partitioner, requires_grad):
    x = torch.ones(3, requires_grad=requires_grad)
    compiled = aotgrad.aot_function(speaks, aotgrad.nop, options={"partitioner": partitioner})
    for _ in range(2):
        out = compiled(x)
        assert capfd.readouterr().out.split() == ["first", "second"]
        assert torch.equal(out, x.sin() ** 2)
    if requires_grad:
        out.sum().backward()
        assert capfd.readouterr().out == ""


# --- Custom ops that somebody has registered an effect of ---------------------------------------------------------------

SAID = []


@torch.library.custom_op("aotgrad_tests::say", mutates_args=())
def say(x: torch.Tensor, word: str) -> torch.Tensor:
    SAID.append(word)
    return x.clone()


@say.register_fake
def _(x, word):
    return torch.empty_like(x)


say.register_autograd(
    lambda ctx, gradient: (say(gradient, f"back from {ctx.word}"), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "word", inputs[1]),
)
_register_effectful_op("aotgrad_tests::say", EffectType.ORDERED)


def talks(x):
    say(x, "hello")
    y = say(x.sin(), "sine")
    say(y, "bye")
    return (y * y).sum()


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("backend", [*AOT, "dynamo", "inductor"])
def test_registered_effects_of_which_nobody_needs_the_result(backend, requires_grad):
    heard = []
    for function in (talks, compiled(talks, backend)):
        SAID.clear()
        x = torch.ones(3, requires_grad=requires_grad)
        out = function(x)
        SAID.append("and")
        if requires_grad:
            out.backward()
        heard.append([*SAID])
    assert heard[0] == heard[1]
    assert heard[0] == ["hello", "sine", "bye", "and", *(["back from sine"] if requires_grad else [])]


@pytest.mark.parametrize("partitioner", ["min_cut", "save_all", "recompute_all"])
def test_registered_effects_happen_once(partitioner):
    function = aotgrad.aot_function(talks, aotgrad.nop, options={"partitioner": partitioner})
    SAID.clear()
    function(torch.ones(3, requires_grad=True)).backward()
    assert SAID == ["hello", "sine", "bye", "back from sine"]


def test_registered_effects_of_an_exported_module():
    class Talks(torch.nn.Module):
        def forward(self, x):
            return (talks(x),)

    graph, _ = aotgrad.aot_export_module(Talks(), (torch.ones(3),), trace_joint=False)
    SAID.clear()
    graph(torch.ones(3))
    assert SAID == ["hello", "sine", "bye"]
