"""`Partition`: the two halves of a joint graph, and what is saved between them; `Compiled`: the compiled halves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.ir.joints import SlotGraph
from aotgrad.slots import Saved, SavedSymInt


@dataclass(frozen=True)
class SavedValue:
    """One value that the forward saves for the backward, and why it is not recomputed.

    `saved_bytes` are on the device, `host_bytes` in the memory of the host if the value is offloaded.
    """

    slot: Saved | SavedSymInt
    saved_bytes: int
    reason: str
    source: str | None
    host_bytes: int = 0


@dataclass(frozen=True)
class RecomputedValue:
    """One op of the forward that the backward recomputes, and why its result is not saved.

    `traffic_bytes`: what it reads and writes if it is not fused, 0 for a view. `flops`: floating point operations of a
    product, a convolution or an attention, 0 for other ops.
    """

    name: str
    reason: str
    source: str | None
    traffic_bytes: int
    flops: int


@dataclass(frozen=True)
class GraphHalf(SlotGraph):
    """A graph that a backend compiles.

    `overwritable`: the inputs whose memory the compiled graph may write over.
    `is_checked`: what the compiled graph returns is compared with the trace in each call.
    """

    overwritable: frozenset[Saved] = frozenset()
    is_checked: bool = False

    def for_backend(self, overwritable: frozenset[Saved]) -> GraphHalf:
        """A copy for a backend, which may change the graph that it compiles."""
        return replace(self.copy(), overwritable=overwritable)

    def guard_count(self) -> int:
        """How many symbolic guards the graph's trace has; 0 for a graph without symbolic sizes."""
        values = (node.meta.get("val") for node in self.module.graph.find_nodes(op="placeholder"))
        return max((torch_compat.guard_count(value) for value in values if isinstance(value, torch.Tensor)), default=0)

    def attributes(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """The tensors that the graph refers to by these names."""
        return {name: functools.reduce(getattr, name.split("."), self.module) for name in names}

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the placeholders."""
        return tuple(node.name for node in self.module.graph.find_nodes(op="placeholder"))

    def calls_any(self, names: Collection[str]) -> bool:
        """Whether the graph may call one of some ops, such as `"aten.mm"`."""
        return any(op_table.op_name(node.target) in names for node in self.module.graph.nodes)

    def communicates(self) -> bool:
        """Whether processes may communicate in the graph."""
        return any(op_table.communicates(node.target) for node in self.module.graph.nodes)


@dataclass(frozen=True)
class Partition:
    """The two halves of a joint graph; `backward` is `None` for an inference graph."""

    forward: GraphHalf
    backward: GraphHalf | None
    saved: tuple[SavedValue, ...]
    recomputed: tuple[RecomputedValue, ...] = ()

    @property
    def saved_bytes(self) -> int:
        return sum(value.saved_bytes for value in self.saved)

    @property
    def host_bytes(self) -> int:
        return sum(value.host_bytes for value in self.saved)


BoxedCallable = Callable[[list], Sequence[Any]]
CompileBackward = Callable[[GraphHalf], BoxedCallable]


@dataclass(frozen=True)
class Compiled:
    """The compiled halves of a partition: callables that take a list, which they may clear, and return a list or tuple.

    Backward graphs are compiled on first use, one variant at a time, from the backward half or a specialized copy of it.

    `reuses_memory`: a call may write its results over those of earlier calls, unless a backward of these is still to come.
    `writes_over`: a backward graph can write over the inputs that are `overwritable`.
    """

    backend: str
    forward: BoxedCallable
    compile_backward: CompileBackward | None
    reuses_memory: bool = False
    writes_over: bool = False

    def with_backward(self, wrap: Callable[[CompileBackward], CompileBackward]) -> Compiled:
        """The same with `wrap(compile_backward)` in its place, if there is a backward."""
        return self if self.compile_backward is None else replace(self, compile_backward=wrap(self.compile_backward))
