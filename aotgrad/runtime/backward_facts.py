"""What the runtime asks of a backward graph before it runs: facts that are stored beside it.

A process that has the code of a graph then runs it without a look at the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.graph.cases import has_cases
from aotgrad.graph.collectives import communicating
from aotgrad.graph.gradient_masks import may_be_narrowed
from aotgrad.ir import GraphHalf
from aotgrad.slots import Gradient


@dataclass(frozen=True)
class BackwardFacts:
    """Facts about the full graph of a segment.

    Attributes:
        formats: dtype and device of each tangent.
        sources: a number for each gradient. Gradients with one number are views of one tensor, and the same collectives lead
            to them, so they cost the same together.
        has_cases: whether the graph computes something else if a tangent is undefined.
    """

    formats: tuple[tuple[torch.dtype, torch.device], ...]
    sources: tuple[int, ...]
    has_cases: bool

    @classmethod
    def of(cls, half: GraphHalf, gradients: Sequence[Gradient]) -> BackwardFacts:
        """Of a graph whose node returns these gradients, in order."""
        numbers: dict[Any, int] = {}
        pairs = zip(gradient_sources(half, gradients), leads_of_collectives(half, gradients), strict=True)
        sources = tuple(numbers.setdefault(pair, len(numbers)) for pair in pairs)
        return cls(tangent_formats(half), sources, has_cases(half.module.graph))


def tangent_formats(half: GraphHalf) -> tuple[tuple[torch.dtype, torch.device], ...]:
    """Dtype and device of each tangent."""
    slots = half.placeholders
    values = [slots[slot].meta["val"] for slot in half.signature.incoming]
    return tuple((value.dtype, value.device) for value in values)


def gradient_sources(half: GraphHalf, gradients: Sequence[Gradient]) -> list[fx.Node | None]:
    """The node that each gradient is, or is a view of. Gradients with one source cost the same together.

    If an op can compute some of its results only, each result is a source of its own.
    """
    found = half.results
    return [view_source(found[gradient]) for gradient in gradients]


def leads_of_collectives(half: GraphHalf, gradients: Sequence[Gradient]) -> list[tuple[bool, ...]]:
    """For each gradient, which collectives lead to it: gradients with other collectives are asked for one by one."""
    leads = dict.fromkeys(between.gradients for _, between in communicating(half.module.graph))
    return [tuple(gradient in each for each in leads) for gradient in gradients]


def view_source(node: fx.Node | None) -> fx.Node | None:
    found: Any = node
    while found is not None and (op_table.is_view(found.target) or op_table.is_getitem(found.target)):
        if op_table.is_getitem(found.target) and may_be_narrowed(found.args[0].target):
            return found
        found = found.args[0]
    return found
