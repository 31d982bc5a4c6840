"""The interface of a pass, and the pipeline that runs several passes over a graph.

    @dataclass(frozen=True)
    class Rename:
        name: str = "rename"

        def apply(self, graph):                     a JointGraph, or a GraphHalf
            for node in graph.module.graph.nodes: ...
            return graph

A pass may change the graph in place or return a new one. It keeps the placeholders and outputs, their meaning (`signature`)
and their types. After each pass a hook is called, which verifies, prints and times it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, Union

from aotgrad.ir import GraphHalf, JointGraph

AnyGraph = TypeVar("AnyGraph", bound=Union[JointGraph, GraphHalf])


class Pass(Protocol):
    """One transformation of a graph. Frozen and compared by its options, since it is part of the key of a plan."""

    @property
    def name(self) -> str: ...

    def apply(self, graph: AnyGraph) -> AnyGraph: ...


Hook = Callable[[str, Pass, Any, int], None]
"""Called with (place, pass, resulting graph, elapsed ns) after each pass."""

PLACES = ("joint", "forward", "backward")
"""Where passes run: on the joint graph before it is partitioned, on each half before the backend compiles it."""


@dataclass(frozen=True)
class Pipeline:
    """The passes of one place, in order."""

    place: str
    passes: tuple[Pass, ...]

    def run(self, graph: AnyGraph, after: Hook) -> AnyGraph:
        for each in self.passes:
            start_ns = time.perf_counter_ns()
            graph = each.apply(graph)
            after(self.place, each, graph, time.perf_counter_ns() - start_ns)
        if self.passes:
            graph.module.recompile()
        return graph
