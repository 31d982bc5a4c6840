"""Modules whose parameters get their shapes in the first call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import aotgrad


def losses(compile: Callable[[nn.Module], nn.Module]) -> list[Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Tanh(), nn.LazyLinear(4))
    run, found = compile(module), []
    for step in range(4):
        x = torch.randn(6, 5, generator=torch.Generator().manual_seed(step))
        loss = run(input=x).square().mean()
        loss.backward()
        found.append(loss.detach())
    return [*found, *(p.grad for p in module.parameters()), *module.buffers()]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_lazy_layers(backend: str) -> None:
    compiled = []

    def compile(module: nn.Module) -> nn.Module:
        compiled.append(aotgrad.aot_module(module, backend))
        return compiled[0]

    expected = losses(lambda module: module)
    torch.testing.assert_close(losses(compile), expected, rtol=1e-4, atol=1e-5)
    assert len(compiled[0].plans()) == 1


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("is_called_before", [False, True])
def test_a_lazy_layer_itself(is_called_before: bool, backend: str) -> None:
    """In its first call, it becomes an instance of another class, which is compiled, too."""
    layer, x = nn.LazyLinear(3), torch.rand(2, 4)
    if is_called_before:
        layer(x)
    compiled = aotgrad.aot_module(layer, backend)
    first, other = compiled(x), torch.rand(5, 4)
    torch.testing.assert_close([first, compiled(other)], [layer(x), layer(other)])
    assert isinstance(compiled, nn.Linear) and not isinstance(compiled, nn.LazyLinear)
    assert len(compiled.plans()) == 2
