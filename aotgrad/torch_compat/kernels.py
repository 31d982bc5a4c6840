"""Python kernels of composite ops, which traces use instead of the C++ ones."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import unittest.mock
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._dispatch.python import enable_python_dispatcher

from aotgrad.torch_compat.shapes import has_symbolic_shape, has_symbols

no_python_dispatcher = torch._C._DisablePythonDispatcher
"""Context in which composite ops use their C++ kernels, also inside `symbolic_kernels`."""


@contextlib.contextmanager
def symbolic_kernels() -> Iterator[None]:
    """Inside, composite ops use their Python kernels, which keep symbolic sizes and draw random numbers as eager does.

    Kernels that differ from eager are replaced: two in whether they return an alias, one in shapes, some in how they round,
    and some that do not write to `out` under a dispatch mode.
    """
    with (
        replace_kernels(torch.ops.aten.dropout.default, eager_dropout),
        replace_kernels(torch.ops.aten.matmul.default, eager_matmul),
        replace_kernels(torch.ops.aten.lstm.input, eager_lstm),
        unittest.mock.patch.object(torch._prims_common, "dtype_to_type_ctor", constructor_of),
        contextlib.ExitStack() as stack,
    ):
        for op in DECOMPOSED_OTHERWISE:
            stack.enter_context(replace_kernels(op, functools.partial(eager_op, op)))
        for op in ROUNDED_OTHERWISE:
            stack.enter_context(replace_kernels(op, functools.partial(eager_composite, op)))
        stack.enter_context(add_kernel(torch.ops.aten.ctc_loss.IntList, ctc_loss_of_lists))
        for op, functional in OUT_IS_LOST:
            stack.enter_context(add_kernel(op, functools.partial(write_result, functional)))
        stack.enter_context(enable_python_dispatcher())
        yield


DECOMPOSED_OTHERWISE = (
    torch.ops.aten.multi_margin_loss.default,
    torch.ops.aten.multilabel_margin_loss_forward.default,  # reads past the -1 that ends a row of targets
    torch.ops.aten.upsample_bilinear2d.default,
    torch.ops.aten.upsample_bicubic2d.default,
)
"""Differentiable ops whose Python kernel is a decomposition with other results, or another order of sums, than eager."""

ROUNDED_OTHERWISE = (
    torch.ops.aten.istft.default,  # its gradient has another layout, too
    torch.ops.aten.upsample_linear1d.vec,
    torch.ops.aten.upsample_bilinear2d.vec,
    torch.ops.aten.upsample_trilinear3d.vec,
    torch.ops.aten.upsample_bicubic2d.vec,
    torch.ops.aten._upsample_bilinear2d_aa.vec,
    torch.ops.aten._upsample_bicubic2d_aa.vec,
)
"""Composite ops whose Python kernel computes in another order than eager."""

_rank = torch.ops.aten.linalg_matrix_rank

OUT_IS_LOST = (
    (_rank.atol_rtol_float_out, _rank.atol_rtol_float),
    (_rank.atol_rtol_tensor_out, _rank.atol_rtol_tensor),
    (_rank.out, _rank.default),
    (_rank.out_tol_tensor, _rank.tol_tensor),
)
"""Composite ops whose kernels forget `out` under a dispatch mode, and the ops that compute its value."""


def write_result(functional: Callable, *args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """`out`, with the size and the value of the result of `functional`."""
    result = functional(*args, **kwargs)
    if out.size() != result.size():
        out.resize_(result.size())
    return out.copy_(result)


@contextlib.contextmanager
def add_kernel(op: torch._ops.OpOverload, kernel: Callable) -> Iterator[None]:
    """Inside, `kernel` is the Python kernel of a composite op that has none."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    op.py_kernels[key] = kernel
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        del op.py_kernels[key]
        op._dispatch_cache.clear()


@contextlib.contextmanager
def replace_kernels(op: torch._ops.OpOverload, kernel: Callable) -> Iterator[None]:
    """Inside, `kernel` replaces the Python kernels of an op; its first argument is the kernel that it replaces."""
    kernels = dict(op.py_kernels)
    op.py_kernels.update({key: functools.partial(kernel, replaced) for key, replaced in kernels.items()})
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        op.py_kernels.update(kernels)
        op._dispatch_cache.clear()


