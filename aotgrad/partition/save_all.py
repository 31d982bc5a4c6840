"""The plain choice: run each op once, and save every value that crosses from forward to backward.

In: a `JointAnalysis`. Out: the `Decision` for `split`.

    a = exp(x); b = view(a); g = mul(tangent, b)     saves a, and repeats the view

Ops that only the backward needs run there. So this saves the values that eager saves, except where the backward formulas
differ.
"""

from __future__ import annotations

import torch.fx as fx

from aotgrad.partition.decision import Decision, Objective, needed_by
from aotgrad.partition.graphs import JointAnalysis
from aotgrad.partition.min_cut import cut_at
from aotgrad.partition.policy import CAUTIOUS


def save_all(analysis: JointAnalysis, objective: Objective) -> Decision:
    """Save every value that crosses, on the host if that costs nothing; recompute only values that are tagged for it."""
    if analysis.tagged or objective.host_bytes is not None:
        return cut_at(analysis, objective, CAUTIOUS, lambda frontier: frontier.fastest())
    return Decision({node: _reason(reader) for node, reader in analysis.crossing.items()}, {})


def _reason(reader: fx.Node | None) -> str:
    return f"{needed_by(reader)}; every value that crosses is saved"
