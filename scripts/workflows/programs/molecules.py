"""Molecules with random energies and forces, and a model that learns both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scripts.workflows.programs.common import train
from scripts.workflows.run import Run

MOLECULES, ATOMS = 4, 5


@dataclass(frozen=True)
class Batch:
    """Some molecules; `molecule` is the molecule of each atom."""

    kinds: Tensor
    positions: Tensor
    molecule: Tensor
    energy: Tensor
    forces: Tensor


def molecules(batches: int) -> list[Batch]:
    count = MOLECULES * ATOMS
    molecule = torch.arange(MOLECULES).repeat_interleave(ATOMS)
    return [
        Batch(
            torch.randint(1, 9, (count,)), torch.randn(count, 3), molecule, torch.randn(MOLECULES, 1), torch.randn(count, 3)
        )
        for _ in range(batches)
    ]


def fit_forces(run: Run, model: nn.Module, data: list[Batch]) -> None:
    """`model` maps kinds, positions and molecules to energies. It is compiled; the forces are taken outside of it."""
    run.compile(model)

    def loss_of(step: int) -> Tensor:
        batch = data[step]
        positions = batch.positions.clone().requires_grad_()
        energy = model(batch.kinds, positions, batch.molecule)
        (slope,) = torch.autograd.grad(energy.sum(), positions, create_graph=True)
        return (energy - batch.energy).square().mean() + (slope + batch.forces).square().mean()

    train(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), loss_of)
