"""The compiled graphs of a step alone, called one after another without guards, autograd and Python: the floor of its time.

graphs = recorded(get("inductor"), lambda backend: partial(step, torch.compile(model, backend=backend)))
median_seconds({"step": run, "floor": graphs.replay})
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from aotgrad.backends.base import PartitionCompiler, WrappedBackend
from aotgrad.debug.programs import copy_value
from aotgrad.frontends.dynamo import DynamoBackend
from aotgrad.ir import BoxedCallable, Compiled, GraphHalf, Partition

CALLS = 3  # the first ones may still compile, a second derivative for example


@dataclass(frozen=True)
class GraphCalls(WrappedBackend):
    """Compiles as another backend, and records the calls of its graphs and the processor time of its compilations."""

    calls: list[tuple[BoxedCallable, list[Any]]] = field(default_factory=list)
    compilations: list[float] = field(default_factory=list)

    def compile_partition(self, partition: Partition, static_inputs: frozenset[int]) -> Compiled:
        compiled = self.timed(lambda: self.backend.compile_partition(partition, static_inputs))
        recorded = Compiled(compiled.backend, self.recorded(compiled.forward), compiled.compile_backward)
        return recorded.with_backward(lambda compile: lambda half: self.recorded(self.timed(lambda: compile(kept(half)))))

    def timed(self, compile: Callable[[], Any]) -> Any:
        started = processor_seconds()
        compiled = compile()
        self.compilations.append(processor_seconds() - started)
        return compiled

    def recorded(self, graph: BoxedCallable) -> BoxedCallable:
        def run(args: list) -> Any:
            self.calls.append((graph, [copy_value(value) for value in args]))
            return graph(args)

        return run

    def replay(self) -> None:
        for graph, args in self.calls:
            graph(list(args))

    def replay_last(self) -> None:
        """The last graph alone: the backward of a step that has one."""
        graph, args = self.calls[-1]
        graph(list(args))

    def for_dynamo(self) -> DynamoBackend:
        """The `backend` of `torch.compile` that stands for `backend="aotgrad"`."""
        return DynamoBackend(self, {"keep_input_mutations": self.name == "inductor"})


def kept(half: GraphHalf) -> GraphHalf:
    """A half that leaves its inputs as they are, so that each replay computes with the same values."""
    return replace(half, overwritable=frozenset())


def recorded(backend: PartitionCompiler, compile: Callable[[GraphCalls], Callable[[], object]]) -> GraphCalls:
    """The graphs of one step; `compile` returns the step, compiled through the recorder."""
    graphs = GraphCalls(backend)
    step = compile(graphs)
    for _ in range(CALLS):
        graphs.calls.clear()
        step()
    return graphs


def processor_seconds() -> float:
    """Processor time of this process and of the children that it has waited for."""
    return sum(os.times()[:4])
