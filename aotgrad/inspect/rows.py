"""The rows of an explanation, read off the stages of a plan.

In: a `CachedPlan`, its cache, and the user's names of the arguments. Out: an `Explanation`.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx

from aotgrad import ir
from aotgrad.backends.base import PartitionCompiler
from aotgrad.backends.in_place_updates import updates_of
from aotgrad.eager_calls.ops import CALL_RESULTS
from aotgrad.graph import op_table
from aotgrad.graph.host_copies import RELOAD
from aotgrad.graph.memory_owners import memory_owner
from aotgrad.graph.source_lines import inside_of
from aotgrad.inspect.debug_state import backward_name, compiled_backwards
from aotgrad.inspect.explanation import (
    Explanation,
    GraphRow,
    InputRow,
    IslandRow,
    MemoryRow,
    NodeRow,
    OffloadedRow,
    OutputRow,
    PlanRow,
    RecomputedRow,
    SavedRow,
    SegmentRow,
    SourceLine,
    VariantRow,
)
from aotgrad.inspect.steps import steps_text
from aotgrad.partition.memory_curve import memory_curve, saved_names
from aotgrad.passes import OverlapCopies
from aotgrad.passes.ops import computes
from aotgrad.pipeline import Executable, SmallGraph
from aotgrad.plan_cache.binding import NamedTensor
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.entry import CachedPlan, NoPlan
from aotgrad.printing import type_text
from aotgrad.printing.graphs import argument_text, op_text
from aotgrad.printing.stages import input_alias_text, replay_text
from aotgrad.slots import IntermediateBase, Primal, Tangent, UserOutput


def explanation_of(plan: CachedPlan | NoPlan, cache: PlanCache, tensors: Sequence[NamedTensor]) -> Explanation:
    """The explanation of a plan.

    Args:
        plan: the plan of the call.
        cache: all plans of the function.
        tensors: the user's name for each tensor of the call.
    """
    backend, plans = cache.compiler.backend.name, tuple(plan_row(other, other is plan) for other in cache.plans())
    match plan:
        case NoPlan(reason, error):
            cause = "" if error is None else f" ({type(error).__name__}: {error})"
            return Explanation(cache.name, backend, f"the function runs eagerly: {reason}{cause}", plans=plans)
        case CachedPlan(SmallGraph() as small):
            return Explanation(cache.name, backend, small.source.removeprefix("# "), plans=plans)
        case CachedPlan(Executable() as executable):
            rows = _Rows(executable, plan, tensors)
            return Explanation(
                name=cache.name,
                backend=backend,
                note=None,
                inputs=tuple(rows.inputs()),
                outputs=tuple(rows.outputs()),
                graphs=tuple(rows.graphs()),
                nodes=tuple(rows.nodes_of(cache.compiler.backend)),
                islands=tuple(rows.islands(cache.compiler.backend)),
                saved=tuple(rows.saved_row(value) for value in executable.partition.saved if not value.host_bytes),
                offloaded=tuple(rows.offloaded()),
                recomputed=tuple(map(rows.recomputed_row, executable.partition.recomputed)),
                memory=tuple(rows.memory(cache.compiler.backend.fuses)),
                steps=tuple(map(rows.with_user_names, steps_text(executable.schedule.steps))),
                source=executable.source,
                segments=tuple(rows.segments()),
                variants=tuple(variant_row(*backward) for backward in compiled_backwards(executable)),
                plans=plans,
            )
    raise AssertionError(plan)


INPUT_OPS = {"placeholder": "input", "get_attr": "constant"}


def plan_row(plan: CachedPlan, explained: bool) -> PlanRow:
    return PlanRow(explained, plan.hits, plan.compile_ns / 1e6, tuple(plan.guards.lines()))


class _Rows:
    """The rows of one executable; `with_user_names` replaces the names of placeholders in a text."""

    def __init__(self, executable: Executable, plan: CachedPlan, tensors: Sequence[NamedTensor]) -> None:
        self.executable, self.plan = executable, plan
        self.nodes = {node.name: node for node in executable.joint.module.graph.nodes}
        dedupe, order = plan.guards.dedupe, executable.capture.convention.order
        self.names: dict[int, str] = {}
        self.kinds: dict[int, str] = {}
        for (name, kind), position in zip(tensors, dedupe.positions, strict=True):
            index = order[position]
            self.names[index] = f"{self.names[index]} = {name}" if index in self.names else name
            self.kinds.setdefault(index, kind)
        inputs = executable.capture.inputs
        self.own = {spec.name for k, spec in enumerate(inputs) if self.kinds.get(k) in ("parameter", "buffer")}
        self.placeholders = {spec.name: self.name(k) for k, spec in enumerate(executable.capture.inputs)}

    def name(self, index: int) -> str:
        """The user's name for input `index` of the graph."""
        return self.names.get(index, self.executable.capture.inputs[index].name)

    def with_user_names(self, text: str) -> str:
        return re.sub(r"\b((?:primals|member)_\d+)\b", lambda found: self.placeholders.get(found[1], found[1]), text)

    # -- inputs and outputs

    def inputs(self) -> Iterator[InputRow]:
        for index, (spec, info) in enumerate(zip(self.executable.capture.inputs, self.executable.meta.inputs, strict=True)):
            value = spec.value if isinstance(spec, ir.SymInput) else spec.fake
            yield InputRow(
                name=self.name(index),
                kind=self.kind(index, spec),
                type=type_text(value),
                bytes=known_bytes(value),
                requires_grad=not isinstance(spec, ir.SymInput) and spec.requires_grad,
                happened="" if info is None else happened_text(info),
                gradient=self.gradient(index, spec),
            )

    def kind(self, index: int, spec: ir.InputSpec) -> str:
        if isinstance(spec, ir.SymInput):
            return "symbolic number"
        if isinstance(spec, ir.SyntheticBase):
            return "synthetic base"
        return self.kinds[index]

    def gradient(self, index: int, spec: ir.InputSpec) -> str:
        """Whether a backward computes the gradient of an input, or why not."""
        joint = self.executable.joint
        if isinstance(spec, ir.SymInput):
            return "none: it is a number"
        if not spec.requires_grad:
            return "none: it does not require grad"
        if not joint.differentiable:
            return "none: no output has a gradient"
        terms = sum(value is not None for slot, value in joint.results.items() if getattr(slot, "of", None) == Primal(index))
        if terms == 0:
            return "none: no differentiable output depends on it"
        return "computed" if terms == 1 else f"computed, {terms} terms"

    def outputs(self) -> Iterator[OutputRow]:
        outputs, infos = self.executable.capture.outputs, self.executable.meta.outputs
        for index, (name, value, info) in enumerate(zip(self.output_names(), outputs, infos, strict=True)):
            is_tensor = isinstance(value, torch.Tensor)
            text = type_text(value) if is_tensor or not isinstance(info, ir.ConstantOutput) else argument_text(info.value)
            yield OutputRow(name, text, self.what(info), self.backward_of(index, info))

    def output_names(self) -> list[str]:
        """`output` for a lone result, else `output[0]`, `output['loss']`, `output.logits`; then views inside."""
        capture = self.executable.capture
        names = [f"output{path}" for path in self.plan.output.paths()]
        names += [f"output {k}" for k in range(len(names), capture.returned)]
        return names + ["(a view inside)"] * (len(capture.outputs) - capture.returned)

    def what(self, info: ir.OutputAliasInfo) -> str:
        match info:
            case ir.NonAlias():
                return "a new tensor"
            case ir.UnsafeViewAlias():
                return "a view of a base that the caller never sees, returned as it is"
            case ir.CustomFunctionView():
                return "a view made by an autograd.Function, computed by the graph"
            case ir.IsInput(index):
                return f"{self.name(index)} itself"
            case ir.IsOutput(index):
                return f"the same tensor as output {index}"
            case ir.AliasOfInput(index):
                return f"a view of {self.name(index)}, replayed on it:{replay_text(info.replay)}"
            case ir.AliasOfOutput(output) | ir.AliasOfIntermediateBaseIsUserOutput(output):
                return f"a view of output {output}, replayed on it:{replay_text(info.replay)}"
            case ir.AliasOfIntermediate(base):
                return f"a view of intermediate {base}, which the graph returns:{replay_text(info.replay)}"
            case ir.SymOutput():
                return "a number that the graph computes"
            case ir.ConstantOutput():
                return "the same object at every call"
        raise AssertionError(info)

    def backward_of(self, index: int, info: ir.OutputAliasInfo) -> str:
        """The first backward that the gradient of an output enters; empty if no graph takes it."""
        slot = IntermediateBase(info.base) if isinstance(info, ir.AliasOfIntermediate) else UserOutput(index)
        segments = self.executable.joint.segments
        numbers = [number for number, segment in enumerate(segments) if Tangent(slot) in segment.tangents]
        return backward_name(numbers[0], len(segments)) if numbers else ""

    # -- graphs

    def graphs(self) -> Iterator[GraphRow]:
        if self.executable.schedule.segments:
            yield graph_row("joint", self.executable.joint)
        yield from (graph_row(name, half) for name, half in self.halves())

    def halves(self) -> Iterator[tuple[str, ir.GraphHalf]]:
        """The graphs that are compiled, with their names."""
        segments = self.executable.schedule.segments
        yield "forward" if segments else "inference", self.executable.partition.forward
        yield from ((backward_name(number, len(segments)), half) for number, half in enumerate(segments))

    def islands(self, backend: PartitionCompiler) -> Iterator[IslandRow]:
        for name, half in self.halves():
            for node, reason in backend.islands(half.module.graph).items():
                if node.target is not CALL_RESULTS:  # a part of its call
                    yield IslandRow(name, node_name(node, node.name), node_type(node), reason, where(node))

    def nodes_of(self, backend: PartitionCompiler) -> Iterator[NodeRow]:
        """The nodes of the joint graph, or of the one graph that runs."""
        partition, halves = self.executable.partition, [(name, half.module.graph) for name, half in self.halves()]
        states = {value.name: ("recomputed", value.reason) for value in partition.recomputed}
        names = saved_names(self.executable.joint, partition)
        for value in partition.saved:
            states[names[value.slot.name]] = ("offloaded" if value.host_bytes else "saved", value.reason)
        graphs = {node.name: name for name, graph in reversed(halves) for node in graph.nodes}
        islands = {node.name for _, graph in halves for node in backend.islands(graph)}
        shown = self.executable.joint if partition.backward else partition.forward
        for node in shown.module.graph.nodes:
            if node.op != "output":
                usual = "computed" if node.op == "call_function" else "input"
                yield NodeRow(
                    self.placeholders.get(node.name) or node_name(node, node.name),
                    INPUT_OPS.get(node.op) or op_text(node.target),
                    node_type(node),
                    known_bytes(node.meta.get("val")) if memory_owner(node) is node else 0,
                    graphs.get(node.name, "joint"),
                    *states.get(node.name, (usual, "")),
                    node.name in islands,
                    where(node),
                )

    def segments(self) -> Iterator[SegmentRow]:
        joint, graphs = self.executable.joint, self.executable.schedule.segments
        results = joint.results
        for number, (segment, half) in enumerate(zip(joint.segments, graphs, strict=True)):
            entering = tuple(self.place_name(tangent.of) for tangent in segment.tangents)
            leaving = tuple(self.place_name(each.of) for each in segment.gradients if results.get(each) is not None)
            yield SegmentRow(backward_name(number, len(graphs)), entering, leaving, computing_ops(half.module.graph))

    def place_name(self, place: Any) -> str:
        """The user's name for an input or output; the text of any other end of a backward."""
        match place:
            case Primal(index):
                return self.name(index)
            case UserOutput(index):
                return self.output_names()[index]
        return str(place)

    def saved_row(self, value: ir.SavedValue) -> SavedRow:
        found = self.executable.partition.forward.results[value.slot]
        node, is_own = self.nodes.get(value.slot.name), value.slot.name in self.own
        name = self.placeholders.get(value.slot.name) or node_name(node, value.slot.name)
        return SavedRow(name, node_type(found), value.saved_bytes, value.reason, is_own, where(node))

    def offloaded(self) -> Iterator[OffloadedRow]:
        """The values on the host, with the times of their copies in a simulation of both halves."""
        values = {value.slot.name: value for value in self.executable.partition.saved if value.host_bytes}
        spent = times_of_copies(self.executable.partition) if values else {}
        for node in self.executable.partition.forward.module.graph.nodes if values else ():
            if op_table.is_host_copy(node.target):
                value, source = values[node.name], node.all_input_nodes[0]
                traced = self.nodes.get(source.name)
                name, times = node_name(traced, source.name), spent[node.name]
                yield OffloadedRow(name, node_type(source), value.host_bytes, *times, value.reason, where(traced))

    def recomputed_row(self, value: ir.RecomputedValue) -> RecomputedRow:
        node = self.nodes.get(value.name)
        return RecomputedRow(
            node_name(node, value.name), node_type(node), value.traffic_bytes, value.flops, value.reason, where(node)
        )

    def memory(self, fuses: bool) -> Iterator[MemoryRow]:
        """The memory of one call, if the backend updates inputs in place where it can."""
        executable = self.executable
        updates = updates_of(executable.partition.forward.module.graph)
        in_place = {step.value.name for steps in updates.values() for step in steps}
        for moment in memory_curve(executable.joint, executable.partition, fuses, in_place):
            yield MemoryRow(moment.half, node_name(moment.node, moment.node.name), moment.bytes, where(moment.node))


