"""A function and its first trace: what its gradients of gradients are computed from, and when they cannot be."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.errors import HigherOrderError
from aotgrad.graph import op_table
from aotgrad.ir import (
    AliasOfIntermediate,
    BackwardSegment,
    Capture,
    JointGraph,
    MemberInput,
    SymInput,
    ViewAndMutationMeta,
)
from aotgrad.joint.joins import Joins
from aotgrad.joint.segments import Cuts
from aotgrad.passes.known_values import KnownValues
from aotgrad.pipeline import Executable
from aotgrad.runtime.recomputation import Gradients, InnerGradients, InnerValue, Recomputation
from aotgrad.slots import (
    ForwardResult,
    IntermediateBase,
    Memory,
    Primal,
    ReturnedView,
    ReturnedWrapper,
    Saved,
    SegmentBoundary,
    Tangent,
    UpdatedInput,
    UserOutput,
    of_kind,
)
from aotgrad.torch_compat import OpSettings
from aotgrad.transforms.inner_values import find_inner_values


@dataclass(frozen=True)
class CapturedFunction:
    """A function and its first trace.

    Attributes:
        cuts: where its backward was cut.
        known: the values that the trace took from its inputs.
        settings: those of the trace.
    """

    call: Callable[..., Sequence[Any]]
    capture: Capture
    meta: ViewAndMutationMeta
    joint: JointGraph
    cuts: Cuts
    known: KnownValues | None
    settings: OpSettings

    @property
    def segments(self) -> tuple[BackwardSegment, ...]:
        return self.joint.segments

    @property
    def returned(self) -> list[ForwardResult | ReturnedView]:
        """The results that are themselves outputs, and the views that other results were computed from."""
        return [*(slot for slot in self.results if isinstance(slot, UserOutput)), *self.views]

    @property
    def views(self) -> list[ReturnedView]:
        """The returned views that gradients pass through."""
        slots = {gradient.of for segment in self.segments for gradient in segment.gradients}
        return sorted((slot for slot in slots if isinstance(slot, ReturnedView)), key=lambda view: view.index)

    @property
    def wrappers(self) -> list[ReturnedWrapper]:
        """The wrapper subclasses among the results that gradients of others pass through."""
        return list(dict.fromkeys(of_kind((gradient.of for gradient in self.joint.passages), ReturnedWrapper)))

    @functools.cached_property
    def result_of_output(self) -> dict[tuple[int, int], int]:
        """The position among `returned` of each output of a node, given by its segment and its number there."""
        position_of = {slot: k for k, slot in enumerate(self.returned)}
        outputs = ((number, k, t.of) for number, each in enumerate(self.segments) for k, t in enumerate(each.tangents))
        return {(number, k): position_of[slot] for number, k, slot in outputs if slot in position_of}

    @property
    def results(self) -> list[ForwardResult]:
        """The forward results that have tangents, in the order of the tangents."""
        slots = [tangent.of for segment in self.segments for tangent in segment.tangents]
        return sorted((slot for slot in slots if not isinstance(slot, SegmentBoundary | Memory)), key=rank)

    @functools.cached_property
    def failures(self) -> int:
        """How many nodes of the backward raise, since the function overwrote their saved values."""
        return sum(nodes.error is not None for segment in self.segments for nodes in segment.saving)

    def reject_lost_inputs(self) -> None:
        """Raise if the call has replaced an input that gradients flow to or through.

        Raises:
            HigherOrderError: names the input.
        """
        for index, spec in enumerate(self.capture.inputs):
            if isinstance(spec, MemberInput):
                self.reject_old_value(index)
        for slot in self.results:
            if isinstance(slot, UpdatedInput):
                self.reject_old_value(slot.index)
        for index, info in enumerate(self.meta.inputs):
            if info is not None and info.mutation.metadata:
                self.reject_old_value(index)

    def reject_lost_changes(self) -> None:
        """Raise if a backward changes in place, or ends at, a tensor that is no input of a vjp.

        Raises:
            HigherOrderError: names the tensor.
        """
        if self.meta.new_leaves or self.capture.new_leaves:
            raise HigherOrderError(
                "create_graph=True, and the function makes a leaf that requires grad; a gradient of a gradient runs the "
                "function once more, which would make another leaf; make it outside of the compiled function"
            )
        if self.capture.ended:
            raise HigherOrderError(
                "create_graph=True, and the function has told an input to require no grad, or detached it in place; do "
                "this outside of the compiled function"
            )
        if self.capture.assigned:
            raise HigherOrderError(
                "create_graph=True, and the function has given another memory to an input, by `x.data = ...` or "
                "`x.set_(...)`; do this outside of the compiled function"
            )
        for place in self.joint.memory:
            if (isinstance(place, Primal) and place.index not in self.mutated_inputs) or isinstance(place, Tangent):
                continue
            raise HigherOrderError(
                f"create_graph=True, and the backward changes {self.name_of(place)} in place, which a gradient of a "
                "gradient recomputes; change a tensor that is an argument and that the function does not change"
            )

    def name_of(self, place: Primal | ForwardResult) -> str:
        if isinstance(place, Primal):
            return f"input {self.capture.convention.argument_of(place.index)}, which the function has changed, too,"
        return str(place) if isinstance(place, UserOutput) else "a value that the function has computed"

    @functools.cached_property
    def changed_later(self) -> dict[int, bool]:
        """The inputs that a backward changes, each with whether the forward reads it."""
        placeholders = self.joint.module.graph.find_nodes(op="placeholder")
        changed = [place.index for place in self.joint.memory if isinstance(place, Primal)]
        return {index: op_table.is_read(placeholders[index]) for index in changed}

    def inputs_for(self, primals: Sequence[Any], segment: int) -> Iterator[Any]:
        """The inputs of a call for a vjp of `segment`.

        Raises:
            HigherOrderError: the segment changes an input that has a history since an earlier backward.
        """
        changed = {self.joint.memory[change.memory.index] for change in self.segments[segment].changes}
        for index, primal in enumerate(primals):
            has_history = index in self.changed_later and primal.requires_grad and not self.requires_grad(index)
            if has_history and Primal(index) in changed:
                raise HigherOrderError(
                    f"create_graph=True, and the backward changes input {self.capture.convention.argument_of(index)} in "
                    "place, which requires grad since an earlier backward has changed it; change it under no_grad"
                )
            yield self.as_traced(index, primal.detach() if has_history else usable(primal))

    @functools.cached_property
    def traced_layouts(self) -> list[tuple[Sequence[int], Sequence[int]] | None]:
        """The size and stride of each input in the trace; `None` where a call may have others."""
        fakes = [None if isinstance(spec, SymInput) else self.capture.fake(k) for k, spec in enumerate(self.capture.inputs)]
        return [None if fake is None or not self.is_fixed(fake) else (fake.size(), fake.stride()) for fake in fakes]

    def is_fixed(self, fake: Any) -> bool:
        return isinstance(fake, torch.Tensor) and fake.layout is torch.strided and not self.is_symbolic

    def as_traced(self, index: int, primal: Any) -> Any:
        """An input, or a tensor without values if the size or stride of the input was changed in place since the call.

        For autograd, the value of such an input has changed, too: `check_unchanged` raises if the vjp needs it.
        """
        layout = self.traced_layouts[index]
        if layout is None or primal.layout is not torch.strided or (primal.size(), primal.stride()) == layout:
            return primal
        like = {"dtype": primal.dtype, "device": primal.device, "requires_grad": primal.requires_grad}
        return torch.empty_strided(*layout, **like)

    def requires_grad(self, index: int) -> bool:
        spec = self.capture.inputs[index]
        return not isinstance(spec, SymInput) and spec.requires_grad

    def check_unchanged(self, call: Recomputation, needed: Collection[int]) -> None:
        """Raise if an input whose value the vjp needs has changed since the call.

        An input that only the backward reads and changes is read as it is.

        Raises:
            RuntimeError: as eager's.
            HigherOrderError: an earlier backward has changed an input that the forward read.
        """
        for index, is_read in self.changed_later.items():
            if is_read and index in needed and torch_compat.version_of(call.primals[index]) != call.versions[index]:
                raise HigherOrderError(
                    f"create_graph=True needs the value that input {self.capture.convention.argument_of(index)} had in the "
                    "call, and an earlier backward has changed it in place; read a clone() of it in the forward, made "
                    "outside of the compiled function"
                )
        call.check_unchanged(index for index in needed if index not in self.changed_later)

    def reject_old_value(self, index: int) -> NoReturn:
        """Raises HigherOrderError: a vjp needs the value of input `index` before the call."""
        raise HigherOrderError(
            f"create_graph=True needs the value that input {self.capture.convention.argument_of(index)} had before the "
            "compiled function changed it in place; pass a clone(), or change it outside of the compiled function"
        )

    @functools.cached_property
    def is_symbolic(self) -> bool:
        """Whether the trace has symbolic numbers."""
        inputs = [spec.value if isinstance(spec, SymInput) else spec.fake for spec in self.capture.inputs]
        return any(map(torch_compat.has_symbols, inputs))

    def symbolic_sizes(
        self,
        tangents: Sequence[Tangent],
        inner: InnerUse,
        results: Sequence[ForwardResult | ReturnedView],
        saved: Sequence[Saved],
    ) -> dict[int, frozenset[int]] | None:
        """The sizes that a vjp does not depend on, by position among its tensors; `None` if it depends on all."""
        if not self.is_symbolic:
            return None
        signature, placeholders = self.joint.signature, self.joint.module.graph.find_nodes(op="placeholder")
        fakes = [self.capture.fake(index) for index in self.tensor_inputs]
        fakes += [placeholders[signature.input_position(tangent)].meta["val"] for tangent in tangents]
        fakes += [torch_compat.from_functional(self.inner[k]) for k in inner.defined]
        fakes += [torch_compat.from_functional(self.capture.outputs[result.index]) for result in results]
        fakes += map(torch_compat.from_functional, self.inner[: inner.stand_ins])
        fakes += [self.joint_values[slot.name] for slot in saved]
        return {k: torch_compat.symbolic_dims(fake) for k, fake in enumerate(fakes)}

    @functools.cached_property
    def inner(self) -> list[torch.Tensor]:
        """The live inner values of the trace through which gradients of gradients pass; see `inner_values.py`."""
        if not self.is_one_piece:
            return []
        starts = {state.grad_fn for state in self.capture.before if state is not None}
        roots = [root_of_tangent(self.meta, slot, self.capture.outputs) for slot in self.results]
        return find_inner_values(roots, starts - {None}, Joins.of(self.capture.joins).edges.keys())

    @property
    def is_one_piece(self) -> bool:
        """Whether the function has one autograd node and changes nothing, so that a second run does the same."""
        changes = any(info is not None and info.version_bumps + info.mutation.data for info in self.meta.inputs)
        others = self.views or self.wrappers or self.joint.memory or self.failures or self.has_effects
        return len(self.segments) == 1 and not (changes or others or self.capture.nodes_with_hooks)

    @functools.cached_property
    def inner_values(self) -> tuple[InnerValue, ...]:
        """The types of `inner`; none if a call cannot tell their sizes."""
        found, places = [], self.capture.places_of_symbols
        for tensor in self.inner:
            value = torch_compat.from_functional(tensor)
            symbolic = filter(torch_compat.has_symbols, value.size())
            symbols = {name for number in symbolic for name in torch_compat.symbolic_text(number)[1]}
            if not symbols <= places.keys():
                return ()
            places_here = {name: places[name] for name in symbols}
            found.append(InnerValue(tuple(value.size()), value.dtype, value.device, places_here))
        return tuple(found)

    def reusable(self, saved: Collection[Saved]) -> tuple[Saved, ...]:
        """The saved values that are no inputs, and that the joint graph computes."""
        names = {spec.name for spec in self.capture.inputs}
        return tuple(slot for slot in saved if slot.name not in names and slot.name in self.joint_values)

    @functools.cached_property
    def joint_values(self) -> dict[str, torch.Tensor]:
        """The tensors of the joint graph, by the names of their nodes."""
        values = ((node.name, node.meta.get("val")) for node in self.joint.module.graph.nodes)
        return {name: value for name, value in values if isinstance(value, torch.Tensor)}

    def known_values(self, names: Sequence[str], position: int) -> KnownValues | None:
        """The values that a vjp gets as inputs: tensors of the function, others, and from `position` on the saved values."""
        if not names and self.known is None:
            return None
        inputs = {index: k for k, index in enumerate(self.tensor_inputs)}
        return KnownValues(self.joint, inputs, dict(enumerate(names, position)), self.known)

    def reject_draws(self) -> None:
        """Raise if the backward draws random numbers: a vjp would draw other numbers, at another time.

        Raises:
            HigherOrderError: names the op.
        """
        for node in self.joint.module.graph.nodes:
            if node.meta.get("autograd_backward") and op_table.draws(node):
                raise HigherOrderError(
                    f"the backward of the compiled function draws random numbers ({op_table.short_name(node.target)}), and "
                    "a gradient of a gradient would draw others; compute this outside of the compiled function"
                )

    @functools.cached_property
    def has_effects(self) -> bool:
        """Whether an op does more than compute its result."""
        called = (node.target for node in self.capture.trace.graph.nodes if node.op == "call_function")
        return any(map(op_table.has_effect, called))

    @functools.cached_property
    def needed_old_values(self) -> list[int]:
        """The inputs that the function changed, if their old value is needed for more than the new one."""
        placeholders, results = self.joint.placeholders, self.joint.results

        def is_needed(index: int) -> bool:
            others = {node for slot, node in results.items() if slot != UpdatedInput(index)}
            return not others.isdisjoint(computed_from(placeholders[Primal(index)]))

        return [index for index in self.lost_values if is_needed(index)]

    @functools.cached_property
    def tensor_inputs(self) -> tuple[int, ...]:
        """The inputs that are tensors. They come first among the tensors of a vjp, where sizes are numbers."""
        return tuple(index for index, spec in enumerate(self.capture.inputs) if not isinstance(spec, SymInput))

    def read_by(self, vjp: Executable) -> list[int]:
        """The inputs whose values a vjp needs."""
        return [self.tensor_inputs[k] for k in vjp.inputs_read if k < len(self.tensor_inputs)]

    @property
    def mutated_inputs(self) -> list[int]:
        return [index for index, info in enumerate(self.meta.inputs) if info is not None and info.mutation.data]

    @functools.cached_property
    def lost_values(self) -> list[int]:
        """The inputs that the function changed, except for those whose old values the trace read, and keeps."""
        return [index for index in self.mutated_inputs if index not in self.capture.asked_inputs]


def root_of_tangent(meta: ViewAndMutationMeta, slot: ForwardResult | ReturnedView, outputs: Sequence[Any]) -> torch.Tensor:
    """The tensor that a tangent belongs to, or a view."""
    match slot:
        case UserOutput(index) | ReturnedView(index):
            return outputs[index]
        case IntermediateBase(index):
            members = [
                outputs[k]
                for k, info in enumerate(meta.outputs)
                if isinstance(info, AliasOfIntermediate) and info.base == index
            ]
            bases = [member._base for member in members if member._base is not None]  # integers of it have none
            return next((base for base in bases if base.requires_grad), bases[0])  # a detached view has another one
    raise AssertionError(slot)


def computed_from(node: fx.Node) -> set[fx.Node]:
    """A node, and the nodes that depend on its value, except for new running statistics."""
    found, left = {node}, [node]
    while left:
        argument = left.pop()
        users = {user for user in argument.users if not op_table.reads_size(user.target)}
        users = {user for user in users - found if not op_table.is_running_statistic(user, argument)}
        left += users
        found |= users
    return found


def usable(primal: Any) -> Any:
    """An input, or only its value if it is a view that autograd forbids to use because its base was changed.

    Such an input has changed: if its value is needed, eager's error follows. If not, no gradient of a gradient goes through
    it.
    """
    if not isinstance(primal, torch.Tensor) or torch_compat.has_usable_history(primal):
        return primal
    return primal.detach().requires_grad_()


class InnerUse(NamedTuple):
    """What a vjp does with inner values.

    `defined` are those that a gradient has arrived at. `stand_ins` is the number of stand-ins that it takes. It is `last` if
    its gradients are not differentiable.
    """

    defined: tuple[int, ...]
    stand_ins: int
    is_last: bool

    @classmethod
    def of(cls, inner: InnerGradients) -> InnerUse:
        return cls(positions_of_tensors(inner.tangents), len(inner.stand_ins), not torch.is_grad_enabled())

    @property
    def any(self) -> bool:
        return bool(self.defined or self.stand_ins)


def rank(slot: ForwardResult) -> tuple[int, int]:
    """The order of forward results."""
    return (UpdatedInput, UserOutput, IntermediateBase).index(type(slot)), slot.index


def positions_of_tensors(values: Gradients) -> tuple[int, ...]:
    """The positions of the values that are not `None`."""
    return tuple([k for k, value in enumerate(values) if value is not None])
