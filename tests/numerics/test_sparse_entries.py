"""The number of entries of a sparse tensor, the entries, and its coalesced flag, read during tracing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aotgrad
from aotgrad.errors import CaptureError

from .against_eager import compiled

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "a count": lambda x: x * x.detach().to_sparse()._nnz(),
    "a size of the values": lambda x: x * x.to_sparse().values().shape[0],
    "a size of the indices": lambda x: x * x.to_sparse().indices().size(1),
    "a size of what may be uncoalesced": lambda x: x * x.to_sparse()._values().numel() + x.to_sparse()._indices().size(1),
    "the values": lambda x: x * x.to_sparse().values().sin().sum(),
    "the values are returned": lambda x: x.to_sparse().values(),
    "the indices": lambda x: x * x.to_sparse()._indices().sum(),
    "as large as the values": lambda x: x * torch.ones(x.to_sparse()._values().shape).sum(),
    "of a copy": lambda x: x * x.detach().to_sparse().clone()._nnz(),
    "of a sum": lambda x: x * (x.to_sparse() + x.flip(0).to_sparse())._nnz(),
    "of a transposed one": lambda x: x * x.to_sparse().t().coalesce().indices()[0].sum(),
    "of a part": lambda x: x * x.to_sparse().select(0, 1)._nnz(),
    "of a sparse dimension": lambda x: x * x.to_sparse(1).values().shape[0],
    "of rows": lambda x: x * x.detach().to_sparse_csr().values().shape[0] + x.detach().to_sparse_csr()._nnz(),
    "where rows begin": lambda x: x * x.detach().to_sparse_csr().crow_indices().sum(),
    "of rows and their columns": lambda x: x * x.detach().to_sparse_csr().col_indices().sum(),
    "of columns": lambda x: x * x.detach().to_sparse_csc().row_indices().shape[0],
    "of blocks": lambda x: x * x.detach().to_sparse_bsr((2, 2)).values().shape[0],
    "given": lambda x: x * entries_at_two_places(x)._nnz(),
    "given, and coalesced": lambda x: x * entries_at_two_places(x).coalesce()._nnz(),
    "given, added and coalesced": lambda x: (entries_at_two_places(x.detach()) * 2).coalesce().values() * x.sum(),
    "coalesced or not": lambda x: x * 2 if entries_at_two_places(x).clone().is_coalesced() else x * 3,
    "coalesced or not, of a mask": lambda x: x * 2 if x.sparse_mask(entries_at_two_places(x)).is_coalesced() else x * 3,
    "a branch": lambda x: x * 2 if x.to_sparse()._nnz() > 5 else x * 3,
}
THROUGH_INDUCTOR = ["a count", "the values", "the values are returned", "as large as the values", "of rows", "a branch"]


def entries_at_two_places(x: Tensor) -> Tensor:
    """An uncoalesced tensor: two entries have one index."""
    return torch.sparse_coo_tensor(torch.tensor([[0, 0, 1], [1, 1, 2]]), x[0, :3], (4, 4))


def some_zeros(seed: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(4, 4).relu().requires_grad_()


def assert_same(under_test: Callable, function: Callable, seed: int) -> None:
    seen = []
    for call in (under_test, function):
        x = some_zeros(seed)
        result = call(x)
        result.sin().sum().backward()
        seen.append((result.detach(), x.grad))
    for actual, wanted in zip(*seen, strict=True):
        assert actual.shape == wanted.shape
        torch.testing.assert_close(actual, wanted)


WAYS = [
    *[(name, backend) for name in FUNCTIONS for backend in ("eager", "dynamo")],
    *[(name, backend) for name in THROUGH_INDUCTOR for backend in ("aot_inductor", "inductor")],
]


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse CS[RC]|Sparse BSR|Sparse invariant checks:UserWarning")
@pytest.mark.parametrize(("name", "backend"), WAYS)
def test_the_entries_of_a_computed_tensor(name: str, backend: str) -> None:
    counts = {some_zeros(seed).count_nonzero().item() for seed in (0, 1)}
    assert len(counts) == 2
    under_test = compiled(FUNCTIONS[name], backend, fullgraph=False)
    for seed in (0, 1, 0):
        assert_same(under_test, FUNCTIONS[name], seed)


ASKED_OF_ARGUMENTS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a count": lambda s, x: x * s._nnz(),
    "a size": lambda s, x: x * s._values().shape[0],
    "a size, coalesced": lambda s, x: x * s.coalesce().indices().size(1),
    "a size of a product": lambda s, x: x * (s * 2)._values().shape[0],
    "coalesced or not": lambda s, x: (x * s.is_coalesced(), s.is_coalesced()),
    "coalesced or not, of a copy": lambda s, x: x * s.clone().is_coalesced(),
    "coalesced or not, of a sum": lambda s, x: x * (s + s).is_coalesced(),
    "coalesced and read": lambda s, x: (s * 2).coalesce()._values() * x.sum(),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("name", ASKED_OF_ARGUMENTS)
def test_the_entries_of_an_argument(name: str, halves: Any) -> None:
    function = ASKED_OF_ARGUMENTS[name]
    under_test = aotgrad.aot_function(function, halves, options={"min_graph_ops": 0})
    x = torch.ones(2)
    for count, coalesced in ((3, False), (3, True), (2, False), (3, False)):
        uncoalesced = torch.sparse_coo_tensor(torch.zeros(2, count, dtype=torch.long), torch.arange(1.0, count + 1), (4, 4))
        s = uncoalesced.coalesce() if coalesced else uncoalesced
        torch.testing.assert_close(under_test(s, x), function(s, x))


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
def test_the_entries_of_rows_that_are_an_argument(halves: Any) -> None:
    under_test = aotgrad.aot_function(lambda s, x: x * s._nnz() + s.col_indices().shape[0], halves)
    for places in (3, 2, 3):
        rows = (torch.arange(4) < places).float().repeat(4, 1).to_sparse_csr()
        assert torch.equal(under_test(rows, torch.ones(2)), torch.full((2,), 8.0 * places))


def test_a_tensor_that_is_closed_over_and_gets_more_entries(halves: Any) -> None:
    closed = torch.eye(3).to_sparse()
    under_test = aotgrad.aot_function(lambda x: x * closed._nnz() + closed._values().shape[0], halves)
    for count in (3, 6, 6):
        assert torch.equal(under_test(torch.ones(2)), torch.full((2,), 2.0 * count))
        closed.add_(torch.ones(3, 3).tril().to_sparse())


def test_one_plan_for_each_number_of_entries() -> None:
    under_test = aotgrad.aot_function(FUNCTIONS["a size of the values"], "eager")
    for seed in (0, 1, 0, 1):
        under_test(some_zeros(seed))
    first, second = under_test.plans()
    (line,) = [line for line in first.guards.lines() if line.startswith("values: ")]
    assert line.startswith("values: tuple(results_0.size()) is (4,), asked at")
    assert "values: tuple(results_0.size()) is (8,), asked at" in str(list(second.guards.lines()))


def test_gradients_of_gradients_through_a_mask() -> None:
    """The backward reads the coalesced flag of a tensor that it computes from a gradient."""

    def twice(call: Callable) -> list[Tensor]:
        x = some_zeros(0)
        (first,) = torch.autograd.grad(call(x).exp().sum(), x, create_graph=True)
        return [first, *torch.autograd.grad(first.sin().sum(), x)]

    def function(x: Tensor) -> Tensor:
        return torch.sparse.mm(x.to_sparse(), x)

    torch.testing.assert_close(twice(aotgrad.aot_function(function, "eager")), twice(function))


@pytest.mark.parametrize("part", ["values", "_values"])
def test_a_write_to_the_values_is_eagers(part: str, halves: Any) -> None:
    def function(s: Tensor) -> Tensor:
        getattr(s, part)().mul_(2)
        return s.to_dense()

    s = torch.eye(3).to_sparse().coalesce()
    with pytest.warns(UserWarning, match="function ran eagerly"):
        result = aotgrad.aot_function(function, halves, options={"min_graph_ops": 0})(s)
    assert torch.equal(result, torch.eye(3) * 2) and torch.equal(s.to_dense(), torch.eye(3) * 2)


def test_an_exported_graph_has_no_number_of_entries() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.to_sparse()._nnz()

    with pytest.raises(CaptureError, match="asked for its entries"):
        aotgrad.export_joint(Model(), (torch.ones(2),))
