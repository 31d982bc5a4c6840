"""`e3nn`: an equivariant network of tensor products learns forces."""

from __future__ import annotations

import e3nn
import torch
from e3nn import nn as e3nn_nn
from e3nn import o3
from torch import Tensor, nn

from scripts.workflows.programs.common import STEPS
from scripts.workflows.programs.graphs import all_pairs
from scripts.workflows.programs.molecules import fit_forces, molecules
from scripts.workflows.run import Run

e3nn.set_optimization_defaults(jit_mode="eager")  # no TorchScript, which Dynamo does not follow
HIDDEN, ANGLES = o3.Irreps("8x0e + 4x1o"), o3.Irreps("1x0e + 1x1o")


class Convolution(nn.Module):
    """A message from each neighbour: its features, times the direction to it, weighted by the distance."""

    def __init__(self, features: o3.Irreps, out: o3.Irreps) -> None:
        super().__init__()
        self.product = o3.FullyConnectedTensorProduct(features, ANGLES, out, shared_weights=False)
        self.weights = e3nn_nn.FullyConnectedNet([8, 16, self.product.weight_numel], torch.nn.functional.silu)

    def forward(self, x: Tensor, edges: Tensor, angles: Tensor, lengths: Tensor) -> Tensor:
        messages = self.product(x[edges[0]], angles, self.weights(lengths))
        return x.new_zeros(len(x), messages.shape[1]).index_add(0, edges[1], messages)


class Potential(nn.Module):
    """Energies of molecules; the interface of SchNet."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.angles = o3.SphericalHarmonics(ANGLES, normalize=True, normalization="component")
        self.first = Convolution(o3.Irreps("8x0e"), HIDDEN)
        self.second = Convolution(HIDDEN, o3.Irreps("1x0e"))

    def forward(self, kinds: Tensor, positions: Tensor, molecule: Tensor) -> Tensor:
        edges, _ = all_pairs(positions, molecule)
        offset = positions[edges[1]] - positions[edges[0]]
        angles = self.angles(offset)
        lengths = (-(offset.norm(dim=1, keepdim=True) - torch.linspace(0.5, 4, 8)).square()).exp()
        hidden = self.first(self.embedding(kinds), edges, angles, lengths)
        energies = self.second(hidden, edges, angles, lengths)
        return energies.new_zeros(int(molecule.max()) + 1, 1).index_add(0, molecule, energies)


def e3nn_forces(run: Run) -> None:
    """Two convolutions with spherical harmonics."""
    fit_forces(run, Potential(), molecules(STEPS))
