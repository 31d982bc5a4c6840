"""The cut: cheap values are recomputed where that saves memory, never an op that must run once."""

from __future__ import annotations

import itertools

import expecttest
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._inductor import inductor_prims

from aotgrad.errors import PartitionError
from aotgrad.ir import Partition
from aotgrad.partition import costs, default_partition, min_cut_rematerialization_partition, partition
from aotgrad.partition.decision import Objective
from aotgrad.partition.graphs import analyze_joint
from aotgrad.partition.min_cut import min_cut, recompute_all
from aotgrad.partition.save_all import save_all
from aotgrad.partition.split import split
from aotgrad.slots import Saved
from tests.partition.cases import CASES
from tests.partition.joints import grad, hand_made, joint_of, node_names, run_halves, run_joint, tangents_for, targets


def saved_names(halves: Partition) -> list[str]:
    return [value.slot.name for value in halves.saved]


def cut(joint, fuses: bool = True) -> Partition:
    return partition(joint, min_cut_rematerialization_partition, Objective(fuses=fuses))


def tensor_bytes(halves: Partition) -> int:
    return sum(value.saved_bytes for value in halves.saved if isinstance(value.slot, Saved))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_never_saves_more_than_everything_that_crosses(case):
    joint = joint_of(case.fn, *case.inputs(), static=case.static, mutated=case.mutated, dynamic=case.dynamic)
    assert tensor_bytes(cut(joint)) <= tensor_bytes(partition(joint, default_partition))


def test_one_value_is_held_instead_of_two():
    """The backward reads sin(h) and cos(h) in pointwise ops; h is enough."""
    joint = joint_of(lambda x, w: (lambda h: h.sin() * h.cos())(x @ w), grad(8, 8), grad(8, 8), static=[1])
    assert "mm" in saved_names(cut(joint))
    assert not {"sin", "cos"} & set(saved_names(cut(joint)))
    assert {"sin", "cos"} <= set(saved_names(partition(joint, default_partition)))


def test_a_mask_is_saved_in_place_of_what_it_was_made_from():
    mask = hand_made(lambda x, t: ([x.sum(0)], [t * (x.cumsum(0) > 0)]), [torch.randn(8, 8)], [torch.ones(8)])
    assert saved_names(cut(mask)) == ["gt"] and cut(mask).saved_bytes == 64


def test_a_mask_is_saved_since_inductor_writes_what_it_draws():
    """Numbers drawn from a seed take their own memory, more than the mask computed from them."""

    def function(x, seeds, tangent):
        seed = inductor_prims.lookup_seed(seeds, 0)
        mask = inductor_prims.random([64, 64], seed, "rand") > 0.5
        return [(x * mask).sum(0)], [tangent * mask, None]

    joint = hand_made(function, [torch.randn(64, 64), torch.ones(1, dtype=torch.int64)], [torch.ones(64)])
    halves = partition(joint, min_cut_rematerialization_partition, Objective(memory_budget=1 << 30))
    assert saved_names(halves) == ["gt"]


def test_what_the_forward_writes_anyway_is_saved():
    """`exp` fuses with the sum, so saving it costs a write that saving `mm` does not."""
    joint = joint_of(lambda x, w: (x @ w).exp().sum(), grad(8, 8), grad(8, 8), static=[1])
    assert saved_names(cut(joint)) == ["primals_1", "primals_2", "mm"]


def test_what_a_matrix_product_reads_is_saved():
    """Recomputing gelu for a product writes its result to memory: done where ops fuse and a kernel reads `mm` anyway."""
    joint = joint_of(lambda x, w, v: F.gelu(x @ w) @ v, grad(8, 8), grad(8, 8), grad(8, 8), static=[1, 2])
    assert {"mm", "gelu"} <= set(saved_names(cut(joint, fuses=False)))
    assert "gelu" not in saved_names(cut(joint))


def test_a_chain_of_sums_is_recomputed_where_ops_fuse():
    """The sums of a residual network are saved now and then; each is one more tensor read between."""

    def fn(x, *weights):
        for w in weights:
            x = x + F.gelu(x @ w)
        return x.cos()

    joint = joint_of(fn, *(grad(64, 64) for _ in range(5)), static=[1, 2, 3, 4])
    saved, fused = (saved_names(cut(joint, fuses=fuses)) for fuses in (False, True))
    assert len(fused) < len(saved)


def test_constants_and_creation_run_again():
    joint = joint_of(lambda x: (x * torch.arange(64.0)).sin(), grad(64))
    assert "arange" not in saved_names(cut(joint))
    assert "aten.arange.default" in targets(cut(joint).backward.module)


def test_expensive_and_random_ops_never_run_again():
    def fn(x, w):
        h = F.dropout(torch.softmax(x @ w, -1), 0.5)
        return h.cumsum(0).sort(0)[0].sin()

    joint = joint_of(fn, grad(6, 6), grad(6, 6))
    halves = cut(joint)
    again = set(node_names(halves.forward.module)) & set(node_names(halves.backward.module))
    assert not again & {"_softmax", "bernoulli", "cumsum", "mm", "sort"}


