"""What the `inductor` backend does to a graph before Inductor sees it."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.utils import fresh_cache


@pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
def test_a_write_into_an_expanded_tensor_reaches_one_row() -> None:
    """Inductor on its own writes to the memory that all rows share."""

    def function(index, values):
        return torch.index_put(torch.zeros(4).expand(3, 4), (torch.arange(3), index), values, accumulate=True)

    torch._dynamo.reset()
    index, values = torch.tensor([0, 2, 2]), torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(torch.compile(function, backend="aotgrad")(index, values), function(index, values))


@pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
def test_views_of_a_result_lie_as_in_eager() -> None:
    """The graph returns what they are views of, which Inductor would lay out by itself."""
    module = torch.nn.ConvTranspose2d(4, 5, 3)
    x = torch.randn(4, 3, 4)  # without a batch: the result is a view of one with a batch
    torch._dynamo.reset()
    with fresh_cache():
        compiled = torch.compile(module, backend="aotgrad", options={"min_graph_ops": 0, "cache": False})
        assert compiled(x).stride() == module(x).stride()
