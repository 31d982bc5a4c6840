"""Plain attributes that a forward changes: once in each call, whatever becomes of its trace."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad.errors import CaptureError
from aotgrad.guards.module_attributes import ModuleAttributes


class Counting(nn.Module):
    """Changes attributes of each kind, of its own and of a part."""

    def __init__(self, run: Callable[[Any], Any] = torch.sin) -> None:
        super().__init__()
        self.part, self.run = nn.Linear(2, 2), run
        self.count, self.calls, self.sizes, self.kinds = 0, [], {}, set()
        self.statistics = SimpleNamespace(last=None, nested=[[0]])

    def forward(self, x):
        self.count += 1
        self.part.count = self.count
        self.calls.append(self.count)
        self.sizes[self.count] = tuple(x.shape)
        self.kinds.add(x.dtype)
        self.statistics.last = self.count
        self.statistics.nested[0][0] += 1
        return self.run(self.part(x))


def attributes_of(module: Counting) -> list[Any]:
    """The attributes that a call changes."""
    of_part = getattr(module.part, "count", 0)
    statistics = (module.statistics.last, module.statistics.nested)
    return [module.count, of_part, module.calls, module.sizes, module.kinds, *statistics]


def after(calls: int) -> list[Any]:
    """The attributes after calls in eager mode."""
    module = Counting()
    for _ in range(calls):
        module(torch.ones(1, 2))
    return attributes_of(module)


def branch(y):
    return y * 2 if y.sum() < 1e9 else y


def failing(y):
    raise ValueError("in the forward")


def compiled_module(module: Counting, backend: Any = aotgrad.nop, **options: Any) -> Callable:
    return aotgrad.aot_module(module, backend, options={"min_graph_ops": 0, **options})


def compiled_method(module: Counting, backend: Any = aotgrad.nop, **options: Any) -> Callable:
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return aotgrad.aot_function(module.forward, backend, options={"min_graph_ops": 0, **options})


def compiled_step(module: Counting, backend: Any = aotgrad.nop, **options: Any) -> Callable:
    return aotgrad.train_step(lambda x: module(x), [module], backend=backend, options={"min_graph_ops": 0, **options})


ways = pytest.mark.parametrize("way", [compiled_module, compiled_method, compiled_step])


@ways
@pytest.mark.parametrize("run", [torch.sin, branch], ids=["straight", "branch"])
def test_each_call_changes_them_once(way, run):
    module = Counting(run)
    compiled = way(module, on_error="eager")
    for count in range(1, 4):
        compiled(torch.ones(1, 2))
        assert attributes_of(module) == after(count)


class InstallsHooks(nn.Module):
    """Registers a hook and makes a part when it runs first, as some libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.is_ready, self.calls = nn.Linear(2, 2), False, 0

    def count(self, *_: Any) -> None:
        self.calls += 1

    def forward(self, x):
        if not self.is_ready:
            self.linear.register_forward_hook(self.count)
            self.activation, self.is_ready = nn.Tanh(), True
        return branch(self.activation(self.linear(x)))


def test_hooks_that_a_forward_registers_are_there_once():
    """The first trace does not know the value that the branch depends on, so there is a second one."""
    module = InstallsHooks()
    compiled = aotgrad.aot_module(module, aotgrad.nop)
    for calls in range(1, 4):
        compiled(torch.ones(1, 2)).sum().backward()
        assert (module.calls, len(module.linear._forward_hooks)) == (calls, 1)


@ways
def test_an_error_leaves_them_as_in_eager_mode(way):
    module = Counting(failing)
    with pytest.raises(ValueError, match="in the forward"):
        way(module)(torch.ones(1, 2))
    assert attributes_of(module) == after(1)


@ways
def test_a_plan_that_cannot_be_made_leaves_them(way):
    module = Counting(lambda y: y.where(y.data_ptr() != 0, 0))
    with pytest.raises(CaptureError):
        way(module)(torch.ones(1, 2))
    assert attributes_of(module) == attributes_of(Counting())


