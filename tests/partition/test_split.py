"""The two halves compute the joint graph, for any choice of saved values."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from aotgrad.errors import PartitionError
from aotgrad.partition import default_partition, min_cut_rematerialization_partition, partition
from aotgrad.partition.adapt import read_halves
from aotgrad.partition.decision import Decision
from aotgrad.partition.graphs import analyze_joint
from aotgrad.partition.split import split
from aotgrad.slots import Saved, SavedSymInt, UserOutput
from tests.partition.cases import CASES, Case
from tests.partition.joints import (
    as_joint,
    grad,
    hand_made,
    joint_of,
    node_names,
    run_halves,
    run_joint,
    tangents_for,
    targets,
)

PARTITION_FNS = [default_partition, min_cut_rematerialization_partition]


def joint_of_case(case: Case):
    torch.manual_seed(0)
    inputs = case.inputs()
    return joint_of(case.fn, *inputs, static=case.static, mutated=case.mutated, dynamic=case.dynamic), inputs


@pytest.mark.parametrize("partition_fn", PARTITION_FNS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_halves_compute_the_joint_graph(case, partition_fn):
    joint, inputs = joint_of_case(case)
    halves = partition(joint, partition_fn)
    tangents = tangents_for(joint)
    torch.manual_seed(1)
    expected = run_joint(joint, inputs, tangents)
    torch.manual_seed(1)
    given = run_halves(joint, halves, inputs, tangents)
    torch.testing.assert_close(given, expected, rtol=0, atol=0)
    assert [v.stride() for v in tensors(given)] == [v.stride() for v in tensors(expected)]
    halves.forward.module.graph.lint()
    halves.backward.module.graph.lint()


@pytest.mark.parametrize("partition_fn", PARTITION_FNS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_sides_agree_on_names_and_types(case, partition_fn):
    """Our functions satisfy the requirements on a user's function."""
    joint, _ = joint_of_case(case)
    halves = partition(joint, partition_fn)
    read = read_halves(dataclasses.replace(joint, mutated_inputs=frozenset()), *modules(halves))
    assert read.forward.signature == halves.forward.signature
    assert read.backward.signature == halves.backward.signature
    assert {value.slot for value in read.saved} == {value.slot for value in halves.saved}


def modules(halves):
    return halves.forward.module, halves.backward.module


def tensors(values):
    return [value for value in values if isinstance(value, torch.Tensor)]


def saving(joint, *names: str):
    """Split `joint` at the named nodes."""
    chosen = {node: "chosen" for node in joint.module.graph.nodes if node.name in names}
    return split(analyze_joint(joint), Decision(chosen, {}))


def node_of(module, name):
    return next(node for node in module.graph.nodes if node.name == name)


# --- Saved values ----------------------------------------------------------------------------------------------------


def test_saved_values_are_named_by_their_node_and_come_in_signature_order():
    joint = joint_of(lambda x, w: (x @ w).sin() * x.shape[0], grad(6, 4), grad(4, 3), dynamic=True)
    halves = partition(joint, default_partition)
    kinds = [type(slot) for slot in halves.forward.signature.saved]
    assert kinds == sorted(kinds, key=[Saved, SavedSymInt].index) and SavedSymInt in kinds
    returned = node_of(halves.forward.module, "output").args[0][1:]
    assert [node.name for node in returned] == [slot.name for slot in halves.forward.signature.saved]
    inputs = [node.name for node in halves.backward.module.graph.nodes if node.op == "placeholder"]
    saved = [slot.name for slot in halves.backward.signature.saved]
    assert inputs == [*saved, "tangents_1"]


def test_saved_nodes_that_the_backward_does_not_need_are_left_out():
    joint = joint_of(lambda x: x.sin().exp(), grad(3))
    halves = saving(joint, "primals_1", "sin", "exp")
    assert [value.slot.name for value in halves.saved] == ["primals_1", "exp"]


def test_a_missing_saved_value_is_named():
    joint = joint_of(lambda x: torch.dropout(x.sin(), 0.5, True), grad(3))
    with pytest.raises(PartitionError, match="needs bernoulli, which is not saved and may run only once"):
        saving(joint, "primals_1")
    with pytest.raises(PartitionError, match="needs primals_1, which is not saved and is an input"):
        saving(joint, "div")