def times_of_copies(partition: ir.Partition) -> dict[str, tuple[float, float]]:
    """For each value on the host, by the name of its copy: seconds on the link, and those during which the device waits."""
    schedule = OverlapCopies.of(partition)
    assert schedule is not None and partition.backward is not None, "called for partitions with offloaded values"
    forward, backward = partition.forward.module.graph, partition.backward.module.graph
    fetched = {node.name: node.all_input_nodes[0].name for node in backward.nodes if node.target is RELOAD}
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each in (*schedule.timeline(forward), *schedule.timeline(backward)):
        if each.queue != "compute":
            spent[fetched.get(each.name, each.name)][each.queue == "exposed"] += each.end - each.start
    return {name: (link, exposed) for name, (link, exposed) in spent.items()}


def happened_text(info: ir.InputAliasInfo) -> str:
    """What the function does to an input, and how a call applies it to the caller's tensor."""
    text = input_alias_text(info)
    return f"{text}; copied back after the forward" if info.mutation.data else text


def graph_row(name: str, half: ir.GraphHalf | Any) -> GraphRow:
    graph, signature = half.module.graph, half.signature
    nodes = sum(node.op not in ("placeholder", "output") for node in graph.nodes)
    return GraphRow(name, computing_ops(graph), nodes, len(signature.inputs), len(signature.outputs))


