"""The autograd nodes of a plan from C++: one function fills a node, another one runs its usual backward.

In: the `Backward` of each segment. Out: what the emitted source calls `attach`; without the library, `Segment.apply`.

    attach(backward, outputs, saved, recomputation, details, *inputs) -> outputs

Each segment has a class of nodes, derived from that of `Segment`. Its first backward runs in Python, which compiles the
graph. If that was the usual backward (see `Segment.backward`), the class gets a method `apply` in C++. This runs the next
usual ones, and calls Python for all others.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aotgrad import native, torch_compat
from aotgrad.runtime.autograd import Segment
from aotgrad.runtime.backward import NO_GRADIENTS, Backward

log = logging.getLogger("aotgrad.native")


def attach_function(backwards: Sequence[Backward]) -> Callable:
    """`attach` for the plan with these segments."""
    apply = torch_compat.plain_apply(Segment)
    attaching = native.lookup("attaching", None)
    if attaching is None or not nodes_fit():
        return apply
    kinds = [(each, class_of_nodes(each), each.materialize) for each in backwards if not each.reuses_memory]
    return attaching(apply, len(NO_GRADIENTS), tuple(kinds))


@functools.cache
def nodes_fit() -> bool:
    """Whether torch makes nodes as the C++ functions expect it."""
    fits = torch_compat.makes_node(Segment)
    if not fits:
        log.debug("autograd nodes are made in Python: this torch makes them in another way than C++ expects")
    return fits


def class_of_nodes(backward: Backward) -> type:
    """The class of the nodes of one segment."""
    parent = torch_compat.node_class(Segment)

    def apply(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        results = parent.apply(ctx, *tangents)
        if is_settled(ctx):
            kind.apply = usual_apply(backward, parent.apply)
        return results

    kind: Any = type(parent.__name__, (parent,), {"backward": backward, "apply": apply, "__module__": parent.__module__})
    return kind


def is_settled(ctx: Any) -> bool:
    """Whether the graph of the usual backward is compiled, and C++ can run it: it has no symbolic sizes or strides."""
    variants = ctx.backward.variants
    is_compiled = variants.run_whole is not None or variants.run_over is not None
    return is_compiled and ctx.backward.runs_whole and not ctx.sizes and ctx.layouts is None


def usual_apply(backward: Backward, in_python: Callable) -> Callable:
    """The method `apply` in C++."""
    chooses = bool(backward.variants.overwritable_positions)
    return native.lookup("applying", None)(
        in_python,
        backward.variants.whole_for if chooses else backward.variants.run_whole,
        backward.everything_ran,
        backward.layouts,
        backward.gradient_positions,
        len(NO_GRADIENTS),
        backward.has_sentinel,
        backward.saves,
        chooses,
    )
