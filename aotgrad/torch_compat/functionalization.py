"""Functionalization as a mode, corrected where eager behaves differently.

`guarded_dispatch` handles each op: `REWRITES` and `VALUES_TO_WRITE` record other ops in its place, `_check_op` refuses what
eager refuses, `_record_ordinary_op` is the fast path for ordinary ops.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

from aotgrad.torch_compat.autograd import sequence_nr
from aotgrad.torch_compat.casting_kernels import CASTING_KERNELS, run_casting_kernel
from aotgrad.torch_compat.contexts import normal_mode
from aotgrad.torch_compat.functional_tensors import wrapped_result, wrapped_results
from aotgrad.torch_compat.generators import draw_from, generator_of, is_default_generator, with_generator
from aotgrad.torch_compat.layouts import AbsoluteGeometry, UnsafePieces, keep_layouts, keep_lazy_bits
from aotgrad.torch_compat.memory import has_storage, is_dense, storage_id
from aotgrad.torch_compat.ops import READS_VALUES, OpKind, is_foreach, kind_of_op, unsafe_view, written_arguments
from aotgrad.torch_compat.recording import DEVICE_OF, is_outside_of_kernels, settle
from aotgrad.torch_compat.refusals import (
    REPLACES_STORAGE,
    memory_key,
    refuse_communication_in_place,
    refuse_differentiable_rows,
    refuse_empty_dimension,
    refuse_lossy_cast,
    refuse_mixed_products,
    refuse_stale_views,
    refuse_unrecordable_write,
    refuse_view_across_gaps,
    refuses_lazy_bits,
)
from aotgrad.torch_compat.shapes import has_symbolic_shape
from aotgrad.torch_compat.views import is_view_by_schema
from aotgrad.torch_compat.wrapper_subclasses import dispatches_itself, outside_of_modes


class EffectTokens(dict):
    """The tokens that effectful ops thread through a graph to keep their order; each is created on first use."""

    def __init__(self, make_token: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self._make_token = make_token

    def __contains__(self, effect: object) -> bool:
        return True

    def __missing__(self, effect: Any) -> torch.Tensor:
        self[effect] = self._make_token()
        return self[effect]


_PROXY_KEY = torch._C._TorchDispatchModeKey.PROXY


_KEEPS_GEOMETRY = frozenset({torch.ops.aten.as_strided.default})
"""Views whose arguments the functional mode checks."""


def functional_mode(
    make_token: Callable[[], torch.Tensor],
    reads: ReadsValues | None = None,
    below: ProxyTorchDispatchMode | None = None,
    record: Callable[..., Any] | None = None,
) -> FunctionalTensorMode:
    """The mode that records functionally.

    Args:
        make_token: creates a tracked tensor for effectful ops.
        reads: answers ops that read values.
        below: the mode that records what `record` does not.
        record: `(op, args, kwargs, check)` -> the fake results, or `NotImplemented` for an op that must go through `below`;
            called only while that mode is on. By default all ops go through it.
    """
    mode = FunctionalTensorMode()
    mode._reads = reads
    mode._tokens = EffectTokens(make_token)
    mode._geometry, mode._pieces = AbsoluteGeometry(), UnsafePieces()
    mode._below, mode._record, mode._has_reshaped, mode._assign = below, record, False, None
    mode._writes, mode._casts = [], frozenset()
    # Set on the instance: higher-order ops look up their rules by the exact type of the mode.
    mode.__torch_dispatch__ = types.MethodType(guarded_dispatch, mode)
    return mode


@dataclass(frozen=True)
class InPlaceWrite:
    """One op that writes in place.

    Attributes:
        storages: of what it writes to.
        node_number: the number of its autograd node, or of the last one before it.
        after: the last node of the graph before it.
        is_differentiated: whether grad mode was on.
    """

    storages: frozenset[int]
    node_number: int
    after: Any
    is_differentiated: bool


def writes_of(mode: FunctionalTensorMode) -> Sequence[InPlaceWrite]:
    """The mutating ops that have run in a `functional_mode`."""
    return mode._writes


class ReadsValues(Protocol):
    """Answers ops that read values."""

    def wants(self, op: Any, args: tuple) -> bool:
        """Whether `result` knows what an op returns."""
        ...

    def result(self, op: Any, args: tuple, kwargs: dict[str, Any]) -> Any: ...


WITHOUT_FUNCTIONAL_FORM = {torch.ops.aten.polygamma_.default: torch.ops.aten.polygamma.default}
"""In-place ops `(x, n)` that functionalization treats as custom ones, and the ops that compute `(n, x)` out of place."""


COMPUTED_BEFORE_WRITTEN = {
    torch.ops.aten._native_batch_norm_legit.out: torch.ops.aten._native_batch_norm_legit.default,
    torch.ops.aten.linalg_lstsq.out: torch.ops.aten.linalg_lstsq.default,
    torch.ops.aten.nonzero.out: torch.ops.aten.nonzero.default,
}
"""Ops that write to `out` a data-dependent number of elements, or a wrong one, and the ops that compute those elements."""


def guarded_dispatch(mode: FunctionalTensorMode, op: Any, classes: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Functionalization, with eager's behaviour where it differs.

    - The `__torch_dispatch__` of a subclass comes first; its ops on inner tensors come back here.
    - Code that has turned fake tensors off, as that of a device mesh, computes with real ones.
    - Other ops stand in for those of `REWRITES` and `VALUES_TO_WRITE`.
    - A write to a tensor that the function closed over, or to a view of one, is refused: it would run once, while tracing.
      What is computed from such tensors alone is functional too.
    - A write does not change the layout of a tensor.
    - A view of a normal tensor is a normal tensor, in inference mode too.
    - A view keeps the geometry of the base that it was made from, or is refused. So is an op that depends on the geometry of
      a value that the graph lays out differently: `as_strided`, or a write to the same memory.
    """
    if dispatches_itself(classes):
        return NotImplemented
    kwargs = kwargs or {}
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None:
        with outside_of_modes():
            return op(*args, **kwargs)
    if not isinstance(op, torch._ops.OpOverload):
        return _functional_result(mode, op, classes, args, kwargs)
    if op in REWRITES and (result := REWRITES[op](mode, op, classes, args, kwargs)) is not NotImplemented:
        return result
    if (result := _record_ordinary_op(mode, op, args, kwargs)) is not NotImplemented:
        return result
    if (generator := generator_of(op, args, kwargs)) is not None:
        return _run_with_generator(generator, mode, op, classes, args, kwargs)
    reshapes = torch.Tag.inplace_view in op.tags
    if op._schema.is_mutable:
        mode._writes.append(_write_of(mode, op, args, kwargs))
    mode._has_reshaped |= reshapes
    with torch._C.DisableTorchFunction():  # the user's function does not ask what the checks ask
        _check_op(mode, op, args, kwargs)
        if mode._reads is not None and op in READS_VALUES:
            # Also of what the function closed over: every call reads it.
            args = pytree.tree_map_only(torch.Tensor, functools.partial(_as_traced, mode), args)
            if not is_view_by_schema(op) and mode._reads.wants(op, args):  # the mode below handles a view
                wrap = functools.partial(wrapped_result, mode)
                return pytree.tree_map_only(FakeTensor, wrap, mode._reads.result(op, args, kwargs))
    if op._schema.is_mutable and not reshapes:
        return _functional_write(mode, op, classes, args, kwargs)
    if torch.is_inference_mode_enabled() and is_view_by_schema(op):
        with normal_mode():
            return FunctionalTensorMode.__torch_dispatch__(mode, op, classes, args, kwargs)
    return _functional_result(mode, op, classes, args, kwargs)


