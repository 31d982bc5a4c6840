"""Gradients of gradients: the vector-Jacobian product of the original function, as a compiled function of its own.

    vjp(*primals, *defined tangents) -> gradients of the wanted primals, themselves differentiable

The traced backward cannot be differentiated: its `detach`es cut the tape, and composite backward ops have no derivative.
Under `create_graph=True`, the autograd node calls this vjp on the inputs of the call. The same pipeline compiles it, and its
own node does the same: order n by recursion. A program without `create_graph` compiles no vjp.

Known limits: a vjp raises `HigherOrderError` if it needs the old value of an input that the call changed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

import torch
import torch.fx as fx
from torch.autograd.graph import GradientEdge

from aotgrad import native, torch_compat
from aotgrad.capture import gradient_aliases, repeats
from aotgrad.errors import HigherOrderError, UnsupportedOutputError
from aotgrad.graph import op_table
from aotgrad.graph.symbols import bound_symbol
from aotgrad.ir import (
    AliasOfIntermediate,
    BackwardSegment,
    Capture,
    GraphHalf,
    JointGraph,
    MemberInput,
    SymInput,
    TensorInput,
    ViewAndMutationMeta,
)
from aotgrad.joint.attribution import differentiated_as_in_eager
from aotgrad.joint.backward import cut_into
from aotgrad.joint.failures import failing_nodes, passed_over
from aotgrad.joint.segments import CutBackward, Cuts, Edge, ExternalView, Segmentation, find_segments, taken_apart
from aotgrad.passes.known_values import KnownValues
from aotgrad.pipeline import Executable, Stages
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.runtime.recomputation import (
    NO_INNER_GRADIENTS,
    Gradients,
    InnerGradients,
    InnerValue,
    Recomputation,
    SavedValues,
)
from aotgrad.slots import (
    ForwardResult,
    Gradient,
    GradientTarget,
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
    place_of,
)
from aotgrad.subclasses.passages import gradient_of_parts
from aotgrad.torch_compat import OpSettings
from aotgrad.transforms.derived import DerivedFunction
from aotgrad.transforms.effects import EffectSuppression
from aotgrad.transforms.inner_values import find_inner_values
from aotgrad.transforms.plans import DerivedPlans, PlannedCall
from aotgrad.transforms.vmap import CompiledBatches


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
        joined = {torch_compat.gradient_edge(computed) for _, computed in self.capture.joins}
        return find_inner_values(roots, starts - {None}, joined)

    @property
    def is_one_piece(self) -> bool:
        """Whether the function has one autograd node and changes nothing, so that a second run does the same."""
        changes = any(info is not None and info.version_bumps + info.mutation.data for info in self.meta.inputs)
        others = self.views or self.wrappers or self.joint.memory or self.failures or self.has_effects
        return len(self.segments) == 1 and not (changes or others or self.capture.nodes_with_hooks)

    @functools.cached_property
    def inner_values(self) -> tuple[InnerValue, ...]:
        """The types of `inner`; none if a call cannot tell their sizes."""
        found, places = [], self.places_of_symbols
        for tensor in self.inner:
            value = torch_compat.from_functional(tensor)
            symbolic = filter(torch_compat.has_symbols, value.size())
            symbols = {name for number in symbolic for name in torch_compat.symbolic_text(number)[1]}
            if not symbols <= places.keys():
                return ()
            places_here = {name: places[name] for name in symbols}
            found.append(InnerValue(tuple(value.size()), value.dtype, value.device, places_here))
        return tuple(found)

    @property
    def places_of_symbols(self) -> dict[str, tuple[int, int | None]]:
        """Where a call finds each symbol: an input that is a number, or a dimension of an input."""
        found: dict[str, tuple[int, int | None]] = {}
        for index, spec in enumerate(self.capture.inputs):
            sizes = [(spec.value, None)] if isinstance(spec, SymInput) else list(zip(spec.fake.size(), itertools.count()))
            symbols = ((bound_symbol(size), dim) for size, dim in sizes)
            found.update({str(symbol): (index, dim) for symbol, dim in symbols if symbol is not None})
        return found

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


@dataclass(frozen=True)
class CompiledVjp:
    """The compiled vjps of one function, and its batched backwards. Implements `runtime.recomputation.HigherOrder`."""

    function: CapturedFunction
    plans: DerivedPlans
    batches: CompiledBatches
    prepared: dict[tuple, PreparedVjp] = field(default_factory=dict)

    def transformed(self, half: GraphHalf, values: Sequence[Any]) -> Gradients:
        return self.batches(half, values)

    def inner_values(self, segment: int) -> Sequence[InnerValue]:
        return self.function.inner_values

    def __call__(
        self,
        segment: int,
        call: Recomputation,
        saved: SavedValues,
        tangents: Gradients,
        wanted: Sequence[bool],
        inner: InnerGradients = NO_INNER_GRADIENTS,
    ) -> Gradients:
        defined = positions_of_tensors(tangents)
        use = InnerUse.of(inner)
        present = {} if use.is_last else dict(call.present_results())
        settings = torch_compat.OpSettings.now()
        key = (segment, defined, tuple(wanted), tuple(present), settings, use, len(saved.values), saved.absent)
        prepared = self.prepared.get(key)
        if prepared is None:
            prepared = self.prepared[key] = self.prepare(*key[:6], saved)
        others = [*[tangents[k] for k in defined], *[inner.tangents[k] for k in use.defined], *present.values()]
        others += [*inner.stand_ins, *[without_history(saved.values[k]) for k in prepared.saved]]
        if prepared.has_settings_of_trace and call.random_state is None:
            return self.run(prepared, call, others)
        with self.settings_of(call):
            return self.run(prepared, call, others)

    def run(self, prepared: PreparedVjp, call: Recomputation, others: Sequence[Any]) -> Gradients:
        """The gradients, with the settings of the call. `others` are the arguments of the vjp after the inputs."""
        segment = prepared.vjp.segment
        are_unchanged = not self.function.changed_later and call.inputs_are_unchanged(self.versions_of)
        values = [*(call.primals if are_unchanged else self.function.inputs_for(call.primals, segment)), *others]
        if usual := self.plans.cache.fast_path(values, prepared.key):
            if not are_unchanged:
                self.function.check_unchanged(call, self.function.read_by(usual.executable))
            return usual.run(values)
        return self.call_with(prepared, call, [*self.function.inputs_for(call.primals, segment), *others])

    @contextlib.contextmanager
    def settings_of(self, call: Recomputation) -> Iterator[None]:
        """Inside, the settings and the generators are as they were in a call."""
        with torch_compat.random_state_of(call.random_state), self.function.settings.active():
            yield

    @functools.cached_property
    def versions_of(self) -> Callable[[Sequence[torch.Tensor]], list[int]]:
        return native.lookup("versions_of", torch_compat.versions_of)

    def call_with(self, prepared: PreparedVjp, call: Recomputation, values: Sequence[Any]) -> Gradients:
        """The gradients, by whatever plan fits `values`, or without one."""
        arguments = Arguments.of(tuple(values), {})
        if prepared.symbolic is not None:
            arguments = arguments.with_symbols(prepared.symbolic)
        planned = self.plan_for(prepared, arguments)
        if planned is None or planned.stages is None:
            for index in self.function.needed_old_values:
                self.function.reject_old_value(index)
            self.function.check_unchanged(call, range(len(call.primals)))
            return prepared.vjp(*arguments.args) if planned is None else planned()
        self.function.check_unchanged(call, self.function.read_by(compiled_vjp(planned.stages)))
        return planned()

    def plan_for(self, prepared: PreparedVjp, arguments: Arguments) -> PlannedCall | None:
        """The call of a vjp; `None` if it runs uncompiled.

        A vjp with sparse gradients runs uncompiled: a plan cannot return these, and they may get a gradient themselves.
        """
        vjp, plans = prepared.vjp, self.plans
        if vjp.key in plans.refused or plans.cache.runs_eagerly(arguments.tensors):
            return None
        known = prepared.known
        if known is not None and prepared.symbolic is not None:
            known = known.with_inputs(arguments.carriers)
        try:
            return plans.find(vjp, arguments, known=known)
        except UnsupportedOutputError:
            plans.refused.add(vjp.key)
            return None

    def prepare(
        self,
        segment: int,
        defined: tuple[int, ...],
        wanted: tuple[bool, ...],
        present: tuple[int, ...],
        settings: OpSettings,
        inner: InnerUse,
        saved: SavedValues,
    ) -> PreparedVjp:
        """What is common to all calls that differentiate a segment in the same way; see `SegmentVjp`.

        Raises:
            HigherOrderError: the function can have no vjp.
        """
        self.function.reject_lost_inputs()
        self.function.reject_lost_changes()
        self.function.reject_draws()
        results = tuple(self.function.returned[position] for position in present)
        position_of = {slot: k for k, slot in enumerate(saved.slots) if k not in saved.absent}
        slots = self.function.reusable(position_of)
        names = tuple(slot.name for slot in slots)
        vjp = SegmentVjp(self.function, segment, defined, wanted, results, names, settings, inner)
        others = len(self.function.tensor_inputs) + len(defined) + len(present) + len(inner.defined) + inner.stand_ins
        tangents = [self.function.segments[segment].tangents[k] for k in defined]
        sizes = self.function.symbolic_sizes(tangents, inner, results, slots)
        positions, is_repeated = tuple(position_of[slot] for slot in slots), settings == self.function.settings
        return PreparedVjp(vjp, positions, self.function.known_values(names, others), sizes, is_repeated)


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


@dataclass(frozen=True)
class PreparedVjp:
    """A function to trace, and what its calls take.

    Attributes:
        saved: the positions of the saved values that are arguments.
        known: the values that the function computes, and that these and other arguments already contain.
        symbolic: the sizes that no plan depends on; plans then depend on no number either. `None`: a plan is for one size.
        has_settings_of_trace: whether the settings around the backward are those of the function's trace.
    """

    vjp: SegmentVjp
    saved: tuple[int, ...]
    known: KnownValues | None
    symbolic: Mapping[int, frozenset[int]] | None
    has_settings_of_trace: bool

    @property
    def key(self) -> Hashable:
        return self.vjp.key


def positions_of_tensors(values: Gradients) -> tuple[int, ...]:
    """The positions of the values that are not `None`."""
    return tuple([k for k, value in enumerate(values) if value is not None])


def usable(primal: Any) -> Any:
    """An input, or only its value if it is a view that autograd forbids to use because its base was changed.

    Such an input has changed: if its value is needed, eager's error follows. If not, no gradient of a gradient goes through
    it.
    """
    if not isinstance(primal, torch.Tensor) or torch_compat.has_usable_history(primal):
        return primal
    return primal.detach().requires_grad_()


def without_history(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None, "a vjp takes the values that are at hand"
    return tensor.detach() if tensor.requires_grad else tensor


def compiled_vjp(stages: Stages) -> Executable:
    assert isinstance(stages, Executable), "vjps are compiled, however small"
    return stages


@dataclass(frozen=True)
class SegmentVjp(DerivedFunction):
    """The gradients that one segment of a function's backward passes on: runs the function, then differentiates it.

    Takes the inputs of the function, the tangents `defined` of the segment, those of inner values, `results`, stand-ins for
    inner values, and `saved`.

    Attributes:
        wanted: which gradients are computed.
        results: those that the caller has: they are arguments, since they may get gradients.
        saved: the names of values that the first order saved.
        settings: those around the backward; the function runs with those that were around the call.
        inner: what it does with inner values.
    """

    function: CapturedFunction
    segment: int
    defined: tuple[int, ...]
    wanted: tuple[bool, ...]
    results: tuple[ForwardResult | ReturnedView, ...]
    saved: tuple[str, ...]
    settings: OpSettings
    inner: InnerUse
    is_derivative = True

    @functools.cached_property
    def key(self) -> tuple:
        return (self.segment, self.defined, self.wanted, self.results, self.saved, self.settings, self.inner)

    def check(self, stages: Stages) -> None:
        """Raises HigherOrderError if the vjp would read the old value of an input that the function changed."""
        for index in set(self.function.lost_values).intersection(self.function.read_by(compiled_vjp(stages))):
            self.function.reject_old_value(index)

    def __call__(self, *arguments: Any) -> list[torch.Tensor | None]:
        count = len(self.function.capture.inputs)
        primals, others = list(arguments[:count]), iter(arguments[count:])
        tangents, arrived = take(others, len(self.defined)), take(others, len(self.inner.defined))
        results, stand_ins = take(others, len(self.results)), take(others, self.inner.stand_ins)
        if not torch_compat.any_functional(primals):
            primals = [torch.ops.aten.alias(primal) if isinstance(primal, torch.Tensor) else primal for primal in primals]
        with torch.enable_grad():
            inputs = self.leaves(primals) if self.inner.is_last else self.protected(primals)
            entries = [entry_of(value) for value in inputs]
            with gradient_aliases.collected() as joined, self.rerun(primals), torch_compat.plain_checkpoints():
                outputs = self.function.call(*inputs)
            with torch_compat.unobserved():
                forget_hooks([*inputs, *(t for t in outputs if isinstance(t, torch.Tensor) and t._base is not None)])
                slots = (*self.function.results, *self.function.views)
                roots = {slot: root_of_tangent(self.function.meta, slot, outputs) for slot in slots}
                joins = gradient_aliases.positions(joined, inputs)
                inner = self.inner_roots(roots, entries, {torch_compat.gradient_edge(computed) for _, computed in joins})
            for slot, result in zip(self.results, results, strict=True):
                gradient_aliases.declare(result, roots[slot])
            for stand_in, value in zip(stand_ins, inner, strict=False):
                gradient_aliases.declare(stand_in, value)
            with self.settings.active():
                graph = RerunGraph(self.function, roots, entries, joins)
                return self.gradients(graph, tangents, [inner[k] for k in self.inner.defined], arrived)

    def rerun(self, primals: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
        """Open while the original function runs a second time, without effects."""
        runs_op_by_op = self.function.has_effects and not torch_compat.any_functional(primals)
        return EffectSuppression() if runs_op_by_op else repeats.repeat_marks()

    def protected(self, primals: Sequence[Any]) -> list[Any]:
        """The inputs, cloned if the function changes their values or size, since the call itself has already changed them.

        A batch norm changes its running statistics without telling their version counters.
        """
        infos = enumerate(self.function.meta.inputs)
        changed = {k for k, info in infos if info is not None and (info.version_bumps or info.mutation.data)}
        return [primal.clone() if index in changed else primal for index, primal in enumerate(primals)]

    def leaves(self, primals: Sequence[Any]) -> list[Any]:
        """The inputs without their history."""
        with_grad = {k for k in range(len(primals)) if self.function.requires_grad(k)}
        return [primal.detach().requires_grad_() if k in with_grad else primal for k, primal in enumerate(primals)]

    def inner_roots(
        self, roots: Mapping[Any, torch.Tensor], entries: Sequence[GradientEntry], joined: Collection[Edge]
    ) -> list[torch.Tensor]:
        """The inner values of this run; none if the first trace has others: then no gradients pass through them.

        Raises:
            HigherOrderError: gradients have passed through them.
        """
        if not self.inner.any:
            return []
        with_grad = (entry for k, entry in enumerate(entries) if self.function.requires_grad(k))
        results = [roots[slot] for slot in self.function.results]
        found = find_inner_values(results, {edge_of_entry(each)[0] for each in with_grad}, joined)
        if [tensor.dim() for tensor in found] == [tensor.dim() for tensor in self.function.inner]:
            return found
        if self.inner.defined:
            raise HigherOrderError("create_graph=True, and the function computes other values than when it was first traced")
        return []

    def gradients(
        self,
        graph: RerunGraph,
        tangents: Sequence[torch.Tensor],
        inner: Sequence[torch.Tensor],
        arrived: Sequence[torch.Tensor],
    ) -> list[torch.Tensor | None]:
        """The gradients that the segment passes on, `None` where they are not wanted.

        Args:
            inner: the inner values that the gradients `arrived` belong to.
        """
        segment = self.function.segments[self.segment]
        slots: list[Any] = [segment.tangents[k].of for k in self.defined]
        wanted = [gradient for gradient, is_wanted in zip(segment.gradients, self.wanted, strict=True) if is_wanted]
        is_one = len(self.function.segments) == 1
        if is_one and not graph.joined and not self.function.views:
            roots: list[torch.Tensor] = [*(graph.roots[slot] for slot in slots), *inner]
            found = graph.gradients_of_inputs(roots, wanted, [*tangents, *arrived], not self.inner.is_last)
        else:
            targets = {gradient.of for gradient in segment.gradients}
            added = [(GradientEdge(*torch_compat.gradient_edge(value)), t) for value, t in zip(inner, arrived, strict=True)]
            found = graph.gradients_of_segment(slots, targets, tangents, added, not self.inner.is_last)
            found = {replace(gradient, segment=None): value for gradient, value in found.items()} if is_one else found
        return [found.get(gradient) if gradient in wanted else None for gradient in segment.gradients]


def take(values: Iterator[Any], count: int) -> list[Any]:
    """The next `count` values."""
    return list(itertools.islice(values, count))


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


GradientEntry = Any
"""A tensor, or the `GradientEdge` at which its gradient arrives, or a number."""


def entry_of(value: Any) -> GradientEntry:
    """Where the gradient of an input arrives: the input, or its current edge, which a later in-place change replaces."""
    if not isinstance(value, torch.Tensor) or value.grad_fn is None:
        return value
    return GradientEdge(*torch_compat.gradient_edge(value))


def edge_of_entry(entry: GradientEntry) -> tuple[Any, int]:
    return (entry.node, entry.output_nr) if isinstance(entry, GradientEdge) else torch_compat.gradient_edge(entry)


def forget_hooks(values: Sequence[Any]) -> None:
    """Remove hooks that the function registered: the engine runs those of the call itself."""
    for value in values:
        if isinstance(value, torch.Tensor):
            torch_compat.pop_hooks(value)
            torch_compat.pop_post_accumulate_hooks(value)


Found = Mapping[Gradient, torch.Tensor | None]


@dataclass(frozen=True)
class RerunGraph:
    """The autograd graph of a second run of a function.

    Attributes:
        roots: the results that gradients enter at, and the returned views that they pass through.
        entries: where they leave, for each input.
        joined: tensors whose gradients belong to an input as well, with its position.
    """

    function: CapturedFunction
    roots: Mapping[ForwardResult | ReturnedView, torch.Tensor]
    entries: Sequence[GradientEntry]
    joined: Sequence[tuple[int, torch.Tensor]]

    def gradients_of_inputs(
        self,
        roots: Sequence[torch.Tensor],
        wanted: Sequence[Any],
        tangents: Sequence[torch.Tensor],
        create_graph: bool,
    ) -> Found:
        """The gradients of wanted inputs, in a backward of one segment, for tangents of `roots`."""
        leaves = [self.entries[gradient.of.index] for gradient in wanted]
        if not leaves:
            return {}
        with differentiated_as_in_eager(roots):
            found = torch.autograd.grad(roots, leaves, tangents, create_graph=create_graph, allow_unused=True)
        return dict(zip(wanted, found, strict=True))

    def gradients_of_segment(
        self,
        slots: Sequence[Any],
        leaving: Collection[GradientTarget],
        tangents: Sequence[torch.Tensor],
        added: Sequence[tuple[GradientEdge, torch.Tensor]],
        create_graph: bool,
    ) -> Found:
        """The gradients that a segment passes on, for tangents of `slots`. Nothing behind the targets `leaving` runs.

        Args:
            added: edges inside, and their tangents.

        Raises:
            HigherOrderError: the function overwrote a value that its backward needs, and autograd does not show where.
        """
        edges = self.result_edges()
        segmentation = self.segmentation(edges)
        entries = {**{target: edge for edge, target in segmentation.targets.items()}, **edges}
        arriving = self.assembled_tangents(dict(zip(slots, tangents, strict=True)))
        pairs = [*((GradientEdge(*entries[place_of(slot)]), tangent) for slot, tangent in arriving.items()), *added]
        places = set(map(place_of, leaving))
        ends = [GradientEdge(*edge) for edge, target in segmentation.targets.items() if target in places]
        if not ends:
            return {}
        results = self.roots.values()
        with CutBackward(segmentation, lambda cut, gradient: None) as cut_backward, differentiated_as_in_eager(results):
            roots, values = [edge for edge, _ in pairs], [value for _, value in pairs]
            torch.autograd.grad(roots, ends, values, create_graph=create_graph, allow_unused=True)
        return cut_backward.terms()

    def assembled_tangents(self, tangents: Mapping[Any, torch.Tensor]) -> dict[Any, torch.Tensor]:
        """The tangents, with wrapper subclasses in place of their parts."""
        forms, parts = self.function.joint.cut_forms, dict[Any, dict[int, torch.Tensor]]()
        for slot, tangent in tangents.items():
            is_part = isinstance(slot, SegmentBoundary) and slot.is_part
            parts.setdefault(replace(slot, part=0) if is_part else slot, {})[slot.part if is_part else 0] = tangent
        return {slot: gradient_of_parts(forms[slot], some) if slot in forms else some[0] for slot, some in parts.items()}

    def result_edges(self) -> dict[Any, Any]:
        """Where gradients enter, except for returned views."""
        roots = self.roots.items()
        return {slot: torch_compat.gradient_edge(t) for slot, t in roots if not isinstance(slot, ReturnedView)}

    def wrapper_view(self, slot: ReturnedWrapper, edges: Mapping[Any, Any]) -> ExternalView:
        """A wrapper subclass among the results that gradients pass through."""
        taker = next(root.grad_fn for of, root in self.roots.items() if of.index >= slot.index and of in edges)
        return taken_apart(slot, taker, [edge for edge in edges.values() if edge[0] is taker])

    def segmentation(self, edges: Mapping[Any, Any]) -> Segmentation:
        """The segments of the backward, cut in the places of the first trace.

        Raises:
            HigherOrderError: see `gradients_of_segment`.
        """
        function = self.function
        behind = [(view, function.meta.result_behind(view.index)) for view in function.views]
        views = [
            ExternalView(view, torch_compat.gradient_edge(self.roots[view]), (edges[base],) if base in edges else ())
            for view, base in behind
        ]
        views += [self.wrapper_view(slot, edges) for slot in function.wrappers]
        inputs = enumerate(function.capture.inputs)
        with_grad = [k for k, spec in inputs if isinstance(spec, TensorInput) and spec.requires_grad]
        starts = {edge_of_entry(self.entries[k]): Primal(k) for k in with_grad}
        starts.update({torch_compat.gradient_edge(computed): Primal(k) for k, computed in self.joined})
        failing = passed_over(failing_nodes(self.roots.values())) if function.failures else {}
        chunks = cut_into(function.capture, function.cuts.grad_segments)
        settings = (function.joint.effects, function.cuts.joins_results)
        segmentation = find_segments(edges, starts, chunks, views, failing, *settings)
        assert segmentation is not None, "the function ran otherwise than when it was first traced"
        if len(segmentation.failures) != function.failures:
            raise HigherOrderError(
                "create_graph=True has to know which part of the backward raises since the compiled function changed a "
                "saved value in place, and autograd does not show it for a view or a custom function; change a clone() of "
                "the value"
            )
        return segmentation


def rank(slot: ForwardResult) -> tuple[int, int]:
    """The order of forward results."""
    return (UpdatedInput, UserOutput, IntermediateBase).index(type(slot)), slot.index
