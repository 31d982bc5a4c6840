"""Checks before an op is traced: for eager's errors that functionalization misses, and for what it cannot record."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.functional_tensor import FunctionalTensor

from aotgrad.torch_compat.functional_tensors import from_functional
from aotgrad.torch_compat.memory import byte_range, is_dense, is_expanded, storage_key
from aotgrad.torch_compat.ops import overloads, read_arguments, written_arguments
from aotgrad.torch_compat.shapes import has_symbolic_shape, has_unknown_sizes, known_equal
from aotgrad.torch_compat.views import is_stale_view

WRITES_TO_EXPANDED = frozenset(
    {
        *(torch.ops.aten.fill_.Scalar, torch.ops.aten.fill_.Tensor, torch.ops.aten.zero_.default),
        *(torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default, torch.ops.aten.fill_diagonal_.default),
        *(torch.ops.aten.index_fill_.int_Scalar, torch.ops.aten.index_fill_.int_Tensor),
        *(torch.ops.aten.masked_fill_.Scalar, torch.ops.aten.masked_fill_.Tensor),
        *(torch.ops.aten.tril_.default, torch.ops.aten.triu_.default),
    }
)
"""The ops that may write to an expanded tensor in eager; others raise."""

SEVERAL_IN_ONE_PLACE = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)
"""Eager's message."""


def refuse_unrecordable_write(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise for a write to a tensor that is not traced, is sparse, or has several elements in the same memory.

    Also for `normal_()` of a tensor with gaps: on CPUs, its out-of-place form fills a dense tensor in another order.
    """
    for value in written_arguments(op, args, kwargs):
        if not isinstance(value, FunctionalTensor):
            raise RuntimeError("mutating a non-functional tensor")
        if value.layout is not torch.strided:
            raise RuntimeError("mutating a sparse tensor")
        if is_expanded(value):
            raise RuntimeError("writing through an expanded tensor" if op in WRITES_TO_EXPANDED else SEVERAL_IN_ONE_PLACE)
        if op is torch.ops.aten.normal_.default and value.is_cpu and not has_symbolic_shape(value) and not is_dense(value):
            raise RuntimeError("normal_ of a tensor with gaps")
        refuse_overlapping_operands(op, value, args, kwargs)


def refuse_overlapping_operands(
    op: torch._ops.OpOverload, written: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise eager's error for an operand that shares memory with the tensor written to."""
    if torch.Tag.pointwise in op.tags or op in NEVER_FROM_A_PART:
        collides = partly_overlap
    elif op in NEVER_FROM_ITSELF and not fills_a_mask(op, args):
        collides = share_elements
    else:
        return
    operands = pytree.tree_leaves(read_arguments(op, args, kwargs))
    if any(isinstance(other, torch.Tensor) and collides(written, other) for other in operands):
        raise RuntimeError(OVERLAPPING)


NEVER_FROM_ITSELF = frozenset(
    overloads(
        *("index_put_", "_index_put_impl_", "index_add_", "index_copy_", "index_reduce_"),
        *("scatter_", "scatter_add_", "scatter_reduce_", "put_", "addr_"),
        *("cat", "gather", "index_select", "stack", "take"),
    )
)
"""Ops that refuse an operand that shares any memory with the tensor written to."""

NEVER_FROM_A_PART = frozenset(overloads("copy_", "cumprod", "cumsum", "sort"))
"""Ops besides pointwise ones that accept the tensor written to as an operand, but no other tensor with its memory."""

PROMOTING = frozenset(overloads("add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_"))
"""In-place ops whose out-of-place form may promote to a dtype that eager does not cast back."""

SMALLEST_OF_KIND = {bool: torch.bool, int: torch.uint8, float: torch.float16, complex: torch.complex32}
"""The smallest dtype that a number promotes to."""


def refuse_lossy_cast(op: torch._ops.OpOverload, args: Sequence[Any]) -> None:
    """Raise eager's error for an in-place op whose result has a dtype of a higher kind than the tensor written to."""
    if op not in PROMOTING:
        return
    dtypes = [arg.dtype if isinstance(arg, torch.Tensor) else SMALLEST_OF_KIND.get(type(arg), torch.bool) for arg in args]
    result = functools.reduce(torch.promote_types, dtypes)
    if not torch.can_cast(result, args[0].dtype):
        raise RuntimeError(f"result type {result} can't be cast to the desired output type {args[0].dtype}")


PRODUCTS = frozenset(
    {
        *(torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.mv.default, torch.ops.aten.dot.default),
        *(torch.ops.aten.addmm.default, torch.ops.aten.baddbmm.default, torch.ops.aten.addmv.default),
    }
)


def refuse_mixed_products(op: torch._ops.OpOverload, args: Sequence[Any]) -> None:
    """Raise eager's error for a product of different dtypes, which only its kernel detects."""
    if op in PRODUCTS and args[-1].dtype != args[-2].dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {args[-2].dtype} != {args[-1].dtype}")


def refuse_empty_dimension(op: torch._ops.OpOverload, args: Sequence[Any]) -> None:
    """Raise eager's error for a maximum over no elements, or an index into none, which only its kernels detect."""
    if op in EXTREMA and is_known_empty(args[0], args[1]):
        raise IndexError(f"{op.overloadpacket.__name__}(): Expected reduction dim {args[1]} to have non-zero size.")
    if op is torch.ops.aten.index_select.default and is_known_empty(args[0], args[1]) and args[2].numel():
        raise RuntimeError("index_select(): self indexing axis dim should be positive")
    if op is torch.ops.aten.index.Tensor and any(map(functools.partial(misses, args[0], args[1]), range(len(args[1])))):
        raise IndexError("index is out of bounds for dimension with size 0")


def misses(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], dim: int) -> bool:
    """Whether the numbers `indices[dim]` index an empty dimension; with a mask, which may cover several, this is unknown."""
    if any(index is not None and not index.dtype.is_signed for index in indices):
        return False
    chosen = indices[dim]
    return chosen is not None and is_known_empty(tensor, dim) and chosen.numel() > 0