@ways
def test_a_backend_that_fails_leaves_them(way):
    """The forward has been traced when its backend fails."""

    def broken(graph, inputs):
        raise RuntimeError("no kernel")

    module = Counting()
    with pytest.raises(RuntimeError, match="no kernel"):
        way(module, broken)(torch.ones(1, 2))
    assert attributes_of(module) == attributes_of(Counting())


class HookThatCounts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen, self.shape = 0, (2,)

    def hook(self, gradient):
        self.seen += 1

    def forward(self, x):
        y = x.sin()
        y.register_hook(self.hook)
        return y * 2


class BlockThatCounts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen, self.shape = 0, (2,)

    def block(self, x):
        self.seen += 1
        return x.sin()

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


@pytest.mark.parametrize("kind", [HookThatCounts, BlockThatCounts])
def test_a_backward_that_changes_one_is_refused(kind):
    module = kind()
    compiled = aotgrad.aot_module(module, aotgrad.nop, options={"min_graph_ops": 0})
    with pytest.raises(CaptureError, match=rf"changes 'seen' of a {kind.__name__} in the backward"):
        compiled(torch.ones(2, requires_grad=True)).sum().backward()
    assert module.seen == 0


def test_a_checkpointed_block_may_assign_an_equal_value():
    class Block(BlockThatCounts):
        def block(self, x):
            self.shape = tuple(x.shape)
            return x.sin()

    x = torch.ones(2, requires_grad=True)
    compiled = aotgrad.aot_module(Block(), aotgrad.nop)
    compiled(x).sum().backward()
    assert torch.equal(x.grad, torch.ones(2).cos())


def test_changes_have_names_and_a_way_back():
    module = Counting()
    before = ModuleAttributes.of([module])
    assert list(before.changes()) == []
    module(torch.ones(1, 2))
    names = {change.name for change in before.changes()}
    assert names == {
        *("'count' of a Counting", "'count' of a Linear", "'last' of a SimpleNamespace"),
        *("a list", "a dict", "a set"),
    }
    for change in list(before.changes()):
        change.undo()
    assert attributes_of(module) == attributes_of(Counting()) and not hasattr(module.part, "count")


class Tracker:
    """Counts as a method of it, and as an object that is called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: Any) -> None:
        self.calls += 1

    def record(self, *_: Any) -> None:
        self.calls += 1


def counted_by(kind: str, module: nn.Module) -> Tracker:
    """Register a hook that counts the calls of a module."""
    tracker = Tracker()
    hook = {"an object": tracker, "a method": tracker.record, "a function": lambda *values: tracker.record(*values)}[kind]
    module.register_forward_hook(hook)
    return tracker


@pytest.mark.parametrize("kind", ["an object", "a method", "a function"])
@pytest.mark.parametrize("way", [compiled_module, compiled_method, compiled_step])
def test_hooks_of_parts_count_each_call(kind, way):
    module = Counting()
    tracker = counted_by(kind, module.part)
    compiled = way(module)
    for calls in range(1, 4):
        compiled(torch.ones(1, 2))
        assert tracker.calls == calls


def test_hooks_of_the_module_itself_run_outside_of_its_plan():
    module = nn.Linear(2, 2)
    tracker, compiled = (
        counted_by("a function", module),
        aotgrad.aot_module(module, aotgrad.nop, options={"min_graph_ops": 0}),
    )
    for calls in range(1, 4):
        compiled(torch.ones(1, 2))
        assert tracker.calls == calls and len(compiled.plans()) == 1


def test_a_hook_that_keeps_a_tensor_is_an_error():
    module, features = nn.Sequential(nn.Linear(2, 2), nn.Tanh()), {}
    module[0].register_forward_hook(lambda part, args, result: features.update(last=result))
    with pytest.raises(CaptureError, match="assigns a tensor to a dict"):
        aotgrad.aot_module(module, aotgrad.nop)(torch.ones(1, 2))
    assert features == {}
