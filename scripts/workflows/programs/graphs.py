"""`torch_geometric`: node classification on a random graph, and forces of molecules."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, SchNet

from scripts.workflows.programs.common import STEPS, train
from scripts.workflows.programs.molecules import fit_forces, molecules
from scripts.workflows.run import Run


class TwoLayers(nn.Module):
    """Two convolutions of a graph with dropout between them."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        hidden = torch.nn.functional.dropout(self.first(x, edges).relu(), 0.2, self.training)
        return self.second(hidden, edges)


def gcn(run: Run) -> None:
    """Graph convolutions, degrees computed in each call."""
    classify_nodes(run, TwoLayers(GCNConv(16, 32), GCNConv(32, 4)))


def gat(run: Run) -> None:
    """Graph attention: a softmax over the edges of each node."""
    classify_nodes(run, TwoLayers(GATConv(16, 8, heads=4, dropout=0.1), GATConv(32, 4)))


def classify_nodes(run: Run, model: nn.Module) -> None:
    run.compile(model)
    x, edges, labels = torch.randn(100, 16), torch.randint(100, (2, 400)), torch.randint(4, (100,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train(run, model, optimizer, lambda step: torch.nn.functional.cross_entropy(model(x, edges), labels))


def schnet(run: Run) -> None:
    """SchNet learns energies and forces, which are derivatives of the energy by positions."""
    model = SchNet(hidden_channels=32, num_filters=32, num_interactions=2, num_gaussians=16, interaction_graph=all_pairs)
    fit_forces(run, model, molecules(STEPS))


def all_pairs(positions: Tensor, molecule: Tensor) -> tuple[Tensor, Tensor]:
    """Edges between all atoms of a molecule. SchNet's own graph needs another package."""
    same = (molecule[:, None] == molecule) & ~torch.eye(len(molecule), dtype=torch.bool)
    edges = same.nonzero().T
    return edges, (positions[edges[0]] - positions[edges[1]]).norm(dim=-1)