def ctc_loss_of_lists(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """The CTC loss with lengths as numbers. Torch's kernel writes them to a tensor, which has no memory in a trace."""
    op, key = torch.ops.aten.ctc_loss.IntList, torch._C.DispatchKey.CompositeImplicitAutograd
    kernel = functools.partial(op._op_dk, key, log_probs, targets, input_lengths, target_lengths, blank)
    if reduction != 1 or log_probs.device.type != "cpu":
        return kernel(reduction, zero_infinity)
    losses = kernel(0, zero_infinity)
    return (losses / torch.tensor(target_lengths, dtype=losses.dtype).clamp_min(1)).mean()


def eager_dropout(python_kernel: Callable, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout that returns the input itself if it drops nothing, where the Python kernel of older torch returns a clone.

    The backward of the Python kernel multiplies by the exact 1 / (1 - p). Eager on a CPU rounds it to the input's dtype.
    """
    if not train or p == 0:
        return input
    if p == 1 or input.device.type != "cpu" or not is_rounded_otherwise(p, input.dtype):
        return python_kernel(input, p, train)
    return input * torch.empty_like(input).bernoulli_(1 - p).div_(1 - p)


def is_rounded_otherwise(p: float, dtype: torch.dtype) -> bool:
    """Whether 1 / (1 - p) computed in `dtype` differs from the one computed in double precision."""
    if dtype in (torch.bfloat16, torch.float16):
        return math.frexp(1 - p)[0] != 0.5
    return dtype is torch.float32 and single(1 / single(1 - p)) != single(1 / (1 - p))


def single(number: float) -> float:
    """A number rounded to single precision."""
    return ctypes.c_float(number).value


def eager_matmul(python_kernel: Callable, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Eager's kernel if sizes are known: the Python kernel returns a view of the product, eager returns no view.

    For a vector and a matrix, eager squeezes the product in place.
    """
    if has_symbolic_shape(one) or has_symbolic_shape(other):
        product = python_kernel(one, other)
        result = torch.ops.aten._unsafe_view(product, product.size()) if product._is_view() else product
        if one.dim() == 1 and other.dim() == 2:
            torch.autograd.graph.increment_version(result)
        return result
    return torch.ops.aten.matmul.default._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, one, other)


_constructor_of = torch._prims_common.dtype_to_type_ctor


def constructor_of(dtype: torch.dtype) -> Callable:
    """The type of numbers of a dtype; a symbolic number stays one for complex tensors, too."""
    constructor = _constructor_of(dtype)
    return (lambda x: x if isinstance(x, torch.SymFloat) else constructor(x)) if dtype.is_complex else constructor


def eager_lstm(python_kernel: Callable, input: torch.Tensor, states: Sequence[torch.Tensor], *args: Any) -> Any:
    """Eager's kernel, of whole layers, if sizes are known. On a GPU it reads the addresses of weights."""
    if input.device.type == "cpu" and not any(map(has_symbols, pytree.tree_leaves((input, states, args)))):
        return eager_op(torch.ops.aten.lstm.input, python_kernel, input, states, *args)
    return lstm_with_eager_shapes(python_kernel, input, states, *args)


def lstm_with_eager_shapes(python_kernel: Callable, input: torch.Tensor, states: Sequence[torch.Tensor], *args: Any) -> Any:
    """The last states have the shapes of the first ones; torch 2.11 gives them one dimension more."""
    result, *last = python_kernel(input, states, *args)
    pairs = zip(last, states, strict=True)
    return result, *(after if after.dim() == before.dim() else after.reshape(before.shape) for after, before in pairs)


def eager_op(op: torch._ops.OpOverload, python_kernel: Callable, *args: Any, **kwargs: Any) -> Any:
    """The result of an op without its decomposition."""
    with no_python_dispatcher():
        return op(*args, **kwargs)


def eager_composite(op: torch._ops.OpOverload, python_kernel: Callable, *args: Any, **kwargs: Any) -> Any:
    """The result of eager's kernel if sizes are known, otherwise of the Python kernel."""
    if any(map(has_symbols, pytree.tree_leaves((args, kwargs)))):
        return python_kernel(*args, **kwargs)
    return eager_op(op, python_kernel, *args, **kwargs)
