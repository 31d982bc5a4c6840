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
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from aotgrad import native, torch_compat
from aotgrad.capture import gradient_aliases, repeats
from aotgrad.errors import HigherOrderError, UnsupportedOutputError
from aotgrad.ir import GraphHalf
from aotgrad.joint.joins import Joins, OtherFormAtResult
from aotgrad.joint.segments import Edge
from aotgrad.passes.known_values import KnownValues
from aotgrad.pipeline import Executable, Stages
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.runtime.autograd import is_segment
from aotgrad.runtime.recomputation import (
    NO_INNER_GRADIENTS,
    Gradients,
    InnerGradients,
    InnerValue,
    Recomputation,
    SavedValues,
)
from aotgrad.slots import ForwardResult, ReturnedView
from aotgrad.subclasses.passages import TracedView, passed_results
from aotgrad.torch_compat import OpSettings
from aotgrad.transforms.captured_function import CapturedFunction, InnerUse, positions_of_tensors, root_of_tangent
from aotgrad.transforms.derived import DerivedFunction
from aotgrad.transforms.effects import EffectSuppression
from aotgrad.transforms.inner_values import find_inner_values
from aotgrad.transforms.plans import DerivedPlans, PlannedCall
from aotgrad.transforms.rerun_graph import GradientEntry, RerunGraph, edge_of_entry, entry_of
from aotgrad.transforms.vmap import CompiledBatches


def reject_hooks_of_bypassed(passing: Collection[int]) -> None:
    """Raise if terms of second order bypass a tensor subclass among the results that has a hook, in the running node.

    Args:
        passing: the `id`s of those that they pass.

    Raises:
        HigherOrderError
    """
    node = torch_compat.running_node()
    for result in passed_results(node) if is_segment(node) else ():
        if id(result) not in passing and torch_compat.is_hooked(result):
            raise HigherOrderError(
                f"a gradient of a gradient passes a result that is a {type(result).__name__} and has a hook (or "
                "retain_grad), which would not see its terms of second order: the result is a view, or its gradient has "
                "another form; return a clone() of the view, or remove the hook before the gradient of the gradient"
            )


@dataclass(frozen=True)
class CompiledVjp:
    """The compiled vjps of one function, and its batched backwards. Implements `runtime.recomputation.HigherOrder`.

    The terms of second order of the segments `bypassing` do not pass tensor subclasses among the results.
    """

    function: CapturedFunction
    plans: DerivedPlans
    batches: CompiledBatches
    prepared: dict[tuple, PreparedVjp] = field(default_factory=dict)
    bypassing: set[int] = field(default_factory=set)

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
        use = InnerUse.of(inner)
        if use.is_last:
            return self.gradients(segment, call, saved, tangents, wanted, inner, {})
        passing, parts = self.present_parts(call) if segment not in self.bypassing else (set(), {})
        if self.function.joint.passages:
            reject_hooks_of_bypassed(passing)
        present = dict(sorted({**dict(call.present_results()), **parts}.items()))
        try:
            return self.gradients(segment, call, saved, tangents, wanted, inner, present)
        except OtherFormAtResult:
            self.bypassing.add(segment)
            return self(segment, call, saved, tangents, wanted, inner)

    def gradients(
        self,
        segment: int,
        call: Recomputation,
        saved: SavedValues,
        tangents: Gradients,
        wanted: Sequence[bool],
        inner: InnerGradients,
        present: Mapping[int, torch.Tensor],
    ) -> Gradients:
        """See `HigherOrder`; second-order terms pass through the results `present`, by position."""
        defined, use = positions_of_tensors(tangents), InnerUse.of(inner)
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

    def present_parts(self, call: Recomputation) -> tuple[set[int], dict[int, torch.Tensor]]:
        """The `id`s of wrapper subclasses among the results that the caller still has, and their parts by position."""
        places, passing, parts = self.function.result_of_output, set[int](), dict[int, torch.Tensor]()
        for wrapper, backward, output, part in call.present_parts():
            if (position := places.get((backward.segment, output))) is not None:
                passing.add(id(wrapper))
                parts[position] = part
        return passing, parts

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
                inner = self.inner_roots(roots, entries, Joins.of(joins).edges.keys())
            for slot, result in zip(self.results, results, strict=True):
                gradient_aliases.declare(result, roots[slot])
            for stand_in, value in zip(stand_ins, inner, strict=False):
                gradient_aliases.declare(stand_in, value)
            with self.settings.active():
                views = {slot: outputs[slot.index] for slot in self.function.wrappers}
                views = {slot: view for slot, view in views.items() if isinstance(view, TracedView)}
                graph = RerunGraph(self.function, roots, inputs, entries, joins, views)
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
        if is_one and not (graph.joined or self.function.views or self.function.wrappers):
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


def forget_hooks(values: Sequence[Any]) -> None:
    """Remove hooks that the function registered: the engine runs those of the call itself."""
    for value in values:
        if isinstance(value, torch.Tensor):
            torch_compat.pop_hooks(value)
            torch_compat.pop_post_accumulate_hooks(value)
