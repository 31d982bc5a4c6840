"""A copy of a compiled module runs the compiled code of the module, as with torch's own backends."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn


@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
def test_a_copy_of_a_compiled_module_is_not_recompiled(backend: str) -> None:
    torch._dynamo.reset()
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    compiled = torch.compile(module, backend=backend)
    x = torch.randn(2, 3)
    expected = compiled(x)
    copied = copy.deepcopy(compiled)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert torch.equal(copied(x), expected)
    parameters = dict(copied._orig_mod.named_parameters())
    with torch.no_grad():
        parameters["0.bias"] += 1
    y = copied(x)
    y.sum().backward()
    assert torch.allclose(y, torch.func.functional_call(module, parameters, x))
    assert module[0].bias.grad is None
    assert parameters["0.bias"].grad is not None
