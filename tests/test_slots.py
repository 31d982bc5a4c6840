"""Graph layouts: the inputs and outputs of each half, in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aotgrad.slots import (
    Gradient,
    IntermediateBase,
    Primal,
    Saved,
    SavedSymInt,
    SlotSignature,
    Tangent,
    UpdatedInput,
    UserOutput,
    backward_signature,
    forward_signature,
    of_kind,
    split_by_kind,
)

JOINT = SlotSignature(
    inputs=(Primal(0), Primal(1), Tangent(UpdatedInput(1)), Tangent(IntermediateBase(0))),
    outputs=(UpdatedInput(1), UserOutput(0), IntermediateBase(0), Gradient(Primal(0)), Gradient(Primal(1))),
)
SAVED = [SavedSymInt("n"), Saved("mm"), SavedSymInt("m"), Saved("sin")]
TENSORS, SIZES = (Saved("mm"), Saved("sin")), (SavedSymInt("n"), SavedSymInt("m"))


def test_the_forward_returns_results_then_saved_tensors_then_saved_sizes():
    forward = forward_signature(JOINT, SAVED)
    assert forward.inputs == (Primal(0), Primal(1))
    assert forward.outputs == (UpdatedInput(1), UserOutput(0), IntermediateBase(0), *TENSORS, *SIZES)


def test_the_backward_takes_saved_sizes_then_saved_tensors_then_tangents():
    backward = backward_signature(JOINT, SAVED)
    assert backward.inputs == (*SIZES, *TENSORS, Tangent(UpdatedInput(1)), Tangent(IntermediateBase(0)))
    assert backward.outputs == (Gradient(Primal(0)), Gradient(Primal(1)))


def test_both_halves_know_what_is_saved():
    assert forward_signature(JOINT, SAVED).saved == (*TENSORS, *SIZES)
    assert backward_signature(JOINT, SAVED).saved == (*SIZES, *TENSORS)


def test_a_signature_lists_its_slots_by_meaning():
    assert JOINT.primals == (Primal(0), Primal(1))
    assert JOINT.tangents == (Tangent(UpdatedInput(1)), Tangent(IntermediateBase(0)))
    assert JOINT.forward_results == (UpdatedInput(1), UserOutput(0), IntermediateBase(0))
    assert JOINT.gradients == (Gradient(Primal(0)), Gradient(Primal(1)))
    assert JOINT.saved == ()
    assert JOINT.input_position(Tangent(IntermediateBase(0))) == 3


def test_every_slot_says_what_it_is():
    slots = (*JOINT.inputs, *JOINT.outputs[:3], Gradient(Primal(1)), Saved("mm"), SavedSymInt("n"))
    assert [str(slot) for slot in slots] == [
        "primal 0",
        "primal 1",
        "tangent of updated input 1",
        "tangent of intermediate base 0",
        "updated input 1",
        "output 0",
        "intermediate base 0",
        "gradient of primal 1",
        "saved mm",
        "saved size n",
    ]


@given(st.lists(st.sampled_from(SAVED), max_size=8))
def test_splitting_by_kind_keeps_order_and_loses_nothing(slots):
    values = list(range(len(slots)))
    matching, others = split_by_kind(values, slots, Saved)
    assert [slots[k] for k in matching] == list(of_kind(slots, Saved))
    assert [slots[k] for k in others] == list(of_kind(slots, SavedSymInt))
    assert sorted(matching + others) == values
