"""Operators that were wrong once, or refused without need (`scripts/conformance/ops.py`)."""

from __future__ import annotations

import torch

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
