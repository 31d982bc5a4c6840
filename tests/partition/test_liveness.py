"""The simulated memory equals that of the running halves, and of small programs computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

import aotgrad
from aotgrad.backends.eager import compile_eager
from aotgrad.graph.host_copies import OFFLOAD
from aotgrad.partition.decision import Objective
from aotgrad.partition.graphs import analyze_joint
from aotgrad.partition.items import Costed, CostModel
from aotgrad.partition.liveness import Program, simulate
from aotgrad.partition.min_cut import min_cut, simulated
from aotgrad.partition.policy import FREE_HAND
from aotgrad.partition.split import split
from aotgrad.passes import OverlapCopies
from tests.partition.joints import grad, joint_of


def chain() -> Program:
    """0, 1, 2 run in the forward, each on its predecessor; 3 reads 2 in the backward, 4 reads 3 and 1."""
    return Program(
        sizes=[10, 10, 10, 10, 10],
        reads=[[], [0], [1], [2], [3, 1]],
        forward=[0, 1, 2],
        backward=[3, 4],
        results=frozenset(),
        tangents=[],
        gradients=frozenset({4}),
    )


def test_saved_values_stay_until_their_last_use():
    profile = simulate(chain(), {1, 2})
    assert profile.forward == 20  # 0 is dead when 2 is made
    assert profile.backward == [30, 30]  # 1, 2 and 3; then 1, 3 and 4
    assert (profile.first[1], profile.last(1), profile.last(2)) == (1, 1, 0)


def test_what_runs_again_takes_memory_from_its_first_use_on():
    profile = simulate(chain(), {0})
    assert profile.backward == [30, 30]  # 0, 1, 2, of which 0 dies, then 1, 2, 3; then 1, 3 and 4
    assert profile.first[1] == 0


def test_results_are_held_by_the_caller_all_along():
    program = chain()
    held = Program(program.sizes, program.reads, [0, 1, 2], [3, 4], frozenset({0}), [], frozenset({4}))
    assert simulate(held, {1, 2}).backward == [40, 40]


# --- Against a simulation that runs op by op --------------------------------------------------------------------------


@st.composite
def programs(draw) -> tuple[Program, set[int]]:
    """A program and its saved values; values without operands, such as inputs, are always saved."""
    count, rest, made = draw(st.integers(1, 8)), draw(st.integers(1, 6)), draw(st.integers(1, 8))
    tangent = count
    reads = [sorted(draw(st.sets(st.integers(0, k - 1), max_size=3))) if k else [] for k in range(count)]
    reads += [[], *(sorted({tangent, *draw(st.sets(st.integers(0, count + k), max_size=3))}) for k in range(rest))]
    forward = closure(range(min(made, count)), reads)
    backward = list(range(count + 1, count + 1 + rest))
    sizes = draw(st.lists(st.sampled_from([0, 3, 7]), min_size=count + 1 + rest, max_size=count + 1 + rest))
    ops = [value for value in range(len(sizes)) if reads[value]]
    program = Program(
        sizes=sizes,
        reads=reads,
        forward=sorted(forward),
        backward=backward,
        results=frozenset(draw(st.sets(st.sampled_from(sorted(forward)), max_size=2))),
        tangents=[tangent],
        gradients=frozenset({backward[-1], *draw(st.sets(st.integers(0, count - 1), max_size=1))}),
        workspace={value: draw(st.integers(1, 9)) for value in draw(st.sets(st.sampled_from(ops), max_size=2))},
        overwrites={value: tuple(v for v in reads[value] if reads[v] and sizes[v] == sizes[value]) for value in ops},
    )
    inputs = {value for value in range(count) if not reads[value]}
    return program, inputs | draw(st.sets(st.integers(0, count - 1)))


def closure(wanted, reads, stop=()) -> set[int]:
    found, stack = set(), list(wanted)
    while stack:
        value = stack.pop()
        if value not in found and value not in stop:
            found.add(value)
            stack.extend(reads[value])
    return found


def bytes_alive(program: Program, order: list[int], given: set[int], kept: set[int]) -> list[int]:
    """The live bytes while each op of `order` runs: values live until their last use, and `kept` for ever."""
    alive, found = set(given), []
    for position, value in enumerate(order):
        alive.add(value)
        needed = {v for other in order[position + 1 :] for v in (other, *program.reads[other])} | given | kept
        reused = next((v for v in program.overwrites.get(value, ()) if v in alive and v not in needed), None)
        taken_over = 0 if reused is None else program.sizes[reused]
        found.append(sum(program.sizes[v] for v in alive) + program.workspace.get(value, 0) - taken_over)
        later = {v for other in order[position + 1 :] for v in (other, *program.reads[other])}
        used = {v for other in order for v in (other, *program.reads[other])}
        alive = {v for v in alive if v in kept or v in later or v not in used}
    return found


@settings(max_examples=300, deadline=None)
@given(programs())
def test_the_profile_is_that_of_one_op_after_the_other(drawn):
    program, saved = drawn
    saved |= program.results  # a recomputed value takes memory twice, which a set of values does not show
    forward = sorted({*program.forward, *closure(saved, program.reads)})
    profile = simulate(program, saved)
    assert profile.forward == max(bytes_alive(program, forward, set(), saved | program.results))

    given = saved | program.results | set(program.tangents)
    available, order, steps = saved | set(program.tangents), [], []
    for step, value in enumerate([*program.backward, None]):
        missing = sorted(closure(program.gradients if value is None else [value], program.reads, available) - {value})
        available |= {*missing, value}
        order += [v for v in (*missing, value) if v is not None]
        steps += [step] * (len(order) - len(steps))
    counted = bytes_alive(program, order, given, set(program.results | program.gradients))
    for step, most in enumerate(profile.backward[: len(program.backward)]):
        assert most == max(alive for alive, at in zip(counted, steps, strict=True) if at == step)
    assert profile.peak >= max(counted)


# --- Against the halves as they run ----------------------------------------------------------------------------------


class Allocations(TorchDispatchMode):
    """Bytes of all live storages that ops allocated inside, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = WeakIdKeyDictionary()
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        known = {id(s) for s in self.sizes}
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if (
                isinstance(value, Tensor)
                and not func.is_view
                and func is not OFFLOAD
                and id(value.untyped_storage()) not in known
            ):
                self.sizes[value.untyped_storage()] = value.untyped_storage().nbytes()
        self.peak = max(self.peak, sum(self.sizes.values()))
        return result


