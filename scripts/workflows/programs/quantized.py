"""`torchao`: training that is aware of quantization."""

from __future__ import annotations

import torch
from torchao.quantization import quantize_
from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

from scripts.workflows.programs.common import mlp, train
from scripts.workflows.programs.optimizers import regression
from scripts.workflows.run import Run


def quantization_aware(run: Run) -> None:
    """Weights are rounded to 4 bits in groups and inputs to 8 bits for each row, with straight-through gradients."""
    network = mlp(16, 64, 64, 1)
    inputs = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    weights = IntxFakeQuantizeConfig(torch.int4, group_size=16)
    quantize_(network, QATConfig(activation_config=inputs, weight_config=weights, step="prepare"))
    run.compile(network)
    train(run, network, torch.optim.AdamW(network.parameters(), lr=1e-3), regression(network))
