"""Functions that are derived from a compiled function: descriptions that can be traced, as any other function of tensors.

    Batch(Vjp(CalledFunction(f, ...), wanted=(0,), ...), dims=(0, 0), ...)       vmap(grad(f))

    CalledFunction      the function, of the tensors of a call
    CalledSubFunction   some of its results, from the arguments and other results
    DualCall            its results and their tangents (`jvp.py`)
    SegmentVjp          gradients of gradients (`vjp.py`)
    BackwardGraph       the backward graph of a plan (`vmap.py`)
    Batch, Vjp, Jvp     a batch, the gradients, the tangents of one of these

`plans.py` compiles them. A plan is found by the `key` of its function and by guards.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.capture import repeats
from aotgrad.errors import CaptureError
from aotgrad.graph.autograd_nodes import autograd_nodes
from aotgrad.guards.plan import structure_key
from aotgrad.ir import AliasOfIntermediate, ConstantOutput, NonAlias, SymOutput, UnsafeViewAlias
from aotgrad.passes.registry import generation_of_passes
from aotgrad.pipeline import Stages
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.plan_cache.assigned_state import AssignedResult
from aotgrad.plan_cache.call import AmbientState
from aotgrad.plan_cache.entry import NotCompiled
from aotgrad.torch_compat import OpSettings
from aotgrad.transforms.input_views import ViewRecorder
from aotgrad.transforms.subfunctions import CallResult, PlacedResult, SubFunction, SubstituteResults, keep_results

FRESH_OUTPUTS = (NonAlias, UnsafeViewAlias, SymOutput, ConstantOutput)


def reject_changes(stages: Stages) -> None:
    """Raises NotCompiled for a function that changes an input: a second run of it computes something else."""
    if stages.capture.ended or any(
        info is not None and info.version_bumps + info.mutation.data for info in stages.meta.inputs
    ):
        raise NotCompiled


def reject_changes_and_aliases(stages: Stages) -> None:
    """Raises NotCompiled for a function that changes or hooks an input, or whose results share memory."""
    reject_changes(stages)
    bases = [info.base for info in stages.meta.outputs if isinstance(info, AliasOfIntermediate)]
    are_alone = len(bases) == len(set(bases))  # then no other result shows what such a view is a view of
    fresh = (*FRESH_OUTPUTS, AliasOfIntermediate) if are_alone else FRESH_OUTPUTS
    if stages.capture.hooks or not all(isinstance(info, fresh) for info in stages.meta.outputs):
        raise NotCompiled


def reject_custom_functions(stages: Stages) -> None:
    """Raises NotCompiled for an `autograd.Function` that torch refuses inside transforms: the function raises as in eager.

    One in a function that draws random numbers is rejected, too: it may draw other numbers in its backward.
    """
    results = [result for result in stages.capture.outputs if isinstance(result, torch.Tensor)]
    nodes = list(filter(torch_compat.is_users_node, autograd_nodes(results)))
    if any(map(torch_compat.is_refused_by_transforms, nodes)) or (nodes and stages.draws):
        raise NotCompiled


class DerivedFunction:
    """A function of tensors that is traced in place of the user's function. `is_derivative`: it differentiates that."""

    is_derivative = False

    @property
    def key(self) -> Hashable:
        """Equal for functions with the same traces: their types and parameters."""
        values = (getattr(self, each.name) for each in fields(cast(Any, self)))
        return (type(self), *(value.key if isinstance(value, DerivedFunction) else value for value in values))

    def __call__(self, *tensors: Any) -> Any:
        raise NotImplementedError

    def check(self, stages: Stages) -> None:
        """Reject what was traced of this function if its plan could not do what the function does.

        Raises:
            NotCompiled, AOTGradError
        """


@dataclass(frozen=True)
class CalledFunction(DerivedFunction):
    """The function itself. Its result has a `ViewOfArgument` for each view of an argument.

    Attributes:
        state: what it depends on besides its tensors and settings.
        settings: those around the call.
        computed: the arguments that are no leaves: autocast caches no casts of these.
        is_traced: it may use no other tensors than its arguments.
    """

    function: Callable[..., Any]
    arguments: Arguments
    state: Hashable
    settings: OpSettings
    computed: tuple[int, ...]
    is_traced: bool = True

    @classmethod
    def of(cls, function: Callable, arguments: Arguments, state: AmbientState) -> CalledFunction:
        settings = torch_compat.OpSettings.now()
        cached = torch_compat.autocast_keeps
        computed = tuple(k for k, t in enumerate(arguments.tensors) if settings.autocast and not cached(t))
        return cls(function, arguments.without_tensors(), python_key(arguments, state.value), settings, computed)

    def is_unchanged(self, state: AmbientState) -> bool:
        """Whether no trace has changed what `state` was read from, or the Python arguments."""
        return python_key(self.arguments, state.reread()) == self.state

    def reject_changed_state(self, state: AmbientState, error: Exception) -> None:
        """Raise if the function, which `error` left without a plan, changed an attribute while it was traced.

        Raises:
            CaptureError
        """
        if not self.is_unchanged(state):
            raise CaptureError(
                "the function changes an attribute of a module or an object that it was given, and runs op by op under the "
                "transforms of torch.func, so it would do so twice; call it outside of them, or change the attribute there"
            ) from error

    @property
    def key(self) -> Hashable:
        return (self.state, self.settings, self.computed)

    def check(self, stages: Stages) -> None:
        reject_changes_and_aliases(stages)
        reject_custom_functions(stages)

    def __call__(self, *tensors: torch.Tensor) -> PlacedResult:
        return self.call(tensors, {})

    def call(self, tensors: Sequence[torch.Tensor], given: Mapping[CallResult, torch.Tensor]) -> PlacedResult:
        """The result, with the results in `given` in place of what the function computes.

        Raises:
            NotCompiled: the function assigns a buffer, which may get a value of the transforms.
        """
        tensors = tuple(t.view_as(t) if k in self.computed else t for k, t in enumerate(tensors))
        args, kwargs = self.arguments.rebuild(tensors)
        recorder = ViewRecorder(tensors, self.is_traced, given.values())
        with self.settings.active(), recorder, SubstituteResults(given):
            result = self.function(*args, **kwargs)
        if isinstance(result, AssignedResult):
            raise NotCompiled
        result = recorder.without_views(result)
        return PlacedResult(result, recorder.places(result))


