"""Python kernels of composite ops, which a trace uses in place of those in C++."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._dispatch.python import enable_python_dispatcher

from aotgrad.torch_compat.shapes import is_symbolic, is_symbolic_value

no_python_dispatcher = torch._C._DisablePythonDispatcher
"""Composite ops use their C++ kernels, inside `symbolic_kernels` too."""


@contextlib.contextmanager
def symbolic_kernels() -> Iterator[None]:
    """Composite ops use their Python kernels, which keep symbolic sizes symbolic and draw random numbers as eager does.

    Two of them return an alias where eager returns none, or the other way round, and some round otherwise: replaced inside.
    So are kernels that do not write to `out` under a dispatch mode.
    """
    with (
        replaced_kernels(torch.ops.aten.dropout.default, eager_dropout),
        replaced_kernels(torch.ops.aten.matmul.default, eager_matmul),
        contextlib.ExitStack() as stack,
    ):
        for op in DECOMPOSED_OTHERWISE:
            stack.enter_context(replaced_kernels(op, functools.partial(eager_op, op)))
        for op in ROUNDED_OTHERWISE:
            stack.enter_context(replaced_kernels(op, functools.partial(eager_composite, op)))
        stack.enter_context(given_kernel(torch.ops.aten.ctc_loss.IntList, ctc_loss_of_lists))
        for op, functional in OUT_IS_LOST:
            stack.enter_context(given_kernel(op, functools.partial(written_result, functional)))
        stack.enter_context(enable_python_dispatcher())
        yield


DECOMPOSED_OTHERWISE = (
    torch.ops.aten.multi_margin_loss.default,
    torch.ops.aten.multilabel_margin_loss_forward.default,  # it reads on behind the -1 that ends a row of targets
    torch.ops.aten.upsample_bilinear2d.default,
    torch.ops.aten.upsample_bicubic2d.default,
)
"""Ops that have a derivative, and a Python kernel which takes them apart and computes something else or in another order."""

ROUNDED_OTHERWISE = (
    torch.ops.aten.istft.default,  # the gradient lies otherwise in memory, too
    torch.ops.aten.upsample_linear1d.vec,
    torch.ops.aten.upsample_bilinear2d.vec,
    torch.ops.aten.upsample_trilinear3d.vec,
    torch.ops.aten.upsample_bicubic2d.vec,
    torch.ops.aten._upsample_bilinear2d_aa.vec,
    torch.ops.aten._upsample_bicubic2d_aa.vec,
)
"""Composite ops whose Python kernel computes in another order than eager's."""

_rank = torch.ops.aten.linalg_matrix_rank

OUT_IS_LOST = (
    (_rank.atol_rtol_float_out, _rank.atol_rtol_float),
    (_rank.atol_rtol_tensor_out, _rank.atol_rtol_tensor),
    (_rank.out, _rank.default),
    (_rank.out_tol_tensor, _rank.tol_tensor),
)
"""Composite ops whose kernels forget `out` under a dispatch mode, and the ops that compute what is to be written there."""


def written_result(functional: Callable, *args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """`out`, which gets the size and the value of what `functional` returns."""
    result = functional(*args, **kwargs)
    if out.size() != result.size():
        out.resize_(result.size())
    return out.copy_(result)


@contextlib.contextmanager
def given_kernel(op: torch._ops.OpOverload, kernel: Callable) -> Iterator[None]:
    """Inside, a composite op that has no Python kernel has `kernel`."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    op.py_kernels[key] = kernel
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        del op.py_kernels[key]
        op._dispatch_cache.clear()


@contextlib.contextmanager
def replaced_kernels(op: torch._ops.OpOverload, kernel: Callable) -> Iterator[None]:
    """Inside, the Python kernels of an op are `kernel`, which gets the one that it replaces first."""
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
    """The loss with lengths that are numbers. Torch's own kernel writes them to a tensor that has no memory in a trace."""
    op, key = torch.ops.aten.ctc_loss.IntList, torch._C.DispatchKey.CompositeImplicitAutograd
    kernel = functools.partial(op._op_dk, key, log_probs, targets, input_lengths, target_lengths, blank)
    if reduction != 1 or log_probs.device.type != "cpu":
        return kernel(reduction, zero_infinity)
    losses = kernel(0, zero_infinity)
    return (losses / torch.tensor(target_lengths, dtype=losses.dtype).clamp_min(1)).mean()


def eager_dropout(python_kernel: Callable, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """The input itself if nothing is dropped; the Python kernel of older versions of torch gives a clone.

    Its backward multiplies by the exact 1 / (1 - p), eager's on a CPU by what that is in the type of the input.
    """
    if not train or p == 0:
        return input
    if p == 1 or input.device.type != "cpu" or not is_rounded_otherwise(p, input.dtype):
        return python_kernel(input, p, train)
    return input * torch.empty_like(input).bernoulli_(1 - p).div_(1 - p)


def is_rounded_otherwise(p: float, dtype: torch.dtype) -> bool:
    """Whether 1 / (1 - p) is another number when it is computed in `dtype`, and not in double precision."""
    if dtype in (torch.bfloat16, torch.float16):
        return math.frexp(1 - p)[0] != 0.5
    return dtype is torch.float32 and single(1 / single(1 - p)) != single(1 / (1 - p))


def single(number: float) -> float:
    """A number in single precision."""
    return ctypes.c_float(number).value


def eager_matmul(python_kernel: Callable, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Eager's kernel where sizes are known: the Python kernel gives a view of the product, which is none in eager.

    Of a vector and a matrix eager squeezes the product in place.
    """
    if is_symbolic(one) or is_symbolic(other):
        product = python_kernel(one, other)
        result = torch.ops.aten._unsafe_view(product, product.size()) if product._is_view() else product
        if one.dim() == 1 and other.dim() == 2:
            torch.autograd.graph.increment_version(result)
        return result
    return torch.ops.aten.matmul.default._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, one, other)


def eager_op(op: torch._ops.OpOverload, python_kernel: Callable, *args: Any, **kwargs: Any) -> Any:
    """What an op returns that is not taken apart."""
    with no_python_dispatcher():
        return op(*args, **kwargs)


def eager_composite(op: torch._ops.OpOverload, python_kernel: Callable, *args: Any, **kwargs: Any) -> Any:
    """What eager's kernel returns where sizes are known; with symbolic ones the Python kernel's."""
    if any(map(is_symbolic_value, pytree.tree_leaves((args, kwargs)))):
        return python_kernel(*args, **kwargs)
    return eager_op(op, python_kernel, *args, **kwargs)
