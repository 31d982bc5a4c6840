"""Sizes stay symbolic from one graph to the next."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo import compiled_autograd

from aotgrad import torch_compat

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
BACKENDS = ("aotgrad_eager", "aotgrad")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def leaf(size: int) -> torch.Tensor:
    x = torch.linspace(0, 1, size * 3, dtype=torch.float64).reshape(size, 3).requires_grad_()
    torch._dynamo.mark_dynamic(x, 0)
    return x


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_after_a_graph_break(backend: str) -> None:
    """It has the size of an argument that is marked as dynamic."""

    def function(x):
        y = x + 1
        torch._dynamo.graph_break()
        return (y * x).sin()

    compiled = torch.compile(function, backend=backend)
    counts = []
    for size in (4, 5, 6):
        x, expected = leaf(size), leaf(size)
        compiled(x).sum().backward()
        function(expected).sum().backward()
        assert torch.allclose(x.grad, expected.grad)
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[0] == counts[1] == counts[2]


FUNCTIONS = {
    "nothing is saved": lambda x: x + 1,
    "an argument is saved": lambda x: x.sin() * 2,
    "an intermediate is saved": lambda x: x.sin().sin() * 2,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.skipif(not torch_compat.can_inline(), reason="torch before 2.13 runs segments outside of the graph")
def test_a_backward_of_compiled_autograd(backend: str, name: str) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend=backend, options={"min_graph_ops": 0})
    for size in (4, 5, 6, 5):
        x, expected = leaf(size), leaf(size)
        with compiled_autograd._enable(torch.compile(backend=backend)):
            compiled(x).sin().sum().backward()
        function(expected).sin().sum().backward()
        assert torch.allclose(x.grad, expected.grad)
