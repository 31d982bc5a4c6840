"""`schedulefree`: an optimizer that needs no schedule, and swaps weights between training and evaluation."""

from __future__ import annotations

import schedulefree
import torch

from scripts.workflows.programs.common import mlp, train
from scripts.workflows.programs.optimizers import regression
from scripts.workflows.run import Run


def schedule_free(run: Run) -> None:
    """The network and the optimizer's step are compiled."""
    network = run.compile(mlp(16, 64, 64, 1))
    optimizer = schedulefree.AdamWScheduleFree(network.parameters(), lr=1e-3, warmup_steps=4)
    optimizer.train()
    step = run.compile(lambda: optimizer.step())
    loss_of = regression(network)
    train(run, network, optimizer, loss_of, step)
    optimizer.eval()
    with torch.no_grad():
        run.observe("evaluated", loss_of(0))
