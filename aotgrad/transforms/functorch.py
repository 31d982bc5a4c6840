"""Compiled functions inside transforms of `torch.func`: `vmap`, `grad`, `vjp`, `jvp` and their compositions.

    torch.func.vmap(torch.func.grad(f))(x)       f compiled: two plans, of vmap(f) and of vmap(vjp of f)

A call is an autograd function, `Transformed`, and torch applies the open transforms to it, the innermost first. Each
transform derives another function (`derived.py`), and its call is an autograd function, too, so transforms compose. After
the last one, a function of plain tensors remains. It has a plan of its own.

    vmap        Batch       the batch
    grad, vjp   Vjp         the gradients of the arguments
    jvp         Jvp         the tangents of the results

A gradient of the first order comes from the plan's own autograd graph, so no forward runs twice. Under a `vmap`, and from
the second order on, a derivative starts from the arguments, with the random state that the function started with. A
function that can have no plan runs op by op under the transforms: see docs/gradients.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.errors import AOTGradError, CaptureError
from aotgrad.graph import op_table
from aotgrad.graph.autograd_nodes import autograd_nodes
from aotgrad.graph.geometry import Geometry
from aotgrad.ir import AliasOfIntermediate
from aotgrad.pipeline import Stages
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.plan_cache.entry import NoPlan, NotCompiled
from aotgrad.slots import ForwardResult, IntermediateBase, UserOutput
from aotgrad.telemetry.counters import counters
from aotgrad.torch_compat import CompilerSettings
from aotgrad.transforms import derived
from aotgrad.transforms.derived import Batch, CalledFunction, DerivedFunction, Jvp, Vjp, replace_at, tensor_leaves
from aotgrad.transforms.input_views import with_views
from aotgrad.transforms.plans import DerivedPlans, PlannedCall
from aotgrad.transforms.subfunctions import CallResult, SubFunction, complete, places_in, subfunctions_of

CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: an argument of a "
    "compiled function, between its call and the derivative of a derivative"
)


@dataclass(frozen=True)
class CallContext:
    """What all calls of derived functions have in common that come from one call of a user.

    Attributes:
        plans: those of derived functions.
        captures, traces: plans that never run: the former tell which results require grad, the latter how a backward is
            segmented.
        grad_mode: that of the call.
        is_unchanged: whether no trace has changed the function's state.
        parameters: which arguments of the function are `nn.Parameter`s.
    """

    plans: DerivedPlans
    captures: DerivedPlans
    traces: DerivedPlans
    grad_mode: bool
    is_unchanged: Callable[[], bool]
    parameters: tuple[bool, ...]

    def tracked(self, tensors: Sequence[torch.Tensor]) -> tuple[bool, ...]:
        """Which tensors may get a gradient, at the levels that have wrapped them or below."""
        return tuple(self.grad_mode and torch_compat.is_tracked(tensor) for tensor in tensors)

    def leaves(self, tensors: Sequence[torch.Tensor], tracked: Sequence[bool]) -> list[torch.Tensor]:
        """The same memory, without history; the function's own arguments come first."""
        flags = itertools.chain(self.parameters, itertools.repeat(False))
        detached = (tensor.detach() for tensor in tensors)
        leaves = [torch.nn.Parameter(t, False) if flag else t for t, flag in zip(detached, flags, strict=False)]
        for leaf, is_tracked in zip(leaves, tracked, strict=False):
            leaf.requires_grad_(is_tracked)
        return leaves

    def check_unchanged(self) -> None:
        """Raise if the function cannot run a second time for a derivative, as the state that it depends on has changed.

        Raises:
            CaptureError
        """
        if not self.is_unchanged():
            raise CaptureError(
                "an attribute of a module or an object that the function was given has changed since the call, by the "
                "function or after it, and this derivative under the transforms of torch.func runs the function a second "
                "time; change the attribute outside of the function, after all derivatives"
            )

    def call(self, function: CalledFunction, tensors: Sequence[torch.Tensor]) -> Any:
        """The result of the function under the transforms that are open.

        Raises:
            NotCompiled, AOTGradError: there can be no plan.
        """
        return with_views(self.request(function, tensors).apply(tensors), tensors).result

    def call_in_parts(
        self,
        function: CalledFunction,
        tensors: Sequence[torch.Tensor],
        parts: Sequence[SubFunction],
        places: Sequence[CallResult | None],
    ) -> Any:
        """The same, by one autograd function for each subfunction. Errors as for `call`."""
        values, found = [], {}
        for part in parts:
            everything = (*tensors, *(found[position] for position in part.given))
            subfunction = derived.CalledSubFunction(function, part, tuple(places[position] for position in part.given))
            values.append(self.request(subfunction, everything).apply(everything))
            found.update(zip(part.results, tensor_leaves(values[-1]), strict=True))
        return with_views(complete(values[0], found), tensors)

    def request(self, function: DerivedFunction, tensors: Sequence[torch.Tensor]) -> CallRequest:
        tracked = self.tracked(tensors)
        return CallRequest(function, self, tracked, tracked)