def _check_op(mode: FunctionalTensorMode, op: torch._ops.OpOverload, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Raise where eager does and functionalization would not, or where the graph could not follow eager."""
    keep_lazy_bits(args)
    refuse_communication_in_place(op)
    refuse_stale_views(args)
    refuse_mixed_products(op, args)
    refuse_empty_dimension(op, args)
    mode._pieces.check(args)
    mode._geometry.check(op, args, kwargs)


# -- ops that others stand in for


def _fake_device(mode: FunctionalTensorMode, op: Any, classes: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    return args[0].fake_device if is_outside_of_kernels(args[0]) else NotImplemented


def _view_for_expand(mode: FunctionalTensorMode, op: Any, classes: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    if not expands_nothing(*args):
        return NotImplemented
    return guarded_dispatch(mode, torch.ops.aten.view.default, classes, (args[0], sizes_of_view(*args)))


def _refuse_lazy_bits(mode: FunctionalTensorMode, op: Any, classes: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    if not refuses_lazy_bits(op, args):
        return NotImplemented
    raise RuntimeError(f"{op} is not possible for a tensor that is lazily conjugated or negated; resolve its bits first")


def _assign_or_refuse(mode: FunctionalTensorMode, op: Any, classes: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    if op is torch.ops.aten.set_.source_Tensor and mode._assign is not None:
        return mode._assign(*args)
    raise RuntimeError(REPLACES_STORAGE[op])


def _tensor_of_symbol(mode: FunctionalTensorMode, op: Any, classes: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    if not isinstance(args[0], (torch.SymInt, torch.SymFloat)):
        return NotImplemented
    dtype = kwargs.get("dtype") or (torch.int64 if isinstance(args[0], torch.SymInt) else torch.float64)
    options = {"dtype": dtype, "device": kwargs.get("device")}
    return guarded_dispatch(mode, torch.ops.aten.scalar_tensor.default, classes, args[:1], options)


def _resize(mode: FunctionalTensorMode, op: Any, classes: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    return guarded_dispatch(mode, torch.ops.aten.resize_.default, classes, (args[0], args[1].size()), kwargs)


def compute_and_write(
    mode: FunctionalTensorMode, op: Any, classes: Any, args: tuple, kwargs: Mapping[str, Any]
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """The `out` of an op of `COMPUTED_BEFORE_WRITTEN`, with the sizes and values that the other op computes."""
    names = [argument.name for argument in op._schema.arguments if argument.is_out]
    others = {name: value for name, value in kwargs.items() if name not in names}
    results = guarded_dispatch(mode, COMPUTED_BEFORE_WRITTEN[op], classes, args, others)
    outs = [kwargs[name] for name in names]
    for out, result in zip(outs, results if isinstance(results, (tuple, list)) else [results], strict=True):
        if any(have != wanted for have, wanted in zip(out.size(), result.size(), strict=False)) or out.dim() != result.dim():
            guarded_dispatch(mode, torch.ops.aten.resize_.default, classes, (out, result.size()))
        guarded_dispatch(mode, torch.ops.aten.copy_.default, classes, (out, result))
    return outs[0] if len(outs) == 1 else tuple(outs)


REWRITES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(CASTING_KERNELS, run_casting_kernel),  # below autograd, they would run without casts
    **dict.fromkeys(COMPUTED_BEFORE_WRITTEN, compute_and_write),  # a graph cannot resize `out` by values
    **dict.fromkeys(REPLACES_STORAGE, _assign_or_refuse),  # functionalization keeps the storage
    torch.ops.aten._to_copy.default: _tensor_of_symbol,  # a formula takes a symbolic number for a tensor
    torch.ops.aten.expand.default: _view_for_expand,  # a write through it is recorded as old + difference, which rounds
    torch.ops.aten.view_as_real.default: _refuse_lazy_bits,  # refused here, since recorders below resolve the bits
    torch.ops.aten.view.dtype: _refuse_lazy_bits,
    torch.ops.aten.resize_as_.default: _resize,  # functionalization has a rule for `resize_` alone
    DEVICE_OF: _fake_device,  # faster than the modes below
}
"""Ops that are not recorded as they are: `(mode, op, classes, args, kwargs)` -> what they return.

A rewrite gives `NotImplemented` if it does not apply to these arguments.
"""


# -- writes in place


def _write_of(mode: FunctionalTensorMode, op: torch._ops.OpOverload, args: Any, kwargs: Mapping[str, Any]) -> InPlaceWrite:
    written = filter(has_storage, written_arguments(op, args, kwargs))
    last = None if mode._below is None else next(iter(reversed(mode._below.tracer.graph.nodes)), None)
    return InPlaceWrite(frozenset(map(storage_id, written)), sequence_nr() - 1, last, torch.is_grad_enabled())


def _functional_write(
    mode: FunctionalTensorMode, op: torch._ops.OpOverload, classes: Any, args: Any, kwargs: Mapping[str, Any]
) -> Any:
    """Record a write that does not reshape; the tensors written to keep their layouts."""
    refuse_unrecordable_write(op, args, kwargs)
    refuse_lossy_cast(op, args)
    with keep_layouts(written_arguments(op, args, kwargs)):
        if is_foreach(op):
            return _foreach_in_place(mode, op, classes, args, kwargs)
        value = VALUES_TO_WRITE[op](mode, op, classes, args, kwargs) if op in VALUES_TO_WRITE else NotImplemented
        if value is not NotImplemented:
            op, args, kwargs = torch.ops.aten.copy_.default, (args[0], value), {}
        return _functional_result(mode, op, classes, args, kwargs)


def _compute_swapped(mode: FunctionalTensorMode, op: Any, classes: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    return _functional_result(mode, WITHOUT_FUNCTIONAL_FORM[op], classes, (args[1], args[0]), kwargs)


def _draw_densely(mode: FunctionalTensorMode, op: Any, classes: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    if has_symbolic_shape(args[0]) or is_dense(args[0]):
        return NotImplemented
    dense = _functional_result(mode, torch.ops.aten.clone.default, classes, (args[0],), {})
    return _functional_result(mode, torch.ops.aten.uniform.default, classes, (dense, *args[1:]), kwargs)


VALUES_TO_WRITE: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(WITHOUT_FUNCTIONAL_FORM, _compute_swapped),
    torch.ops.aten.uniform_.default: _draw_densely,  # with gaps, the shape function's strides are not the kernel's
}
"""In-place ops whose value another op computes, for a `copy_`. `NotImplemented`: not for these arguments."""


def _run_with_generator(
    generator: torch.Generator, mode: FunctionalTensorMode, op: Any, classes: Any, args: Any, kwargs: Mapping[str, Any]
) -> Any:
    """The result of a random op that draws from a given generator."""
    if is_default_generator(generator):
        args, kwargs = with_generator(op, args, kwargs, None)
        return guarded_dispatch(mode, op, classes, args, kwargs)
    written = list(written_arguments(op, args, kwargs))
    if written:
        refuse_unrecordable_write(op, args, kwargs)
    results = draw_from(generator, op, args, kwargs, lambda twin, *given: _functional_result(mode, twin, classes, *given))
    for target, value in zip(written, results, strict=False):
        guarded_dispatch(mode, torch.ops.aten.copy_.default, classes, (target, value))
    results = written or results
    return results[0] if len(results) == 1 else tuple(results)


ENTANGLED_LIST = "a list of tensors that share memory is changed in place"


def _foreach_in_place(
    mode: FunctionalTensorMode, op: torch._ops.OpOverload, classes: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Write to each tensor of a list, in order: later writes see earlier ones to the memory that they share.

    Above the kernels nothing bumps the versions, so this does. Shared memory is refused where autograd records: eager has
    one node for the whole list, and its gradients ignore the order.
    """
    apart = _are_apart(args)
    if not apart and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in args[0]):
        raise RuntimeError(ENTANGLED_LIST)
    calls = [args] if apart else [_args_at(args, k) for k in range(len(args[0]))]
    for call in calls:
        _functional_result(mode, op, classes, call, kwargs)
        torch.autograd.graph.increment_version(call[0])


