"""The autograd nodes of a plan from C++: one function fills a node, another one runs its usual backwards.

In: the `Backward` of each segment. Out: what the emitted source calls `attach`; without the library, `Segment.apply`.

    attach(backward, outputs, saved, recomputation, details, *inputs) -> outputs

Each segment has a class of nodes, derived from that of `Segment`. If its backward does no more than run a graph, the class
has a method `apply` in C++. This asks what to run for the tangents that are there and the gradients that are wanted, once
for each choice: a graph, or with `create_graph=True` a derivative. It calls Python for what is unusual: see
`Segment.backward`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from aotgrad import native, torch_compat
from aotgrad.runtime.autograd import Segment
from aotgrad.runtime.backward import NO_GRADIENTS, Backward
from aotgrad.runtime.recomputation import Gradients, Recomputation, SavedValues
from aotgrad.runtime.saved_tensors import release
from aotgrad.runtime.variants import VARIANT_LIMIT, VariantKey
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
    attributes = {"backward": backward, "__module__": parent.__module__}
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


class Graphs(dict[bytes, Any]):
    """What C++ runs in a backward, by tangents that are there, gradients that are wanted, and grad mode; see `node.h`.

    `None` stands for a backward that Python runs.
    """

    def __init__(self, backward: Backward) -> None:
        self.backward = backward

    def __missing__(self, flags: bytes) -> Any:
        *choice, creates_graph = map(bool, flags)
        found = (derivative_for if creates_graph else graph_for)(self.backward, choice)
        if len(self) < VARIANT_LIMIT:
            self[flags] = found
        return found


def key_of_choice(backward: Backward, choice: Sequence[bool]) -> VariantKey:
    """The key of a variant, from whether each tangent is there and each gradient is wanted."""
    tangents, wanted = choice[: len(backward.layouts)], choice[len(backward.layouts) :]
    return backward.key_of(tangents, backward.all_of_groups(wanted))


def graph_for(backward: Backward, choice: Sequence[bool]) -> tuple[Any, ...] | None:
    """What runs a variant. Its graph is compiled if it is missing."""
    key, variants = key_of_choice(backward, choice), backward.variants
    ran = frozenset((key,))
    if key is backward.full and backward.frees_all:
        chooses = bool(variants.overwritable_positions)
        return variants.whole_for if chooses else variants.whole_for((), is_last=False), chooses, None, ran, None
    variant = variants.get(key)
    later = functools.partial(release, key=key) if backward.saved_needed_later(ran) else None
    return None if variant.undefined is not None else (variant.run, False, variant.inputs, ran, later)


def derivative_for(backward: Backward, choice: Sequence[bool]) -> Callable[..., tuple[Any, ...]]:
    """What computes gradients that are differentiable."""
    wanted = key_of_choice(backward, choice).gradients

    def run(node: Any, call: Recomputation, saved: Gradients, tangents: Gradients) -> tuple[Any, ...]:
        return backward.derivative(node, call, SavedValues(backward.saved_slots, saved), tangents, wanted)

    return run
