"""Side work of autograd nodes that a trace loses or changes: checks of values, layouts of gradients."""

from __future__ import annotations

from typing import Any

import torch

from aotgrad.torch_compat.memory import contiguous_in_order

PHASE = "in the complex case are specified up to multiplication by e^{i phi}. The specified loss function depends on this"
CHECKED = {"LinalgSvdBackward0": f"svd_backward: The singular vectors {PHASE} phase term, making it ill-defined."}
"""Autograd nodes that compare values with `allclose`, and the message they raise where values differ."""

CHECKED_EIGENVECTORS = {
    "LinalgEigBackward0": f"linalg_eig_backward: The eigenvectors {PHASE} quantity, so it is ill-defined.",
    "LinalgEighBackward0": f"linalg_eigh_backward: The eigenvectors {PHASE} quantity, so it is ill-defined.",
}
"""The same for nodes that skip the comparison while they are traced."""


def check_of_running_node(op: Any) -> str | None:
    """The message that eager raises in the running node if a comparing op is false; `None` if it does not check there."""
    if op is not torch.ops.aten.allclose.default or torch.is_grad_enabled():
        return None
    node = torch._C._current_autograd_node()
    return None if node is None else CHECKED.get(node.name())


def assert_close(message: str, one: torch.Tensor, other: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8) -> None:
    """Record a check in the graph that raises where `torch.allclose` is false. (`isclose` writes in place.)"""
    close = (one == other) | ((one - other).abs() <= atol + rtol * other.abs())
    torch.ops.aten._assert_async.msg(close.all(), message)


def check_eigenvectors(node: Any, gradient: torch.Tensor) -> None:
    """Record what an autograd node of `CHECKED_EIGENVECTORS` checks about the gradient of its eigenvectors."""
    vectors = node._saved_eigenvectors
    phase = (vectors.conj() * gradient).sum(-2).imag
    assert_close(CHECKED_EIGENVECTORS[node.name()], phase, torch.zeros_like(phase), 1e-2, 1e-2)


def keep_check(node: Any) -> Any:
    """Make an autograd node check as in eager while it is traced; returns the hook's handle, or `None` if none is needed."""
    if node.name() not in CHECKED_EIGENVECTORS:
        return None

    def hook(gradients: tuple) -> None:
        if gradients[1] is not None and gradients[1].is_complex():
            with torch.no_grad():
                check_eigenvectors(node, gradients[1])

    return node.register_prehook(hook)


def keep_differentiable(node: Any) -> Any:
    """Make the backward of `eigh` differentiable under a trace; returns the handles of hooks.

    Torch writes the gradient of real eigenvalues to the diagonal of a complex matrix, under a trace by `diagonal_scatter`.
    The derivative of that is complex for a real argument, which is an error. So the hooks add that gradient separately.
    """
    if node.name() != "LinalgEighBackward0":
        return ()
    left: list[torch.Tensor] = []

    def without_values(gradients: tuple) -> tuple | None:
        of_values, of_vectors = gradients
        if of_values is None or of_vectors is None or not of_vectors.is_complex():
            return None
        left.append(of_values)
        return (None, of_vectors)

    def with_values(gradients: tuple, _: tuple) -> tuple | None:
        if not left:
            return None
        vectors = node._saved_eigenvectors
        return (gradients[0] + (vectors * left.pop().unsqueeze(-2)) @ vectors.mH,)

    return node.register_prehook(without_values), node.register_hook(with_values)


LAID_OUT_AS = {"OrmqrBackward0": "_saved_self"}
"""Autograd nodes whose first gradient has the layout of a saved tensor, except if it is computed functionally."""


def keep_gradient_layout(node: Any) -> Any:
    """Give the first gradient of an autograd node eager's layout; returns the hook's handle, or `None` if none is needed."""
    if node.name() not in LAID_OUT_AS:
        return None
    stride = getattr(node, LAID_OUT_AS[node.name()]).stride()

    def hook(gradients: tuple, _: tuple) -> tuple:
        first = gradients[0]
        return (first if first is None else contiguous_in_order(first, stride), *gradients[1:])

    return node.register_hook(hook)
