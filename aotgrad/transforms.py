"""Compiled functions inside of `torch.func` transforms: `vmap`, `grad`, `vjp`, `jvp`, and what is made of them.

    torch.func.vmap(torch.func.grad(f))(x)       f compiled: two plans, of vmap(f) and of vmap(vjp of f)

The call is an autograd function for which torch applies each transform that is open, the innermost first. A derivative or a
batch of a `Region` is a region again, so everything composes; what is left when all transforms are applied is a function of
plain tensors, with a plan of its own.

    vmap        BatchedRegion           vmap of the region
    grad, vjp   BackwardRegion          the gradients of the region's arguments, of cotangents
    jvp         ForwardRegion           the tangents of the region's results

The first order keeps the plan's own autograd graph, so no forward runs twice. Under a `vmap`, and from the second order on,
a derivative starts from the arguments again. What a plan cannot be used for runs as it is, op by op under the transforms.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Union

import torch
import torch.utils._pytree as pytree

from aotgrad import op_table, passes, torch_compat
from aotgrad.capture.flatten import Arguments
from aotgrad.counters import counters
from aotgrad.errors import AOTGradError
from aotgrad.guards import structure_key
from aotgrad.ir import Geometry
from aotgrad.joint.backward import autograd_nodes
from aotgrad.jvp import CompiledJvp, NotCompiled, NothingElse, reject_aliases

if TYPE_CHECKING:
    from aotgrad.pipeline import Executable, SmallGraph
    from aotgrad.plan_cache import PlanCache, State


@dataclass(frozen=True)
class CalledRegion:
    """The function itself. `key` is what it depends on besides its tensors; `is_traced`: it may use no others."""

    function: Callable[..., Any]
    arguments: Arguments
    key: Hashable
    is_traced: bool = True

    is_derivative = False

    def __call__(self, *tensors: torch.Tensor) -> Any:
        args, kwargs = self.arguments.rebuild(tensors)
        with NothingElse(tensors) if self.is_traced else contextlib.nullcontext():
            return self.function(*args, **kwargs)


@dataclass(frozen=True)
class BatchedRegion:
    """`vmap` of a region. Returns its result, with the batch as first dimension, and which of its tensors have one."""

    region: Region
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
    """The gradients of the arguments `wanted` of a region, of cotangents of the results `defined`, its last arguments."""

    region: Region
    wanted: tuple[int, ...]
    defined: tuple[int, ...]
    is_derivative = True

    @property
    def key(self) -> Hashable:
        return (self.region.key, "vjp", self.wanted, self.defined)

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor | None]:
        count = len(tensors) - len(self.defined)

        def of_wanted(*wanted: torch.Tensor) -> tuple[torch.Tensor, ...]:
            results = tensors_of(self.region(*replaced(tensors[:count], self.wanted, wanted)))
            return tuple(results[position] for position in self.defined)

        return torch_compat.gradients_inside(of_wanted, [tensors[k] for k in self.wanted], tensors[count:])


@dataclass(frozen=True)
class ForwardRegion:
    """The tangents of a region's results, of tangents of the arguments `dual`, its last arguments."""

    region: Region
    dual: tuple[int, ...]
    is_derivative = True

    @property
    def key(self) -> Hashable:
        return (self.region.key, "jvp", self.dual)

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        count = len(tensors) - len(self.dual)

        def of_dual(*dual: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tensors_of(self.region(*replaced(tensors[:count], self.dual, dual)))

        primals = tuple(tensors[position] for position in self.dual)
        return list(torch.func.jvp(of_dual, primals, tensors[count:])[1])


CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: an argument of a "
    "compiled function, between its call and the derivative of a derivative"
)

Region = Union[CalledRegion, BatchedRegion, BackwardRegion, ForwardRegion]


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
class Surroundings:
    """What all regions of one call have in common.

    Attributes:
        plans: those of the function, and of batches of it.
        derivatives: the plans of derivatives.
        refused: the keys of regions that there is no plan of.
        grad_mode: that of the call.
        is_unchanged: whether no trace has changed the function's state.
        parameters: which arguments of the function are `nn.Parameter`s.
    """

    plans: PlanCache
    derivatives: PlanCache
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

    def run(self, region: Region, tensors: Sequence[torch.Tensor]) -> Any:
        """The result of a region's plan.

        Raises:
            NotCompiled, AOTGradError: there is none.
        """
        from aotgrad.plan_cache import State

        state = State(region, region.key, lambda: region.key if self.is_unchanged() else object())
        plans = self.derivatives if region.is_derivative else self.plans
        return plans.call(region, Arguments.of(tuple(tensors), {}), static_count=0, state=state)


