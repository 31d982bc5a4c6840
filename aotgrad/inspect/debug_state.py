"""Everything that was compiled for a function, to look at: what `f.debug_state()` returns.

print(f.debug_state())                              a table of the plans, and why calls ran eagerly
f.debug_state().plans[0].graphs["forward"]          an fx.GraphModule
print(f.debug_state().plans[0])                     its guards, graphs and emitted function, as text
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch.fx as fx
from tabulate import tabulate

from aotgrad.ir import GraphHalf
from aotgrad.pipeline import Executable, SmallGraph, TracedJoint
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.entry import CachedPlan
from aotgrad.printing import graph_text
from aotgrad.runtime.variants import VariantKey


@dataclass(frozen=True)
class PlanState:
    """One plan, as it is now: backward graphs are compiled when they are first needed.

    Attributes:
        hits: calls that found it, after the one that made it.
        compile_ms: how long making it took, without backward graphs.
        guards: the conditions under which it is used, a line each.
        halves: the graphs with what their inputs and outputs mean, by name.
        source: the emitted Python function.
    """

    hits: int
    compile_ms: float
    guards: tuple[str, ...]
    halves: Mapping[str, GraphHalf]
    source: str

    @property
    def graphs(self) -> dict[str, fx.GraphModule]:
        """`"joint"`, `"forward"`, and one graph for each variant of the backward that ran."""
        return {name: half.module for name, half in self.halves.items()}

    def __str__(self) -> str:
        graphs = [(name, graph_text(name.split()[0], half.module, half.signature)) for name, half in self.halves.items()]
        parts = [("guards", "\n".join(self.guards)), *graphs, ("function", self.source)]
        return "\n\n".join(f"--- {title} ---\n\n{text.rstrip()}" for title, text in parts)


@dataclass(frozen=True)
class DebugState:
    """The plans of one function, and its fallback: how many calls ran the original function eagerly, by reason."""

    name: str
    plan_limit: int
    plans: tuple[PlanState, ...]
    fallbacks: Mapping[str, int]

    def __str__(self) -> str:
        rows = [(k, p.hits, p.compile_ms, "\n".join(p.guards), "\n".join(p.graphs)) for k, p in enumerate(self.plans)]
        headers = ("plan", "hits", "compiled (ms)", "guards", "graphs")
        table = tabulate(rows, headers, tablefmt="simple_grid", floatfmt=".1f")
        eager = [f"{count} calls ran eagerly: {reason}" for reason, count in self.fallbacks.items()]
        return "\n".join([f"{self.name}: {len(self.plans)} of at most {self.plan_limit} plans", table, *eager])


def debug_state(cache: PlanCache) -> DebugState:
    """A picture of a cache: later calls do not change it."""
    plans = tuple(map(plan_state, cache.plans()))
    return DebugState(cache.name, cache.compiler.options.plan_limit, plans, dict(cache.fallbacks))


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


def halves(executable: Executable | SmallGraph) -> Iterator[tuple[str, GraphHalf]]:
    """The graphs of a plan; none if the original function runs in its place."""
    if isinstance(executable, SmallGraph):
        return
    yield "joint", GraphHalf(executable.joint.module, executable.joint.signature)
    yield "forward", executable.partition.forward
    for number, backward in enumerate(executable.backwards):
        name = "backward" if len(executable.backwards) == 1 else f"backward {number}"
        for key, variant in list(backward.variants.variants.items()):
            yield variant_name(name, key), variant.half


def variant_name(name: str, key: VariantKey) -> str:
    """The name of a backward, with the tangents that are undefined and the gradients that are not wanted."""
    undefined = [f"tangent {k}" for k, is_defined in enumerate(key.tangents) if not is_defined]
    unwanted = [f"gradient {k}" for k, is_wanted in enumerate(key.gradients) if not is_wanted]
    return " without ".join([name, *([", ".join([*undefined, *unwanted])] if undefined or unwanted else [])])
