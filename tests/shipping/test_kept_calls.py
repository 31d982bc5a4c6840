"""Plans with kept calls in a file: they need a backend that keeps the same functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import aotgrad
from aotgrad.errors import ShippingError
from tests.backends.test_keep import CASES, Block, Keeping, results_and_gradients, tensors


@pytest.mark.parametrize(
    ("name", "dynamic"), [("linear", True), ("layer_norm", False), ("mask", False), ("two_results", False)]
)
def test_a_function(name, dynamic, tmp_path):
    function, shapes, kept = CASES[name]
    args = tensors(*shapes)
    compiled = aotgrad.aot_function(function, Keeping(), dynamic=dynamic)
    wanted = results_and_gradients(compiled, args)
    aotgrad.save(compiled, tmp_path / "plan")
    backend = Keeping()
    loaded = aotgrad.load(tmp_path / "plan", backend=backend)
    torch.testing.assert_close(results_and_gradients(loaded, args), wanted)
    assert backend.kept() == kept and sorted(backend.kept("backward")) == sorted(f"{each}_backward" for each in kept)


def test_a_step(tmp_path):
    def make():
        torch.manual_seed(0)
        model = Block()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step_of(model, optimizer):
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    state, plain, x = make(), make(), torch.randn(2, 5, 8)
    compiled = aotgrad.train_step(step_of(*state), list(state), backend=Keeping(), keep_gradients=False)
    compiled(x)
    aotgrad.save(compiled, tmp_path / "plan")
    other, backend = make(), Keeping()
    loaded = aotgrad.load(tmp_path / "plan", state=list(other), backend=backend)
    eager = step_of(*plain)
    torch.testing.assert_close([loaded(x) for _ in range(3)], [eager(x) for _ in range(3)])
    assert "layer_norm_backward" in backend.kept("step")


def test_a_module(tmp_path):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), torch.randn(3, 4)
    compiled = aotgrad.aot_module(model, Keeping())
    wanted = compiled(x)
    aotgrad.save(compiled, tmp_path / "plan")
    backend = Keeping()
    torch.testing.assert_close(aotgrad.load(tmp_path / "plan", model, backend=backend)(x), wanted)
    assert backend.kept() == ["linear", "layer_norm"]


def test_a_backend_that_keeps_other_functions_is_refused(tmp_path):
    function, shapes, _ = CASES["layer_norm"]
    compiled = aotgrad.aot_function(function, Keeping())
    compiled(*tensors(*shapes))
    aotgrad.save(compiled, tmp_path / "plan")
    with pytest.raises(ShippingError, match=r"layer_norm as one node, and the `keep` of this backend lacks"):
        aotgrad.load(tmp_path / "plan", backend=Keeping({F.gelu}))
    loaded = aotgrad.load(tmp_path / "plan", backend=Keeping())
    torch.testing.assert_close(loaded(*tensors(*shapes)), function(*tensors(*shapes)))
