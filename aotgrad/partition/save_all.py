"""The plain choice: run each op once, and save every value that crosses from forward to backward.

In: a `JointAnalysis`. Out: the saved nodes with their reasons, for `split`.

    a = exp(x); b = view(a); g = mul(tangent, b)     saves a; the view is applied again

What only the backward needs runs in the backward, so this saves what eager saves, up to the choice of the backward
formulas.
"""

from __future__ import annotations

import torch.fx as fx

from aotgrad.partition.decision import Decision, Objective, needed_by
from aotgrad.partition.frontier import Frontier
from aotgrad.partition.graphs import JointAnalysis
from aotgrad.partition.min_cut import cut_at
from aotgrad.partition.policy import CAUTIOUS


def save_all(analysis: JointAnalysis, objective: Objective) -> Decision:
    """Save every value that crosses; only what is tagged to be recomputed is."""
    if analysis.tagged:
        return cut_at(analysis, objective, CAUTIOUS, Frontier.fastest)
    return Decision({node: _reason(reader) for node, reader in analysis.crossing.items()}, {})


def _reason(reader: fx.Node | None) -> str:
    return f"{needed_by(reader)}; every value that crosses is saved"
