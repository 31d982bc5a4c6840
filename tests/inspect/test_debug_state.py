"""`debug_state()` of a compiled function."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.fx as fx
from torch import nn

import aotgrad


def two_heads(x, w):
    return (x * w).sin(), x.exp()


def trained(calls=1):
    compiled = aotgrad.aot_function(two_heads, aotgrad.nop)
    for _ in range(calls):
        x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        first, second = compiled(x, w)
        (first.sum() + second.sum()).backward()
    return compiled, x, w


def test_plans_with_hits_guards_graphs_and_source():
    compiled, *_ = trained(calls=3)
    state = compiled.debug_state()
    assert (state.name, state.plan_limit, state.fallbacks) == ("two_heads", 8, {})
    (plan,) = state.plans
    assert plan.hits == 2
    assert plan.compile_ms > 0
    assert plan.guards[0] == "tensor 0: torch.float32 (3,) strides (1,) cpu requires_grad"
    assert plan.guards[-1] == "global state: grad, default dtype torch.float32"
    assert list(plan.graphs) == ["joint", "forward", "backward 0", "backward 1"]
    assert all(isinstance(graph, fx.GraphModule) for graph in plan.graphs.values())
    assert plan.source.startswith("def call(args):")


def test_variants_of_the_backward_appear_when_they_have_run():
    compiled, x, w = trained()
    compiled(x, w)[1].sum().backward()
    torch.autograd.grad(compiled(x, w)[0].sum(), w)
    (plan,) = compiled.debug_state().plans
    assert list(plan.graphs)[2:] == ["backward 0", "backward 1", "backward 1 without gradient 0"]


def test_symbolic_sizes_are_conditions():
    compiled = aotgrad.aot_function(lambda x: x.sin(), aotgrad.nop, dynamic=True)
    compiled(torch.ones(3))
    (plan,) = compiled.debug_state().plans
    assert "sizes: 2 <= t0.size()[0]" in plan.guards


def test_a_state_is_a_picture():
    compiled, x, w = trained()
    before = compiled.debug_state()
    compiled(x, w)
    assert (before.plans[0].hits, compiled.debug_state().plans[0].hits) == (0, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.name = "other"


def test_why_calls_ran_eagerly_is_counted():
    compiled = aotgrad.aot_function(torch.sin, aotgrad.nop, options={"plan_limit": 1})
    compiled(torch.ones(1))
    torch.vmap(compiled)(torch.ones(2, 2))
    with pytest.warns(UserWarning, match="has 1 plans, the limit"):
        compiled(torch.ones(2)), compiled(torch.ones(3))
    off = aotgrad.aot_function(torch.sin, aotgrad.nop, options={"enabled": False})
    off(torch.ones(1))
    reasons = {"a trace, mode or transform watches every op": 1, "the limit of plans is reached": 2}
    assert compiled.debug_state().fallbacks == reasons
    assert off.debug_state().fallbacks == {"the option `enabled` is off": 1}
    assert "2 calls ran eagerly: the limit of plans is reached" in str(compiled.debug_state())


def test_modules_have_it_too():
    module = aotgrad.aot_module(nn.Linear(2, 1), aotgrad.nop)
    module(torch.ones(1, 2))
    state = module.debug_state()
    assert (state.name, len(state.plans)) == ("Linear", 1)


def test_a_graph_that_is_too_small_to_compile():
    compiled = aotgrad.aot_function(torch.sin, aotgrad.nop, options={"min_graph_ops": 5})
    assert torch.equal(compiled(torch.ones(1)), torch.ones(1).sin())
    (plan,) = compiled.debug_state().plans
    assert plan.graphs == {}
    assert "the original function runs eagerly" in str(plan)


def test_a_small_graph_does_nothing_twice():
    def count(x, calls):
        calls.n += 1
        return x * calls.n

    calls = type("Calls", (), {})()
    calls.n = 0
    compiled = aotgrad.aot_function(count, aotgrad.nop, options={"min_graph_ops": 5})
    assert [compiled(torch.ones(1), calls).item() for _ in range(3)] == [1, 2, 3] and calls.n == 3


def test_a_training_step_has_it():
    weight = torch.zeros(2)
    step = aotgrad.train_step(lambda x: weight.add_(x), [weight], backend="eager")
    step(torch.ones(2))
    (plan,) = step.debug_state().plans
    assert list(plan.graphs) == ["joint", "forward"]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_loaded_function(backend, tmp_path):
    compiled = aotgrad.aot_function(two_heads, backend, options={"min_graph_ops": 0})
    for size in (3, 4):
        x, w = torch.ones(size, requires_grad=True), torch.ones(size, requires_grad=True)
        compiled(x, w)[0].sum().backward()
    aotgrad.save(compiled, tmp_path / "plans")
    loaded = aotgrad.load(tmp_path / "plans")
    assert (loaded.debug_state().plans, loaded.debug_state().unread) == ((), 2)
    loaded(x, w)[0].sum().backward()
    loaded(x, w)
    state = loaded.debug_state()
    (plan,) = state.plans
    (original, _) = compiled.debug_state().plans
    assert plan.hits == 1 and plan.compile_ms > 0
    assert plan.source == original.source and plan.guards == original.guards
    assert list(plan.graphs) == list(original.graphs)[1:]
    assert "plans of the file that no call has needed: 1" in str(state) and "sin" in str(plan)


def test_a_loaded_step(tmp_path):
    def make():
        weight = torch.zeros(2)
        return lambda x: weight.add_(x), [weight]

    step, state = make()
    compiled = aotgrad.train_step(step, state, backend="eager")
    compiled(torch.ones(2))
    aotgrad.save(compiled, tmp_path / "plans")
    loaded = aotgrad.load(tmp_path / "plans", state=make()[1])
    loaded(torch.ones(2))
    (plan,) = loaded.debug_state().plans
    assert list(plan.graphs) == ["forward"]


def without_times(state):
    return dataclasses.replace(state, plans=tuple(dataclasses.replace(p, compile_ms=12.5) for p in state.plans))


def test_the_table(golden):
    def scale(x, y):
        return x.mul_(2).sin() + y

    compiled = aotgrad.aot_function(scale, aotgrad.nop)
    base = torch.ones(7)
    for args in ((torch.ones(3), torch.ones(3)), (base[:3], base[2:5]), (torch.ones(3), torch.ones(3))):
        compiled(*args)
    with torch.autocast("cpu"), torch.no_grad():
        compiled(torch.ones(2), torch.nn.Parameter(torch.ones(2)))
    torch.vmap(compiled)(torch.ones(2, 2), torch.ones(2, 2))
    golden("debug_state/table", f"{without_times(compiled.debug_state())}\n")


def test_one_plan_in_full(golden):
    compiled, _, _ = trained()
    golden("debug_state/plan", f"{compiled.debug_state().plans[0]}\n")