def _are_apart(lists: Sequence[Any]) -> bool:
    """Whether no tensor of the first list shares memory with one at another position, of this or another list."""
    memory = [list(map(memory_key, values)) for values in lists if is_list_of_tensors(values)]
    places: dict[int, set[int]] = {}
    for row in memory:
        for place, key in enumerate(row):
            places.setdefault(key, set()).add(place)
    return all(len(places[key]) == 1 for key in memory[0])


def _args_at(args: Sequence[Any], place: int) -> list[Any]:
    """The arguments of a foreach op for one position of its lists; a 1-d tensor of numbers counts as a list."""
    several = (list, tuple)
    numbers = [isinstance(arg, torch.Tensor) and arg.dim() == 1 for arg in args]
    return [
        arg[place : place + 1] if is_packed or isinstance(arg, several) else arg
        for arg, is_packed in zip(args, numbers, strict=True)
    ]


def is_list_of_tensors(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and all(isinstance(value, torch.Tensor) for value in values)


def expands_nothing(tensor: torch.Tensor, size: Sequence[Any], *, implicit: bool = False) -> bool:
    """Whether `expand` repeats no element: it adds dimensions of size 1 at most.

    Symbolic sizes are compared with a guard, as in `expand` itself.
    """
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    if len(size) < tensor.dim():  # `expand` raises
        return False
    pairs = zip(sizes_of_view(tensor, size), _with_ones(tensor, len(size)), strict=True)
    return isinstance(tensor, FunctionalTensor) and all(guard_or_false(new == old) for new, old in pairs)


def sizes_of_view(tensor: torch.Tensor, size: Sequence[Any]) -> list[Any]:
    """The sizes after `expand` to `size`, where -1 keeps a size."""
    pairs = zip(size, _with_ones(tensor, len(size)), strict=True)
    return [old if isinstance(new, int) and new == -1 else new for new, old in pairs]


def _with_ones(tensor: torch.Tensor, dims: int) -> list[Any]:
    return [*(1,) * (dims - tensor.dim()), *tensor.size()]


def _functional_result(mode: FunctionalTensorMode, op: Any, classes: Any, args: Any, kwargs: Any) -> Any:
    """The result of functionalization; results of constants alone are wrapped too."""
    result = FunctionalTensorMode.__torch_dispatch__(mode, op, classes, args, kwargs)
    if isinstance(op, torch._ops.OpOverload):
        with torch._C.DisableTorchFunction():
            mode._pieces.note(op, args, kwargs or {}, result)
            refuse_differentiable_rows(args, result)
    if is_view_by_schema(op):
        return result
    return pytree.tree_map_only(FakeTensor, functools.partial(wrapped_result, mode), result)


def _as_traced(mode: FunctionalTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the graph: the tensor itself, or a copy of a real one."""
    if isinstance(tensor, FunctionalTensor):
        return tensor
    return _functional_result(mode, torch.ops.aten.clone.default, (), (tensor,), {})


def _record_ordinary_op(mode: FunctionalTensorMode, op: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """The fast path of `guarded_dispatch` for most ops that neither write nor are refused; `NotImplemented` for others.

    It wraps results, as functionalization does; for an op that is neither a write nor a view it does nothing else.
    """
    kind = kind_of_op(op)
    if kind is None or mode._below is None or mode._has_reshaped or torch.is_inference_mode_enabled():
        return NotImplemented
    if torch._C._get_dispatch_mode(_PROXY_KEY) is not mode._below:  # the body of a higher-order op has its own recorder
        return NotImplemented

    def check() -> None:
        refuse_mixed_products(op, args)
        refuse_empty_dimension(op, args)

    with torch._C.DisableTorchFunction():
        mode._pieces.check(args)
        if kind is OpKind.VIEW:
            return NotImplemented if op in _KEEPS_GEOMETRY else _functional_view(mode, op, args, kwargs)
        result = mode._record(op, args, kwargs, check)
        if isinstance(result, FakeTensor):
            refuse_differentiable_rows(args, result)
            return wrapped_result(mode, result)
        if result is NotImplemented:
            return result
        parts = wrapped_results(mode, result)
        mode._pieces.note(op, args, kwargs, parts)
        return parts


def _functional_view(mode: FunctionalTensorMode, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The view or views of a functional tensor, recorded so that they can be replayed."""
    source = args[0]
    if type(source) is not FunctionalTensor:
        return NotImplemented
    if op is torch.ops.aten.view.default:
        refuse_view_across_gaps(source, args[1])
    settle(mode._below.tracer.tensor_tracker, source)
    functionalize = torch._C.DispatchKey.Functionalize
    included = torch._C._dispatch_tls_local_include_set() | torch._C.DispatchKeySet(functionalize)
    excluded = torch._C._dispatch_tls_local_exclude_set().remove(functionalize) - FunctionalTensor._extra_dispatch_keys
    with torch._C._ForceDispatchKeyGuard(included, excluded):
        before = torch._functionalize_enable_reapply_views(True)
        try:
            views = op._op_dk(functionalize, source.elem, *args[1:], **kwargs)
        finally:
            torch._disable_functionalization()
            torch._functionalize_enable_reapply_views(before)
    if isinstance(views, torch.Tensor):
        return _with_storage_of(source, FunctionalTensor(views, mode), op)
    return type(views)(_with_storage_of(source, FunctionalTensor(view, mode), op) for view in views)


def _with_storage_of(source: torch.Tensor, view: torch.Tensor, op: Any) -> torch.Tensor:
    if op is not unsafe_view:
        torch._functionalize_unsafe_set(view, source)
    return view