def mlp(x, *weights):
    for w in weights:
        x = torch.tanh(F.gelu(x @ w)) + x
    return x.sum()


def attention(x, w):
    q, k, v = (x @ w).split(16, dim=-1)
    return (torch.softmax(q @ k.t(), dim=-1) @ v).cos().sum()


CASES = {
    "mlp": (mlp, lambda: [grad(64, 32), *(grad(32, 32) for _ in range(6))]),
    "attention": (attention, lambda: [grad(64, 16), grad(16, 48)]),
}


@pytest.mark.parametrize("budget", [None, 0.6, 0.2, 0.0])
@pytest.mark.parametrize("name", CASES)
def test_the_simulated_peak_is_the_measured_one(name, budget):
    fn, make = CASES[name]
    inputs = make()
    analysis = analyze_joint(joint_of(fn, *inputs))
    items = Costed.of(analysis, CostModel(fuses=False)).items(FREE_HAND)
    decision = min_cut(analysis, Objective(budget, fuses=False))
    solution = items.problem.solution({items.number[node] for node in decision.saved})
    halves = split(analysis, decision)
    expected = simulated(items, solution)
    with torch.no_grad(), Allocations() as allocations:
        forward, backward = (compile_eager(half.module, []) for half in (halves.forward, halves.backward))
        loss, *saved = forward([t.detach() for t in inputs])
        forward_peak, allocations.peak = allocations.peak, 0
        args = [*saved, torch.ones(())]
        del saved
        backward(args)
    measured = max(forward_peak, allocations.peak)
    assert loss.shape == ()
    assert abs(expected.peak - measured) <= 0.01 * measured


