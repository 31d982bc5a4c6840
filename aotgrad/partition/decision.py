"""The input and output of a choice of saved values.

Objective(memory_budget=0.5, fuses=True)     half of the bytes saved without a budget
Decision(saved={mm: "..."}, recomputed={sin: "..."})
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

import torch.fx as fx

from aotgrad.partition.graphs import JointAnalysis

Budget = Union[int, float, None]
"""Bytes, a fraction of the bytes saved without a budget, or no limit."""


@dataclass(frozen=True)
class Objective:
    """What to aim for.

    Attributes:
        memory_budget: a limit on what is saved, or on the peak. An int is in bytes, a float a fraction (from 0 to 1) of
            what the plan without a budget takes. `None`: a balance of bytes held and bytes moved, see `min_cut`.
        budget_of: what the budget limits: `"saved"` bytes, or the simulated `"peak"` of memory in forward and backward.
        fuses: whether the backend fuses ops into kernels.
        flops_per_byte: floating point operations that the device does while it moves a byte; `None`: by device type;
            `"measured"`: see `calibration`.
        collectives_first: start the backward's collectives as soon as their inputs are ready, see `schedule`.
        host_bytes: the memory of the host for offloaded values; infinite without a limit, `None`: none is offloaded.
    """

    memory_budget: Budget = None
    budget_of: str = "saved"
    fuses: bool = True
    flops_per_byte: int | str | None = None
    collectives_first: bool = False
    host_bytes: float | None = None


@dataclass(frozen=True)
class Decision:
    """The saved nodes, and the ops that the backward recomputes, each with the reason.

    `compact` are views of a small part of their memory: dense copies of them are saved. `None`: not chosen yet.
    `offloaded` are the saved nodes that wait on the host.
    """

    saved: dict[fx.Node, str]
    recomputed: dict[fx.Node, str]
    compact: frozenset[fx.Node] | None = None
    offloaded: frozenset[fx.Node] = frozenset()


Chooser = Callable[[JointAnalysis, Objective], Decision]


def needed_by(reader: fx.Node | None) -> str:
    """The start of a reason: the reader of the value in the backward."""
    return "is itself a gradient" if reader is None else f"needed by {reader.name} in the backward"
