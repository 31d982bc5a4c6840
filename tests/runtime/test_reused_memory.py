"""Backends that reuse memory, as CUDA graphs do: what somebody has of an earlier call is as in eager."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

import aotgrad
from aotgrad.backends.eager import EAGER
from aotgrad.backends.kit import FunctionBackend
from aotgrad.ir import BoxedCallable, Compiled, GraphHalf
from aotgrad.runtime import reused_memory


@dataclass
class Replays:
    """The memory of all results, run by run. The first forward after a backward starts again at the first run's.

    As the trees of CUDA graphs do, a run returns the tensors that it has returned before, with other values.
    """

    runs: list[list[Any]] = field(default_factory=list)
    count: int = 0
    backward_ran: bool = False

    def forward(self, run: BoxedCallable) -> BoxedCallable:
        def replay(inputs: list[Any]) -> Sequence[Any]:
            if self.backward_ran:
                self.overwrite()
            self.backward_ran = False
            return self.place(run(inputs))

        return replay

    def backward(self, run: BoxedCallable) -> BoxedCallable:
        def replay(inputs: list[Any]) -> Sequence[Any]:
            results = self.place(run(inputs))
            self.backward_ran = True
            # A leaf takes a gradient of its own as its `.grad`, and copies one that others have.
            return [each.detach() if isinstance(each, torch.Tensor) else each for each in results]

        return replay

    def overwrite(self) -> None:
        self.count = 0
        for buffer in itertools.chain(*self.runs):
            if isinstance(buffer, torch.Tensor):
                buffer.detach().fill_(float("nan"))

    def place(self, results: Sequence[Any]) -> list[Any]:
        """The results in the memory of this run."""
        if self.count < len(self.runs) and kinds(self.runs[self.count]) == kinds(results):
            for buffer, result in zip(self.runs[self.count], results, strict=True):
                if isinstance(buffer, torch.Tensor):
                    buffer.detach().copy_(result)
        else:
            self.runs[self.count :] = [[each.clone() if isinstance(each, torch.Tensor) else each for each in results]]
        self.count += 1
        return list(self.runs[self.count - 1])


def kinds(values: Sequence[Any]) -> list[Any]:
    return [value.shape if isinstance(value, torch.Tensor) else value for value in values]


@dataclass(frozen=True)
class ReplayingBackend(FunctionBackend):
    replays: Replays = field(default_factory=Replays)

    def compile_forward(self, forward: GraphHalf, static_inputs: frozenset[int], differentiable: bool) -> Compiled:
        compiled = super().compile_forward(forward, static_inputs, differentiable)
        backward = compiled.compile_backward
        return replace(
            compiled,
            forward=self.replays.forward(compiled.forward),
            compile_backward=None if backward is None else lambda half: self.replays.backward(backward(half)),
            reuses_memory=True,
        )


@pytest.fixture
def compiled() -> Callable[[Callable], Callable]:
    reused_memory.OF_THREAD.late = reused_memory.LateCopies()
    backend = ReplayingBackend("replaying", EAGER.fw_compiler)
    return lambda function: aotgrad.aot_function(function, backend)


def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).sin().exp()


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)


def both(compiled: Callable, program: Callable[[Callable], Any]) -> None:
    """A program of a function computes the same with the compiled function as with the original one."""
    torch.testing.assert_close(program(compiled(layer)), program(layer), equal_nan=False)


def test_results_of_many_steps(compiled):
    def program(function):
        x, w = operands()
        results = []
        for _ in range(3):
            results.append(function(x, w))
            results.append(results[-1].detach()[1:])
            results[-2].sum().backward()
            w = (w - w.grad).detach().requires_grad_()
        return results

    both(compiled, program)


@pytest.mark.parametrize("to_none", [False, True])
def test_accumulated_gradients(compiled, to_none):
    def program(function):
        x, w = operands()
        gradients = []
        optimizer = torch.optim.SGD([w], 0.1)
        for step in range(6):
            function(x * step, w).sum().backward()
            gradients.append(w.grad.clone())
            if step % 3 == 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=to_none)
        return [*gradients, w]

    both(compiled, program)


def test_a_gradient_that_is_set_to_none_is_not_copied(compiled, monkeypatch):
    copied = []
    monkeypatch.setattr(reused_memory, "copy_of", lambda tensor: copied.append(tensor.shape) or tensor.clone())
    (x, w), function = operands(), compiled(layer)
    for _ in range(3):
        function(x, w).sum().backward()
        w.grad = None
    assert set(copied) == {(3, 5)}  # the results


def test_gradients_that_others_get(compiled):
    def program(function):
        x, w = operands()
        found, seen = [], []
        w.register_hook(lambda gradient: seen.append(gradient.detach()))
        for _ in range(2):
            found += torch.autograd.grad(function(x, w).sum(), w)
            function(x, w * 2).sum().backward()
        handle = w.register_post_accumulate_grad_hook(lambda leaf: found.append(leaf.grad[1:]))
        function(x, w).sum().backward()
        function(x, w).sum().backward()
        handle.remove()
        return [*found, *seen, w.grad]

    both(compiled, program)


def test_a_retained_graph(compiled):
    def program(function):
        x, w = operands()
        first = function(x, w).sum()
        first.backward(retain_graph=True)
        function(x + 1, w).sum().backward()
        first.backward()
        return w.grad

    both(compiled, program)


def test_a_backward_that_waits_for_others(compiled):
    def program(function):
        x, w = operands()
        first, second = function(x, w).sum(), function(x + 1, w).sum()
        second.backward()
        third = function(x + 2, w).sum()
        first.backward()
        third.backward()
        return w.grad

    both(compiled, program)


def test_results_without_gradients(compiled):
    def program(function):
        x, w = operands()
        with torch.no_grad():
            results = [function(x + step, w) for step in range(3)]
        function(x, w).sum().backward()
        with torch.no_grad():
            results += [function(x + step, w) for step in range(3)]
        return [*results, w.grad]

    both(compiled, program)


def test_forwards_without_backwards_are_forgotten(compiled):
    (x, w), function = operands(), compiled(layer)
    for _ in range(5):
        function(x, w)
    function(x, w)
    assert len(reused_memory.OF_THREAD.late.saved) <= 4  # those of the last call, and of the one that it replaced


def test_a_thread_leaves_the_copies_to_others(compiled):
    """Memory is reused within a thread. Another one may run while a gradient is not yet accumulated."""
    (x, w), function = operands(), compiled(layer)
    function(x, w).sum().backward()
    thread = threading.Thread(target=lambda: compiled(layer)(*operands()))
    thread.start()
    thread.join()
    late = reused_memory.OF_THREAD.late
    assert late.is_due and [leaf() is w for leaf, _ in late.gradients] == [True]


def test_memory_that_is_not_copied_is_overwritten(compiled, monkeypatch):
    """The other tests can fail."""
    monkeypatch.setattr(reused_memory, "copy_of", lambda tensor: tensor)
    (x, w), function = operands(), compiled(layer)
    result = function(x, w)
    result.sum().backward()
    before = result.detach().clone()
    function(-x, w)
    assert not torch.allclose(result, before) and w.grad.isnan().all()