@pytest.mark.parametrize("budget", [None, 0.3, 0.0])
def test_the_simulated_peak_of_offloaded_values_is_the_measured_one(budget):
    """Values are large, so that computations hide copies; what is on the host does not count."""
    inputs = [grad(192, 192), *(grad(192, 192) for _ in range(6))]
    analysis = analyze_joint(joint_of(mlp, *inputs))
    items = Costed.of(analysis, CostModel(fuses=False, host_bytes=math.inf)).items(FREE_HAND)
    decision = min_cut(analysis, Objective(budget, fuses=False, host_bytes=math.inf))
    assert len(decision.offloaded) >= 3
    away = {items.number[node] for node in decision.offloaded}
    solution = items.problem.solution({items.number[node] for node in decision.saved}, away)
    expected = simulated(items, solution)
    halves = split(analysis, decision)
    schedule = OverlapCopies.of(halves)
    with torch.no_grad(), Allocations() as allocations:
        forward, backward = (compile_eager(schedule.apply(half).module, []) for half in (halves.forward, halves.backward))
        loss, *saved = forward([t.detach() for t in inputs])
        forward_peak, allocations.peak = allocations.peak, 0
        args = [*saved, torch.ones(())]
        del saved
        backward(args)
    assert loss.shape == ()
    assert abs(expected.forward - forward_peak) <= 0.01 * forward_peak
    assert abs(max(expected.backward) - allocations.peak) <= 0.01 * allocations.peak
    assert expected.peak < simulated(items, items.problem.solution(solution.saved)).peak


def test_an_offloaded_value_is_away_while_the_link_and_the_host_have_it():
    """Values 0 to 3 in the forward, each read by the next one; 5 to 8 in the backward, of which the last reads 0."""
    program = Program(
        sizes=[100, 1, 1, 1, 1, 1, 1, 1, 1],
        reads=[[], [0], [1], [2], [], [4], [5], [6], [7, 0]],
        forward=[0, 1, 2, 3],
        backward=[5, 6, 7, 8],
        results=frozenset({3}),
        tangents=[4],
        gradients=frozenset({8}),
        times=[1] * 9,
        trips={0: 1},
    )
    kept, away = simulate(program, {0}), simulate(program, {0}, {0})
    assert [alive >= 100 for alive in kept.backward] == [True] * 4
    assert [alive >= 100 for alive in away.backward] == [False, False, True, True]
    slow = simulate(replace(program, trips={0: 3}), {0}, {0})
    assert [alive >= 100 for alive in slow.backward] == [True] * 4 and slow.forward == away.forward


def test_a_budget_on_the_peak_uses_the_host():
    inputs = [grad(192, 192), *(grad(192, 192) for _ in range(6))]
    analysis = analyze_joint(joint_of(mlp, *inputs))
    alone = peaks_and_times(analysis, None)
    for (peak, time), (other_peak, other_time) in zip(peaks_and_times(analysis, math.inf), alone, strict=True):
        assert time <= other_time or peak < other_peak


def peaks_and_times(analysis, host_bytes):
    items = Costed.of(analysis, CostModel(fuses=False, host_bytes=host_bytes)).items(FREE_HAND)
    for budget in (0.9, 0.8, 0.7):
        decision = min_cut(analysis, Objective(budget, "peak", fuses=False, host_bytes=host_bytes))
        numbers = [{items.number[node] for node in nodes} for nodes in (decision.saved, decision.offloaded)]
        solution = items.problem.solution(*numbers)
        yield simulated(items, solution).peak, solution.time


def test_a_budget_on_the_peak_is_kept_and_never_slower_with_more():
    inputs = CASES["mlp"][1]()
    analysis = analyze_joint(joint_of(mlp, *inputs))
    items = Costed.of(analysis, CostModel(fuses=False)).items(FREE_HAND)
    reference = None
    times = []
    for budget in (1.0, 0.9, 0.8, 0.7, 0.65):
        decision = min_cut(analysis, Objective(budget, "peak", fuses=False))
        solution = items.problem.solution({items.number[node] for node in decision.saved})
        peak = simulated(items, solution).peak
        reference = reference or simulated(items, items.problem.solution(_plain(analysis, items))).peak
        assert peak <= budget * reference
        times.append(solution.time)
    assert times == sorted(times)


def _plain(analysis, items) -> set[int]:
    return {items.number[node] for node in min_cut(analysis, Objective(fuses=False)).saved}


def test_an_unreachable_peak_gives_the_lowest_one_and_says_so():
    f = aotgrad.aot_function(mlp, compile_eager, options={"memory_budget": 100, "memory_budget_of": "peak"})
    with pytest.warns(UserWarning, match=r"memory_budget is 100 bytes, but \d+ bytes is the least"):
        f(grad(8, 8), grad(8, 8))
