"""One plan serves every batch size and every length: `torch.compile(dynamic=True)`, trained a step at each size."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

import aotgrad

from .test_models import assert_equal_tensors, pytestmark, run_step, seeded_batch
from .zoo import CASES

__all__ = ["pytestmark"]

BATCHES, LENGTHS = (2, 17, 64), (3, 24, 200)
SEVERAL = {
    ("autocast_mlp", 0): BATCHES,
    ("bert", 0): BATCHES,
    ("domain_adversarial", 0): BATCHES,
    ("fourier_operator", 0): BATCHES,
    ("gpt2", 0): BATCHES,
    ("graph_network", 1): LENGTHS,
    ("growing_attention", 0): BATCHES,
    ("growing_attention", 1): LENGTHS,
    ("growing_transformer_encoder", 0): BATCHES,
    ("growing_transformer_encoder", 1): LENGTHS,
    ("llama", 0): BATCHES,
    ("llama", 1): LENGTHS,
    ("low_rank_adapter", 0): BATCHES,
    ("lstm_cell", 0): BATCHES,
    ("two_heads", 0): BATCHES,
    ("vae", 0): BATCHES,
}


@pytest.mark.parametrize(("name", "dim"), SEVERAL, ids=[f"{name}, dimension {dim}" for name, dim in SEVERAL])
def test_one_plan_serves_all_sizes(name: str, dim: int) -> None:
    case = next(case for case in CASES if case.name == name)
    torch.manual_seed(0)
    model = case.build().train()
    compiled = torch.compile(model, backend="aotgrad_eager", fullgraph=True, dynamic=True)
    for size in SEVERAL[name, dim]:
        steps = []
        for forward in (model, compiled):
            model.zero_grad()
            batch = resized(seeded_batch(case, 0), dim, size)
            torch.manual_seed(size)
            steps.append(run_step(model, forward, batch))
        expected, actual = steps
        assert_equal_tensors(f"size {size}", actual.outputs, expected.outputs, rtol=1e-5, atol=1e-6)
        assert_equal_tensors(f"size {size}", actual.gradients, expected.gradients, rtol=1e-4, atol=1e-6)
    assert aotgrad.counters["compilations"] == 1


def resized(batch: Mapping[str, Tensor], dim: int, size: int) -> Mapping[str, Tensor]:
    """The batch with another size along its longest extent of `dim`, its elements repeated or cut off."""
    old = max(tensor.shape[dim] for tensor in batch.values() if tensor.dim() > dim)
    chosen = torch.arange(size) % old
    return {
        name: tensor.detach().index_select(dim, chosen).requires_grad_(tensor.requires_grad)
        if tensor.dim() > dim and tensor.shape[dim] == old
        else tensor
        for name, tensor in batch.items()
    }
