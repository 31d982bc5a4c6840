"""Each contract check, with a stage that violates it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from aotgrad import checkpoint_name, verify
from aotgrad.backends.base import checked_arity
from aotgrad.errors import ContractError
from aotgrad.graph.geometry import Geometry
from aotgrad.ir import (
    AliasOfInput,
    AliasOfIntermediate,
    AliasOfIntermediateBaseIsUserOutput,
    AliasOfOutput,
    ConstantOutput,
    IsInput,
    IsOutput,
    MutationType,
    SavedValue,
    SavingNodes,
    ViewReplay,
    ViewStep,
)
from aotgrad.passes.input_mutations import keep_input_mutations
from aotgrad.slots import Gradient, Primal, Saved, SlotSignature, Tangent, UserOutput
from tests.executables import executable_of, node_named, results_of, set_results, with_copied_graph

aten = torch.ops.aten


@pytest.fixture
def product():
    """`x * y`: two gradients, both inputs saved."""
    return executable_of(lambda x, y: x * y, "f32[3] requires_grad", "f32[3] requires_grad")


@pytest.fixture
def trunk():
    """Two heads on a trunk: three segments."""

    def function(x):
        h = x.tanh()
        return h.sin(), h.cos()

    return executable_of(function, "f32[3] requires_grad")


@pytest.fixture
def update():
    """An input that is overwritten and one that is transposed, without a backward."""

    def function(x, y):
        x.mul_(2)
        y.t_()
        return y.sin()

    return executable_of(function, "f32[3]", "f32[2, 3]")


@pytest.fixture
def views():
    """Two views of an intermediate base, and a view of an input."""

    def function(x):
        y = x.sin()
        return y[0], y[1], x[0]

    return executable_of(function, "f32[2, 3] requires_grad")


def assert_broken(stage: str, result: Any, message: str) -> None:
    with pytest.raises(ContractError, match=re.escape(f"{stage}: {message}")):
        verify.check_stage(stage, result)


@pytest.mark.parametrize("name", ["product", "trunk", "update", "views"])
def test_stages_that_are_right_pass(request, name):
    executable = request.getfixturevalue(name)
    verify.check_stage("capture", executable.capture)
    verify.check_stage("analysis", executable.meta)
    verify.check_stage("joint", executable.joint)
    verify.check_stage("partition", executable.partition)
    verify.check_stage("compiled", executable.compiled)
    verify.check_stage("executable", executable)


def test_a_stage_without_a_contract_passes():
    verify.check_stage("unknown", object())


# --- capture ---------------------------------------------------------------------------------------------------------


def test_capture_counts_its_inputs(product):
    assert_broken("capture", replace(product.capture, primals=()), "0 primals for 2 inputs")


def test_capture_names_inputs_after_placeholders(product):
    first, second = product.capture.inputs
    convention = replace(product.capture.convention, inputs=(replace(first, name="x"), second))
    capture = replace(product.capture, convention=convention)
    assert_broken("capture", capture, "input x has the placeholder primals_1")


def test_capture_inputs_are_fake(product):
    first, second = product.capture.inputs
    convention = replace(product.capture.convention, inputs=(replace(first, fake=torch.ones(3)), second))
    capture = replace(product.capture, convention=convention)
    assert_broken("capture", capture, "input primals_1 is traced with a Tensor, not with a fake tensor")


def test_capture_outputs_are_flat(product):
    assert_broken("capture", replace(product.capture, outputs=([1, 2],)), "output 0 is a list; outputs are flat")


def test_capture_outputs_are_no_fake_tensors(product):
    fake = product.capture.inputs[0].fake
    message = "output 0 is a fake tensor that escaped functionalization: f32[3]"
    assert_broken("capture", replace(product.capture, outputs=(fake,)), message)


# --- analysis --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([IsInput(7)], "output 0 is an alias of input 7, which is not a tensor"),
        ([AliasOfInput(-1, ViewReplay((), None, ""))], "output 0 is an alias of input -1, which is not a tensor"),
        ([IsOutput(0)], "output 0 is output 0, which is not an earlier, distinct output"),
        ([AliasOfIntermediate(1, ViewReplay((), None, ""))], "output 0 is a view of base 1; there are 1 bases"),
        (
            [ConstantOutput(1), AliasOfOutput(0, ViewReplay((), None, ""))],
            "output 1 is a view of output 0, which is not an alias",
        ),
        (
            [ConstantOutput(1), AliasOfIntermediateBaseIsUserOutput(0, ViewReplay((), None, ""))],
            "output 1 is a view of output 0, which is not returned by the graph",
        ),
    ],
)
def test_aliases_name_what_is_there(views, outputs, message):
    assert_broken("analysis", replace(views.meta, outputs=tuple(outputs)), message)


def test_constants_are_no_traced_tensors(views):
    traced = views.capture.inputs[0].fake
    meta = replace(views.meta, outputs=(ConstantOutput(torch.ones(2)), ConstantOutput(traced)))
    assert_broken("analysis", meta, "output 1 is a traced tensor, but constant: f32[2, 3]")


def test_every_base_has_a_view(views):
    meta = replace(views.meta, outputs=(IsInput(0),))
    assert_broken("analysis", meta, "intermediate base 0 (sin) is the base of no output")


def test_views_are_replayed_with_ops_that_do_not_write(views):
    replay = ViewReplay((ViewStep(aten.mul_.Tensor, (2,), (), None),), None, "")
    meta = replace(views.meta, outputs=(AliasOfInput(0, replay),), bases=())
    assert_broken("analysis", meta, "output 0 is replayed with aten.mul_.Tensor, which writes")


def test_views_are_replayed_without_tensors(views):
    replay = ViewReplay((ViewStep(aten.index.Tensor, ([torch.zeros(2).long()],), (), None),), None, "")
    meta = replace(views.meta, outputs=(AliasOfInput(0, replay),), bases=())
    assert_broken("analysis", meta, "output 0 is replayed with aten.index.Tensor on a traced tensor")


def test_a_metadata_mutation_has_a_geometry(update):
    data, metadata = update.meta.inputs
    meta = replace(update.meta, inputs=(data, replace(metadata, geometry=None)))
    assert_broken("analysis", meta, "input 1 is metadata_only and its new geometry is None")
    meta = replace(update.meta, inputs=(replace(data, geometry=Geometry((3,), (1,), 0)), metadata))
    assert_broken("analysis", meta, "input 0 is data and its new geometry is Geometry(")


def test_versions_do_not_fall(update):
    changed = replace(update.meta.inputs[0], mutation=MutationType.DATA, version_bumps=-1)
    meta = replace(update.meta, inputs=(changed, update.meta.inputs[1]))
    assert_broken("analysis", meta, "input 0 raises its version by -1")


# --- joint -----------------------------------------------------------------------------------------------------------


def test_a_joint_graph_is_well_formed(product):
    joint = with_copied_graph(product.joint)
    node_named(joint, "mul").target = "not an op"
    assert_broken("joint", joint, "the graph is not well formed")


def test_every_placeholder_has_a_slot(product):
    inputs = product.joint.signature.inputs[:-1]
    joint = replace(product.joint, signature=SlotSignature(inputs, product.joint.signature.outputs))
    assert_broken("joint", joint, "3 placeholders for 2 input slots")


def test_every_result_has_a_slot(product):
    signature = product.joint.signature
    joint = replace(product.joint, signature=SlotSignature(signature.inputs, signature.outputs[:1]))
    assert_broken("joint", joint, "3 outputs for 1 output slots")


def test_every_output_has_a_slot(product):
    joint = with_copied_graph(product.joint)
    set_results(joint, results_of(joint)[:1])
    assert_broken("joint", joint, "1 outputs for 3 output slots")


def test_no_slot_comes_twice(product):
    inputs = (Primal(0), Primal(0), Tangent(UserOutput(0)))
    joint = replace(product.joint, signature=SlotSignature(inputs, product.joint.signature.outputs))
    assert_broken("joint", joint, "input primal 0 appears 2 times")


def test_primals_come_in_order(product):
    inputs = (Primal(1), Primal(0), Tangent(UserOutput(0)))
    joint = replace(product.joint, signature=SlotSignature(inputs, product.joint.signature.outputs))
    message = "the inputs are primal 1, primal 0, tangent of output 0; they must be primal 0, primal 1, tangent of output 0"
    assert_broken("joint", joint, message)


def test_placeholders_have_the_names_that_backends_see(product):
    joint = with_copied_graph(product.joint)
    node_named(joint, "primals_2")._rename("weight")
    assert_broken("joint", joint, "the placeholder of primal 1 is called weight, not primals_2")


def test_placeholders_have_traced_values(product):
    joint = with_copied_graph(product.joint)
    node = node_named(joint, "primals_1")
    node.meta = {}
    assert_broken("joint", joint, "placeholder primals_1 has no traced value")


def test_gradients_come_after_results(product):
    output, *gradients = product.joint.signature.outputs
    joint = replace(product.joint, signature=SlotSignature(product.joint.signature.inputs, (*gradients, output)))
    assert_broken("joint", joint, "the outputs are gradient of primal 0, gradient of primal 1, output 0; they must be")


def test_a_tangent_belongs_to_a_result(product):
    inputs = (Primal(0), Primal(1), Tangent(UserOutput(5)))
    joint = replace(product.joint, signature=SlotSignature(inputs, product.joint.signature.outputs))
    assert_broken("joint", joint, "tangent of output 5: the graph returns no output 5")


def test_each_tangent_belongs_to_a_segment(trunk):
    _, *rest = trunk.joint.segments
    message = "the tangents of segments are tangent of output 0, tangent of cut 0; they must be"
    assert_broken("joint", replace(trunk.joint, segments=tuple(rest)), message)


def test_each_gradient_is_one_of_a_segment(trunk):
    head, *rest = trunk.joint.segments
    joint = replace(trunk.joint, segments=(replace(head, gradients=()), *rest))
    assert_broken("joint", joint, "the gradients of segments are gradient of cut 0 from segment 1,")


def test_a_segment_lists_its_own_gradients(trunk):
    one, other, last = trunk.joint.segments
    swapped = (replace(one, gradients=other.gradients), replace(other, gradients=one.gradients), last)
    assert_broken("joint", replace(trunk.joint, segments=swapped), "segment 0 lists the gradient of cut 0 from segment 1")


def test_gradients_go_to_later_segments(trunk):
    one, other, last = trunk.joint.segments
    segments = (replace(one, tangents=last.tangents), other, replace(last, tangents=one.tangents))
    message = "the gradient of cut 0 from segment 0 goes to no later segment"
    assert_broken("joint", replace(trunk.joint, segments=segments), message)


def test_saved_memory_is_that_of_inputs_and_results(product):
    joint = replace(product.joint, saved_in_eager=frozenset({Primal(0), UserOutput(5)}))
    assert_broken("joint", joint, "eager saves values in the memory of output 5; the graph has no such place")
    (segment,) = product.joint.segments
    saving = (SavingNodes(1, 1, frozenset({Primal(7)})),)
    joint = replace(product.joint, segments=(replace(segment, saving=saving),))
    assert_broken("joint", joint, "eager saves values in the memory of primal 7; the graph has no such place")


def test_a_joint_graph_writes_nothing(product):
    joint = with_copied_graph(product.joint)
    node_named(joint, "mul").target = aten.mul_.Tensor
    assert_broken("joint", joint, "node mul (aten.mul_.Tensor) writes to its arguments")


def test_a_gradient_has_the_dtype_of_its_primal(product):
    joint = with_copied_graph(product.joint)
    gradient = results_of(joint)[1]
    gradient.meta["val"] = gradient.meta["val"].double()
    message = f"gradient of primal 0 is f64[3] ({gradient.name}), the primal is f32[3]"
    assert_broken("joint", joint, message)


# --- partition -------------------------------------------------------------------------------------------------------


def test_halves_have_their_own_kinds_of_slots(product):
    forward = product.partition.forward
    inputs = (Primal(0), Saved("x"))
    partition = replace(product.partition, forward=replace(forward, signature=replace(forward.signature, inputs=inputs)))
    assert_broken("partition", partition, "forward: saved x cannot be an input")


def test_gradients_leave_the_backward_only(product):
    forward = product.partition.forward
    outputs = (*forward.signature.outputs[:-1], Gradient(Primal(0)))
    partition = replace(product.partition, forward=replace(forward, signature=replace(forward.signature, outputs=outputs)))
    assert_broken("partition", partition, "forward: gradient of primal 0 cannot be an output")


def test_saved_values_are_listed(product):
    message = "what the forward saves and the list of saved values differ: missing none, surplus saved primals_1, saved"
    assert_broken("partition", replace(product.partition, saved=()), message)


def test_saved_values_have_a_reason(product):
    first, second = product.partition.saved
    partition = replace(product.partition, saved=(first, SavedValue(second.slot, 12, "", None)))
    assert_broken("partition", partition, "saved primals_2 has 12 bytes and the reason ''")


def test_what_is_on_the_host_was_sent_there(product):
    first, second = product.partition.saved
    partition = replace(product.partition, saved=(first, replace(second, saved_bytes=0, host_bytes=12)))
    assert_broken("partition", partition, "saved primals_2 takes 12 bytes of the host, but the forward sends no copy there")


def test_what_is_on_the_host_is_fetched():
    def f(x):
        return checkpoint_name(x.sin(), "sine").cos().sum()

    partition = executable_of(f, "f32[3] requires_grad", options={"checkpoint_policies": {"sine": "offload"}}).partition
    backward = with_copied_graph(partition.backward)
    node_named(backward, "sin_host_reload").target = torch.ops.aten.clone.default
    node_named(backward, "sin_host_reload").args = node_named(backward, "sin_host_reload").args[:1]
    assert_broken(
        "partition", replace(partition, backward=backward), "saved sin_host is on the host, where the backward reads it"
    )


def test_nothing_is_saved_without_a_backward(product):
    partition = replace(product.partition, backward=None)
    assert_broken("partition", partition, "saved primals_1, but there is no backward")


def test_the_backward_takes_what_is_saved(product):
    backward = product.partition.backward
    inputs = tuple(Saved("other") if slot == Saved("primals_1") else slot for slot in backward.signature.inputs)
    half = replace(backward, signature=replace(backward.signature, inputs=inputs))
    message = "what the forward saves and what the backward takes differ: missing saved other, surplus saved primals_1"
    assert_broken("partition", replace(product.partition, backward=half), message)


def test_saved_types_agree(product):
    backward = with_copied_graph(product.partition.backward)
    node = node_named(backward, "primals_1")
    node.meta["val"] = node.meta["val"].double()
    message = "saved primals_1 is f32[3] in the forward and f64[3] in the backward"
    assert_broken("partition", replace(product.partition, backward=backward), message)


# --- compiled and executable -----------------------------------------------------------------------------------------


def test_what_a_backend_returns_can_be_called(product):
    message = "the forward of backend 'user' is a NoneType, not callable"
    assert_broken("compiled", replace(product.compiled, forward=None), message)
    message = "the backward compiler of backend 'user' is a int, not callable"
    assert_broken("compiled", replace(product.compiled, compile_backward=42), message)


def test_the_halves_belong_to_the_joint_graph(product):
    joint = replace(product.joint, signature=SlotSignature((Primal(0), *product.joint.signature.inputs[2:]), ()))
    message = "the forward's primals and the joint graph's primals differ: missing none, surplus primal 1"
    assert_broken("executable", replace(product, joint=joint), message)


def test_each_autograd_node_has_a_graph(trunk):
    schedule = replace(trunk.schedule, segments=trunk.schedule.segments[1:])
    assert_broken("executable", replace(trunk, schedule=schedule), "the backward has 3 segments and 2 graphs")


def test_the_graph_of_a_segment_gets_its_tangents(trunk):
    one, other, last = trunk.schedule.segments
    schedule = replace(trunk.schedule, segments=(other, one, last))
    message = "the tangents of the graph of segment 0 and its own differ: missing tangent of output 1"
    assert_broken("executable", replace(trunk, schedule=schedule), message)


def test_the_graph_of_a_segment_computes_its_gradients(trunk):
    one, other, last = trunk.schedule.segments
    changed = replace(one, signature=SlotSignature(one.signature.inputs, other.signature.outputs))
    schedule = replace(trunk.schedule, segments=(changed, other, last))
    message = "the graph of segment 0 does not compute the gradient of cut 0 from segment 0"
    assert_broken("executable", replace(trunk, schedule=schedule), message)


def test_a_gradient_has_the_size_of_its_primal(product):
    joint = with_copied_graph(product.joint)
    gradient = results_of(joint)[2]
    gradient.meta["val"] = gradient.meta["val"][:2]
    message = f"gradient of primal 1 is f32[2] ({gradient.name}), the primal is f32[3]"
    assert_broken("executable", replace(product, joint=joint), message)


def test_the_compiled_forward_returns_what_its_graph_returns(product):
    forward = checked_arity(product.compiled.forward, 9, "nop", "forward")
    compiled = replace(product.compiled, forward=forward)
    message = "the compiled forward returns 9 values, its graph 3"
    assert_broken("executable", replace(product, compiled=compiled), message)


def test_a_backward_graph_has_a_compiler(product):
    compiled = replace(product.compiled, compile_backward=None)
    message = "one of the backward graph and its compiler is missing"
    assert_broken("executable", replace(product, compiled=compiled), message)


def test_every_output_is_returned_once(product):
    schedule = replace(product.schedule, steps=product.schedule.steps[:-1])
    message = "the function has 1 outputs, the schedule returns 0"
    assert_broken("executable", replace(product, schedule=schedule), message)


def test_the_forward_runs_once_and_first(product):
    forward, *later = product.schedule.steps
    for steps in ([forward, forward, *later], [*later, forward]):
        schedule = replace(product.schedule, steps=tuple(steps))
        message = "a schedule makes the synthetic bases, then runs the forward, once"
        assert_broken("executable", replace(product, schedule=schedule), message)


def test_a_forward_with_results_is_run(product):
    schedule = replace(product.schedule, steps=product.schedule.steps[1:])
    message = "the schedule does not run the forward, which returns output 0, saved primals_1, saved primals_2"
    assert_broken("executable", replace(product, schedule=schedule), message)


def test_a_backward_is_attached(product):
    steps = tuple(step for step in product.schedule.steps if type(step).__name__ != "Attach")
    schedule = replace(product.schedule, steps=steps)
    assert_broken("executable", replace(product, schedule=schedule), "the schedule attaches the backward to nothing")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def call(args):\n    return [output_0]\n", "line 2 of the source uses output_0, which is not bound there"),
        ("def call(args):\n    x = args\n    del x\n    return x\n", "line 4 of the source uses x, which is not bound"),
        ("def call(args):\n    with y:\n        y = args\n", "line 2 of the source uses y, which is not bound there"),
    ],
)
def test_names_are_bound_before_they_are_used(product, source, message):
    assert_broken("executable", replace(product, source=source), message)


def test_no_traced_tensor_is_left_in_the_function(product):
    fake = product.capture.inputs[0].fake
    namespace = {**product.call.__globals__, "constant_0": fake}
    leaky = type(product.call)(product.call.__code__, namespace)
    message = "a traced tensor escaped into the function as constant_0: f32[3]"
    assert_broken("executable", replace(product, call=leaky), message)


def test_only_writable_inputs_are_written_by_the_forward(update):
    forward = keep_input_mutations(update.partition.forward, update.joint.writable_inputs)
    written = replace(update, partition=replace(update.partition, forward=forward))
    message = "the forward's results and the joint graph's differ: missing updated input 0, surplus none"
    assert_broken("executable", replace(written, joint=replace(update.joint, writable_inputs=frozenset())), message)
