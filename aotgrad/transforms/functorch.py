"""Compiled functions inside of `torch.func` transforms: `vmap`, `grad`, `vjp`, `jvp`, and what is made of them.

    torch.func.vmap(torch.func.grad(f))(x)       f compiled: two plans, of vmap(f) and of vmap(vjp of f)

The call is an autograd function for which torch applies each transform that is open, the innermost first. A derivative or a
batch of a `DerivedFunction` is one, too, so everything composes; what is left when all transforms are applied is a
function of plain tensors, with a plan of its own.

    vmap        BatchedRegion           vmap of the region
    grad, vjp   BackwardRegion          the gradients of the region's arguments, of cotangents
    jvp         ForwardRegion           the tangents of the region's results

The first order keeps the plan's own autograd graph, so no forward runs twice. Under a `vmap`, and from the second order on,
a derivative starts from the arguments again, and from the state that the random generators had. What a plan cannot be used
for runs as it is, op by op under the transforms: see docs/gradients.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import torch
import torch.utils._pytree as pytree

from aotgrad import passes, torch_compat
from aotgrad.capture import repeats
from aotgrad.errors import AOTGradError, CaptureError
from aotgrad.graph import op_table
from aotgrad.guards.plan import structure_key
from aotgrad.ir import AliasOfIntermediate, Geometry
from aotgrad.joint.backward import autograd_nodes
from aotgrad.pipeline import Stages
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.plan_cache.call import AmbientState, Call
from aotgrad.plan_cache.entry import CachedPlan, NoPlan
from aotgrad.slots import ForwardResult, IntermediateBase, UserOutput
from aotgrad.telemetry.counters import counters
from aotgrad.torch_compat import AutocastState
from aotgrad.transforms.closure_lifting import lifted
from aotgrad.transforms.input_views import NotCompiled, Watched, with_views
from aotgrad.transforms.jvp import CompiledJvp, reject_aliases
from aotgrad.transforms.subfunctions import (
    Place,
    PlacedResult,
    SubFunction,
    SubstituteResults,
    completed,
    only,
    parts_of,
    places_in,
)

if TYPE_CHECKING:
    from aotgrad.plan_cache.cache import PlanCache, Planned


@dataclass(frozen=True)
class CalledRegion:
    """The function itself. Its result has a `ViewOfArgument` for each view of an argument.

    Attributes:
        state: what it depends on besides its tensors and autocast.
        autocast: what was on around the call.
        computed: the arguments of which autocast keeps no copy, as of a leaf that requires grad.
        is_traced: it may use no other tensors than its arguments.
    """

    function: Callable[..., Any]
    arguments: Arguments
    state: Hashable
    autocast: AutocastState
    computed: tuple[int, ...]
    is_traced: bool = True

    is_derivative = False

    @property
    def key(self) -> Hashable:
        return (self.state, self.autocast, self.computed)

    def __call__(self, *tensors: torch.Tensor) -> PlacedResult:
        return self.called(tensors, {})

    def called(self, tensors: Sequence[torch.Tensor], given: Mapping[Place, torch.Tensor]) -> PlacedResult:
        """The result, computed from some that are given."""
        tensors = tuple(t.view_as(t) if k in self.computed else t for k, t in enumerate(tensors))
        args, kwargs = self.arguments.rebuild(tensors)
        watched = Watched(tensors, self.is_traced, given.values())
        with torch_compat.autocast_as(self.autocast), watched, SubstituteResults(given):
            result = self.function(*args, **kwargs)
        result = watched.without_views(result)
        return PlacedResult(result, watched.places(result))


@dataclass(frozen=True)
class PartRegion:
    """A part of the function: takes its arguments, and then the results that it is computed from; `places` are theirs."""

    region: CalledRegion
    part: SubFunction
    places: tuple[Any, ...]

    is_derivative = False

    @property
    def key(self) -> Hashable:
        return (self.region.key, self.part, self.places)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        count = len(tensors) - len(self.places)
        given = dict(zip(self.places, tensors[count:], strict=True))
        result = self.region.called(tensors[:count], given).result
        found = tensors_of(result)
        if any(found[k] is not tensor for k, tensor in zip(self.part.given, tensors[count:], strict=True)):
            raise NotCompiled
        return only(self.part.results, result)


@dataclass(frozen=True)
class BatchedRegion:
    """`vmap` of a region. Returns its result, with the batch as first dimension, and which of its tensors have one."""

    region: DerivedFunction
    dims: tuple[int | None, ...]
    randomness: str

    @property
    def key(self) -> Hashable:
        return (self.region.key, "vmap", self.dims, self.randomness)

    @property
    def is_derivative(self) -> bool:
        return self.region.is_derivative

    def __call__(self, *tensors: torch.Tensor) -> tuple[Any, list[bool]]:
        found: list[tuple[Any, list[bool]]] = []

        def one(*parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
            result = self.region(*parts)
            found.append((result, [torch_compat.is_batched(tensor) for tensor in tensors_of(result)]))
            return tensors_of(result)

        batches = torch.func.vmap(one, self.dims, randomness=self.randomness)(*tensors)
        ((result, batched),) = found
        pairs = zip(batches, batched, strict=True)
        return filled(with_holes(result), [batch if is_batched else batch[0] for batch, is_batched in pairs]), batched


@dataclass(frozen=True)
class BackwardRegion:
    """The gradients of the arguments `wanted` of a region, of cotangents of the results `defined`, its last arguments.

    `autocast` is what was on around the backward.
    """

    region: DerivedFunction
    wanted: tuple[int, ...]
    defined: tuple[int, ...]
    autocast: AutocastState
    is_derivative = True

    @property
    def key(self) -> Hashable:
        return (self.region.key, "vjp", self.wanted, self.defined, self.autocast)

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor | None]:
        count = len(tensors) - len(self.defined)

        def of_wanted(*wanted: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with repeats.repeated():
                results = tensors_of(self.region(*replaced(tensors[:count], self.wanted, wanted)))
            return tuple(results[position] for position in self.defined)

        with torch_compat.autocast_as(self.autocast):
            return torch_compat.gradients_inside(of_wanted, [tensors[k] for k in self.wanted], tensors[count:])


@dataclass(frozen=True)
class ForwardRegion:
    """The tangents of a region's results, of tangents of the arguments `dual`, its last arguments."""

    region: DerivedFunction
    dual: tuple[int, ...]
    is_derivative = True

    @property
    def key(self) -> Hashable:
        return (self.region.key, "jvp", self.dual)

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        count = len(tensors) - len(self.dual)

        def of_dual(*dual: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with repeats.repeated():
                return tensors_of(self.region(*replaced(tensors[:count], self.dual, dual)))

        primals = tuple(tensors[position] for position in self.dual)
        return list(torch.func.jvp(of_dual, primals, tensors[count:])[1])


CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: an argument of a "
    "compiled function, between its call and the derivative of a derivative"
)

