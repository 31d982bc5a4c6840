"""Collectives run once, in traced order, and start early if the option says so."""

from __future__ import annotations

import pytest
import torch

import aotgrad
from aotgrad.partition import Objective, min_cut_rematerialization_partition, partition, recompute_all_partition
from aotgrad.partition.schedule import collectives_first
from tests.fake_processes import fake_processes
from tests.partition.joints import hand_made, targets


@pytest.fixture(autouse=True)
def two_ranks():
    with fake_processes(2):
        yield


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    return torch.ops._c10d_functional.all_reduce(x, "sum", "0")


def wait(x: torch.Tensor) -> torch.Tensor:
    return torch.ops._c10d_functional.wait_tensor(x)


def summed(x: torch.Tensor) -> torch.Tensor:
    return wait(all_reduce(x))


def gathered_product(x, w, t):
    """The backward reads the forward's data from the other ranks, and an activation of it."""
    full = summed(w)
    h = x @ full
    y = h.sin()
    g = t * h.cos()
    return [y], [g @ full.t(), x.t() @ g]


@pytest.mark.parametrize("budget", [None, 0.5, 0.0, 1])
@pytest.mark.filterwarnings("ignore:memory_budget is 1 bytes")
def test_they_never_run_again(budget):
    joint = hand_made(gathered_product, [torch.randn(4, 4), torch.randn(4, 4)], [torch.ones(4, 4)])
    halves = partition(joint, min_cut_rematerialization_partition, Objective(budget))
    assert [name for name in targets(halves.forward.module) if "c10d" in name] == [
        "_c10d_functional.all_reduce.default",
        "_c10d_functional.wait_tensor.default",
    ]
    assert not [name for name in targets(halves.backward.module) if "c10d" in name]
    assert "wait_tensor" in [value.slot.name for value in halves.saved]


def test_not_even_if_everything_else_does():
    joint = hand_made(gathered_product, [torch.randn(4, 4), torch.randn(4, 4)], [torch.ones(4, 4)])
    halves = partition(joint, recompute_all_partition)
    assert not [name for name in targets(halves.backward.module) if "c10d" in name]


def two_gradients(x, w, t):
    """Each gradient is reduced and awaited at once, as in autograd's hooks."""
    g = t * x
    first = summed(g @ w)
    second = summed(w.t() @ g)
    return [(x @ w).sum(0)], [first * 2, second.relu()]


def launches(module) -> list[str]:
    return [name.split(".")[1] for name in targets(module) if "c10d" in name or ".mm" in name or "relu" in name]


TWO_GRADIENTS = [torch.randn(4, 4), torch.randn(4, 4)], [torch.ones(4)]


def test_without_the_option_their_places_stay():
    halves = partition(hand_made(two_gradients, *TWO_GRADIENTS), min_cut_rematerialization_partition)
    assert launches(halves.backward.module) == [
        *["mm", "all_reduce", "wait_tensor", "mm", "all_reduce", "wait_tensor", "relu"],
    ]


def test_they_start_early_and_are_waited_for_late():
    objective = Objective(collectives_first=True)
    halves = partition(hand_made(two_gradients, *TWO_GRADIENTS), min_cut_rematerialization_partition, objective)
    assert launches(halves.backward.module) == [
        *["mm", "all_reduce", "mm", "all_reduce", "wait_tensor", "wait_tensor", "relu"],
    ]
    halves.backward.module.graph.lint()


def late_collectives(x, w, t):
    """The operand of the reduction is computed long before the reduction."""
    g = t * x
    other = (g @ w).relu()
    reduced = all_reduce(g)
    more = other @ w
    result = wait(reduced)
    last = more @ w
    return [(x @ w).sum(0)], [result + last, last]


def test_other_work_goes_between_the_start_and_the_wait():
    args = [torch.randn(4, 4), torch.randn(4, 4)], [torch.ones(4)]
    plain = partition(hand_made(late_collectives, *args), min_cut_rematerialization_partition)
    assert launches(plain.backward.module) == ["mm", "relu", "all_reduce", "mm", "wait_tensor", "mm"]
    early = partition(
        hand_made(late_collectives, *args), min_cut_rematerialization_partition, Objective(collectives_first=True)
    )
    assert launches(early.backward.module) == ["all_reduce", "mm", "relu", "mm", "mm", "wait_tensor"]


def test_a_collective_of_a_collective_and_what_nobody_reads():
    def build(x, t):
        g = t * x
        unread = all_reduce(g.sin())
        both = summed(summed(g))
        wait(unread)
        return [x.sum(0)], [both.relu()]

    joint = hand_made(build, [torch.randn(4, 4)], [torch.ones(4)])
    nodes = [node for node in joint.module.graph.nodes if node.op == "call_function"]
    ordered = collectives_first(nodes)
    assert sorted(ordered, key=nodes.index) == nodes
    position = {node: k for k, node in enumerate(ordered)}
    assert all(position[arg] < position[node] for node in ordered for arg in node.all_input_nodes if arg in position)
    starts = [node for node in nodes if "all_reduce" in str(node.target)]
    assert sorted(starts, key=position.__getitem__) == starts


def test_the_option():
    x = torch.randn(4, 4, requires_grad=True)
    f = aotgrad.aot_function(lambda x: x.sin(), aotgrad.nop, options={"collectives_first": True})
    f(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
