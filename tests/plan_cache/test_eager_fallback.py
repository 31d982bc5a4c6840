"""The option `on_error`: a function that cannot be compiled runs eagerly, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import aotgrad
from aotgrad import torch_compat
from aotgrad.errors import CaptureError, OptionError

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


class Broken(Exception):
    """The error of a compiler without a kernel."""


def broken(graph, inputs):
    raise Broken("no kernel for this\nand much more text")


def function(x):
    return (x.sin() * x).exp()


def through_dynamo(fw: Callable, bw: Callable, **options: Any) -> Callable:
    aotgrad.backends.register("broken", fw_compiler=fw, bw_compiler=bw)
    torch._dynamo.reset()
    return torch.compile(function, backend=aotgrad.DynamoBackend("broken", options=options))


def alone(fw: Callable, bw: Callable, **options: Any) -> Callable:
    return aotgrad.aot_function(function, fw, bw, options=options)


ways = pytest.mark.parametrize("way", [through_dynamo, alone])


def warned(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [message for each in found if "runs eagerly" in (message := str(each.message))]


def assert_like_eager(compiled: Callable, size: int = 3) -> None:
    x, other = (torch.linspace(0, 1, size).requires_grad_() for _ in range(2))
    result, expected = compiled(x), function(other)
    assert torch.equal(result, expected)
    result.sum().backward(), expected.sum().backward()
    torch.testing.assert_close(x.grad, other.grad)


def test_it_is_an_error_where_nothing_else_is_said():
    with pytest.raises(Broken):
        alone(broken, aotgrad.nop)(torch.ones(2))
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="Broken: no kernel"):
        through_dynamo(broken, aotgrad.nop)(torch.ones(2))


@ways
def test_a_forward_that_cannot_be_compiled(way):
    compiled, before = way(broken, aotgrad.nop, on_error="eager"), aotgrad.counters["eager_on_error"]
    (message,) = warned(lambda: assert_like_eager(compiled))
    assert message.endswith(" runs eagerly: it cannot be compiled, Broken: no kernel for this")
    assert warned(lambda: assert_like_eager(compiled)) == [], "it is not retried"
    assert aotgrad.counters["eager_on_error"] == before + 1


@ways
def test_a_backward_that_cannot_be_compiled(way):
    compiled, before = way(aotgrad.nop, broken, on_error="eager"), aotgrad.counters["eager_on_error"]
    assert warned(lambda: assert_like_eager(compiled)) == [
        "a backward runs eagerly: it cannot be compiled, Broken: no kernel for this"
    ]
    assert warned(lambda: assert_like_eager(compiled)) == []
    assert aotgrad.counters["eager_on_error"] == before + 1


def test_another_kind_of_call_is_tried():
    def only_small(graph, inputs):
        return broken(graph, inputs) if inputs[0].numel() > 3 else aotgrad.nop(graph, inputs)

    compiled = alone(only_small, aotgrad.nop, on_error="eager")
    assert len(warned(lambda: assert_like_eager(compiled, 4))) == 1
    assert warned(lambda: assert_like_eager(compiled, 3)) == [] and len(compiled.plans()) == 1
    assert len(warned(lambda: assert_like_eager(compiled, 5))) == 1
    assert dict(compiled.plan_cache.fallbacks) == {"it cannot be compiled, and the option `on_error` is 'eager'": 2}
    aotgrad.clear_cache(compiled)
    assert len(warned(lambda: assert_like_eager(compiled, 4))) == 1


def test_what_inductor_cannot_compile(monkeypatch):
    compile = torch_compat.inductor_compile

    def no_backwards(module, inputs, is_backward=False, **settings):
        return broken(module, inputs) if is_backward else compile(module, inputs, **settings)

    monkeypatch.setattr(torch_compat, "inductor_compile", no_backwards)
    torch._dynamo.reset()
    x, other = (torch.eye(3).requires_grad_() for _ in range(2))
    compiled = torch.compile(lambda x: x @ x @ x, backend="aotgrad", options={"on_error": "eager", "cache": False})
    messages = warned(lambda: compiled(x).sum().backward())
    assert messages == ["a backward runs eagerly: it cannot be compiled, Broken: no kernel for this"]
    (other @ other @ other).sum().backward()
    assert torch.equal(x.grad, other.grad)


def test_what_cannot_be_traced():
    """Without `on_error` it raises; with it the result is eager's."""

    def address(x):
        return x * (x.data_ptr() != 0)

    with pytest.raises(CaptureError):
        aotgrad.aot_function(address, aotgrad.nop)(torch.ones(2))
    compiled = aotgrad.aot_function(address, aotgrad.nop, options={"on_error": "eager"})
    with pytest.warns(
        UserWarning, match="runs eagerly: it cannot be compiled, CaptureError: the memory of a tensor is read"
    ):
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2))


def test_numbers_that_only_inductor_can_draw_again(monkeypatch):
    """A backward that regenerates the forward's random numbers from their seed cannot run eagerly."""
    compile = torch_compat.inductor_compile

    def no_backwards(module, inputs, is_backward=False, **settings):
        return broken(module, inputs) if is_backward else compile(module, inputs, **settings)

    monkeypatch.setattr(torch_compat, "inductor_compile", no_backwards)
    torch._dynamo.reset()
    options = {"on_error": "eager", "cache": False, "partitioner": "recompute_all"}
    compiled = torch.compile(lambda x: (x * torch.rand_like(x)) @ x, backend="aotgrad", options=options)
    result = compiled(torch.eye(3).requires_grad_()).sum()
    with pytest.raises(Broken):
        result.backward()


def test_a_wrong_option_is_an_error_all_the_same():
    torch._dynamo.reset()
    with pytest.raises(OptionError, match="partitoner"):
        torch.compile(function, backend="aotgrad", options={"on_error": "eager", "partitoner": "min_cut"})(torch.ones(2))


def test_where_dynamo_breaks_the_graph_it_still_does():
    torch._dynamo.reset()

    def reads(x):
        y = x + 1
        return y.sin() if y.sum().item() > 2 else y.cos()

    compiled = torch.compile(reads, backend="aotgrad_eager", options={"on_error": "eager"})
    assert warned(lambda: torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0).sin())) == []