class SeveralNodes(NotCompiled):
    """The subfunctions have to be called one by one; `places` are those of the function's tensors."""

    def __init__(self, parts: Sequence[SubFunction], places: Sequence[CallResult | None]) -> None:
        super().__init__()
        self.parts, self.places = parts, places


@dataclass(frozen=True)
class Graph:
    """The autograd graph of a plan's call, for gradients of the first order. The results may be dropped."""

    leaves: Sequence[torch.Tensor]
    results: Sequence[Any]

    def gradients(self, function: Vjp, cotangents: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        results = [self.results[position] for position in function.defined]
        leaves = [self.leaves[position] for position in function.wanted]
        return list(torch.autograd.grad(results, leaves, cotangents, retain_graph=True, allow_unused=True))


@dataclass(frozen=True)
class Outcome:
    """What a call returned.

    Attributes:
        result: the result, with holes for its tensors, which are the outputs of `Transformed`.
        differentiable: which of these have a gradient, as far as is known.
        given: which of these are an argument, as the gradient of a sum is the cotangent: their positions, and those.
        random_state: that of the generators when the function ran, if it draws random numbers; a derivative draws the same.
        settings: those that its plan was compiled with; a derivative may be compiled in another thread.
        graph: for gradients of the first order.
    """

    result: Any
    differentiable: Sequence[bool] = ()
    given: dict[int, int] = field(default_factory=dict)
    random_state: Any = None
    settings: CompilerSettings | None = None
    graph: Graph | None = None


@dataclass(frozen=True)
class CallRequest:
    """A call of a derived function.

    Attributes:
        tracked: the arguments that may get a gradient from the plan's autograd graph.
        followed: the arguments that may get a gradient at all, inside a `vmap` too.
        random_state: what a derivative draws from; see `Outcome`.
        settings: what a derivative is compiled with; see `Outcome`.
        graph: of the call that `function` is the vjp of.
        is_stale: an argument has changed since that call; only `graph` knows the gradients, which have no derivative.
        in_forward_mode: whether results may get a tangent: each of their elements then needs memory of its own.
        vmaps: how many are open.
    """

    function: DerivedFunction
    context: CallContext
    tracked: tuple[bool, ...] = ()
    followed: tuple[bool, ...] = ()
    random_state: Any = None
    settings: CompilerSettings | None = None
    graph: Graph | None = None
    is_stale: bool = False
    in_forward_mode: bool = field(default_factory=torch_compat.jvp_is_open)
    vmaps: int = field(default_factory=torch_compat.open_vmaps)

    def apply(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The result under the transforms that are open, before views of arguments are made."""
        call = TransformedCall(self)
        outputs = Transformed.apply(call, *tensors)
        given = call.outcome.given
        return derived.fill_holes(
            call.outcome.result, [tensors[given[k]] if k in given else t for k, t in enumerate(outputs)]
        )

    def batched(self, dims: Sequence[int | None], randomness: str, tensors: Sequence[torch.Tensor]) -> CallRequest:
        """The call of a batch.

        A `vmap` that only has cotangents or tangents was not open when the function ran: it drew numbers once.
        """
        self.check_fresh()
        was_open = any(dim is not None for dim in dims[: len(self.context.parameters)])
        return replace(
            self,
            function=Batch(self.function, tuple(dims), randomness if was_open else "same"),
            tracked=self.context.tracked(tensors),
            graph=None,
            in_forward_mode=self.in_forward_mode or torch_compat.jvp_is_open(),
        )

    def check_fresh(self) -> None:
        """Raise if an argument has changed.

        Raises:
            RuntimeError: as eager's.
        """
        if self.is_stale:
            raise RuntimeError(CHANGED)

    def derivative(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The result of a derivative, which runs op by op if it has no plan."""
        refused = self.context.plans.refused
        if self.graph is None or self.function.key in refused:
            self.context.check_unchanged()
        if self.function.key not in refused:
            try:
                return with_views(self.apply(tensors), tensors)
            except (NotCompiled, AOTGradError):
                refused.add(self.function.key)
        self.check_fresh()
        counters["inlined"] += 1
        with torch_compat.random_state_of(self.random_state):
            return derived.op_by_op(self.function)(*tensors)

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], Outcome]:
        """The tensors of the result, and what else is known of it; no transform is open any more."""
        with torch.set_grad_enabled(self.context.grad_mode):
            leaves = self.context.leaves(tensors, self.tracked)
            if self.graph is None:
                outcome = self.run_plan(leaves, any(self.context.tracked(tensors)))
            else:
                outcome = self.run_graph(self.graph, leaves)
        found = tensor_leaves(outcome.result)
        if not (found or self.function.is_derivative):
            raise NotCompiled
        has_gradient = [tensor.dtype.is_floating_point or tensor.dtype.is_complex for tensor in found]
        outputs = tuple(t.clone() if self.in_forward_mode and torch_compat.is_expanded(t) else t.detach() for t in found)
        return outputs, replace(
            outcome,
            result=derived.with_holes(outcome.result),
            differentiable=outcome.differentiable or has_gradient,
            given={k: argument_of(tensor, tensors) for k, tensor in enumerate(found) if shares_memory(tensor, tensors)},
        )

    def run_graph(self, graph: Graph, leaves: Sequence[torch.Tensor]) -> Outcome:
        """The gradients, from the autograd graph of the call."""
        assert isinstance(self.function, Vjp)
        differentiable = []
        if any(self.tracked) and self.context.is_unchanged():  # else a trace would change the function's state
            differentiable = requires_grad_flags(self.find(self.context.captures, leaves))
        gradients = graph.gradients(self.function, leaves[len(leaves) - len(self.function.defined) :])
        return Outcome(gradients, differentiable, random_state=self.random_state, settings=self.settings)

    def find(self, plans: DerivedPlans, tensors: Sequence[torch.Tensor]) -> PlannedCall:
        arguments = Arguments.of(tuple(tensors), {})
        return plans.find(self.function, arguments, self.context.is_unchanged, settings=self.settings)

    def run_plan(self, leaves: Sequence[torch.Tensor], is_followed_outside: bool) -> Outcome:
        call = self.find(self.context.plans, leaves)
        if any(self.followed) and not self.function.is_derivative:
            self.reject_several_nodes(call, leaves, is_followed_outside)
        outcome = self.run_with_random_state(call)
        if not any(self.tracked):
            return outcome
        tensors = tensor_leaves(outcome.result)
        graph = Graph(leaves, [torch_compat.edge_of(tensor) for tensor in tensors])
        return replace(outcome, graph=graph, differentiable=[tensor.requires_grad for tensor in tensors])

    def run_with_random_state(self, call: PlannedCall) -> Outcome:
        """The result of a plan. A derivative draws the random numbers that the function drew.

        Raises:
            NotCompiled: the function draws inside a `vmap` that has none of its arguments, or draws tensor subclasses.
        """
        if self.function.is_derivative:
            with torch_compat.random_state_of(self.random_state):
                return Outcome(call(), random_state=self.random_state, settings=call.settings)
        if call.stages is not None and not call.stages.draws:
            return Outcome(call(), settings=call.settings)
        if derived.count_batches(self.function) < self.vmaps or call.has_wrappers:
            raise NotCompiled
        state = torch_compat.random_state(torch_compat.devices_that_draw())
        return Outcome(call(), random_state=state, settings=call.settings)

    def reject_several_nodes(self, call: PlannedCall, leaves: Sequence[torch.Tensor], outside: bool) -> None:
        """Reject results that have several autograd nodes in eager, where a program can see that.

        Raises:
            SeveralNodes, NotCompiled
        """
        if call.stages is not None and len(requires_grad_flags(call)) == 1:
            return
        if not any(self.tracked):
            leaves = [t.detach().requires_grad_(flag) for t, flag in zip(leaves, self.followed, strict=True)]
            call = self.find(self.context.traces, leaves)
        reject_several_nodes(call, outside)


