"""Everything that was compiled for a function: the result of `f.debug_state()`.

print(f.debug_state())                              a table of the plans, and why calls ran eagerly
f.debug_state().plans[0].graphs["forward"]          an fx.GraphModule
print(f.debug_state().plans[0])                     its guards, graphs and emitted function, as text
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch.fx as fx
from tabulate import tabulate

from aotgrad.cache.restore import RestoredFunction
from aotgrad.ir import GraphHalf
from aotgrad.pipeline import Executable, SmallGraph, TracedJoint
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.entry import CachedPlan
from aotgrad.printing import graph_text
from aotgrad.runtime.variants import VariantKey


@dataclass(frozen=True)
class PlanState:
    """The current state of one plan. Backward graphs are compiled on first use.

    Attributes:
        hits: the number of calls that found it, after the call that compiled it.
        compile_ms: the time of its compilation, without backward graphs; of a loaded plan, the time to read and bind it.
        guards: the conditions of its use, a line each.
        halves: the graphs and their signatures, by name.
        source: the emitted Python function.
    """

    hits: int
    compile_ms: float
    guards: tuple[str, ...]
    halves: Mapping[str, GraphHalf]
    source: str

    @property
    def graphs(self) -> dict[str, fx.GraphModule]:
        """`"joint"`, `"forward"`, and a graph for each backward variant that ran. A loaded plan has no joint graph."""
        return {name: half.module for name, half in self.halves.items()}

    def __str__(self) -> str:
        graphs = [(name, graph_text(name.split()[0], half.module, half.signature)) for name, half in self.halves.items()]
        parts = [("guards", "\n".join(self.guards)), *graphs, ("function", self.source)]
        return "\n\n".join(f"--- {title} ---\n\n{text.rstrip()}" for title, text in parts)


@dataclass(frozen=True)
class DebugState:
    """The plans of one function, and the number of calls that ran eagerly, by reason.

    `unread`: how many plans of its file no call has needed, if it was loaded from one.
    """

    name: str
    plan_limit: int
    plans: tuple[PlanState, ...]
    fallbacks: Mapping[str, int]
    unread: int = 0

    def __str__(self) -> str:
        rows = [(k, p.hits, p.compile_ms, "\n".join(p.guards), "\n".join(p.graphs)) for k, p in enumerate(self.plans)]
        headers = ("plan", "hits", "compiled (ms)", "guards", "graphs")
        table = tabulate(rows, headers, tablefmt="simple_grid", floatfmt=".1f")
        eager = [f"{count} calls ran eagerly: {reason}" for reason, count in self.fallbacks.items()]
        unread = [f"plans of the file that no call has needed: {self.unread}"] if self.unread else []
        return "\n".join([f"{self.name}: {len(self.plans)} of at most {self.plan_limit} plans", table, *unread, *eager])


def debug_state(cache: PlanCache) -> DebugState:
    """A snapshot of a cache, which later calls do not change."""
    plans = tuple(map(plan_state, cache.plans()))
    return DebugState(cache.name, cache.compiler.options.plan_limit, plans, dict(cache.fallbacks), cache.unread)


def plan_state(plan: CachedPlan) -> PlanState:
    executable = plan.executable
    assert not isinstance(executable, TracedJoint), "a plan of a function is compiled"
    return PlanState(
        hits=plan.hits,
        compile_ms=plan.compile_ns / 1e6,
        guards=tuple(plan.guards.lines()),
        halves=dict(halves(executable)),
        source=executable.source,
    )


def halves(executable: Executable | RestoredFunction | SmallGraph) -> Iterator[tuple[str, GraphHalf]]:
    """The graphs of a plan; none if the original function runs in its place."""
    match executable:
        case SmallGraph():
            return
        case RestoredFunction():
            yield "forward", executable.forward
        case Executable():
            yield "joint", GraphHalf(executable.joint.module, executable.joint.signature)
            yield "forward", executable.partition.forward
    yield from compiled_backwards(executable)


def compiled_backwards(executable: Executable | RestoredFunction) -> Iterator[tuple[str, GraphHalf]]:
    """The backward graphs that were compiled so far."""
    for number, backward in enumerate(executable.backwards):
        name = backward_name(number, len(executable.backwards))
        for key, variant in list(backward.variants.variants.items()):
            yield variant_name(name, key), variant.half


def backward_name(number: int, count: int) -> str:
    return "backward" if count == 1 else f"backward {number}"


def variant_name(name: str, key: VariantKey) -> str:
    """The name of a backward, with its undefined tangents and unwanted gradients."""
    undefined = [f"tangent {k}" for k, is_defined in enumerate(key.tangents) if not is_defined]
    unwanted = [f"gradient {k}" for k, is_wanted in enumerate(key.gradients) if not is_wanted]
    return " without ".join([name, *([", ".join([*undefined, *unwanted])] if undefined or unwanted else [])])