def test_an_output_is_held_by_the_caller_and_costs_nothing():
    joint = joint_of(lambda x, w: (x @ w).exp(), grad(8, 8), grad(8, 8), static=[1])
    saved = {value.slot.name: value for value in cut(joint).saved}
    assert saved["exp"].saved_bytes == 0
    assert saved["exp"].reason == "needed by mul in the backward; held by the caller, and saved in eager too, alive anyway"


def test_inputs_that_eager_does_not_save_are_not_saved():
    joint = joint_of(lambda x: (x + 1).sin().sum(), grad(8))
    assert saved_names(cut(joint)) == ["add"]


def test_a_size_is_saved_and_not_the_tensor_it_was_read_from():
    joint = joint_of(lambda x: x.sum(0), grad(6, 5), dynamic=True)
    halves = cut(joint)
    assert all(not isinstance(value.slot, Saved) for value in halves.saved)
    assert halves.saved_bytes == costs.SYMBOLIC_VALUE_BYTES * len(halves.saved)


@pytest.mark.parametrize("partition_fn", [default_partition, min_cut_rematerialization_partition])
def test_a_tuple_that_the_backward_reads_as_a_whole_is_refused(partition_fn):
    joint = hand_made(lambda x, t: ([x.sort()[0].sin()], [t * x.cos()]), [torch.randn(3)], [torch.ones(3)])
    nodes = {node.name: node for node in joint.module.graph.nodes}
    nodes["mul"].args = (nodes["tangents_1"], nodes["sort"])
    with pytest.raises(PartitionError, match="sort"):
        partition(joint, partition_fn)


class ReasonsTest(expecttest.TestCase):
    """The printed reasons of a small attention block."""

    def test_attention(self):
        def attention(x, w):
            q, k, v = (x @ w).split(8, dim=-1)
            scores = torch.tanh(q @ k.t() / 8**0.5) * 30
            return F.dropout(torch.softmax(scores, dim=-1), 0.1) @ v

        halves = cut(joint_of(attention, grad(5, 8), grad(8, 24), static=[1]))
        lines = [f"{value.slot}, {value.saved_bytes} bytes: {value.reason}" for value in halves.saved]
        self.assertExpectedInline(
            "\n".join(lines),
            """\
saved primals_1, 160 bytes: needed by mm_7 in the backward; an input of the graph
saved primals_2, 0 bytes: needed by mm_8 in the backward; an input of the graph, alive anyway
saved mm, 480 bytes: needed by mm_4 in the backward; result of mm, never recomputed
saved mm_1, 100 bytes: needed to recompute div in the backward; result of mm, never recomputed
saved _softmax, 100 bytes: needed by _softmax_backward_data in the backward; result of _softmax, never recomputed
saved div_1, 100 bytes: needed by mul_2 in the backward; div is cheap, but costs more to recompute than to hold
saved mul_1, 100 bytes: needed by mm_3 in the backward; mul is cheap, but costs more to recompute than to hold""",
        )


# --- Random programs -------------------------------------------------------------------------------------------------


@st.composite
def programs(draw):
    """A random chain of ops on square matrices: each step reads earlier values."""
    ops = draw(st.lists(st.sampled_from(["sin", "mul", "mm", "relu", "sum", "view", "dropout"]), min_size=1, max_size=5))
    return [(op, draw(st.integers(0, k)), draw(st.integers(0, k))) for k, op in enumerate(ops)]


APPLY = {
    "sin": lambda a, b: a.sin(),
    "mul": lambda a, b: a * b,
    "mm": lambda a, b: a @ b,
    "relu": lambda a, b: a.relu(),
    "sum": lambda a, b: a.sum(0, keepdim=True) + b,
    "view": lambda a, b: a.t(),
    "dropout": lambda a, b: F.dropout(a, 0.5),
}


def as_function(program):
    def fn(x):
        values = [x]
        for op, first, second in program:
            values.append(APPLY[op](values[first], values[second]))
        return values[-1], values[len(values) // 2].exp()

    return fn


@settings(max_examples=25, deadline=None)
@given(programs())
def test_random_programs(program):
    torch.manual_seed(0)
    inputs = [grad(3, 3)]
    joint = joint_of(as_function(program), *inputs)
    analysis = analyze_joint(joint)
    everything = split(analysis, save_all(analysis, Objective()))
    least = split(analysis, recompute_all(analysis, Objective()))
    assert tensor_bytes(split(analysis, min_cut(analysis, Objective()))) <= tensor_bytes(everything)
    tangents = tangents_for(joint)
    torch.manual_seed(1)
    expected = run_joint(joint, inputs, tangents)
    for fuses, budget in itertools.product([True, False], [None, 1.0, 0.5, 0.0]):
        halves = split(analysis, min_cut(analysis, Objective(budget, fuses=fuses)))
        assert least.saved_bytes <= halves.saved_bytes
        torch.manual_seed(1)
        torch.testing.assert_close(run_halves(joint, halves, inputs, tangents), expected, rtol=0, atol=0)