def python_key(arguments: Arguments, state: Hashable) -> Hashable:
    return structure_key(arguments.constants, arguments.spec, (state, generation_of_passes()))


@dataclass(frozen=True)
class CalledSubFunction(DerivedFunction):
    """A subfunction. Takes the arguments of the function, then the results that it is computed from, made at `places`."""

    function: CalledFunction
    part: SubFunction
    places: tuple[Any, ...]

    def check(self, stages: Stages) -> None:
        self.function.check(stages)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        count = len(tensors) - len(self.places)
        given = dict(zip(self.places, tensors[count:], strict=True))
        result = self.function.call(tensors[:count], given).result
        found = tensor_leaves(result)
        if any(found[k] is not tensor for k, tensor in zip(self.part.given, tensors[count:], strict=True)):
            raise NotCompiled
        return keep_results(self.part.results, result)


@dataclass(frozen=True)
class Batch(DerivedFunction):
    """`vmap` of a function. Returns its result, with the batch as first dimension, and which of its tensors have one."""

    function: DerivedFunction
    dims: tuple[int | None, ...]
    randomness: str = "error"

    @property
    def is_derivative(self) -> bool:
        return self.function.is_derivative

    def check(self, stages: Stages) -> None:
        self.function.check(stages)

    def __call__(self, *tensors: Any) -> tuple[Any, list[bool]]:
        found: list[tuple[Any, list[bool]]] = []

        def one(*values: Any) -> tuple[torch.Tensor, ...]:
            result = self.function(*values)
            found.append((result, [torch_compat.is_batched(tensor) for tensor in tensor_leaves(result)]))
            return tensor_leaves(result)

        batches = torch.func.vmap(one, self.dims, randomness=self.randomness)(*tensors)
        ((result, batched),) = found
        pairs = zip(batches, batched, strict=True)
        return fill_holes(with_holes(result), [batch if is_batched else batch[0] for batch, is_batched in pairs]), batched


@dataclass(frozen=True)
class Vjp(DerivedFunction):
    """The gradients of the arguments `wanted` of a function.

    Takes the arguments, then the cotangents of the results `defined`. `settings` are those around the backward.
    """

    function: DerivedFunction
    wanted: tuple[int, ...]
    defined: tuple[int, ...]
    settings: OpSettings
    is_derivative = True

    def check(self, stages: Stages) -> None:
        reject_changes(stages)

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor | None]:
        count = len(tensors) - len(self.defined)

        def of_wanted(*wanted: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with repeats.repeat_marks():
                results = tensor_leaves(self.function(*replace_at(tensors[:count], self.wanted, wanted)))
            return tuple(results[position] for position in self.defined)

        with self.settings.active():
            return torch_compat.gradients_inside(of_wanted, [tensors[k] for k in self.wanted], tensors[count:])


@dataclass(frozen=True)
class Jvp(DerivedFunction):
    """The tangents of a function's results. Takes the arguments, then the tangents of the arguments `dual`."""

    function: DerivedFunction
    dual: tuple[int, ...]
    is_derivative = True

    def check(self, stages: Stages) -> None:
        reject_changes(stages)

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        count = len(tensors) - len(self.dual)

        def of_dual(*dual: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with repeats.repeat_marks():
                return tensor_leaves(self.function(*replace_at(tensors[:count], self.dual, dual)))

        primals = tuple(tensors[position] for position in self.dual)
        return list(torch.func.jvp(of_dual, primals, tensors[count:])[1])


def op_by_op(function: DerivedFunction) -> DerivedFunction:
    """The function to run under the transforms that are open, where it has no plan: it may use any tensor."""
    match function:
        case CalledFunction():
            return replace(function, is_traced=False)
        case CalledSubFunction():
            return replace(function, function=replace(function.function, is_traced=False))
        case Batch() | Vjp() | Jvp():
            return replace(function, function=op_by_op(function.function))
    raise AssertionError(function)


def count_batches(function: DerivedFunction) -> int:
    """How many `vmap`s are applied to a function last."""
    return 1 + count_batches(function.function) if isinstance(function, Batch) else 0


# --- Results with and without their tensors ----------------------------------------------------------------------------


class Hole:
    """Where a result has a tensor."""


def tensor_leaves(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor))


def with_holes(result: Any) -> Any:
    """`result` without its tensors, to keep none of them alive."""
    return pytree.tree_map(lambda leaf: Hole() if isinstance(leaf, torch.Tensor) else leaf, result)


def fill_holes(result: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The inverse of `with_holes`."""
    others = iter(tensors)
    return pytree.tree_map(lambda leaf: next(others) if isinstance(leaf, Hole) else leaf, result)


def replace_at(values: Sequence[Any], positions: Sequence[int], others: Sequence[Any]) -> list[Any]:
    """`values` with `others` at `positions`."""
    found = list(values)
    for position, other in zip(positions, others, strict=True):
        found[position] = other
    return found
