"""Properties of arguments that Dynamo does not guard, such as the storage offset: other ones may need another plan."""

from __future__ import annotations

import pytest
import torch
import torch.utils._pytree as pytree

import aotgrad

OTHER_NAMES = {
    "a view of the storage": lambda x: x.as_strided((2,), (1,), 0),
    "values of the storage": lambda x: x.as_strided((2,), (1,), 0) + 1,
    "values after the start": lambda x: x.as_strided((2,), (1,), x.storage_offset() + 1) * 2,
    "a view of the tensor": lambda x: x.as_strided((2,), (1,)),
    "a view that is changed": lambda x: (x.as_strided((2,), (1,)).mul_(2), x * 1),
    "a view of what is changed": lambda x: (x.as_strided((2,), (3,)), x.mul_(x.t().clone()))[0] + 1,
    "transposed": lambda x: (x.resolve_conj().t_(), x[0]),
    "transposed and changed": lambda x: (x.resolve_conj().transpose_(0, 1).mul_(2), x[0], x.unbind()),
    "strided": lambda x: (x.resolve_conj().as_strided_((2,), (1,)), x.unbind()),
    "the start": lambda x: x * x.storage_offset(),
}


def starting_at(offset: int) -> torch.Tensor:
    return torch.arange(12.0)[offset : offset + 9].view(3, 3)


def seen(function, offset: int) -> list:
    """The results and the argument: values, places in memory, and whether they are views."""
    x = starting_at(offset)
    tensors = [*pytree.tree_leaves(function(x)), x]
    return [(t.tolist(), t.storage_offset(), t.stride(), t._is_view()) for t in tensors]


def double(x):
    x.mul_(2)
    return x.sin()


def hooked_row() -> tuple[torch.Tensor, torch.Tensor, list]:
    whole, log = row_of_result()[0], []
    row = whole[0]
    row.register_hook(lambda gradient: log.append(gradient.tolist()))
    return whole, row, log


def row_of_result() -> tuple[torch.Tensor, torch.Tensor, list]:
    whole = torch.arange(4.0).view(2, 2).requires_grad_() * 1
    return whole, whole[0], []


def result() -> tuple[torch.Tensor, torch.Tensor, list]:
    whole = torch.arange(2.0).requires_grad_() * 1
    return whole, whole, []


WRITTEN = {"a result": result, "a view": row_of_result, "a view with a hook": hooked_row}


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["aotgrad", "aotgrad_eager"])
@pytest.mark.parametrize("name", OTHER_NAMES)
def test_behind_dynamo(name, backend):
    compiled = torch.compile(OTHER_NAMES[name], backend=backend, options={"min_graph_ops": 0})
    for offset in (0, 1, 2, 0):
        assert seen(compiled, offset) == seen(OTHER_NAMES[name], offset)


@pytest.mark.parametrize("backend", ["inductor", "eager"])
@pytest.mark.parametrize("name", OTHER_NAMES)
def test_without_dynamo(name, backend):
    compiled = aotgrad.aot_function(OTHER_NAMES[name], backend)
    for offset in (0, 1, 2, 0):
        assert seen(compiled, offset) == seen(OTHER_NAMES[name], offset)


def test_a_function_from_the_cache(tmp_path, monkeypatch):
    """It depends on the offset as the one that was stored."""
    monkeypatch.setenv("AOTGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("AOTGRAD_VERIFY", "0")  # a function that is verified is compiled
    function, before = OTHER_NAMES["values of the storage"], aotgrad.counters["cache_hits"]
    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="aotgrad_eager", options={"min_graph_ops": 0})
        for offset in (0, 1):
            assert seen(compiled, offset) == seen(function, offset)
    assert aotgrad.counters["cache_hits"] > before


def test_a_module_of_flat_inputs():
    module = torch.fx.symbolic_trace(lambda x: (x.as_strided((2,), (1,), 0) + 1,))
    compiled = aotgrad.aot_module_simplified(module, [starting_at(0)], aotgrad.nop, options={"min_graph_ops": 0})
    for offset in (0, 1):
        assert seen(compiled, offset) == seen(module, offset)


OF_ANY_START = {
    "a product and a view": lambda x: (x.sin() @ x, x.t()),
    "a metadata mutation": lambda x: x.mul_(2).t_().sum(),
}


@pytest.mark.parametrize("name", OF_ANY_START)
def test_a_plan_that_does_not_depend_on_the_start(name):
    """It serves all of them."""
    before = aotgrad.counters["compilations"]
    compiled = torch.compile(OF_ANY_START[name], backend="aotgrad_eager", options={"min_graph_ops": 0, "cache": False})
    for offset in (0, 1, 2):
        assert seen(compiled, offset) == seen(OF_ANY_START[name], offset)
    assert aotgrad.counters["compilations"] == before + 1


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.parametrize("backend", ["aotgrad", "aotgrad_eager"])
@pytest.mark.parametrize("second", WRITTEN)
@pytest.mark.parametrize("first", WRITTEN)
def test_a_written_argument(first, second, backend):
    """Whether a hook of a view that is written sees the new gradient depends on the view."""

    def run(function, kind):
        whole, written, log = WRITTEN[kind]()
        function(written).sum().backward()
        return whole.tolist(), whole._version, written._version, log

    compiled = torch.compile(double, backend=backend, options={"min_graph_ops": 0})
    for kind in (first, second):
        assert run(compiled, kind) == run(double, kind)
