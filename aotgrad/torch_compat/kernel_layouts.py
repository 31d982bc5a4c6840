"""Ops that torch's fakes or decompositions lay out otherwise than kernels do, or whose fakes refuse what kernels take.

Most fakes of these ops come from decompositions, and a decomposition lays out its result as its last op does. A graph that
trusts such a fake takes a view where eager copies. Where a backend decomposes the ops, `in_kernel_layout` corrects the
results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._prims_common import (
    compute_elementwise_output_strides,
    make_channels_last_strides_for,
    make_contiguous_strides_for,
    suggest_memory_format,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from aotgrad.torch_compat.recording import hidden_tracing_modes
from aotgrad.torch_compat.shapes import has_symbolic_shape, known_equal

Strides = Sequence[int | torch.SymInt]
LayoutRule = Callable[[torch.Tensor, Sequence[torch.Tensor]], Strides]
"""The strides of the first result of an op, and of others with as many dimensions, by its fake and the arguments."""


def contiguous(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Strides:
    return make_contiguous_strides_for(result.shape)


def as_operands(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Strides:
    """As a `TensorIterator` lays out its result: as its first operands are, size by size."""
    operands = [each.expand(result.shape) for each in tensors if each.dim()]
    return compute_elementwise_output_strides(*operands) if operands else contiguous(result, tensors)


def as_first(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Strides:
    """As the first tensor, or contiguous if its elements are summed."""
    return as_operands(result, tensors[:1] if tensors[0].shape == result.shape else ())


def in_format_of_first(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Strides:
    """Channels-last as the first tensor, or contiguous."""
    is_image = result.dim() in (4, 5) and suggest_memory_format(tensors[0]) != torch.contiguous_format
    return make_channels_last_strides_for(result.shape) if is_image else contiguous(result, tensors)


def in_format_of_second(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Strides:
    """Channels-last as the input of a backward op, whose gradient comes first, or contiguous."""
    return in_format_of_first(result, tensors[1:])


_built_in = torch.ops.aten

LAYOUTS_ON_CPU: dict[Any, LayoutRule] = {
    _built_in._batch_norm_with_update.default: in_format_of_first,
    _built_in._batch_norm_with_update_functional.default: in_format_of_first,
    _built_in._native_batch_norm_legit.default: in_format_of_first,
    _built_in._native_batch_norm_legit.no_stats: in_format_of_first,
    _built_in._native_batch_norm_legit_functional.default: in_format_of_first,
    _built_in._native_batch_norm_legit_no_training.default: in_format_of_first,
    _built_in.batch_norm_backward.default: in_format_of_second,
    _built_in.channel_shuffle.default: in_format_of_first,
    _built_in.log_sigmoid_forward.default: contiguous,
    _built_in.max_unpool2d.default: in_format_of_first,
    _built_in.native_batch_norm.default: in_format_of_first,
    _built_in.native_batch_norm_backward.default: in_format_of_second,
    _built_in.native_group_norm_backward.default: in_format_of_second,
    _built_in.replication_pad2d_backward.default: in_format_of_second,
}
"""Of ops with a kernel of their own for each device."""

LAYOUTS: dict[Any, LayoutRule] = LAYOUTS_ON_CPU | {
    _built_in._log_softmax_backward_data.default: contiguous,
    _built_in.binary_cross_entropy.default: as_first,
    _built_in.copysign.Tensor: as_operands,
    _built_in.floor_divide.default: as_operands,
    _built_in.hardswish_backward.default: as_operands,
    _built_in.hardtanh_backward.default: as_operands,
    _built_in.huber_loss_backward.default: contiguous,
    _built_in.lerp.Scalar: as_operands,
    _built_in.lerp.Tensor: as_operands,
    _built_in.logit_backward.default: as_operands,
    _built_in.mse_loss_backward.default: contiguous,
    _built_in.native_dropout_backward.default: as_operands,
    _built_in.native_layer_norm_backward.default: contiguous,
    _built_in.pow.Scalar: contiguous,
    _built_in.smooth_l1_loss_backward.default: contiguous,
    _built_in.softplus_backward.default: as_operands,
    _built_in.special_xlog1py.default: as_operands,
    _built_in.xlogy.Tensor: as_operands,
}
"""Of these, and of ops whose layout code all devices share."""


def grouped_product(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The result of `grouped_mm`: its rows begin at multiples of 16 bytes. Torch's fake takes bfloat16 alone."""
    of_groups = [] if offs is None else [offs.shape[0]]
    groups = {(2, 2): of_groups, (3, 3): [a.shape[0]]}.get((a.dim(), b.dim()), [])
    dtype = out_dtype or a.dtype
    per_row = 16 // dtype.itemsize
    row = (b.shape[-1] + per_row - 1) // per_row * per_row
    strides = [*([a.shape[-2] * row] if groups else []), row, 1]
    return torch.empty_strided([*groups, a.shape[-2], b.shape[-1]], strides, dtype=dtype, device=a.device)


