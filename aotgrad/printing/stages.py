"""The results of all stages as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
import torch.fx as fx
from tabulate import tabulate

from aotgrad import ir
from aotgrad.graph.geometry import Geometry
from aotgrad.graph.symbols import SYMBOLIC_NUMBERS
from aotgrad.printing.graphs import (
    argument_text,
    body_lines,
    bracket_lines,
    call_text,
    graph_text,
    header,
    indent_lines,
    op_text,
)
from aotgrad.printing.types import number_list, type_text
from aotgrad.slots import FORWARD_RESULTS, Primal

USUAL_REASON = "recorded view chain"
MUTATIONS = {
    ir.MutationType.NONE: "unchanged",
    ir.MutationType.METADATA_ONLY: "metadata mutated",
    ir.MutationType.DATA: "data mutated",
    ir.MutationType.DATA_AND_METADATA: "data and metadata mutated",
}


@runtime_checkable
class HasSource(Protocol):
    """A compiled function; its text is its source."""

    source: str


def text(result: Any) -> str:
    """The text of a stage's result, without a newline at the end."""
    match result:
        case ir.Capture():
            return capture_text(result)
        case ir.ViewAndMutationMeta():
            return meta_text(result)
        case ir.JointGraph():
            return joint_text(result)
        case ir.Partition():
            return partition_text(result)
        case ir.GraphHalf():
            return half_text("half", result)
        case ir.Compiled():
            return backend_text(result)
        case HasSource():
            return result.source.rstrip("\n")
    raise TypeError(f"no stage returns a {type(result).__name__}")


def capture_text(capture: ir.Capture) -> str:
    """The inputs, the recorded graph, and the live values that the function returned."""
    notes = {spec.name: input_note(spec) for spec in capture.inputs}
    names = [f"output {k}" if k < capture.returned else f"view {k}" for k in range(len(capture.outputs))]
    outputs = [f"{live_text(value)},  # {name}" for value, name in zip(capture.outputs, names, strict=True)]
    lines = [*header("captured", capture.placeholders, notes), *indent_lines(member_lines(capture))]
    lines += indent_lines(body_lines(capture.trace.graph))
    lines += indent_lines(bracket_lines("return", outputs))
    if capture.grad_mode_after != capture.grad_mode_before:
        lines.append(f"# leaves grad mode {on_off(capture.grad_mode_after)}")
    return "\n".join(lines)


def member_lines(capture: ir.Capture) -> list[str]:
    """The arguments that are views of a synthetic base, with these views."""
    members = [spec for spec in capture.inputs if isinstance(spec, ir.MemberInput)]
    return [f"# {m.name}: {type_text(m.fake)} is {capture.inputs[m.base].name}{chain_text(m.views)}" for m in members]


def input_note(spec: ir.InputSpec) -> str:
    match spec:
        case ir.SymInput():
            return "a Python number"
        case ir.MemberInput():
            return ""
        case ir.SyntheticBase():
            return "synthetic base" + (", requires grad" if spec.requires_grad else "")
        case ir.TensorInput():
            gradient = ("leaf that requires grad" if spec.is_leaf else "not a leaf") if spec.requires_grad else ""
            return ", ".join(filter(None, [spec.part, "parameter or buffer" if spec.is_static else "", gradient]))


def live_text(value: Any) -> str:
    """The type of a value that a function returned, and its place in the open autograd graph."""
    if not isinstance(value, torch.Tensor):
        return type_text(value) if isinstance(value, SYMBOLIC_NUMBERS) else argument_text(value)
    if not value.requires_grad:
        return type_text(value)
    return f"{type_text(value)} by {value.grad_fn.name()}" if value.grad_fn is not None else f"{type_text(value)} leaf"


def meta_text(meta: ir.ViewAndMutationMeta) -> str:
    """One line for each input, output and intermediate base."""
    lines = [*numbered_section("inputs", map(input_alias_text, meta.inputs))]
    lines += numbered_section("outputs", map(output_alias_text, meta.outputs))
    lines += numbered_section("intermediate bases", map(base_text, meta.bases))
    lines += (f"{slot} was changed in place, version {version}" for slot, version in meta.versions)
    if meta.grad_mode_after is not None:
        lines.append(f"leaves grad mode {on_off(meta.grad_mode_after)}")
    return "\n".join(lines)


