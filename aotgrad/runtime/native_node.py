"""The autograd nodes of a plan from C++: one function fills a node, another one runs its usual backwards.

In: the `Backward` of each segment. Out: what the emitted source calls `attach`; without the library, `Segment.apply`.

    attach(backward, outputs, saved, recomputation, details, *inputs) -> outputs

Each segment has a class of nodes, derived from that of `Segment`. If its backward does no more than run a graph, the class
has a method `apply` in C++. This asks for the graph for the tangents that are there and the gradients that are wanted, once
for each choice. It calls Python for what is unusual: see `Segment.backward`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from aotgrad import native, torch_compat
from aotgrad.runtime.autograd import Segment
from aotgrad.runtime.backward import NO_GRADIENTS, Backward
from aotgrad.runtime.saved_tensors import release
from aotgrad.runtime.variants import VARIANT_LIMIT
from aotgrad.slots import SavedSymInt, of_kind

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
    parent: Any = torch_compat.node_class(Segment)
    attributes = {"backward": backward, "in_python": parent.apply, "__module__": parent.__module__}
    if not backward.checks_or_writes:
        attributes["apply"] = usual_apply(backward, parent.apply)
    return type(parent.__name__, (parent,), attributes)


def usual_apply(backward: Backward, in_python: Callable) -> Callable:
    """The method `apply` in C++."""
    return native.lookup("applying", None)(
        in_python,
        torch_compat.dynamos_frame_callback(),
        Graphs(backward),
        () if backward.has_symbolic_layouts else backward.layouts,
        backward.gradient_positions,
        len(of_kind(backward.variants.full.signature.inputs, SavedSymInt)),
        len(backward.saved_slots),
        len(backward.layouts),
        len(NO_GRADIENTS),
        backward.has_sentinel,
    )


class Graphs(dict[bytes, "tuple[Any, ...] | None"]):
    """What C++ runs in a backward, by the tangents that are there and the gradients that are wanted; see `node.h`.

    `None` stands for a backward that Python runs.
    """

    def __init__(self, backward: Backward) -> None:
        self.backward = backward

    def __missing__(self, flags: bytes) -> tuple[Any, ...] | None:
        found = graph_for(self.backward, [flag == 1 for flag in flags])
        if len(self) < VARIANT_LIMIT:
            self[flags] = found
        return found


def graph_for(backward: Backward, flags: Sequence[bool]) -> tuple[Any, ...] | None:
    """What `Graphs` has for a key. The graph is compiled if it is missing."""
    tangents, wanted = flags[: len(backward.layouts)], flags[len(backward.layouts) :]
    key, variants = backward.key_of(tangents, backward.all_of_groups(wanted)), backward.variants
    ran = frozenset((key,))
    if key is backward.full and backward.frees_all:
        chooses = bool(variants.overwritable_positions)
        return variants.whole_for if chooses else variants.whole_for((), is_last=False), chooses, None, ran, None
    variant = variants.get(key)
    later = functools.partial(release, key=key) if backward.saved_needed_later(ran) else None
    return None if variant.undefined is not None else (variant.run, False, variant.inputs, ran, later)
