"""The plain choice: run each op once, and save every value that crosses from forward to backward.

In: a `JointAnalysis`. Out: the saved nodes with their reasons, for `split`.

    a = exp(x); b = view(a); g = mul(tangent, b)     saves a; the view is applied again

What only the backward needs runs in the backward, so this saves what eager saves, up to the choice of the backward
formulas.
"""

from __future__ import annotations

import torch.fx as fx

from aotgrad.partition.graphs import JointAnalysis


def save_all(analysis: JointAnalysis) -> dict[fx.Node, str]:
    return {node: f"{needed_by(reader)}; every value that crosses is saved" for node, reader in analysis.crossing.items()}


def needed_by(reader: fx.Node | None) -> str:
    """The start of a reason: who reads the value in the backward."""
    return "is itself a gradient" if reader is None else f"needed by {reader.name} in the backward"