def test_the_source_line_is_the_last_of_the_stack_trace():
    joint = joint_of(lambda x: x.sin(), grad(3))
    node_of(joint.module, "primals_1").meta["stack_trace"] = 'File "model.py", line 3, in f\n    y = x.sin()\n'
    (value,) = partition(joint, default_partition).saved
    assert value.source == "y = x.sin()"


def test_the_source_line_names_a_module_of_torchs_own():
    joint = joint_of(lambda x: x.sin(), grad(3))
    frame = 'File "model.py", line 3, in f, inside 0 (Linear)\n    y = model(x)\n'
    node_of(joint.module, "primals_1").meta["stack_trace"] = frame
    (value,) = partition(joint, default_partition).saved
    assert value.source == "y = model(x), inside 0 (Linear)"


def test_sizes_in_the_shapes_of_the_backwards_inputs_are_saved():
    """Backends look for each symbol among the inputs."""
    joint = joint_of(lambda x: (x.sin(), torch.arange(x.shape[0])), grad(6, 5), dynamic=True)
    halves = partition(joint, default_partition)
    sizes = [value for value in halves.saved if isinstance(value.slot, SavedSymInt)]
    assert [value.reason for value in sizes] == ["a size of primals_1 in the backward", "a size of the backward's inputs"]


# --- Overwritten inputs ----------------------------------------------------------------------------------------------


def test_an_overwritten_input_is_copied_before_anything_else():
    joint = joint_of(lambda x, y: (x + 1, x * y), torch.randn(4), grad(4), mutated=[0])
    halves = partition(joint, default_partition)
    assert node_names(halves.forward.module)[0] == "primals_1_copy"
    assert halves.forward.signature.saved == (Saved("primals_1_copy"),)


def test_an_overwritten_input_that_only_the_forward_reads_is_not_copied():
    joint = joint_of(lambda x, y: (x + 1, y.sin()), torch.randn(4), grad(4), mutated=[0])
    assert partition(joint, default_partition).forward.signature.saved == (Saved("primals_2"),)


def test_a_copy_with_gaps_has_the_same_strides():
    joint = joint_of(lambda x, y: (x + 1, x * y), torch.randn(4, 6)[:, :4], grad(4, 4), mutated=[0])
    halves = partition(joint, default_partition)
    assert node_of(halves.forward.module, "primals_1_copy").meta["val"].stride() == (6, 1)


def test_an_input_that_the_forward_graph_writes_is_copied_first():
    def build(x, t):
        y = x.sin()
        x.copy_(y)
        return [y], [t * 2]

    joint = hand_made(build, [torch.randn(3)], [torch.ones(3)])
    nodes = {node.name: node for node in joint.module.graph.nodes}
    nodes["mul"].args = (nodes["tangents_1"], nodes["primals_1"])
    halves = partition(joint, default_partition)
    assert node_names(halves.forward.module) == ["primals_1_copy", "sin", "copy_"]
    x, tangent = torch.randn(3), torch.randn(3)
    assert torch.equal(run_halves(joint, halves, [x.clone()], [tangent])[1], tangent * x)


# --- What the graphs look like ---------------------------------------------------------------------------------------


def test_values_that_run_again_come_just_before_their_first_use_and_once():
    def build(x, t):
        mask = x.cos()
        early = t * 2
        return [x.sin()], [early * mask + mask]

    halves = saving(hand_made(build, [torch.randn(3)], [torch.ones(3)]), "primals_1")
    assert node_names(halves.backward.module) == ["mul", "cos", "mul_1", "add"]


def test_views_are_applied_again():
    halves = partition(joint_of(lambda x: x.exp().t().sin(), grad(2, 3)), default_partition)
    assert [slot.name for slot in halves.forward.signature.saved] == ["exp"]
    assert "aten.t.default" in targets(halves.backward.module)


def test_items_are_saved_and_not_tuples():
    halves = partition(joint_of(lambda x: F.layer_norm(x, (4,)), grad(3, 4)), default_partition)
    assert "native_layer_norm" not in [slot.name for slot in halves.forward.signature.saved]


