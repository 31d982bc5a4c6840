"""`JointGraph`: the forward and the backward in one graph, and the segments of the backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch.fx as fx

from aotgrad.graph.copies import copy_graph
from aotgrad.graph.ends import outputs_of
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.slots import ForwardResult, Gradient, Memory, Primal, SegmentBoundary, SlotSignature, Tangent

if TYPE_CHECKING:
    from typing_extensions import Self

    from aotgrad.subclasses.passages import CutForm, Passage


@dataclass(frozen=True)
class SavingNodes:
    """Nodes of eager's autograd graph that save values and run in the same backwards.

    Attributes:
        tangent_mask: the tangents of the segment that lead to them.
        gradient_mask: the gradients that they lead to.
        memory: inputs and results that own the memory of saved values and may change without the version counters of these
            values: a backward changes them in place, or an input got their memory. It must be unchanged when they run.
        error: what a backward through them raises where the function itself overwrote the saved values.
    """

    tangent_mask: int
    gradient_mask: int
    memory: frozenset[Primal | ForwardResult] = frozenset()
    error: str | None = None


@dataclass(frozen=True)
class ChangedMemory:
    """Memory that a segment changes in place, and by how much its version counter rises.

    `tangent`: the tangent that it is, if any. `for_saved`: it changes when a checkpointed region recomputes a saved value.
    """

    memory: Memory
    version_bumps: int
    tangent: Tangent | None = None
    for_saved: bool = False


@dataclass(frozen=True)
class BackwardSegment:
    """The tangents and gradients of one autograd node of the compiled function.

    Every tangent of the joint graph belongs to one segment. A gradient of a result or a boundary is added to the tangent of
    a later segment; the gradient of a returned view passes through the view, outside of all graphs.

    Attributes:
        gradients: in the order of the node's inputs. With this order, the engine runs the hooks of leaves as in eager.
        materialize: an undefined tangent beside a defined one is zeros, as for a custom function.
        saving: eager's nodes in it that save a value.
        changes: what its one node changes in place.
    """

    tangents: tuple[Tangent, ...]
    gradients: tuple[Gradient, ...]
    materialize: bool = False
    saving: tuple[SavingNodes, ...] = ()
    changes: tuple[ChangedMemory, ...] = ()

    @property
    def has_sentinel(self) -> bool:
        return needs_sentinel(len(self.gradients))


SENTINEL_INPUTS = 32
"""At this many inputs, one sentinel costs as much as asking the engine about each."""


def needs_sentinel(inputs: int) -> bool:
    """Whether an autograd node with so many inputs has a sentinel before them: a leaf that no caller knows.

    The engine runs the sentinel's node in a plain `.backward()`, but not where only some gradients are wanted. So one
    question to the engine replaces one per parameter. Without inputs, the sentinel is what makes torch create a node.
    """
    return inputs == 0 or inputs >= SENTINEL_INPUTS


@dataclass(frozen=True)
class SlotGraph:
    """A graph, and the meaning of each placeholder and output."""

    module: fx.GraphModule
    signature: SlotSignature

    @property
    def placeholders(self) -> dict[Any, fx.Node]:
        """The placeholders by slot."""
        return dict(zip(self.signature.inputs, self.module.graph.find_nodes(op="placeholder"), strict=True))

    @property
    def results(self) -> dict[Any, Any]:
        """What the graph returns, by slot: nodes, numbers, or `None`."""
        return dict(zip(self.signature.outputs, outputs_of(self.module.graph), strict=True))

    def copy(self) -> Self:
        """The same with a copy of the graph."""
        return replace(self, module=LazyGraphModule(self.module, copy_graph(self.module.graph)))


@dataclass(frozen=True)
class JointGraph(SlotGraph):
    """One functional FX graph of forward and backward. Without tangents it is an inference graph.

    Attributes:
        static_inputs: primals whose memory outlives the call at one address (parameters, buffers).
        mutated_inputs: primals that are overwritten after the forward; the backward must not read them.
        writable_inputs: mutated primals that the forward graph may write itself.
        segments: the parts of the backward, in the order in which they run.
        private_inputs: primals that the caller does not hold, so that nothing else writes to them.
        held_inputs: other primals that are alive anyway, so that saving them takes no memory.
        memory: the inputs, results and tangents that a backward changes in place.
        effects: groups of autograd nodes that change memory, one segment each; a node is given by its age in the function.
        saved_in_eager: the inputs and results that own the memory of a value that eager saves.
        eager_bytes: what eager saves outside of their memory, in bytes; `None` if unknown.
        passages: how gradients pass through the wrapper subclasses among the results; each stands for all its parts.
        cut_forms: the forms of wrapper subclasses that pass between two segments.
    """

    static_inputs: frozenset[int]
    mutated_inputs: frozenset[int]
    writable_inputs: frozenset[int] = frozenset()
    segments: tuple[BackwardSegment, ...] = ()
    private_inputs: frozenset[int] = frozenset()
    held_inputs: frozenset[int] = frozenset()
    memory: tuple[Primal | ForwardResult | Tangent, ...] = ()
    effects: tuple[frozenset[int], ...] = ()
    saved_in_eager: frozenset[Primal | ForwardResult] = frozenset()
    eager_bytes: int | None = None
    passages: Mapping[Gradient, Passage] = field(default_factory=dict)
    cut_forms: Mapping[SegmentBoundary, CutForm] = field(default_factory=dict)

    @property
    def differentiable(self) -> bool:
        return bool(self.signature.tangents)