@dataclass(eq=False)
class TransformedCall:
    """A request, and its outcome once all transforms are applied."""

    request: CallRequest
    finished: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        assert self.finished is not None, "the call has run"
        return self.finished

    def derive(self, function: DerivedFunction, **facts: Any) -> CallRequest:
        """The call of a derivative of this one."""
        self.request.check_fresh()
        state, settings = self.outcome.random_state, self.outcome.settings
        return CallRequest(function, self.request.context, random_state=state, settings=settings, **facts)


class Transformed(torch.autograd.Function):
    """A call to which torch applies the transforms that are open."""

    @staticmethod
    def forward(call: TransformedCall, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, call.finished = call.request.run(tensors)
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[torch.Tensor, ...]) -> None:
        ctx.call, *tensors = ctx.inputs = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        pairs = zip(output, ctx.call.outcome.differentiable, strict=True)
        ctx.mark_non_differentiable(*(tensor for tensor, is_differentiable in pairs if not is_differentiable))

    @staticmethod
    @torch_compat.hide_from_dynamo
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        call, (primals, is_stale) = ctx.call, saved_arguments(ctx)
        wanted = tuple(k for k, needed in enumerate(ctx.needs_input_grad[1:]) if needed)
        given = {k: cotangent for k, cotangent in enumerate(cotangents) if cotangent is not None}
        gradients: list[torch.Tensor | None] = [None] * len(primals)
        if given:
            tensors = (*primals, *given.values())
            vjp = Vjp(call.request.function, wanted, tuple(given), torch_compat.OpSettings.now())
            tracked = call.request.context.tracked(torch_compat.below_gradient(tensors, wanted))
            inner = call.derive(vjp, tracked=tracked, graph=call.outcome.graph, is_stale=is_stale)
            gradients = replace_at(gradients, wanted, inner.derivative(tensors))
        return (None, *gradients)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        given = {k: tangent for k, tangent in enumerate(tangents) if tangent is not None}
        inner = ctx.call.derive(Jvp(ctx.call.request.function, tuple(given)))
        found = inner.derivative((*ctx.saved_tensors, *given.values()))
        pairs = zip(found, ctx.call.outcome.differentiable, strict=True)
        return tuple(tangent if is_differentiable else None for tangent, is_differentiable in pairs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, call: TransformedCall, *tensors: torch.Tensor) -> tuple[tuple, tuple]:
        inner = TransformedCall(call.request.batched(in_dims[1:], info.randomness, tensors))
        outputs = Transformed.apply(inner, *tensors)
        result, batched = inner.outcome.result
        call.finished = replace(inner.outcome, result=result, graph=None)
        if any(in_dims[1 + j] != (0 if batched[k] else None) for k, j in inner.outcome.given.items()):
            raise NotCompiled
        return outputs, tuple(0 if is_batched else None for is_batched in batched)