def variant_row(name: str, half: ir.GraphHalf) -> VariantRow:
    return VariantRow(name, computing_ops(half.module.graph))


def computing_ops(graph: fx.Graph) -> int:
    return sum(map(computes, graph.nodes))


def known_bytes(value: Any) -> int:
    """The bytes of the elements of a traced tensor; 0 if a size is symbolic."""
    if not isinstance(value, torch.Tensor) or not all(isinstance(size, int) for size in value.shape):
        return 0
    return value.numel() * value.element_size()


def node_type(node: Any) -> str:
    return type_text(node.meta.get("val")) if isinstance(node, fx.Node) else ""


def node_name(node: fx.Node | None, default: str) -> str:
    """The name of a node; for an item, the name of the op and the position."""
    if node is None or node.target is not operator.getitem:
        return default
    owner, position = node.args
    assert isinstance(owner, fx.Node), "an item is taken from what a node computes"
    return f"{node_name(owner, owner.name)}[{position}]"


def where(node: fx.Node | None) -> SourceLine | None:
    """The innermost line of the user's program that created a node."""
    trace = (node.meta.get("stack_trace") or "") if node is not None else ""
    frames = list(re.finditer(r'File "(.*)", line (\d+).*(?:\n\s*(?!File )(\S.*))?', trace))
    if not frames:
        return None
    last = frames[-1]
    return SourceLine(last[1], int(last[2]), (last[3] or "").strip() + inside_of(last[0]))