EXTREMA = frozenset({torch.ops.aten.max.dim, torch.ops.aten.min.dim})


def fills_a_mask(op: torch._ops.OpOverload, args: Sequence[Any]) -> bool:
    """Whether an op writes one number on the CPU where a mask is set: eager reads it first, so it may share the memory."""
    if op not in (torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default) or args[3:4] == (True,):
        return False
    indices, values = [index for index in args[1] if index is not None], args[2]
    is_mask = len(indices) == 1 and indices[0].dtype in (torch.bool, torch.uint8)
    return is_mask and values.is_cpu and known_equal([values.numel()], [1])


def is_known_empty(tensor: torch.Tensor, dim: int) -> bool:
    """Whether the size of a dimension is certainly 0."""
    return tensor.dim() > 0 and known_equal([tensor.size(dim)], [0])


OVERLAPPING = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory location. "
    "Please clone() the tensor before performing the operation."
)
"""Eager's message."""


def partly_overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two dense tensors share memory, but not element by element; eager refuses this in a pointwise write."""
    if one is other or not share_elements(one, other):
        return False
    return byte_range(one) != byte_range(other) or one.stride() != other.stride()


def memory_key(tensor: torch.Tensor) -> int:
    """`storage_key` of a tensor, or of the value of a functional one: aliases of an argument may have several wrappers."""
    return storage_key(from_functional(tensor) if isinstance(tensor, FunctionalTensor) else tensor)


def share_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same, or both are dense and have elements in common. Guards symbolic sizes."""
    if memory_key(one) != memory_key(other) or has_unknown_sizes(one) or has_unknown_sizes(other):
        return False
    if 0 in (one.numel(), other.numel()):
        return False
    if one is other or not (is_dense(one) and is_dense(other)):
        return one is other
    (start, end), (other_start, other_end) = byte_range(one), byte_range(other)
    return start < other_end and other_start < end


def refuse_stale_views(args: Sequence[Any]) -> None:
    """Raise if grad mode is on and autograd would give a view a wrong history."""
    if torch.is_grad_enabled():
        for value in pytree.tree_leaves(args):
            if isinstance(value, FunctionalTensor) and is_stale_view(value):
                raise RuntimeError("use of a view of a tensor whose metadata was changed")


ANOTHER_STORAGE = "a tensor is given another storage"
RESHAPED_CONVERSION = "a converted view is reshaped in place"

REPLACES_STORAGE = {
    torch.ops.aten.set_.default: ANOTHER_STORAGE,
    torch.ops.aten.set_.source_Storage: ANOTHER_STORAGE,
    torch.ops.aten.set_.source_Storage_storage_offset: ANOTHER_STORAGE,
    torch.ops.aten.set_.source_Tensor: ANOTHER_STORAGE,
    torch.ops.aten.set_.source_Tensor_storage_offset: ANOTHER_STORAGE,
}
"""Ops that functionalization cannot record, and the error for each."""


COMMUNICATES_IN_PLACE = "an op of torch.distributed changes its arguments"


def refuse_communication_in_place(op: torch._ops.OpOverload) -> None:
    """Raise for an op that fills tensors in the background: its schema does not say which, and a graph does not wait."""
    if op.namespace == "c10d":
        raise RuntimeError(COMMUNICATES_IN_PLACE)


def refuse_view_across_gaps(tensor: torch.Tensor, size: Sequence[Any]) -> None:
    """Raise eager's error for an impossible `view`, also if a write has replaced the value by one without gaps."""
    from torch.utils._python_dispatch import _disable_current_modes

    if has_symbolic_shape(tensor) or tensor.is_contiguous() or any(isinstance(number, torch.SymInt) for number in size):
        return
    with _disable_current_modes(), torch._C._DisablePythonDispatcher():
        torch.empty_strided(tensor.size(), tensor.stride(), device="meta").view(size)


def views_across_gaps(op: torch._ops.OpOverload, args: Sequence[Any]) -> bool:
    """Whether an op is a `view` that is impossible with the strides of its base."""
    if op is not torch.ops.aten.view.default:
        return False
    try:
        refuse_view_across_gaps(*args)
    except RuntimeError:
        return True
    return False


def refuses_lazy_bits(op: torch._ops.OpOverload, args: Sequence[Any]) -> bool:
    """Whether an op is a view that eager refuses because its base is lazily conjugated or negated."""
    if op is torch.ops.aten.view_as_real.default:
        return args[0].is_conj()
    return op is torch.ops.aten.view.dtype and (args[0].is_conj() or args[0].is_neg())


COMPRESSED_LAYOUTS = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def refuse_differentiable_rows(args: Sequence[Any], result: Any) -> None:
    """Raise if autograd would give a history to a functional wrapper of a compressed layout, which aborts the process."""
    if not isinstance(result, torch.Tensor) or result.layout not in COMPRESSED_LAYOUTS or not torch.is_grad_enabled():
        return
    if any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
        raise RuntimeError("layout_impl is only implemented for other layouts of what requires grad")
