"""`opacus`: differentially private training, with gradients of each sample."""

from __future__ import annotations

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from scripts.workflows.programs.common import mlp
from scripts.workflows.run import Run


def private_by_hooks(run: Run) -> None:
    """Hooks of the layers make gradients of each sample; the model inside of opacus' wrapper is compiled."""
    train_privately(run, "hooks")


def private_by_vmap(run: Run) -> None:
    """`vmap` of `func.grad` makes them."""
    train_privately(run, "functorch")


def train_privately(run: Run, mode: str) -> None:
    model = mlp(16, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = DataLoader(TensorDataset(torch.randn(64, 16), torch.randint(4, (64,))), batch_size=8)
    private, optimizer, data = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=data,
        noise_multiplier=0.5,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    run.compile(private)
    for x, y in data:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(private(x), y)
        loss.backward()
        for name, parameter in model.named_parameters():
            run.observe(f"before step {len(run.wall_s)} gradient {name}", parameter.grad_sample)
        optimizer.step()
        run.step(loss, model)