@dataclass(eq=False)
class Invocation:
    """One call of a region.

    Attributes:
        tracked: the arguments of which a gradient may be asked for, if the plan is to keep a graph for that.
        origin: the call that this is the gradient of.
        in_forward_mode: whether results may get a tangent, for which each of their elements needs memory of its own.
        is_last: an argument has changed since; the result can have no derivative.
        result: what it returned, once all transforms are applied; its tensors are the outputs of `Transformed`.
        given: which of these are an argument, as the gradient of a sum is the cotangent: their positions, and those.
        differentiable: which of these have a gradient, as far as is known.
    """

    region: Region
    surroundings: Surroundings
    tracked: tuple[bool, ...] = ()
    origin: Invocation | None = None
    in_forward_mode: bool = field(default_factory=torch_compat.jvp_is_open)
    is_last: bool = False
    result: Any = None
    given: dict[int, int] = field(default_factory=dict)
    differentiable: Sequence[bool] = ()
    graph: Graph | None = None

    def apply(self, *tensors: torch.Tensor) -> Any:
        """The result, under the transforms that are open."""
        outputs = Transformed.apply(self, *tensors)
        return filled(
            self.result, [tensors[self.given[k]] if k in self.given else output for k, output in enumerate(outputs)]
        )

    def derivative(self, *tensors: torch.Tensor) -> Any:
        """The same for a derivative; one that there is no plan of runs as it is, op by op."""
        refused = self.surroundings.refused
        if self.region.key not in refused:
            try:
                return self.apply(*tensors)
            except (NotCompiled, AOTGradError):
                refused.add(self.region.key)
        counters["inlined"] += 1
        return as_it_is(self.region)(*tensors)

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The tensors of the result; no transform is open any more."""
        with torch.set_grad_enabled(self.surroundings.grad_mode):
            result = self.compute(self.surroundings.leaves(tensors))
        found = tensors_of(result)
        self.given = {k: given_as(tensor, tensors) for k, tensor in enumerate(found) if shares_memory(tensor, tensors)}
        self.result = with_holes(result)
        if not self.differentiable:
            self.differentiable = [tensor.dtype.is_floating_point or tensor.dtype.is_complex for tensor in found]
        return tuple(t.clone() if self.in_forward_mode and torch_compat.is_expanded(t) else t.detach() for t in found)

    def compute(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The result, from the graph of what this is the gradient of, or by the region's plan."""
        region, origin = self.region, self.origin
        if origin is not None and origin.is_last:
            raise RuntimeError(CHANGED)
        if isinstance(region, BackwardRegion) and origin is not None and origin.graph is not None:
            return origin.graph.gradients(region, tensors[len(tensors) - len(region.defined) :])
        for tensor, is_tracked in zip(tensors, self.tracked, strict=False):
            tensor.requires_grad_(is_tracked)
        result = self.surroundings.run(region, tensors)
        if any(self.tracked):
            self.differentiable = [tensor.requires_grad for tensor in tensors_of(result)]
            self.graph = Graph(tensors, [torch_compat.edge_of(tensor) for tensor in tensors_of(result)])
        return result