def numbered_section(title: str, entries: Iterable[str]) -> list[str]:
    """A title and numbered entries; nothing without entries."""
    lines = [f"{k}: {entry}" for k, entry in enumerate(entries)]
    return [title, *indent_lines(lines)] if lines else []


def input_alias_text(info: ir.InputAliasInfo | None) -> str:
    if info is None:
        return "no tensor argument"
    return "; ".join(input_alias_parts(info))


def input_alias_parts(info: ir.InputAliasInfo) -> Iterator[str]:
    yield MUTATIONS[info.mutation]
    if info.geometry is not None:
        yield f"is now {geometry_text(info.geometry)}"
    if info.version_bumps:
        yield f"version + {info.version_bumps}"
    if info.carries_gradient:
        yield "the new value carries a gradient"
    elif info.mutation.data and info.requires_grad_after:
        yield "hidden from autograd"


def geometry_text(geometry: Geometry) -> str:
    sizes, strides = number_list(geometry.size), number_list(geometry.stride)
    offset = "" if geometry.offset is None else f", offset {geometry.offset!s}"
    return f"size {sizes}, stride {strides}{offset}"


def output_alias_text(info: ir.OutputAliasInfo) -> str:
    name = type(info).__name__
    match info:
        case ir.NonAlias(requires_grad) | ir.UnsafeViewAlias(requires_grad) | ir.CustomFunctionView(requires_grad):
            return name + (", requires grad" if requires_grad else "")
        case ir.IsInput(index) | ir.IsOutput(index):
            return f"{name}({index})"
        case ir.AliasOfInput(index):
            return f"{name}({index}): input {index}{info.made.value}{replay_text(info.replay)}"
        case ir.AliasOfOutput(output):
            return f"{name}({output}): output {output}{replay_text(info.replay)}"
        case ir.AliasOfIntermediate(base):
            return f"{name}({base}): base {base}{replay_text(info.replay)}"
        case ir.AliasOfIntermediateBaseIsUserOutput(output):
            return f"{name}({output}): output {output}{replay_text(info.replay)}"
        case ir.SymOutput():
            return name
        case ir.ConstantOutput(value):
            return f"{name}({argument_text(value)})"
    raise AssertionError(info)


def replay_text(replay: ir.ViewReplay) -> str:
    """A chain of view ops, each after an arrow, the grad mode it needs, and why it is not the recorded chain."""
    mode = "" if replay.grad_mode is None else f", under grad mode {on_off(replay.grad_mode)}"
    return chain_text(replay.steps) + mode + ("" if replay.reason == USUAL_REASON else f"  ({replay.reason})")


def chain_text(steps: Iterable[ir.ViewStep]) -> str:
    return "".join(f" -> {step_text(step)}" for step in steps)


def step_text(step: ir.ViewStep) -> str:
    call = call_text(op_text(step.op), step.args, dict(step.kwargs))
    return call if step.item is None else f"{call}[{step.item}]"


def base_text(base: ir.BaseInfo) -> str:
    return base.node.name + (", requires grad" if base.requires_grad else "")


def joint_text(joint: ir.JointGraph) -> str:
    """The joint graph, or the forward graph of a function without a backward."""
    notes = {
        **{Primal(i): "held by another node" for i in joint.held_inputs},
        **{Primal(i): "parameter or buffer" for i in joint.static_inputs},
        **{Primal(i): "overwritten after the forward" for i in joint.mutated_inputs},
        **{Primal(i): "updated buffer" for i in joint.static_inputs & joint.mutated_inputs},
        **{place: f"memory {k}, which the backward changes" for k, place in enumerate(joint.memory)},
    }
    name = "joint" if joint.differentiable else "inference"
    text = graph_text(name, joint.module, joint.signature, notes, first_for_backward(joint))
    return "\n\n".join([text, *(error for segment in joint.segments for error in errors_text(segment))])


def errors_text(segment: ir.BackwardSegment) -> Iterator[str]:
    """The results and gradients between which a backward raises, and what it raises."""
    for nodes in segment.saving:
        if nodes.error is not None:
            tangents = [str(tangent.of) for k, tangent in enumerate(segment.tangents) if nodes.tangent_mask >> k & 1]
            gradients = [str(gradient.of) for k, gradient in enumerate(segment.gradients) if nodes.gradient_mask >> k & 1]
            heading = f"a backward from {', '.join(tangents)} to {', '.join(gradients)} raises"
            yield "\n".join([heading, *indent_lines(nodes.error.splitlines())])


