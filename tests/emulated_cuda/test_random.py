"""Random numbers of two devices: a backward draws again from the generator that the forward drew from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad.errors import CaptureError
from tests.emulated_cuda.device import capturing

DEVICES = ("cuda:0", "cuda:1")

BACKENDS = ("aotgrad_eager", "aotgrad")


def seed_apart() -> None:
    """Give the generators of the devices different states."""
    torch.manual_seed(1)
    torch.rand(3, device="cuda:0")


def leaf(*size: int, device: str) -> torch.Tensor:
    return torch.randn(*size, device=device).requires_grad_()


def outcome(function: Callable, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    """The result, the gradients and the states of the generators, for fresh leaves with the same values."""
    arguments = [argument.detach().clone().requires_grad_() for argument in arguments]
    seed_apart()
    result = function(*arguments)
    result.sum().backward()
    return [result, *(argument.grad for argument in arguments), *torch.cuda.get_rng_state_all(), torch.get_rng_state()]


def assert_like_eager(function: Callable, compiled: Callable, *arguments: torch.Tensor) -> None:
    for expected, found in zip(outcome(function, [*arguments]), outcome(compiled, [*arguments]), strict=True):
        torch.testing.assert_close(found, expected)


def chain(x, w):
    return dropout((x @ w).sin(), 0.5).cos().sin()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_memory_budget_draws_again_on_the_device_that_drew(device, backend):
    torch.cuda.set_device(0)
    compiled = torch.compile(chain, backend=backend, options={"memory_budget": 0.1})
    with torch._inductor.config.patch(fallback_random=True):
        assert_like_eager(chain, compiled, leaf(32, 32, device=device), leaf(32, 32, device=device))


def test_one_graph_draws_again_on_two_devices():
    def both(x, w):
        return chain(x, w).to("cuda:1") + chain(x.to("cuda:1"), w.to("cuda:1"))

    compiled = aotgrad.aot_function(both, aotgrad.nop, options={"memory_budget": 0.1})
    assert_like_eager(both, compiled, leaf(32, 32, device="cuda:0"), leaf(32, 32, device="cuda:0"))


@pytest.mark.parametrize("device", DEVICES)
def test_a_gradient_of_a_gradient_draws_again_on_the_device_that_drew(device):
    def second(function: Callable, x: torch.Tensor) -> torch.Tensor:
        seed_apart()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    def function(x):
        return (dropout(x, 0.5) * x).sin()

    x = leaf(8, 8, device=device)
    assert torch.equal(second(aotgrad.aot_function(function, aotgrad.nop), x), second(function, x))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_draws_again_on_the_device_that_drew(device, reentrant):
    def function(x, w):
        return checkpoint(chain, x, w, use_reentrant=reentrant) + dropout(x, 0.5)

    compiled = aotgrad.aot_function(function, aotgrad.nop)
    assert_like_eager(function, compiled, leaf(8, 8, device=device), leaf(8, 8, device=device))


def test_a_call_reads_no_state_while_a_graph_is_captured():
    x, compiled = leaf(8, 8, device="cuda"), aotgrad.aot_function(lambda x: dropout(x, 0.5).sin(), aotgrad.nop)
    compiled(x).sum().backward()
    with capturing():
        compiled(x).sum().backward()


def test_a_captured_call_has_no_gradient_of_a_gradient():
    x, compiled = leaf(8, 8, device="cuda"), aotgrad.aot_function(lambda x: dropout(x, 0.5).sin(), aotgrad.nop)
    compiled(x)
    with capturing():
        result = compiled(x)
    with pytest.raises(RuntimeError, match="a CUDA graph was captured during the call"):
        torch.autograd.grad(result.sum(), x, create_graph=True)


def test_a_captured_call_that_draws_again_raises():
    compiled = aotgrad.aot_function(chain, aotgrad.nop, options={"memory_budget": 0.1})
    x, w = leaf(32, 32, device="cuda"), leaf(32, 32, device="cuda")
    compiled(x, w)
    with capturing(), pytest.raises(RuntimeError, match="a CUDA graph is being captured, and the backward draws"):
        compiled(x, w)


def seeded(x):
    torch.cuda.manual_seed(7)
    return x * torch.rand_like(x)


def restored(x):
    state = torch.cuda.get_rng_state()
    first = torch.rand_like(x)
    torch.cuda.set_rng_state(state)
    return x * torch.rand_like(x) - first


def moved_back(x):
    state = torch.cuda.get_rng_state()
    result = x * torch.rand_like(x)
    torch.cuda.set_rng_state(state)
    return result


def in_a_fork(x):
    with torch.random.fork_rng(devices=[0]):
        return x * torch.rand_like(x)


@pytest.mark.parametrize("function", [seeded, moved_back, in_a_fork])
def test_a_function_that_sets_the_state_of_a_generator_raises(function):
    with pytest.raises(CaptureError, match="seeds the random generator or sets its state"):
        aotgrad.aot_function(function, aotgrad.nop)(leaf(4, device="cuda"))


def test_a_function_that_sets_a_state_from_outside_raises():
    state = torch.cuda.get_rng_state()

    def function(x):
        torch.cuda.set_rng_state(state)
        return x * torch.rand_like(x)

    with pytest.raises(CaptureError, match="seeds the random generator or sets its state"):
        aotgrad.aot_function(function, aotgrad.nop)(leaf(4, device="cuda"))


def test_a_function_that_returns_to_a_state_that_it_has_read_draws_the_same_numbers():
    assert_like_eager(restored, aotgrad.aot_function(restored, aotgrad.nop), leaf(4, device="cuda"))


def test_the_default_generator_of_a_device_may_be_passed():
    def function(x: torch.Tensor, generator: Any = torch.cuda.default_generators[0]):
        own = torch.rand(4, device="cuda", generator=torch.cuda.default_generators[0])
        return x * own * torch.rand(4, device="cuda", generator=generator)

    assert_like_eager(function, aotgrad.aot_function(function, aotgrad.nop), leaf(4, device="cuda"))


def test_the_generators_are_torchs_own_after_a_trace():
    before = torch.cuda.default_generators, torch.random.default_generator
    with pytest.raises(CaptureError):
        aotgrad.aot_function(seeded, aotgrad.nop)(leaf(4, device="cuda"))
    assert torch.cuda.default_generators is before[0]
    assert torch.random.default_generator is before[1]


def test_with_cuda_graphs_and_symbolic_sizes_the_backward_saves_what_the_forward_drew(recordings):
    """How much of the offset a draw takes depends on its size."""
    compiled = aotgrad.aot_function(
        chain, "inductor", options={"memory_budget": 0.1, "mode": "reduce-overhead", "dynamic": True}
    )
    with torch._inductor.config.patch(fallback_random=True):
        assert_like_eager(chain, compiled, leaf(32, 32, device="cuda"), leaf(32, 32, device="cuda"))
    (plan,) = compiled.plans()
    assert "draw_and_record" not in plan.executable.partition.forward.module.code
