"""Python kernels of composite ops, which a trace uses in place of those in C++."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher

from aotgrad.torch_compat.shapes import is_symbolic

no_python_dispatcher = torch._C._DisablePythonDispatcher
"""Composite ops use their C++ kernels, inside `symbolic_kernels` too."""


@contextlib.contextmanager
def symbolic_kernels() -> Iterator[None]:
    """Composite ops use their Python kernels, which keep symbolic sizes symbolic and draw random numbers as eager does.

    Two of them return an alias where eager returns none, or the other way round: replaced inside. So are kernels that do not
    write to `out` under a dispatch mode.
    """
    with (
        replaced_kernels(torch.ops.aten.dropout.default, eager_dropout),
        replaced_kernels(torch.ops.aten.matmul.default, eager_matmul),
        replaced_kernels(torch.ops.aten.istft.default, eager_istft),
        contextlib.ExitStack() as stack,
    ):
        stack.enter_context(given_kernel(torch.ops.aten.ctc_loss.IntList, ctc_loss_of_lists))
        for op, functional in OUT_IS_LOST:
            stack.enter_context(given_kernel(op, functools.partial(written_result, functional)))
        stack.enter_context(enable_python_dispatcher())
        yield


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
    """Inside, the Python kernels of a composite op are `kernel`, which gets the one that it replaces first."""
    kernels = dict(op.py_kernels)
    replaced = functools.partial(kernel, kernels[torch._C.DispatchKey.CompositeImplicitAutograd])
    op.py_kernels.update(dict.fromkeys(kernels, replaced))
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
    """The input itself if nothing is dropped; the Python kernel gives a clone."""
    return python_kernel(input, p, train) if train and p != 0 else input


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


def eager_istft(python_kernel: Callable, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Eager's kernel where sizes are known: the gradient through the Python kernel lies otherwise in memory."""
    if is_symbolic(input):
        return python_kernel(input, *args, **kwargs)
    return torch.ops.aten.istft.default._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, input, *args, **kwargs)
