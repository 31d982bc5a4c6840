"""Feature tests of `aotgrad/torch_compat/pre_dispatch.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aotgrad import torch_compat as compat


def test_a_graph_before_autograd(fake_mode) -> None:
    def function(x, weight):
        assert weight.requires_grad and not x.requires_grad
        hidden = F.linear(x, weight)
        with torch.no_grad():
            x.t().mul_(2)
        return hidden, x

    fakes = [fake_mode.from_tensor(torch.ones(2, 3)), fake_mode.from_tensor(torch.ones(4, 3))]
    graph = compat.graph_before_autograd(function, fakes, [False, True], fake_mode, {})
    called = [node.target for node in graph.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)]
    assert len(called) == 2 and graph.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)
    x, weight = torch.ones(2, 3), torch.ones(4, 3)
    hidden, doubled = graph(x, weight)
    assert hidden.eq(3).all() and doubled.eq(2).all() and x.eq(1).all()