DerivedFunction = Union[CalledRegion, PartRegion, BatchedRegion, BackwardRegion, ForwardRegion]


@dataclass(frozen=True)
class Graph:
    """What a plan has computed from leaves, for the gradients of the first order. Results may be dropped."""

    leaves: Sequence[torch.Tensor]
    results: Sequence[Any]

    def gradients(self, region: BackwardRegion, cotangents: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        results = [self.results[position] for position in region.defined]
        leaves = [self.leaves[position] for position in region.wanted]
        return list(torch.autograd.grad(results, leaves, cotangents, retain_graph=True, allow_unused=True))


@dataclass(frozen=True)
class CallContext:
    """What all regions of one call have in common.

    Attributes:
        plans: those of the function, and of batches of it.
        derivatives: the plans of derivatives.
        flags: those that only say which derivatives require grad.
        refused: the keys of regions that there is no plan of.
        grad_mode: that of the call.
        is_unchanged: whether no trace has changed the function's state.
        parameters: which arguments of the function are `nn.Parameter`s.
    """

    plans: PlanCache
    derivatives: PlanCache
    flags: PlanCache
    refused: set[Hashable]
    grad_mode: bool
    is_unchanged: Callable[[], bool]
    parameters: tuple[bool, ...]

    def tracked(self, tensors: Sequence[torch.Tensor]) -> tuple[bool, ...]:
        """Of which tensors gradients may be asked for, at the levels that have wrapped them or below."""
        return tuple(self.grad_mode and torch_compat.is_tracked(tensor) for tensor in tensors)

    def leaves(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The same memory, without history; the function's own arguments come first."""
        flags = itertools.chain(self.parameters, itertools.repeat(False))
        return [
            torch.nn.Parameter(t.detach(), False) if flag else t.detach() for t, flag in zip(tensors, flags, strict=False)
        ]

    def planned(
        self, region: DerivedFunction, tensors: Sequence[torch.Tensor], plans: PlanCache | None = None
    ) -> PlannedCall:
        """The call of a region's plan, which is made if there is none."""
        plans = plans or (self.derivatives if region.is_derivative else self.plans)
        state = AmbientState(region, region.key, lambda: region.key if self.is_unchanged() else object())
        arguments = Arguments.of(tuple(tensors), {})
        return PlannedCall(plans, plans.plan_for(Call(region, arguments, 0, state)))

    def call(self, region: DerivedFunction, tensors: Sequence[torch.Tensor]) -> Any:
        """The result of the function under the transforms that are open.

        Raises:
            NotCompiled, AOTGradError: there can be no plan.
        """
        return with_views(self.invocation(region, tensors).computed(*tensors), tensors)

    def call_in_parts(
        self,
        region: CalledRegion,
        tensors: Sequence[torch.Tensor],
        parts: Sequence[SubFunction],
        places: Sequence[Place | None],
    ) -> Any:
        """The same, each part with autograd nodes of its own. Errors as for `call`."""
        values, found = [], {}
        for part in parts:
            everything = (*tensors, *(found[position] for position in part.given))
            of_part = PartRegion(region, part, tuple(places[position] for position in part.given))
            values.append(self.invocation(of_part, everything).computed(*everything))
            found.update(zip(part.results, tensors_of(values[-1]), strict=True))
        return with_views(completed(values[0], found), tensors)

    def invocation(self, region: DerivedFunction, tensors: Sequence[torch.Tensor]) -> TransformedCall:
        tracked = self.tracked(tensors)
        return TransformedCall(region, self, tracked, tracked)

    def differentiable(self, region: DerivedFunction, tensors: Sequence[torch.Tensor]) -> list[bool]:
        """Which results of a region require grad; nothing runs.

        Raises:
            NotCompiled, AOTGradError: it cannot be traced.
        """
        return self.planned(region, tensors, self.flags).differentiable()


class SeveralNodes(NotCompiled):
    """A function has to be called in parts; `places` are those of its tensors."""

    def __init__(self, parts: Sequence[SubFunction], places: Sequence[Place | None]) -> None:
        super().__init__()
        self.parts, self.places = parts, places


class PlannedCall(NamedTuple):
    """A call, and the plan that was found for it."""

    plans: PlanCache
    planned: Planned

    @property
    def plan(self) -> CachedPlan | NoPlan:
        return self.planned.plan

    @property
    def stages(self) -> Stages | None:
        """What was traced; `None` if there is no plan."""
        return getattr(self.plan, "executable", None)

    @property
    def draws(self) -> bool:
        """Whether it may draw random numbers."""
        return self.stages is None or self.stages.draws

    @property
    def is_one_result(self) -> bool:
        return self.stages is not None and len(tensors_of(self.stages.capture.outputs)) == 1

    def reject_several_nodes(self, outside: bool) -> None:
        """Reject what more than one autograd node stands for in eager, as results here come from one.

        Raises:
            SeveralNodes, NotCompiled: a result was computed from another one, through which gradients pass; or results can
                be differentiated one after another, by a backward outside of all transforms.
        """
        stages: Any = self.stages
        joint = getattr(stages, "joint", None)
        if joint is None or isinstance(self.plan, NoPlan) or self.plan.output.spec is None:
            raise NotCompiled
        parts = parts_of(joint.segments, slots_of(stages), separate=outside)
        if len(parts) > 1:
            places = places_in(self.plan.output.spec)
            if places is None or not is_pure(stages) or any(places[k] is None for part in parts for k in part.given):
                raise NotCompiled
            raise SeveralNodes(parts, places)

    def differentiable(self) -> list[bool]:
        """Which results require grad.

        Raises:
            NotCompiled: there is no plan.
        """
        if self.stages is None:
            raise NotCompiled
        return [result.requires_grad for result in tensors_of(self.stages.capture.outputs)]

    def __call__(self) -> Any:
        """The result.

        Raises:
            NotCompiled, AOTGradError: there is none.
        """
        return self.plans.run(self.planned)


@dataclass(eq=False)
class TransformedCall:
    """One call of a region.

    Attributes:
        tracked: the arguments of which a gradient may be asked for, if the plan is to keep a graph for that.
        followed: those of which one may be asked for at all, inside of a `vmap` too.
        origin: the call that this is the gradient of.
        random_state: that of the generators when the function ran, if it draws random numbers; a derivative draws the same.
        in_forward_mode: whether results may get a tangent, for which each of their elements needs memory of its own.
        vmaps: how many are open.
        is_last: an argument has changed since; the result can have no derivative.
        result: what it returned, once all transforms are applied; its tensors are the outputs of `Transformed`.
        given: which of these are an argument, as the gradient of a sum is the cotangent: their positions, and those.
        differentiable: which of these have a gradient, as far as is known.
    """

    region: DerivedFunction
    surroundings: CallContext
    tracked: tuple[bool, ...] = ()
    followed: tuple[bool, ...] = ()
    origin: TransformedCall | None = None
    random_state: Any = None
    in_forward_mode: bool = field(default_factory=torch_compat.jvp_is_open)
    vmaps: int = field(default_factory=torch_compat.open_vmaps)
    is_last: bool = False
    result: Any = None
    given: dict[int, int] = field(default_factory=dict)
    differentiable: Sequence[bool] = ()
    graph: Graph | None = None

    def apply(self, *tensors: torch.Tensor) -> Any:
        """The result, under the transforms that are open."""
        return with_views(self.computed(*tensors), tensors)

    def computed(self, *tensors: torch.Tensor) -> Any:
        """The same, before views of arguments are made."""
        outputs = Transformed.apply(self, *tensors)
        found = [tensors[self.given[k]] if k in self.given else output for k, output in enumerate(outputs)]
        return filled(self.result, found)

    def derived(self, region: DerivedFunction, **facts: Any) -> TransformedCall:
        """The call of a derivative of what this one calls."""
        return TransformedCall(region, self.surroundings, origin=self, random_state=self.random_state, **facts)

    def batched(self, dims: Sequence[int | None], randomness: str, tensors: Sequence[torch.Tensor]) -> TransformedCall:
        """The call of a batch of what this one calls.

        A `vmap` that only has cotangents or tangents was not there when the function ran: it drew numbers once.
        """
        was_there = any(dim is not None for dim in dims[: len(self.surroundings.parameters)])
        region = BatchedRegion(self.region, tuple(dims), randomness if was_there else "same")
        in_forward_mode = self.in_forward_mode or torch_compat.jvp_is_open()
        tracked = self.surroundings.tracked(tensors)
        return replace(self, region=region, tracked=tracked, origin=None, in_forward_mode=in_forward_mode)

    def take(self, inner: TransformedCall) -> None:
        """What was found out by the call of a batch of what this one calls."""
        (self.result, _), self.differentiable = inner.result, inner.differentiable
        self.given, self.random_state = inner.given, inner.random_state

    def derivative(self, *tensors: torch.Tensor) -> Any:
        """The same for a derivative; one that there is no plan of runs as it is, op by op."""
        refused = self.surroundings.refused
        if self.region.key not in refused:
            try:
                return self.apply(*tensors)
            except (NotCompiled, AOTGradError):
                refused.add(self.region.key)
        counters["inlined"] += 1
        with torch_compat.random_state_of(self.random_state):
            return as_it_is(self.region)(*tensors)

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The tensors of the result; no transform is open any more."""
        with torch.set_grad_enabled(self.surroundings.grad_mode):
            result = self.compute(self.surroundings.leaves(tensors), any(self.surroundings.tracked(tensors)))
        found = tensors_of(result)
        if not (found or self.region.is_derivative):
            raise NotCompiled
        self.given = {k: given_as(tensor, tensors) for k, tensor in enumerate(found) if shares_memory(tensor, tensors)}
        self.result = with_holes(result)
        if not self.differentiable:
            self.differentiable = [tensor.dtype.is_floating_point or tensor.dtype.is_complex for tensor in found]
        return tuple(t.clone() if self.in_forward_mode and torch_compat.is_expanded(t) else t.detach() for t in found)

    def compute(self, tensors: Sequence[torch.Tensor], is_followed_outside: bool) -> Any:
        """The result, from the graph of what this is the gradient of, or by the region's plan."""
        region, origin = self.region, self.origin
        if origin is not None and origin.is_last:
            raise RuntimeError(CHANGED)
        for tensor, is_tracked in zip(tensors, self.tracked, strict=False):
            tensor.requires_grad_(is_tracked)
        if isinstance(region, BackwardRegion) and origin is not None and origin.graph is not None:
            if any(self.tracked):
                self.differentiable = self.surroundings.differentiable(region, tensors)
            return origin.graph.gradients(region, tensors[len(tensors) - len(region.defined) :])
        call = self.surroundings.planned(region, tensors)
        if any(self.followed) and not region.is_derivative:
            self.reject_several_nodes(call, tensors, is_followed_outside)
        result = self.planned_result(call)
        if any(self.tracked):
            self.differentiable = [tensor.requires_grad for tensor in tensors_of(result)]
            self.graph = Graph(tensors, [torch_compat.edge_of(tensor) for tensor in tensors_of(result)])
        return result

    def reject_several_nodes(self, call: PlannedCall, tensors: Sequence[torch.Tensor], outside: bool) -> None:
        """Raises NotCompiled if results have autograd nodes of their own, where that can be seen."""
        if call.is_one_result:
            return
        if not any(self.tracked):
            leaves = [t.detach().requires_grad_(flag) for t, flag in zip(tensors, self.followed, strict=True)]
            call = self.surroundings.planned(self.region, leaves, self.surroundings.flags)
        call.reject_several_nodes(outside)

    def planned_result(self, call: PlannedCall) -> Any:
        """The result of a plan. A derivative draws the random numbers that the function drew.

        Raises:
            NotCompiled: the function draws inside of a `vmap` that has none of its arguments.
        """
        if self.region.is_derivative:
            with torch_compat.random_state_of(self.random_state):
                return call()
        if call.draws:
            if batches_of(self.region) < self.vmaps:
                raise NotCompiled
            self.random_state = torch_compat.random_state(torch_compat.device_types_that_draw())
        return call()


class Transformed(torch.autograd.Function):
    """A call of a region to which torch applies the transforms that are open."""

    @staticmethod
    def forward(invocation: TransformedCall, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return invocation.run(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[torch.Tensor, ...]) -> None:
        ctx.invocation, *tensors = ctx.inputs = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        pairs = zip(output, ctx.invocation.differentiable, strict=True)
        ctx.mark_non_differentiable(*(tensor for tensor, is_differentiable in pairs if not is_differentiable))

    @staticmethod
    @torch_compat.hidden_from_dynamo
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        invocation, (primals, are_changed) = ctx.invocation, saved_by(ctx)
        wanted = tuple(k for k, needed in enumerate(ctx.needs_input_grad[1:]) if needed)
        given = {k: cotangent for k, cotangent in enumerate(cotangents) if cotangent is not None}
        gradients: list[torch.Tensor | None] = [None] * len(primals)
        if given:
            region = BackwardRegion(invocation.region, wanted, tuple(given), torch_compat.autocast_state())
            inner = invocation.derived(region, is_last=are_changed)
            inner.tracked = invocation.surroundings.tracked(torch_compat.below_gradient([*primals, *given.values()], wanted))
            gradients = replaced(gradients, wanted, inner.derivative(*primals, *given.values()))
        return (None, *gradients)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        given = {k: tangent for k, tangent in enumerate(tangents) if tangent is not None}
        inner = ctx.invocation.derived(ForwardRegion(ctx.invocation.region, tuple(given)))
        found = inner.derivative(*ctx.saved_tensors, *given.values())
        pairs = zip(found, ctx.invocation.differentiable, strict=True)
        return tuple(tangent if is_differentiable else None for tangent, is_differentiable in pairs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, invocation: TransformedCall, *tensors: torch.Tensor) -> tuple[tuple, tuple]:
        inner = invocation.batched(in_dims[1:], info.randomness, tensors)
        outputs = Transformed.apply(inner, *tensors)
        invocation.take(inner)
        _, batched = inner.result
        if any(in_dims[1 + j] != (0 if batched[k] else None) for k, j in inner.given.items()):
            raise NotCompiled
        return outputs, tuple(0 if is_batched else None for is_batched in batched)


def saved_by(ctx: Any) -> tuple[Sequence[torch.Tensor], bool]:
    """The arguments of a call, and whether one was changed in place since.

    Raises:
        RuntimeError: eager's, if one was changed and the graph of the call, which knows whether that matters, is not there.
    """
    try:
        return ctx.saved_tensors, ctx.invocation.is_last
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error) or ctx.invocation.graph is None:
            raise
        return ctx.inputs[1:], True


def as_it_is(region: DerivedFunction) -> DerivedFunction:
    """A region to be run under the transforms that are open."""
    if isinstance(region, CalledRegion):
        return replace(region, is_traced=False)
    return replace(region, region=as_it_is(region.region))


def batches_of(region: DerivedFunction) -> int:
    """How many `vmap`s a region is a batch for."""
    return 1 + batches_of(region.region) if isinstance(region, BatchedRegion) else 0


def shares_memory(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> bool:
    return torch_compat.storage_key(result) in map(torch_compat.storage_key, tensors)


def given_as(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> int:
    """Which argument a result is that shares memory with one.

    Raises:
        NotCompiled: it is another view of it.
    """
    for position, tensor in enumerate(tensors):
        if torch_compat.storage_key(result) == torch_compat.storage_key(tensor) and alike(result, tensor):
            return position
    raise NotCompiled


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout is not torch.strided or one.dtype != other.dtype:
        return False
    return Geometry.of(one) == Geometry.of(other) and one.is_conj() == other.is_conj() and one.is_neg() == other.is_neg()


def slots_of(stages: Stages) -> list[ForwardResult]:
    """Which result of the graph each tensor is that a plan returns."""
    infos = enumerate(zip(stages.capture.outputs, stages.meta.outputs, strict=True))
    tensors = ((k, info) for k, (output, info) in infos if isinstance(output, torch.Tensor))
    return [IntermediateBase(i.base) if isinstance(i, AliasOfIntermediate) else UserOutput(k) for k, i in tensors]


def is_pure(stages: Stages) -> bool:
    """Whether a function may run once for each of its parts: it draws nothing, has no effect, and asks for no values.

    Nor does it use an `autograd.Function`, which makes other calls under a transform than else.
    """
    called = (node.target for node in stages.capture.trace.graph.nodes if node.op == "call_function")
    if stages.draws or stages.value_guard or any(map(op_table.has_effect, called)):
        return False
    return not any(map(torch_compat.is_custom_node, autograd_nodes(tensors_of(stages.capture.outputs))))


class Hole:
    """Where a result has a tensor."""


def tensors_of(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor))


def with_holes(result: Any) -> Any:
    """`result` without its tensors, which it would keep alive."""
    return pytree.tree_map(lambda leaf: Hole() if isinstance(leaf, torch.Tensor) else leaf, result)


def filled(result: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """A result with holes, with tensors in them."""
    others = iter(tensors)
    return pytree.tree_map(lambda leaf: next(others) if isinstance(leaf, Hole) else leaf, result)


def replaced(values: Sequence[Any], positions: Sequence[int], others: Sequence[Any]) -> list[Any]:
    """`values` with `others` at `positions`."""
    found = list(values)
    for position, other in zip(positions, others, strict=True):
        found[position] = other
    return found


def reject_what_transforms_see(executable: Stages) -> None:
    """Raises NotCompiled for a function that changes an input or returns an alias.

    So it does for an `autograd.Function` that torch refuses inside of transforms: it then raises as in eager. One whose
    function draws random numbers may draw others in its backward.
    """
    reject_aliases(executable)
    reject_changes(executable)
    results = [result for result in executable.capture.outputs if isinstance(result, torch.Tensor)]
    nodes = list(filter(torch_compat.is_custom_node, autograd_nodes(results)))
    if any(map(torch_compat.is_refused_by_transforms, nodes)) or (nodes and executable.draws):
        raise NotCompiled


def reject_changed_state(state: AmbientState, error: Exception) -> None:
    """Raise if the function, which `error` left without a plan, changed an attribute while it was traced.

    Raises:
        CaptureError
    """
    if state.reread() != state.value:
        raise CaptureError(
            "the function changes an attribute of a module or an object that it was given, and runs op by op under the "
            "transforms of torch.func, so it would do so twice; call it outside of them, or change the attribute there"
        ) from error


def reject_changes(executable: Stages) -> None:
    """Raises NotCompiled for a function that is not the same when it is run again, as it changes an input."""
    if executable.capture.ended or any(
        info is not None and info.version_bumps + info.mutation.data for info in executable.meta.inputs
    ):
        raise NotCompiled


@dataclass(frozen=True)
class CompiledTransforms:
    """Calls of one function inside of transforms.

    `refused` are the kinds of calls that run the function as it is, `parts` are those of which each part is a call, with the
    places of the function's results.
    """

    plans: PlanCache
    derivatives: PlanCache
    flags: PlanCache
    jvp: CompiledJvp
    refused: set[Hashable] = field(default_factory=set)
    parts: dict[Hashable, tuple[Sequence[SubFunction], Sequence[Place | None]]] = field(default_factory=dict)

    def call(self, function: Callable, arguments: Arguments, state: AmbientState) -> Any:
        """Call `function` where no plan of its own can be used; see `PlanCache.call`."""
        function, arguments = lifted(original := function, arguments)
        if function is not original:
            state = replace(state, eager=function)
        if torch_compat.only_forward_mode() or not torch_compat.only_transforms(arguments.tensors):
            return self.jvp.call(function, arguments, state)
        key = structure_key(arguments.constants, arguments.spec, (state.value, passes.generation()))
        autocast = torch_compat.autocast_state()
        computed = tuple(k for k, t in enumerate(arguments.tensors) if autocast and not torch_compat.autocast_keeps(t))
        region = CalledRegion(function, arguments.without_tensors(), key, autocast, computed)
        outside = any(torch_compat.innermost(tensor).requires_grad for tensor in arguments.tensors)
        if (region.key, outside) not in self.refused:
            try:
                result = self.run(region, arguments.tensors, self.surroundings(arguments.tensors, state), outside)
                counters["transformed"] += 1
                return result
            except (NotCompiled, AOTGradError) as error:
                reject_changed_state(state, error)
                self.refused.add((region.key, outside))
        counters["inlined"] += 1
        return state.eager(*arguments.args, **arguments.kwargs)

    def surroundings(self, tensors: Sequence[torch.Tensor], state: AmbientState) -> CallContext:
        return CallContext(
            self.plans,
            self.derivatives,
            self.flags,
            self.refused,
            torch.is_grad_enabled(),
            lambda: state.reread() == state.value,
            tuple(isinstance(tensor, torch.nn.Parameter) for tensor in tensors),
        )

    def run(self, region: CalledRegion, tensors: Sequence[torch.Tensor], surroundings: CallContext, outside: bool) -> Any:
        """The result, computed by plans of what the transforms make of the function, or of its parts.

        Raises:
            NotCompiled, AOTGradError: there can be no such plan.
        """
        kind = (region.key, outside, surroundings.tracked(tensors), *((tensor.shape, tensor.dtype) for tensor in tensors))
        if kind not in self.parts:
            try:
                return surroundings.call(region, tensors).result
            except SeveralNodes as found:
                if not surroundings.is_unchanged():
                    raise NotCompiled from found  # each part would change the function's state again
                self.parts[kind] = (found.parts, found.places)
        return surroundings.call_in_parts(region, tensors, *self.parts[kind])