FAKES: dict[Any, Callable[..., torch.Tensor]] = {_built_in._grouped_mm.default: grouped_product}
"""Of ops that Inductor compiles with torch's own fakes, which may differ: `has_fake_of_torch`."""


def has_fake_of_torch(node: torch.fx.Node) -> bool:
    """Whether torch's own fake of an op takes the arguments of a node, and lays out the result as its kernel does."""
    op: Any = node.target
    if op not in FAKES:
        return True
    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda each: each.meta["val"])
    with node.meta["val"].fake_mode:
        try:
            found = op(*args, **kwargs)
        except RuntimeError:
            return False
    return known_equal(node.meta["val"].stride(), found.stride())


@contextlib.contextmanager
def eager_layouts(mode: FakeTensorMode) -> Iterator[None]:
    """Inside, fake results have the layouts of `LAYOUTS`, or are those of `FAKES`."""

    def dispatch(op: Any, classes: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if op in FAKES:
            with mode:
                return FAKES[op](*args, **(kwargs or {}))
        results = FakeTensorMode.dispatch(mode, op, classes, args, kwargs)
        return laid_out(mode, op, results, (args, kwargs)) if op in LAYOUTS else results

    mode.dispatch = dispatch
    try:
        yield
    finally:
        del mode.dispatch


def laid_out(mode: FakeTensorMode, op: Any, results: Any, arguments: Any) -> Any:
    """The fake results of an op, in the layout of its kernel."""
    with mode:
        return in_kernel_layout(op, results, arguments, with_strides)


def in_kernel_layout(op: Any, results: Any, arguments: Any, lay_out: Callable[[torch.Tensor, Strides], torch.Tensor]) -> Any:
    """The results of an op in `LAYOUTS`, those with as many dimensions as the first one laid out as its kernel does.

    Args:
        results: a tensor or a tuple.
        arguments: the op's arguments, a pytree.
        lay_out: returns a tensor with other strides.
    """
    several = results if isinstance(results, tuple) else (results,)
    first, tensors = several[0], [each for each in pytree.tree_leaves(arguments) if isinstance(each, torch.Tensor)]
    is_elsewhere = not isinstance(first, torch.Tensor) or (op in LAYOUTS_ON_CPU and first.device.type != "cpu")
    if is_elsewhere or not tensors or first.layout is not torch.strided:
        return results
    with hidden_tracing_modes():
        strides = LAYOUTS[op](first, tensors)
    if is_laid_out(first, strides):
        return results
    alike = [isinstance(each, torch.Tensor) and each.dim() == first.dim() for each in several]
    laid = tuple(lay_out(each, strides) if same else each for each, same in zip(several, alike, strict=True))
    return laid if isinstance(results, tuple) else laid[0]


def with_strides(fake: torch.Tensor, strides: Strides) -> torch.Tensor:
    return torch.empty_strided(fake.shape, strides, dtype=fake.dtype, device=fake.device)


def is_laid_out(tensor: torch.Tensor, strides: Strides) -> bool:
    """Whether a tensor is known to have these strides; those of sizes of 1 do not matter."""
    if has_symbolic_shape(tensor):
        return False
    triples = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return all(size == 1 or one == other for size, one, other in triples)
