"""Drop-in signatures, users' partition functions, and the checks of their results."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.fx as fx
from torch._functorch import partitioners as peer

from aotgrad.errors import PartitionError
from aotgrad.ir import JointGraph
from aotgrad.partition import default_partition, min_cut_rematerialization_partition, partition
from aotgrad.slots import Primal, Saved, SavedSymInt, SlotSignature
from tests.partition.cases import CASES
from tests.partition.joints import grad, joint_of, run_halves, run_joint, tangents_for

OURS = [default_partition, min_cut_rematerialization_partition]


USERS_CASES = [case for case in CASES if case.name != "updates_and_as_strided"]


def small_joint() -> JointGraph:
    return joint_of(lambda x, w: (x @ w).sin().exp(), grad(2, 3), grad(3, 4), static=[1])


def spoiled(spoil):
    """A partition function that spoils the halves of the plain one."""

    def partition_fn(module, inputs, *, num_fwd_outputs):
        forward, backward = default_partition(module, inputs, num_fwd_outputs=num_fwd_outputs)
        return spoil(forward, backward) or (forward, backward)

    return partition_fn


def output_of(module: fx.GraphModule) -> fx.Node:
    return next(node for node in module.graph.nodes if node.op == "output")


def replace_outputs(module: fx.GraphModule, change) -> None:
    output = output_of(module)
    output.args = (tuple(change(list(output.args[0]))),)


# --- The typed path --------------------------------------------------------------------------------------------------


def test_a_graph_without_tangents_is_one_forward():
    module = small_joint().module
    joint = JointGraph(module, SlotSignature((Primal(0),), ()), frozenset(), frozenset())
    halves = partition(joint, default_partition)
    assert halves.forward.module is module and halves.backward is None and halves.saved == ()


def test_the_joint_graph_is_left_as_it_was():
    joint = small_joint()
    before = joint.module.print_readable(print_output=False)
    for partition_fn in [*OURS, peer.min_cut_rematerialization_partition]:
        partition(joint, partition_fn)
    assert joint.module.print_readable(print_output=False) == before


def test_ours_bound_to_arguments_are_recognized():
    halves = partition(small_joint(), functools.partial(min_cut_rematerialization_partition, compiler="inductor"))
    assert all("user" not in value.reason for value in halves.saved)


# --- The drop-in path ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition_fn", OURS)
def test_the_drop_in_call_returns_two_modules(partition_fn):
    joint = small_joint()
    forward, backward = partition_fn(joint.module, (), num_fwd_outputs=1, static_lifetime_input_indices=[1])
    typed = partition(joint, partition_fn)
    assert forward.code == typed.forward.module.code and backward.code == typed.backward.module.code


@pytest.mark.parametrize("partition_fn", OURS)
def test_the_peer_accepts_our_halves(partition_fn):
    from functorch.compile import aot_function, nop

    compiled = aot_function(lambda x, w: (x @ w).sin(), nop, nop, partition_fn=partition_fn)
    x, w = grad(2, 3), grad(3, 4)
    compiled(x, w).sum().backward()
    expected = torch.autograd.grad((x @ w).sin().sum(), (x, w))
    torch.testing.assert_close((x.grad, w.grad), expected)


def test_more_forward_outputs_than_outputs_are_refused():
    with pytest.raises(PartitionError, match="num_fwd_outputs is 9"):
        default_partition(small_joint().module, (), num_fwd_outputs=9)


@pytest.mark.parametrize("partition_fn", [peer.default_partition, peer.min_cut_rematerialization_partition])
@pytest.mark.parametrize("case", USERS_CASES, ids=lambda case: case.name)
def test_the_peers_partition_functions_are_users_functions(case, partition_fn):
    torch.manual_seed(0)
    inputs = case.inputs()
    joint = joint_of(case.fn, *inputs, static=case.static, mutated=case.mutated, dynamic=case.dynamic)
    halves = partition(joint, partition_fn)
    assert all(value.reason == "chosen by the user's partition function" for value in halves.saved)
    tangents = tangents_for(joint)
    torch.manual_seed(1)
    expected = run_joint(joint, inputs, tangents)
    torch.manual_seed(1)
    torch.testing.assert_close(run_halves(joint, halves, inputs, tangents), expected)


def test_a_users_function_gets_the_convention():
    seen = {}

    def partition_fn(module, inputs, *, num_fwd_outputs, **rest):
        seen.update(rest, inputs=inputs, count=num_fwd_outputs, module=module)
        return default_partition(module, inputs, num_fwd_outputs=num_fwd_outputs)

    joint = small_joint()
    halves = partition(joint, partition_fn)
    assert seen["count"] == 1 and seen["static_lifetime_input_indices"] == [1]
    assert seen["module"] is not joint.module
    assert [[value.shape for value in values] for values in seen["inputs"]] == [[(2, 3), (3, 4)], [(2, 4)]]
    assert halves.backward.signature.inputs[-1] == joint.signature.tangents[0]


def test_sizes_are_recognized():
    joint = joint_of(lambda x: x.sum(0), grad(6, 5), dynamic=True)
    halves = partition(joint, peer.default_partition)
    assert halves.saved and all(isinstance(value.slot, SavedSymInt) for value in halves.saved)


def test_saved_storages_count_once_and_parameters_not_at_all():
    halves = partition(small_joint(), spoiled(lambda forward, backward: None))
    by_name = {value.slot.name: value.saved_bytes for value in halves.saved}
    assert by_name["primals_1"] == 24 and by_name["exp"] == 0 and by_name["mm"] == 32


# --- Wrong halves ----------------------------------------------------------------------------------------------------


def drop_saved(forward, backward):
    replace_outputs(forward, lambda values: values[:-1])


def drop_gradient(forward, backward):
    replace_outputs(backward, lambda values: values[:-1])


def swap_saved(forward, backward):
    replace_outputs(forward, lambda values: [values[0], values[2], values[1], *values[3:]])


def save_a_constant(forward, backward):
    replace_outputs(forward, lambda values: [*values[:-1], 3.0])


def save_twice(forward, backward):
    replace_outputs(forward, lambda values: [*values, values[-1]])


def no_gradient(forward, backward):
    replace_outputs(backward, lambda values: [None, *values[1:]])


def wrong_gradient(forward, backward):
    replace_outputs(backward, lambda values: [values[1], values[0]])


def wrong_result(forward, backward):
    primal = next(iter(forward.graph.nodes))
    replace_outputs(forward, lambda values: [primal, *values[1:]])


def no_results(forward, backward):
    replace_outputs(forward, lambda values: [])


def swap_inputs(forward, backward):
    """Two inputs of equal type in the wrong order."""
    tangent, saved = [node for node in backward.graph.nodes if node.op == "placeholder"][:-3:-1]
    tangent.name, saved.name = "saved_before", tangent.name


def one_module(forward, backward):
    return [forward]


WRONG = {
    drop_saved: r"the backward has 5 inputs where 4 are expected: primals_1, primals_2, mm, tangents_1",
    drop_gradient: r"the backward has 1 results where 2 are expected: gradient of primal 0, gradient of primal 1",
    swap_saved: r"the backward takes primals_1 where primals_2 is handed over",
    save_a_constant: r"the forward saves 3.0, which is not a value of the graph",
    save_twice: r"the forward saves exp twice",
    no_gradient: r"the backward's result None, gradient of primal 0, is None where float32\[2, 3\] is expected",
    wrong_gradient: r"gradient of primal 0, is float32\[3, 4\] where float32\[2, 3\] is expected",
    wrong_result: r"the forward's result primals_1, output 0, is float32\[2, 3\] where float32\[2, 4\] is expected",
    no_results: r"the forward returns 0 values, but it has 1 results",
    swap_inputs: r"the backward takes tangents_1 where exp is handed over",
    one_module: r"returns a forward and a backward GraphModule",
}


@pytest.mark.parametrize("spoil", WRONG, ids=lambda fn: fn.__name__)
def test_wrong_halves_get_an_error_that_names_the_value(spoil):
    with pytest.raises(PartitionError, match=WRONG[spoil]) as caught:
        partition(small_joint(), spoiled(spoil))
    assert any("partition_fn" in note for note in getattr(caught.value, "__notes__", ["partition_fn"]))


def test_a_size_saved_before_a_tensor_is_refused():
    def sizes_first(forward, backward):
        replace_outputs(forward, lambda values: [values[0], values[-1], *values[1:-1]])

    joint = joint_of(lambda x: x.exp() * x.shape[0], grad(6, 5), dynamic=True)
    with pytest.raises(PartitionError, match="before a tensor; saved sizes come last"):
        partition(joint, spoiled(sizes_first))


def test_an_exception_of_the_users_function_is_its_own():
    def partition_fn(module, inputs, *, num_fwd_outputs):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        partition(small_joint(), partition_fn)


def test_a_saved_input_that_is_overwritten_becomes_a_copy():
    joint = joint_of(lambda x, y: (x + 1, x * y), torch.randn(3), grad(3), mutated=[0])
    halves = partition(joint, spoiled(lambda forward, backward: None))
    assert [value.slot for value in halves.saved] == [Saved("primals_1_copy")]


def test_an_overwritten_input_that_is_viewed_by_as_strided_is_refused():
    (case,) = [case for case in CASES if case.name == "updates_and_as_strided"]
    with pytest.raises(PartitionError, match="overwrites primals_1, which as_strided views by as_strided"):
        partition(joint_of(case.fn, *case.inputs(), mutated=[0]), peer.min_cut_rematerialization_partition)


def test_a_random_op_in_both_halves_is_refused():
    def draw_again(forward, backward):
        """Scale the gradient by a redrawn mask."""
        output = output_of(backward)
        with backward.graph.inserting_before(output):
            (gradient,) = output.args[0]
            mask = backward.graph.create_node("call_function", torch.ops.aten.bernoulli.p, (gradient,), name="bernoulli")
            mask.meta = gradient.meta
        output.args = ((mask,),)

    joint = joint_of(lambda x: torch.dropout(x.sin(), 0.5, True), grad(4))
    with pytest.raises(PartitionError, match=r"bernoulli \(aten.bernoulli\) runs in both halves"):
        partition(joint, spoiled(draw_again))