def saved_arguments(ctx: Any) -> tuple[Sequence[torch.Tensor], bool]:
    """The arguments of a call, and whether one was changed in place since.

    Raises:
        RuntimeError: eager's, if one was changed and there is no autograd graph, which knows whether that matters.
    """
    try:
        return ctx.saved_tensors, False
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error) or ctx.call.outcome.graph is None:
            raise
        return ctx.inputs[1:], True


# --- What is known of results ------------------------------------------------------------------------------------------


def requires_grad_flags(call: PlannedCall) -> list[bool]:
    """Which results require grad.

    Raises:
        NotCompiled: there is no plan.
    """
    if call.stages is None or isinstance(call.plan, NoPlan):
        raise NotCompiled
    return call.plan.output.wrappers.flags


def reject_several_nodes(call: PlannedCall, outside: bool) -> None:
    """Reject a function that needs several autograd nodes: its results here would come from one.

    Raises:
        SeveralNodes, NotCompiled: a result was computed from another one, and gradients pass through that; or a backward
            outside all transforms can differentiate results one after another.
    """
    if call.has_wrappers:  # segments do not show which wrapper was computed from another one
        if sum(requires_grad_flags(call)) > 1:
            raise NotCompiled
        return
    stages: Any = call.stages
    joint = getattr(stages, "joint", None)
    if joint is None or isinstance(call.plan, NoPlan) or (spec := call.plan.output.spec) is None:
        raise NotCompiled
    parts = subfunctions_of(joint.segments, forward_results(stages), separate=outside)
    if len(parts) > 1:
        places = places_in(spec)
        if places is None or not can_run_in_parts(stages) or any(places[k] is None for part in parts for k in part.given):
            raise NotCompiled
        raise SeveralNodes(parts, places)


def forward_results(stages: Stages) -> list[ForwardResult]:
    """Which result of the graph each tensor is that a plan returns."""
    infos = enumerate(zip(stages.capture.outputs, stages.meta.outputs, strict=True))
    tensors = ((k, info) for k, (output, info) in infos if isinstance(output, torch.Tensor))
    return [IntermediateBase(i.base) if isinstance(i, AliasOfIntermediate) else UserOutput(k) for k, i in tensors]


def can_run_in_parts(stages: Stages) -> bool:
    """Whether a function may run once for each of its subfunctions: it has no effect, and reads no random numbers or values.

    Nor does it use an `autograd.Function`, which makes other calls under a transform than outside of it.
    """
    called = (node.target for node in stages.capture.trace.graph.nodes if node.op == "call_function")
    if stages.draws or stages.value_guard or any(map(op_table.has_effect, called)):
        return False
    return not any(map(torch_compat.is_users_node, autograd_nodes(tensor_leaves(stages.capture.outputs))))


def shares_memory(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> bool:
    return torch_compat.storage_key(result) in map(torch_compat.storage_key, tensors)


def argument_of(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> int:
    """The position of the argument that a result is.

    Raises:
        NotCompiled: the result is another view of it.
    """
    for position, tensor in enumerate(tensors):
        if torch_compat.storage_key(result) == torch_compat.storage_key(tensor) and has_same_layout(result, tensor):
            return position
    raise NotCompiled


def has_same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout is not torch.strided or one.dtype != other.dtype:
        return False
    return Geometry.of(one) == Geometry.of(other) and one.is_conj() == other.is_conj() and one.is_neg() == other.is_neg()
