"""Effects happen once, in the order of the function, in the forward and under every partitioner."""

import pytest
import torch
from torch._higher_order_ops.effects import _EffectType as EffectType
from torch._higher_order_ops.effects import _register_effectful_op
from torch.utils._python_dispatch import TorchDispatchMode

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


class Watching(TorchDispatchMode):
    """Lets nothing be compiled while it is active."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class SpeaksTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        torch.ops.aten._print("forward")
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        torch.ops.aten._print("backward")
        return gradient * ctx.saved_tensors[0].cos()


def checks(x):
    torch._assert_async((x > 0).all(), "x must be positive")
    with torch.profiler.record_function("checked"):
        return speaks(x)


def printed(capfd, run, *args) -> list[str]:
    capfd.readouterr()
    run(*args)
    return capfd.readouterr().out.split()


def three_orders(function):
    (x,) = leaves = [torch.ones(3, requires_grad=True)]
    result = function(x)
    for _ in range(3):
        torch.ops.aten._print("then")
        (result,) = torch.autograd.grad(result.sum(), leaves, create_graph=True)


def watched(function):
    x = torch.ones(3, requires_grad=True)
    y = function(x)
    with Watching():
        torch.autograd.grad(y.sum(), x, create_graph=True)


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("run", [three_orders, watched])
@pytest.mark.parametrize("function", [speaks, checks, SpeaksTwice.apply, lambda x: speaks(speaks(x))])
def test_gradients_of_gradients_repeat_no_effect(capfd, function, run, segments):
    under_test = aotgrad.aot_function(function, aotgrad.nop, options={"grad_segments": segments})
    expected = printed(capfd, run, function)
    assert expected and printed(capfd, run, under_test) == printed(capfd, run, under_test) == expected


def two_heads(x):
    trunk = SpeaksTwice.apply(x.exp().exp()).cos().cos()
    return trunk.sin(), trunk.exp()


def backwards_of_heads(function):
    x = torch.ones(3, requires_grad=True)
    one, other = function(x)
    for loss, options in ((one, {"retain_graph": True}), (one + other, {"create_graph": True}), (other, {})):
        torch.ops.aten._print("then")
        torch.autograd.grad(loss.sum(), x, **options)


@pytest.mark.parametrize("segments", [1, 2, 8])
def test_effects_of_a_backward_happen_in_one_of_its_segments(capfd, segments):
    under_test = aotgrad.aot_function(two_heads, aotgrad.nop, options={"grad_segments": segments})
    expected = printed(capfd, backwards_of_heads, two_heads)
    assert expected == ["forward", *["then", "backward"] * 3] == printed(capfd, backwards_of_heads, under_test)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "transform",
    [torch.func.hessian, torch.func.jacrev, lambda f: torch.func.vmap(torch.func.grad(f)), lambda f: torch.func.grad(f)],
)
def test_derivatives_of_transforms_repeat_no_effect(capfd, transform):
    def function(x):
        return speaks(x).sum()

    def run(function):
        transform(function)(torch.ones(2))

    under_test = aotgrad.aot_function(function, aotgrad.nop)
    expected = printed(capfd, run, function)
    assert expected and printed(capfd, run, under_test) == printed(capfd, run, under_test) == expected


def test_a_check_that_fails_does_so_once():
    """In the forward: there is no gradient to ask for then."""
    function = aotgrad.aot_function(checks, aotgrad.nop)
    three_orders(function)
    with pytest.raises(RuntimeError, match="x must be positive"):
        function(-torch.ones(3, requires_grad=True))


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


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("backend", ["nop", "dynamo"])
def test_gradients_of_gradients_repeat_no_registered_effect(backend, segments):
    """The result of `say` is needed again: it is taken from what was saved."""

    def run(function):
        SAID.clear()
        (x,) = leaves = [torch.linspace(0, 1, 3).double().requires_grad_()]
        result, found = function(x), []
        for _ in range(3):
            SAID.append("then")
            (result,) = torch.autograd.grad(result.sum(), leaves, create_graph=True)
            found.append(result)
        return found, [*SAID]

    under_test = compiled(talks, backend, options={"grad_segments": segments})
    expected, heard = run(talks)
    for _ in range(2):
        found, again = run(under_test)
        assert again == heard
        torch.testing.assert_close(found, expected)


def test_registered_effects_of_an_exported_module():
    class Talks(torch.nn.Module):
        def forward(self, x):
            return (talks(x),)

    graph, _ = aotgrad.aot_export_module(Talks(), (torch.ones(3),), trace_joint=False)
    SAID.clear()
    graph(torch.ones(3))
    assert SAID == ["hello", "sine", "bye"]