def test_metadata_is_kept_and_the_half_is_tagged():
    joint = joint_of(lambda x: x.sin(), grad(3))
    for node in joint.module.graph.nodes:
        node.meta.update(stack_trace="f", nn_module_stack={"": ("", int)}, seq_nr=4)
    for half, tag in zip(modules(partition(joint, default_partition)), ["is_forward", "is_backward"], strict=True):
        for node in (node for node in half.graph.nodes if node.op != "output"):
            assert node.meta["partitioner_tag"] == tag and node.meta["seq_nr"] == 4 and "val" in node.meta
    assert all("partitioner_tag" not in node.meta for node in joint.module.graph.nodes)


def test_random_ops_stay_in_the_forward_in_their_order():
    def build(x, t):
        unused_by_results = torch.rand_like(x)
        y = x + torch.randn_like(x)
        return [y], [t * unused_by_results]

    halves = partition(hand_made(build, [torch.randn(3)], [torch.ones(3)]), min_cut_rematerialization_partition)
    assert node_names(halves.forward.module) == ["rand_like", "randn_like", "add"]
    assert node_names(halves.backward.module) == ["mul"]


def test_effects_stay_in_the_forward():
    def build(x, t):
        torch.ops.aten._assert_async.default(x.sum() > -1e9)
        return [x.sin()], [t * x.cos()]

    halves = partition(hand_made(build, [torch.randn(3)], [torch.ones(3)]), default_partition)
    assert "aten._assert_async.default" in targets(halves.forward.module)
    assert targets(halves.backward.module) == ["aten.cos.default", "aten.mul.Tensor"]


@pytest.mark.parametrize("name, saved", [("_folded_0", []), ("closed_over", ["closed_over"])])
def test_constants_are_in_both_graphs_but_not_tensors_that_may_change(name, saved):
    joint = hand_made(lambda x, t: ([x * 3], [t * 3]), [torch.randn(3)], [torch.ones(3)])
    joint.module.register_buffer(name, torch.tensor([1.0, 2.0, 3.0]))
    graph = joint.module.graph
    with graph.inserting_after(node_of(joint.module, "tangents_1")):
        scale = graph.get_attr(name)
    for node in graph.nodes:
        node.args = tuple(scale if arg == 3 else arg for arg in node.args) if node.op == "call_function" else node.args
    halves = partition(joint, min_cut_rematerialization_partition)
    assert [value.slot.name for value in halves.saved] == saved and not any(value.saved_bytes for value in halves.saved)
    given = run_halves(joint, halves, [torch.ones(3)], [torch.ones(3)])
    assert [value.tolist() for value in given] == [[1, 2, 3], [1, 2, 3]]


# --- Gradients that are no new values --------------------------------------------------------------------------------


@pytest.mark.parametrize("partition_fn", PARTITION_FNS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize(
    "build, saved",
    [
        (lambda x, t: ([x.sin()], [t]), []),
        (lambda x, t: ([x.sin()], [x]), ["primals_1"]),
        (lambda x, t: ((y := x.exp(),), [y]), ["exp"]),
        (lambda x, t: ((x,), [None]), []),
        (lambda x, t: ((x.sin(), x), [t.t()]), []),
    ],
    ids=["tangent", "primal", "result", "none", "view of a tangent"],
)
def test_a_gradient_that_is_already_there(build, saved, partition_fn):
    x, tangent = torch.randn(2, 2), torch.randn(2, 2)
    joint = hand_made(build, [x], [tangent])
    halves = partition(joint, partition_fn)
    assert [value.slot.name for value in halves.saved] == saved
    expected = run_joint(joint, [x], [tangent])
    torch.testing.assert_close(run_halves(joint, halves, [x], [tangent]), expected)


def test_a_graph_that_returns_nothing_but_a_primal():
    module = joint_of(lambda x: x, grad(3)).module
    joint = as_joint(module, 1, [UserOutput(0)], [UserOutput(0)])
    halves = partition(joint, default_partition)
    assert node_names(halves.forward.module) == node_names(halves.backward.module) == []
