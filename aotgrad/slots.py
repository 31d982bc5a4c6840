"""The meaning of every placeholder and output of a graph.

One frozen *slot* type per meaning, and `SlotSignature`, which lists the slots of one graph in order. Only this file
defines and reads graph layouts; no other code counts positions or matches names.

    forward graph    primals...                          -> updated inputs, user outputs, intermediate bases, saved values
                     (seeds and offsets)                    (next offsets)
    backward graph   saved symints, saved tensors, tangents -> one gradient per primal
    joint graph      primals, tangents                   -> updated inputs, user outputs, intermediate bases, gradients

A backward of several segments (`ir.BackwardSegment`) also has tangents of boundaries, and gradients of results and
boundaries. Every backward may have gradients of returned views. Memory that a backward changes in place (`Memory`) comes
before the other tangents as an input, and among the gradients as an output. With functionalized random numbers the forward
takes the seed and the offset of each device on which it draws, and returns the next offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, Union

T = TypeVar("T")


@dataclass(frozen=True)
class Primal:
    """The `index`-th input of the traced function.

    `part` says which part of which argument it is, if the argument is a wrapper subclass: `"argument 0.a"`.
    """

    index: int
    part: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"primal {self.index}, {self.part}" if self.part else f"primal {self.index}"


@dataclass(frozen=True)
class UpdatedInput:
    """The value of input `index` after the call; the epilogue copies it back."""

    index: int

    def __str__(self) -> str:
        return f"updated input {self.index}"


@dataclass(frozen=True)
class UserOutput:
    """The `index`-th flat output of the traced function."""

    index: int

    def __str__(self) -> str:
        return f"output {self.index}"


@dataclass(frozen=True)
class IntermediateBase:
    """A tensor that several outputs are views of; `index` counts the bases of one function."""

    index: int

    def __str__(self) -> str:
        return f"intermediate base {self.index}"


@dataclass(frozen=True)
class SegmentBoundary:
    """A value inside the function where its backward is cut into two segments.

    The gradient of a wrapper subclass passes in parts: this is `part` of the `term`-th one that `segment` passes on there.
    """

    index: int
    segment: int | None = None
    term: int = 0
    part: int = 0

    @property
    def is_part(self) -> bool:
        return self.segment is not None

    def __str__(self) -> str:
        if not self.is_part:
            return f"cut {self.index}"
        term = f", term {self.term}" if self.term else ""
        return f"cut {self.index} after segment {self.segment}{term}, part {self.part}"


@dataclass(frozen=True)
class ReturnedView:
    """The `index`-th flat output, a view replayed outside of the graph; its gradient passes through the replayed view."""

    index: int

    def __str__(self) -> str:
        return f"output {self.index} (a view)"


@dataclass(frozen=True)
class ReturnedWrapper:
    """The wrapper subclass whose parts are the flat outputs from the `index`-th on, and `part` of a gradient of it.

    It is assembled outside of the graph; the gradient passes through it.
    """

    index: int
    part: int = 0

    def __str__(self) -> str:
        return f"output {self.index} (a wrapper), part {self.part}"


@dataclass(frozen=True)
class OldInput:
    """Input `index`, which shares memory with other inputs, before a write to one of them."""

    index: int

    def __str__(self) -> str:
        return f"input {self.index} as it was"


@dataclass(frozen=True)
class Memory:
    """The `index`-th tensor that a backward changes in place: its value before a segment, and its value after it."""

    index: int

    def __str__(self) -> str:
        return f"memory {self.index}"


ForwardResult = Union[UpdatedInput, UserOutput, IntermediateBase]
GradientTarget = Union[Primal, ForwardResult, ReturnedView, ReturnedWrapper, OldInput, SegmentBoundary, Memory]


def place_of(slot: T) -> T:
    """The place where a whole gradient passes; the slot may be one part of it."""
    return type(slot)(slot.index) if isinstance(slot, (SegmentBoundary, ReturnedWrapper)) else slot


@dataclass(frozen=True)
class Tangent:
    """An input of the backward: the incoming gradient of a forward result or boundary, or memory before a segment."""

    of: ForwardResult | SegmentBoundary | Memory

    def __str__(self) -> str:
        return f"{self.of} as it is" if isinstance(self.of, Memory) else f"tangent of {self.of}"


@dataclass(frozen=True)
class Saved:
    """A tensor that the forward saves for the backward; `name` is its node in the joint graph."""

    name: str

    def __str__(self) -> str:
        return f"saved {self.name}"


@dataclass(frozen=True)
class SavedSymInt:
    """A symbolic size that the forward saves for the backward."""

    name: str

    def __str__(self) -> str:
        return f"saved size {self.name}"


@dataclass(frozen=True)
class Gradient:
    """The gradient of one primal; the graph returns `None` if the primal has none.

    In a backward of several segments, it is the term that `segment` adds to the gradient, or to the tangent of another
    segment. Gradients of returned views have several terms, too. The gradient of memory is its value after the segment.
    """

    of: GradientTarget
    segment: int | None = None
    term: int = 0

    def __str__(self) -> str:
        if isinstance(self.of, Memory):
            return f"new value of {self.of}" + ("" if self.segment is None else f" from segment {self.segment}")
        segment = "" if self.segment is None else f" from segment {self.segment}"
        term = f", term {self.term}" if self.term else ""
        return f"gradient of {self.of}{segment}{term}"


@dataclass(frozen=True)
class RandomSeed:
    """The seed of the default generator of a device, an int64 number on the CPU."""

    device: str

    def __str__(self) -> str:
        return f"random seed of {self.device}"


@dataclass(frozen=True)
class RandomOffset:
    """How far the default generator of a device has advanced before the graph, an int64 number on the CPU."""

    device: str

    def __str__(self) -> str:
        return f"random offset of {self.device}"


@dataclass(frozen=True)
class NextOffset:
    """The offset after the graph; the runtime advances the generator to it."""

    device: str

    def __str__(self) -> str:
        return f"next random offset of {self.device}"


@dataclass(frozen=True)
class GeneratorClone:
    """A clone of a device's default generator. A backward draws from it; a forward leaves it where `name` started to draw.

    `name` is the name of the saved state that it replaces; see `aotgrad.backends.generator_inputs`.
    """

    name: str

    def __str__(self) -> str:
        return f"generator of {self.name}"


@dataclass(frozen=True)
class GuardedValue:
    """A value that the guard of a plan has computed before the call."""

    index: int

    def __str__(self) -> str:
        return f"guarded value {self.index}"


InputSlot = Union[Primal, Tangent, Saved, SavedSymInt, RandomSeed, RandomOffset, GeneratorClone, GuardedValue]
OutputSlot = Union[UpdatedInput, UserOutput, IntermediateBase, Saved, SavedSymInt, Gradient, NextOffset]
FORWARD_RESULTS = (UpdatedInput, UserOutput, IntermediateBase)


@dataclass(frozen=True)
class SlotSignature:
    """The slots of one graph: `inputs[k]` is the meaning of placeholder k, `outputs[k]` the meaning of output k."""

    inputs: tuple[InputSlot, ...]
    outputs: tuple[OutputSlot, ...]

    def input_position(self, slot: InputSlot) -> int:
        return self.inputs.index(slot)

    @property
    def forward_results(self) -> tuple[ForwardResult, ...]:
        return of_kind(self.outputs, FORWARD_RESULTS)

    @property
    def primals(self) -> tuple[Primal, ...]:
        return of_kind(self.inputs, Primal)

    @property
    def tangents(self) -> tuple[Tangent, ...]:
        return of_kind(self.inputs, Tangent)

    @property
    def guarded(self) -> tuple[GuardedValue, ...]:
        return of_kind(self.inputs, GuardedValue)

    @property
    def incoming(self) -> tuple[Tangent, ...]:
        """The tangents without those of memory."""
        return tuple(tangent for tangent in self.tangents if not isinstance(tangent.of, Memory))

    @property
    def memory(self) -> tuple[Memory, ...]:
        """The memory that is an input."""
        return tuple(tangent.of for tangent in self.tangents if isinstance(tangent.of, Memory))

    @property
    def gradients(self) -> tuple[Gradient, ...]:
        return of_kind(self.outputs, Gradient)

    @property
    def outgoing(self) -> tuple[Gradient, ...]:
        """The gradients without new values of memory."""
        return tuple(gradient for gradient in self.gradients if not isinstance(gradient.of, Memory))

    @property
    def saved(self) -> tuple[Saved | SavedSymInt, ...]:
        """The saved values of a forward (its outputs) or of a backward (its inputs)."""
        return of_kind((*self.inputs, *self.outputs), (Saved, SavedSymInt))


def of_kind(slots: Iterable, kinds) -> tuple:
    """The slots of one or more types, in order."""
    return tuple(slot for slot in slots if isinstance(slot, kinds))


def forward_signature(joint: SlotSignature, saved: Sequence[Saved | SavedSymInt]) -> SlotSignature:
    """The forward half of `joint`: its primals and guarded values in, its results, saved tensors and saved sizes out."""
    in_order = (*of_kind(saved, Saved), *of_kind(saved, SavedSymInt))
    return SlotSignature((*joint.primals, *joint.guarded), (*joint.forward_results, *in_order))


def backward_signature(joint: SlotSignature, saved: Sequence[Saved | SavedSymInt]) -> SlotSignature:
    """The backward half of `joint`: saved sizes, saved tensors and tangents in, gradients out."""
    sizes, tensors = of_kind(saved, SavedSymInt), of_kind(saved, Saved)
    return SlotSignature((*sizes, *tensors, *joint.tangents), joint.gradients)


def split_by_kind(values: Sequence[T], slots: Sequence, kinds) -> tuple[list[T], list[T]]:
    """The values of slots of `kinds`, and the values of the other slots, each in order."""
    matching = [value for value, slot in zip(values, slots, strict=True) if isinstance(slot, kinds)]
    others = [value for value, slot in zip(values, slots, strict=True) if not isinstance(slot, kinds)]
    return matching, others