class Transformed(torch.autograd.Function):
    """A call of a region to which torch applies the transforms that are open."""

    @staticmethod
    def forward(invocation: Invocation, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
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
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        invocation, (primals, are_changed) = ctx.invocation, saved_by(ctx)
        wanted = tuple(k for k, needed in enumerate(ctx.needs_input_grad[1:]) if needed)
        given = {k: cotangent for k, cotangent in enumerate(cotangents) if cotangent is not None}
        gradients: list[torch.Tensor | None] = [None] * len(primals)
        if given:
            region = BackwardRegion(invocation.region, wanted, tuple(given))
            inner = Invocation(region, invocation.surroundings, origin=invocation, is_last=are_changed)
            gradients = replaced(gradients, wanted, inner.derivative(*primals, *given.values()))
        return (None, *gradients)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        given = {k: tangent for k, tangent in enumerate(tangents) if tangent is not None}
        inner = Invocation(ForwardRegion(ctx.invocation.region, tuple(given)), ctx.invocation.surroundings)
        found = inner.derivative(*ctx.saved_tensors, *given.values())
        pairs = zip(found, ctx.invocation.differentiable, strict=True)
        return tuple(tangent if is_differentiable else None for tangent, is_differentiable in pairs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, invocation: Invocation, *tensors: torch.Tensor) -> tuple[tuple, tuple]:
        region = BatchedRegion(invocation.region, tuple(in_dims[1:]), info.randomness)
        inner = Invocation(region, invocation.surroundings, invocation.surroundings.tracked(tensors))
        inner.in_forward_mode = inner.in_forward_mode or invocation.in_forward_mode
        outputs = Transformed.apply(inner, *tensors)
        (invocation.result, batched), invocation.differentiable = inner.result, inner.differentiable
        if any(in_dims[1 + j] != (0 if batched[k] else None) for k, j in inner.given.items()):
            raise NotCompiled
        invocation.given = inner.given
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


def as_it_is(region: Region) -> Region:
    """A region to be run under the transforms that are open."""
    if isinstance(region, CalledRegion):
        return replace(region, is_traced=False)
    return replace(region, region=as_it_is(region.region))


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


def reject_what_transforms_see(executable: Executable | SmallGraph) -> None:
    """Raises NotCompiled for a function that changes an input, returns an alias, or draws random numbers.

    So it does for an `autograd.Function` that torch refuses inside of transforms: it then raises as in eager.
    """
    reject_aliases(executable)
    reject_repeated(executable)
    results = [result for result in executable.capture.outputs if isinstance(result, torch.Tensor)]
    if any(map(torch_compat.is_refused_by_transforms, autograd_nodes(results))):
        raise NotCompiled


def reject_repeated(executable: Executable | SmallGraph) -> None:
    """Raises NotCompiled for a function that is not the same when it is run again: it draws numbers, or changes an input."""
    nodes = executable.capture.trace.graph.nodes
    draws = any(node.op == "call_function" and op_table.is_random(node.target) for node in nodes)
    if draws or any(info is not None and info.version_bumps + info.mutation.data for info in executable.meta.inputs):
        raise NotCompiled


@dataclass(frozen=True)
class CompiledTransforms:
    """Calls of one function inside of transforms; `refused` are the kinds of calls that run the function as it is."""

    plans: PlanCache
    derivatives: PlanCache
    jvp: CompiledJvp
    refused: set[Hashable] = field(default_factory=set)

    def call(self, function: Callable, arguments: Arguments, state: State) -> Any:
        """Call `function` where no plan of its own can be used; see `PlanCache.call`."""
        if torch_compat.only_forward_mode() or not torch_compat.only_transforms(arguments.tensors):
            return self.jvp.call(function, arguments, state)
        key = structure_key(arguments.constants, arguments.spec, (state.value, passes.generation()))
        if key not in self.refused:
            try:
                return self.run(CalledRegion(function, arguments.without_tensors(), key), arguments.tensors, state)
            except (NotCompiled, AOTGradError):
                self.refused.add(key)
        counters["inlined"] += 1
        return state.eager(*arguments.args, **arguments.kwargs)

    def run(self, region: CalledRegion, tensors: Sequence[torch.Tensor], state: State) -> Any:
        """The result, computed by plans of what the transforms make of the function.

        Raises:
            NotCompiled, AOTGradError: there can be no such plan.
        """
        surroundings = Surroundings(
            self.plans,
            self.derivatives,
            self.refused,
            torch.is_grad_enabled(),
            lambda: state.reread() == state.value,
            tuple(isinstance(tensor, torch.nn.Parameter) for tensor in tensors),
        )
        result = Invocation(region, surroundings, surroundings.tracked(tensors)).apply(*tensors)
        counters["transformed"] += 1
        return result
