"""Operators that were once wrong, or refused unnecessarily (`scripts/conformance/ops.py`)."""

from __future__ import annotations

import pytest
import torch
from torch._decomp import core_aten_decompositions

import aotgrad

from .against_eager import leaf, plain
from .cases import Case, Cases

CASES = Cases()


@CASES.add(lambda: (plain(4, 3), torch.zeros((), dtype=torch.int64)))
def rank_written_to_an_argument(x, out):
    return torch.linalg.matrix_rank(x, out=out)


@CASES.add(lambda: (plain(2, 3, 3), torch.zeros(2, dtype=torch.int64)))
def hermitian_rank_written_to_an_argument(x, out):
    return torch.linalg.matrix_rank(x, atol=0.1, hermitian=True, out=out)


@CASES.add(lambda: (leaf(3),))
def polygamma_in_place(x):
    return (x * 2).polygamma_(1).sin()


@CASES.parametrize()
def test_an_operator(case: Case, backend: str) -> None:
    case.check(backend)


def attention(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_attention_with_core_aten_decompositions(requires_grad: bool) -> None:
    """Torch's decomposition is for inference only, and used only there."""
    q, k, v = (torch.rand(1, 2, 4, 8, dtype=torch.float64, requires_grad=requires_grad) for _ in range(3))
    compiled = aotgrad.aot_function(attention, aotgrad.nop, decompositions=core_aten_decompositions())
    torch.testing.assert_close(compiled(q, k, v), attention(q, k, v))
    assert ("attention" in compiled.debug_state().plans[0].graphs["forward"].code) == requires_grad
    if requires_grad:
        gradients = [torch.autograd.grad(f(q, k, v).sin().sum(), (q, k, v)) for f in (compiled, attention)]
        torch.testing.assert_close(*gradients)
