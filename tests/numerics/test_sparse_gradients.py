"""Sparse gradients of tables, between other ops: eager's layout, flags, indices and values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import aotgrad
from aotgrad.telemetry.counters import counters

from .against_eager import ALL, compiled

ROWS, WIDTH = 10, 4


def through_a_matrix(table, index):
    return F.embedding(index, table, sparse=True).sum(1) @ torch.ones(WIDTH, 3)


def of_two_uses(table, index):
    return F.embedding(index, table, sparse=True) + F.embedding(index + 1, table, sparse=True).sin()


def of_a_computed_table(table, index):
    return F.embedding(index, table * 2, sparse=True).sin()


def of_a_sum_of_tables(table, index):
    return F.embedding(index, table * 2 + table, sparse=True).exp()


def of_tied_weights(table, index):
    return F.embedding(index, table, sparse=True) @ table.t()


def dense_besides(table, index):
    doubled = table * 2
    return F.embedding(index, doubled, sparse=True).sin().sum() + doubled.cos().sum()


def with_padding(table, index):
    return F.embedding(index, table, padding_idx=2, sparse=True).sin()


def of_padding_alone(table, index):
    return F.embedding(index * 0 + 1, table, padding_idx=1, sparse=True) * 2


def of_sums(table, index):
    return F.embedding_bag(index, table, sparse=True, mode="sum") * 2


def of_means(table, index):
    return F.embedding_bag(index, table, sparse=True, mode="mean").sin()


def of_a_gather(table, index):
    return torch.gather(table, 1, index[:, :2], sparse_grad=True).sin()


FUNCTIONS: list[Callable[[Tensor, Tensor], Tensor]] = [
    through_a_matrix,
    of_two_uses,
    of_a_computed_table,
    of_a_sum_of_tables,
    of_tied_weights,
    dense_besides,
    with_padding,
    of_padding_alone,
    of_sums,
    of_means,
    of_a_gather,
]


def gradient(function: Callable, columns: int) -> tuple[Tensor, Tensor]:
    """The result and the gradient of a table."""
    torch.manual_seed(columns)
    table = torch.randn(ROWS, WIDTH, requires_grad=True)
    result = function(table, torch.randint(0, 4, (2, columns)))
    result.sin().sum().backward()
    assert table.grad is not None
    return result, table.grad


def assert_same(actual: Tensor, wanted: Tensor) -> None:
    assert (actual.layout, actual.dtype, actual.shape) == (wanted.layout, wanted.dtype, wanted.shape)
    if wanted.layout is torch.sparse_coo:
        assert actual.is_coalesced() == wanted.is_coalesced()
        assert torch.equal(actual._indices(), wanted._indices())
        torch.testing.assert_close(actual._values(), wanted._values())
    else:
        torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_sparse_gradient_is_eagers(function: Callable, backend: str, dynamic: bool) -> None:
    under_test = compiled(function, backend, dynamic=dynamic)
    for columns in (3, 3, 5):
        for actual, wanted in zip(gradient(under_test, columns), gradient(function, columns), strict=True):
            assert_same(actual, wanted)


@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
def test_symbolic_sizes_of_a_padded_table_are_one_plan(backend: str) -> None:
    under_test = torch.compile(with_padding, backend=backend, fullgraph=True, dynamic=True)
    for columns in (3, 4, 6):
        before = counters["compiled"] if columns != 3 else None
        assert_same(gradient(under_test, columns)[1], gradient(with_padding, columns)[1])
        assert before in (None, counters["compiled"])


def products(dense: Tensor, other: Tensor) -> Tensor:
    """Sparse values between dense ones, in the forward, where Dynamo breaks the graph."""
    sparse = (dense * 2).relu().to_sparse()
    return torch.sparse.mm(sparse * 3, other.sin()).exp() + torch.sparse.sum(sparse)


@pytest.mark.parametrize("backend", ["eager", "aot_inductor"])
def test_sparse_values_between_dense_ones(backend: str) -> None:
    dense, other = torch.randn(4, 4), torch.randn(4, 3)
    torch.testing.assert_close(compiled(products, backend)(dense, other), products(dense, other))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.bags = nn.Embedding(ROWS, WIDTH, sparse=True), nn.EmbeddingBag(ROWS, WIDTH, sparse=True)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, index: Tensor) -> Tensor:
        return self.head(self.words(index).sum(1).tanh() + self.bags(index))


def trained(optimizer: str, compile_model: Callable) -> list[Tensor]:
    """The parameters after three steps with a growing number of words."""
    torch.manual_seed(0)
    model = Model()
    tables = [model.words.weight, model.bags.weight]
    if optimizer == "SparseAdam":
        optimizers = [torch.optim.SparseAdam(tables, lr=0.1), torch.optim.SGD(model.head.parameters(), lr=0.1)]
    else:
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1)]
    run = compile_model(model)
    for columns in (3, 4, 5):
        run(torch.randint(0, ROWS, (2, columns))).square().sum().backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


COMPILED_MODELS: dict[str, Callable] = {
    "eager": lambda model: aotgrad.aot_module(model, "eager"),
    "aot_inductor": lambda model: aotgrad.aot_module(model, "inductor"),
    "dynamo": lambda model: torch.compile(model, backend="aotgrad_eager"),
    "inductor": lambda model: torch.compile(model, backend="aotgrad"),
}


@pytest.mark.parametrize("backend", COMPILED_MODELS)
@pytest.mark.parametrize("optimizer", ["SGD", "SparseAdam"])
def test_steps_with_sparse_gradients(optimizer: str, backend: str) -> None:
    wanted = trained(optimizer, lambda model: model)
    for actual, value in zip(trained(optimizer, COMPILED_MODELS[backend]), wanted, strict=True):
        torch.testing.assert_close(actual, value)


COMPUTED = {
    "product": lambda table: table * 2,
    "quotient": lambda table: table / 3,
    "sum": lambda table: table + 1,
    "copy": lambda table: table.clone(),
    "one of two results": lambda table: (table * 2, table.exp()),
}
"""Dense results of a compiled function, of which eager passes a sparse gradient on."""


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_sparse_gradient_arrives_from_outside(name, backend, create_graph):
    def gradient(function):
        torch.manual_seed(0)
        table, index = torch.randn(ROWS, WIDTH, requires_grad=True), torch.tensor([1, 3, 1])
        result = function(table)
        values = F.embedding(index, result[0] if isinstance(result, tuple) else result, sparse=True)
        (found,) = torch.autograd.grad(values.square().sum(), table, create_graph=create_graph)
        return found

    ours = aotgrad.aot_function(COMPUTED[name], backend)
    expected = gradient(COMPUTED[name])
    for found in (gradient(ours), gradient(ours)):
        assert found.layout is expected.layout is torch.sparse_coo
        torch.testing.assert_close(found.to_dense(), expected.to_dense())


def test_a_sparse_gradient_for_an_op_that_takes_none_raises_as_in_eager():
    table = torch.randn(ROWS, WIDTH, requires_grad=True)
    compiled_tanh = aotgrad.aot_function(torch.tanh, "eager")
    for function in (torch.tanh, compiled_tanh):
        result = F.embedding(torch.tensor([1, 3]), function(table), sparse=True)
        with pytest.raises(NotImplementedError, match="SparseCPU"):
            torch.autograd.grad(result.sum(), table)
    torch.testing.assert_close(
        torch.autograd.grad(compiled_tanh(table).sum(), table), torch.autograd.grad(table.tanh().sum(), table)
    )
