"""Feature tests of `aotgrad/torch_compat/backward_checks.py`."""

from __future__ import annotations

import pytest
import torch

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import raised


def test_the_first_gradient_of_ormqr_lies_as_its_input():
    x, tau, other = torch.randn(3, 3).t().requires_grad_(), torch.rand(3), torch.randn(3, 3)
    node = torch.ormqr(x, tau, other).grad_fn
    handle = compat.keep_gradient_layout(node)
    assert node.name() in compat.LAID_OUT_AS
    assert handle is not None
    handle.remove()
    assert compat.keep_gradient_layout((x * 2).grad_fn) is None


@pytest.mark.parametrize("decompose", [torch.linalg.eig, torch.linalg.eigh])
def test_eigenvectors_are_checked_as_in_eager(decompose):
    x = torch.randn(3, 3, dtype=torch.complex128)
    x = (x + x.mH).requires_grad_()
    vectors = decompose(x)[1]
    assert vectors.grad_fn.name() in compat.CHECKED_EIGENVECTORS
    assert compat.PHASE in compat.CHECKED_EIGENVECTORS[vectors.grad_fn.name()]
    compat.keep_check(vectors.grad_fn).remove()
    for gradient in (torch.zeros_like(vectors), torch.ones_like(vectors)):
        errors = [raised(compat.check_eigenvectors, vectors.grad_fn, gradient)]
        errors.append(raised(torch.autograd.grad, vectors, x, gradient, retain_graph=True))
        assert errors[0] == errors[1]
    assert errors[0] is not None


def test_the_gradient_of_real_eigenvalues_is_a_term_of_its_own():
    x = torch.randn(3, 3, dtype=torch.complex128)
    x = (x + x.mH).requires_grad_()
    found = []
    for differentiable in (False, True):
        values, vectors = torch.linalg.eigh(x)
        handles = compat.keep_differentiable(vectors.grad_fn) if differentiable else ()
        assert len(handles) == 2 * differentiable
        for loss in (values.square().sum() + vectors.abs()[0].sum(), values.sum(), vectors.abs()[0].sum()):
            found.append(torch.autograd.grad(loss, x, retain_graph=True)[0])
    assert all(map(torch.allclose, found[:3], found[3:]))
    assert compat.keep_differentiable(torch.linalg.eig(x)[1].grad_fn) == ()


def test_what_svd_asks_in_its_backward_is_known():
    asked = []

    class Asking(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            asked.append(compat.check_of_running_node(op))
            return op(*args, **(kwargs or {}))

    x = torch.randn(3, 3, dtype=torch.complex128, requires_grad=True)
    loss = torch.linalg.svd(x)[0].abs().sum()
    with Asking(), torch.no_grad():
        torch.autograd.grad(loss, x, retain_graph=True)
    assert set(asked) == {None, compat.CHECKED["LinalgSvdBackward0"]}
    message = raised(torch.autograd.grad, torch.linalg.svd(x)[0].real.sum(), x)
    assert message == compat.CHECKED["LinalgSvdBackward0"]
