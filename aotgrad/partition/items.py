"""A joint graph as a `Problem`: the values that the backward may need, their costs, and what may be done with each.

In: a `JointAnalysis`, the rules of the choice and the cost model. Out: `Items`: the values, a verdict on each, and the
problem on ints, in which value k is `nodes[k]`.

Views are no values of their own: they cost nothing, so a view stands for its base and the sizes that it takes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.partition import costs, fusion, random_state, tags
from aotgrad.partition.contraction import Contraction
from aotgrad.partition.fusion import Kind, Op
from aotgrad.partition.graphs import JointAnalysis
from aotgrad.partition.liveness import Program
from aotgrad.partition.offload_costs import Timeline, time_of_transfer
from aotgrad.partition.policy import Rules, Verdict, judge
from aotgrad.partition.problem import NEVER, Problem, Solution
from aotgrad.partition.program import program_of


@dataclass(frozen=True)
class CostModel:
    """How time is estimated.

    Attributes:
        fuses: whether the backend fuses ops into kernels.
        flops_per_byte: see `costs.time_alone`.
        host_bytes: see `Objective`.
    """

    fuses: bool = True
    flops_per_byte: int | None = None
    host_bytes: float | None = None


@dataclass(frozen=True, eq=False)
class Items:
    """The values that the backward may need, in the order of the joint graph."""

    analysis: JointAnalysis
    nodes: list[fx.Node]
    verdicts: list[Verdict]
    problem: Problem
    model: CostModel

    @functools.cached_property
    def number(self) -> dict[fx.Node, int]:
        return {node: number for number, node in enumerate(self.nodes)}

    def offloaded(self, solution: Solution) -> frozenset[fx.Node]:
        """The values that wait on the host: those of the choice, and the saved ones that are tagged."""
        tagged = (k for k in solution.saved if self.verdicts[k].leaves)
        return frozenset(self.nodes[k] for k in (*solution.offloaded, *tagged))

    @functools.cached_property
    def program(self) -> tuple[Program, dict[fx.Node, int]]:
        """The joint graph for the simulation of memory, and the number of each node in it."""
        model = self.model
        return program_of(self.analysis, model.fuses, model.flops_per_byte, is_timed=model.host_bytes is not None)

    @functools.cached_property
    def contraction(self) -> Contraction:
        """The smaller problem that is solved; see `contraction`."""
        return Contraction.of(self.problem)


@dataclass(frozen=True, eq=False)
class Costed:
    """The values that the backward may need and their costs, before any rule."""

    analysis: JointAnalysis
    nodes: list[fx.Node]
    rerun: list[int]
    saving: list[int]
    held: list[int]
    parents: list[list[int]]
    wanted: list[int]
    model: CostModel

    @classmethod
    def of(cls, analysis: JointAnalysis, model: CostModel) -> Costed:
        nodes = _needed_values(analysis)
        number = {node: k for k, node in enumerate(nodes)}
        rerun, saving = _times(analysis, nodes, model)
        return cls(
            analysis,
            nodes,
            rerun,
            saving,
            held=[costs.held_bytes(analysis, node) for node in nodes],
            parents=[[number[parent] for parent in parents(analysis, node)] for node in nodes],
            wanted=[number[node] for node in read_by_backward(analysis)],
            model=model,
        )

    def items(self, rules: Rules, offload: bool = True) -> Items:
        """The problem under `rules`; `offload`: with what the cost model says about the host."""
        verdicts = [judge(self.analysis, node, rules) for node in self.nodes]
        away = [verdict.leaves for verdict in verdicts]
        problem = Problem(
            held=[0 if leaves else held for held, leaves in zip(self.held, away, strict=True)],
            saving=[0 if leaves else time for time, leaves in zip(self.saving, away, strict=True)],
            savable=[verdict.savable for verdict in verdicts],
            rerun=[time if v.recomputable else NEVER for time, v in zip(self.rerun, verdicts, strict=True)],
            state=[_state_bytes(node, verdict) for node, verdict in zip(self.nodes, verdicts, strict=True)],
            parents=self.parents,
            wanted=self.wanted,
        )
        problem = self._with_host(problem, away) if offload and self.model.host_bytes is not None else problem
        return Items(self.analysis, self.nodes, verdicts, problem, self.model)

    def _with_host(self, problem: Problem, away: list[bool]) -> Problem:
        """The problem with offloading; `away` are the values that leave anyway."""
        timeline = Timeline.of(self.analysis, self.model.fuses, self.model.flops_per_byte)
        times = [NEVER if tags.is_pinned(node) else timeline.transfer(self.analysis, node) for node in self.nodes]
        taken = sum(time_of_transfer(node) for node, leaves in zip(self.nodes, away, strict=True) if leaves)
        room = (self.model.host_bytes or 0) - sum(itertools.compress(self.held, away))
        return replace(
            problem,
            transfer=[NEVER if leaves else time for leaves, time in zip(away, times, strict=True)],
            hidden=max(0, timeline.hidden - taken),
            host=max(0, room),
        )


def read_by_backward(analysis: JointAnalysis) -> dict[fx.Node, fx.Node | None]:
    """The values that the backward reads, whichever are saved, each with its first reader."""
    return analysis.reads(analysis.backward, analysis.forward | analysis.unclaimed)


def parents(analysis: JointAnalysis, node: fx.Node) -> list[fx.Node]:
    """The values that recomputing the node needs."""
    if node in analysis.copied:
        return []
    return list(dict.fromkeys(item for arg in node.all_input_nodes for item in analysis.support[arg]))


def _needed_values(analysis: JointAnalysis) -> list[fx.Node]:
    stack = list(read_by_backward(analysis))
    found: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(parents(analysis, node))
    return analysis.in_order(found)


def _state_bytes(node: fx.Node, verdict: Verdict) -> int:
    return random_state.state_bytes(node) if op_table.draws(node) and verdict.recomputable else 0


# --- Times -----------------------------------------------------------------------------------------------------------


def _times(analysis: JointAnalysis, nodes: list[fx.Node], model: CostModel) -> tuple[list[int], list[int]]:
    """For each node, the time of recomputing it, and of saving it."""
    times = _fused_times if model.fuses else _unfused_times
    rerun, saving = times(analysis, nodes, model)
    adjusted = [_adjusted(analysis, *pair) for pair in zip(nodes, rerun, strict=True)]
    return adjusted, [_time_of_copy(analysis, node) or time for node, time in zip(nodes, saving, strict=True)]


def _unfused_times(analysis: JointAnalysis, nodes: list[fx.Node], model: CostModel) -> tuple[list[int], list[int]]:
    alone = [0 if is_free(analysis, node) else costs.time_alone(node, model.flops_per_byte) for node in nodes]
    return alone, [0] * len(nodes)


def _fused_times(analysis: JointAnalysis, nodes: list[fx.Node], model: CostModel) -> tuple[list[int], list[int]]:
    ops, number = _ops(analysis, model)
    traffic = fusion.traffic_of_each(ops)
    chosen = [traffic[number[node]] for node in nodes]
    return [each.rerun * costs.TIME_PER_BYTE for each in chosen], [each.saving * costs.TIME_PER_BYTE for each in chosen]


def _time_of_copy(analysis: JointAnalysis, node: fx.Node) -> int:
    """Time to copy a value whose memory does not survive the forward; 0 for others."""
    return 2 * costs.bytes_written(node) * costs.TIME_PER_BYTE if node in analysis.copied else 0


def _adjusted(analysis: JointAnalysis, node: fx.Node, time: int) -> int:
    """The time to rerun a node. An unclaimed op runs once in any case; reading a size later keeps a tensor alive."""
    if node in analysis.unclaimed:
        return 0
    if node.op == "call_function" and op_table.reads_size(node.target):
        return 4 * costs.SYMBOLIC_VALUE_BYTES * costs.TIME_PER_BYTE
    return time * tags.reluctance(node)


def is_free(analysis: JointAnalysis, node: fx.Node) -> bool:
    """Whether the node runs no kernel."""
    if node.op != "call_function" or op_table.is_symbolic_value(node) or analysis.is_view(node):
        return True
    return op_table.is_getitem(node.target)


def _ops(analysis: JointAnalysis, model: CostModel) -> tuple[list[Op], dict[fx.Node, int]]:
    """The ops of both halves for `fusion`, without views."""
    live = analysis.forward | analysis.unclaimed | analysis.backward | analysis.tangents.keys()
    runs = [node for node in analysis.nodes if node in live and not analysis.is_view(node)]
    number = {node: k for k, node in enumerate(runs)}
    returned = {analysis.base[value] for value in (*analysis.results, *analysis.gradients) if isinstance(value, fx.Node)}
    return [_op(analysis, node, number, node in returned, model) for node in runs], number


def _op(analysis: JointAnalysis, node: fx.Node, number: dict[fx.Node, int], is_returned: bool, model: CostModel) -> Op:
    free = is_free(analysis, node)
    is_backward = node in analysis.backward
    untimed = free or is_backward
    return Op(
        kind=Kind.FREE if free else _kind(node),
        reads=tuple(number[base] for base in _tensors_read(analysis, node)),
        bytes=costs.bytes_moved(node),
        alone=0 if untimed else costs.time_alone(node, model.flops_per_byte) // costs.TIME_PER_BYTE,
        elements=_elements(node),
        is_backward=is_backward,
        is_returned=is_returned,
        is_across=_is_across(node),
    )


def _kind(node: fx.Node) -> Kind:
    if op_table.is_reduction(node.target):
        return Kind.REDUCTION
    fused = op_table.is_cheap(node.target) or op_table.draws_each(node.target) or op_table.reads_indirectly(node.target)
    return Kind.POINTWISE if fused and not op_table.is_drawn_from_seed(node.target) else Kind.ALONE


def _tensors_read(analysis: JointAnalysis, node: fx.Node) -> Iterable[fx.Node]:
    bases = (analysis.base[arg] for arg in node.all_input_nodes)
    return dict.fromkeys(base for base in bases if not op_table.is_symbolic_value(base))


def _elements(node: fx.Node) -> int:
    """The elements that a reduction reads, or that another op writes."""
    of = node.all_input_nodes if node.op == "call_function" and op_table.is_reduction(node.target) else [node]
    counts = [costs.dense_bytes(t) // t.element_size() for arg in of for t in costs.tensors_of(arg)]
    return max(counts, default=0)


def _is_across(node: fx.Node) -> bool:
    """Whether the node reduces other dimensions than the last ones."""
    if node.op != "call_function" or not op_table.is_reduction(node.target):
        return False
    source = costs.tensors_of(node.all_input_nodes[0])[0]
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    dims = [given] if isinstance(given, int) else given
    if not isinstance(dims, (list, tuple)) or not dims or not source.dim():
        return False
    reduced = {dim % source.dim() for dim in dims}
    return min(reduced) < source.dim() - len(reduced)