def first_for_backward(joint: ir.JointGraph) -> fx.Node | None:
    """The node after the last forward result; `None` if there is none, or no backward."""
    if not joint.differentiable:
        return None
    pairs = joint.results.items()
    needed = {node for slot, node in pairs if isinstance(slot, FORWARD_RESULTS) and isinstance(node, fx.Node)}
    first = None
    for node in reversed(joint.module.graph.nodes):
        if node in needed or node.op == "placeholder":
            return first
        first = node if node.op != "output" else None
    return None


def partition_text(partition: ir.Partition) -> str:
    """Both halves, and tables of the saved and the recomputed values."""
    recomputed = [recomputed_text(partition)] if partition.recomputed else []
    if partition.backward is None:
        return "\n\n".join([half_text("inference", partition.forward), *recomputed])
    halves = [half_text("forward", partition.forward), half_text("backward", partition.backward)]
    return "\n\n".join([*halves, saved_text(partition), *recomputed])


def half_text(name: str, half: ir.GraphHalf) -> str:
    return graph_text(name, half.module, half.signature)


def segments_text(segments: Sequence[ir.GraphHalf]) -> str:
    """The graphs of the segments of a backward, in the order in which they run."""
    if len(segments) == 1:
        return half_text("backward", segments[0])
    return "\n\n".join(half_text(f"segment_{number}", half) for number, half in enumerate(segments))


def variant_text(full: ir.GraphHalf, variant: ir.GraphHalf) -> str:
    """A variant of a segment's graph, and what it lacks."""
    after = variant.results
    dropped = [slot for slot, before in full.results.items() if before is not None and after[slot] is None]
    undefined = [tangent for tangent in full.signature.tangents if tangent not in variant.signature.inputs]
    without = ", ".join(map(str, (*undefined, *dropped))) or "nothing"
    return f"# without {without}\n{half_text('variant', variant)}"


SAVED_HEADERS = ("value", "type", "bytes", "reason", "line")
RECOMPUTED_HEADERS = ("value", "reason", "line")


def recomputed_text(partition: ir.Partition) -> str:
    """A table of the values that both halves compute."""
    rows = [(value.name, value.reason, value.source or "") for value in partition.recomputed]
    return table_text(f"recomputed in the backward: {count_text(rows)}", RECOMPUTED_HEADERS, rows)


def table_text(title: str, headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    table = tabulate(rows, headers=headers, tablefmt="plain", disable_numparse=True)
    return "\n".join([title, *indent_lines([line.rstrip() for line in table.splitlines()])])


def count_text(rows: list[tuple[str, ...]]) -> str:
    return "1 value" if len(rows) == 1 else f"{len(rows)} values"


def saved_text(partition: ir.Partition) -> str:
    if not partition.saved:
        return "nothing is saved for the backward"
    types = dict(output_types(partition.forward))
    rows = [saved_row(value, types) for value in partition.saved]
    away = f", and {partition.host_bytes} bytes on the host" if partition.host_bytes else ""
    title = f"saved for the backward: {count_text(rows)}, {partition.saved_bytes} bytes{away}"
    return table_text(title, SAVED_HEADERS, rows)


def saved_row(value: ir.SavedValue, types: Mapping[Any, str]) -> tuple[str, ...]:
    line = value.source or ""
    return (value.slot.name, types[value.slot], str(value.saved_bytes), value.reason, line)


def output_types(half: ir.GraphHalf) -> Iterator[tuple[Any, str]]:
    for slot, node in half.results.items():
        yield slot, type_text(node.meta.get("val")) if isinstance(node, fx.Node) else "None"


def backend_text(compiled: ir.Compiled) -> str:
    results = getattr(compiled.forward, "expected", None)
    forward = "compiled" if results is None else f"returns {results} value" + ("s" if results != 1 else "")
    backward = "no backward" if compiled.compile_backward is None else "backward compiled when it is needed"
    return f"backend {compiled.backend}: forward {forward}, {backward}"


def on_off(mode: bool) -> str:
    return "on" if mode else "off"
