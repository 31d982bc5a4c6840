"""A gradient of a gradient runs the function on the default device of its call.

What is compiled in a thread of the engine has the settings of the thread that made the call: the engine's have defaults.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo import config as dynamo
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad.backends.base import AnyBackend

DEVICES = ("cpu", "cuda")


def with_a_constant(x):
    return (x * torch.tensor([1.1, 2.2, 3.3])).exp()


def second(function: Callable, of_call: str, of_backward: str) -> torch.Tensor:
    with torch.device(of_call):
        x = torch.ones(3, requires_grad=True)
        result = function(x)
    with contextlib.nullcontext() if of_backward == of_call else torch.device(of_backward):
        (first,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]


@pytest.mark.parametrize("backend", [aotgrad.nop, "inductor"], ids=["nop", "inductor"])
@pytest.mark.parametrize("of_backward", DEVICES)
@pytest.mark.parametrize("of_call", DEVICES)
def test_the_default_device_is_that_of_the_call(of_call: str, of_backward: str, backend: AnyBackend):
    expected = second(with_a_constant, of_call, of_backward)
    found = second(aotgrad.aot_function(with_a_constant, backend), of_call, of_backward)
    torch.testing.assert_close(found, expected)


class Recording:
    """A backend that notes the settings of each compilation, and whether it is in a thread of the engine."""

    def __init__(self) -> None:
        self.main, self.seen = threading.get_ident(), list[tuple[bool, Any]]()

    def __call__(self, module: torch.fx.GraphModule, _: Any) -> Callable:
        found = (inductor.fallback_random, dynamo.recompile_limit, functorch.treat_parameters_as_free_to_save)
        self.seen.append((threading.get_ident() != self.main, found))
        return aotgrad.nop(module, ())


SETTINGS = (True, 77, False)


@contextlib.contextmanager
def changed_settings():
    patches = inductor.patch(fallback_random=True), dynamo.patch(recompile_limit=77)
    with patches[0], patches[1], functorch.patch(treat_parameters_as_free_to_save=False):
        yield


def product(x):
    return (x.sin() * x).exp()


def first_order(f, x):
    f(x).sum().backward()


def second_order(f, x):
    (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    first.sum().backward()


def third_order(f, x):
    (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    second.sum().backward()


def batched(f, x):
    torch.autograd.grad(f(x), x, torch.eye(3), is_grads_batched=True)


def under_a_transform(f, x):
    torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(x.detach().expand(2, 3))


def twice_under_transforms(f, x):
    torch.func.jacrev(torch.func.grad(lambda x: f(x).sum()))(x.detach())


def differentiated_outside(f, x):
    torch.func.grad(lambda x: f(x).sum())(x).sum().backward()


def in_a_checkpoint(f, x):
    """The backward calls the function again, with grad mode on."""
    checkpoint(lambda x: f(x) * 1, x, use_reentrant=True).sum().backward()


WAYS = (
    *(first_order, second_order, third_order, batched, under_a_transform, twice_under_transforms, differentiated_outside),
    in_a_checkpoint,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_settings_are_those_of_the_thread_that_called(way: Callable):
    backend = Recording()
    with changed_settings():
        way(aotgrad.aot_function(product, backend), torch.linspace(-1, 1, 3, device="cuda", requires_grad=True))
    assert [found for _, found in backend.seen] == [SETTINGS] * len(backend.seen)
    assert any(is_elsewhere for is_elsewhere, _ in backend.seen)


def test_the_settings_are_those_of_the_call_also_later():
    backend = Recording()
    x = torch.linspace(-1, 1, 3, device="cuda", requires_grad=True)
    with changed_settings():
        y = aotgrad.aot_function(product, backend)(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    first.sum().backward()
    assert [found for _, found in backend.seen] == [SETTINGS] * len(backend.seen)
