"""Feature tests of `aotgrad/torch_compat/fused_optimizers.py`."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.optim import optimizer

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import Tracing


@pytest.mark.parametrize("update", compat.FUSED_UPDATES, ids=lambda update: update.__name__)
def test_functional_updates_return_what_updates_in_place_write(update):
    for functional, in_place in (compat.FUSED_UPDATES[update],):
        for overload in ("default", "tensor_lr"):
            written = [each for each in getattr(in_place, overload)._schema.arguments if each.is_write]
            assert len(written) == len(getattr(functional, overload)._schema.returns)


def test_an_update_is_recorded(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    with trace.active() as x:
        settings = dict.fromkeys(("weight_decay", "momentum", "lr", "dampening"), 0.5)
        flags = dict.fromkeys(("nesterov", "maximize", "is_first_step"), False)
        compat.record_fused_update(torch._fused_sgd_, ([x], [x.sin()], []), {**settings, **flags})
        assert compat.proxy_node(compat.from_functional(x), trace.tracer).name == "getitem_1"
    assert trace.recorded()[:2] == ["aten.sin.default", "aten._fused_sgd.default"] and x._version == 0


def test_the_default_of_lists():
    class Own(torch.Tensor):
        pass

    plain = torch.ones(2)
    for tensors, takes_traced in (([plain, nn.Parameter(plain)], True), ([plain, plain.as_subclass(Own)], False)):
        with compat.default_foreach(tensors):
            assert (FunctionalTensor in optimizer._foreach_supported_types) is takes_traced
            assert torch.Tensor in optimizer._foreach_supported_types
    assert FunctionalTensor not in optimizer._foreach_supported_types


def test_a_float_is_recorded(fake_mode):
    trace = Tracing(fake_mode, torch.ones(()))
    with trace.active() as x:
        largest = compat.record_float(max, (1, x.item()))
    assert isinstance(largest, torch.SymFloat)
    *_, node = trace.tracer.graph.nodes
    assert node.target is max and node.args[0] == 1 and compat.proxy_node(largest, trace.tracer) is node
