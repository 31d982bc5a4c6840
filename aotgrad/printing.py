"""Stage -> text: for logs, golden files and error notes. Equal stages give equal text: no addresses, no absolute paths.

Graphs read like Python, with a type behind every name and the user's line above the nodes that it became:

    def forward(
        primals_1: f32[3, 4],  # primal 0
        primals_2: f32[4, 5][1, 4],  # primal 1
    ):
        # return (x @ w).relu()
        mm: f32[3, 5] = aten.mm.default(primals_1, primals_2)
        relu: f32[3, 5] = aten.relu.default(mm)
        return (
            relu,  # output 0
        )

Types are written as FX writes them: `f32[3, 4]` is contiguous and on the CPU; strides follow in brackets if it is not
contiguous (`f32[4, 5][1, 4]`), then the device if it is another one. Symbolic sizes keep the names of the shape
environment. Printing never adds a guard and never records a node.

Limits: sizes that a capture computed and nobody uses are left out, since they say nothing about the function.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
import torch.fx as fx
from tabulate import tabulate

from aotgrad.ir import (
    AliasOfInput,
    AliasOfIntermediate,
    AliasOfIntermediateBaseIsUserOutput,
    BaseInfo,
    Capture,
    Compiled,
    ConstantOutput,
    CustomFunctionView,
    Geometry,
    GraphHalf,
    InputAliasInfo,
    InputSpec,
    IsInput,
    JointGraph,
    NonAlias,
    OutputAliasInfo,
    Partition,
    SavedValue,
    SymInput,
    SymOutput,
    TensorInput,
    UnsafeViewAlias,
    ViewAndMutationMeta,
    ViewReplay,
    ViewStep,
)
from aotgrad.slots import FORWARD_RESULTS, GraphSignature, Primal

INDENT = "    "
SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
FULL_SLICE_END = 2**63 - 1
USUAL_REASON = "recorded view chain"


@runtime_checkable
class HasSource(Protocol):
    """A plan that was made into a function: its text is the function's source."""

    source: str


def text(result: Any) -> str:
    """The text of any stage's result, without a newline at the end."""
    match result:
        case Capture():
            return capture_text(result)
        case ViewAndMutationMeta():
            return meta_text(result)
        case JointGraph():
            return joint_text(result)
        case Partition():
            return partition_text(result)
        case Compiled():
            return compiled_text(result)
        case HasSource():
            return result.source.rstrip("\n")
        case str():
            return result.rstrip("\n")
    raise TypeError(f"no stage returns a {type(result).__name__}")


# --- Capture ---------------------------------------------------------------------------------------------------------


def capture_text(capture: Capture) -> str:
    """The inputs, what was recorded, and the live values that the function returned."""
    notes = {spec.name: input_note(spec) for spec in capture.inputs}
    outputs = [f"{live_text(value)},  # output {k}" for k, value in enumerate(capture.outputs)]
    lines = [*header("captured", capture.placeholders, notes), *indented(body_lines(capture.trace.graph))]
    lines += indented(bracketed("return", outputs))
    if capture.grad_mode_after != capture.grad_mode_before:
        lines.append(f"# leaves grad mode {on_off(capture.grad_mode_after)}")
    return "\n".join(lines)


def input_note(spec: InputSpec) -> str:
    match spec:
        case SymInput():
            return "a Python number"
        case TensorInput():
            gradient = ("leaf that requires grad" if spec.is_leaf else "not a leaf") if spec.requires_grad else ""
            return ", ".join(filter(None, ["parameter or buffer" if spec.is_static else "", gradient]))


def live_text(value: Any) -> str:
    """A value that a function returned, while its trace is open: its type and its place in the autograd graph."""
    if not isinstance(value, torch.Tensor):
        return repr(value) if not isinstance(value, SYMBOLIC_NUMBERS) else type_text(value)
    if not value.requires_grad:
        return type_text(value)
    return f"{type_text(value)} by {value.grad_fn.name()}" if value.grad_fn is not None else f"{type_text(value)} leaf"


# --- ViewAndMutationMeta ---------------------------------------------------------------------------------------------


def meta_text(meta: ViewAndMutationMeta) -> str:
    """One line an input, an output and an intermediate base."""
    lines = [*section("inputs", map(input_alias_text, meta.inputs))]
    lines += section("outputs", map(output_alias_text, meta.outputs))
    lines += section("intermediate bases", map(base_text, meta.bases))
    if meta.grad_mode_after is not None:
        lines.append(f"leaves grad mode {on_off(meta.grad_mode_after)}")
    return "\n".join(lines)


def section(title: str, entries: Iterable[str]) -> list[str]:
    """A title and numbered entries; nothing if there are none."""
    lines = [f"{k}: {entry}" for k, entry in enumerate(entries)]
    return [title, *indented(lines)] if lines else []


def input_alias_text(info: InputAliasInfo | None) -> str:
    if info is None:
        return "not a tensor"
    return "; ".join(input_alias_parts(info))


def input_alias_parts(info: InputAliasInfo) -> Iterator[str]:
    yield {(False, False): "unchanged", (True, False): "data mutated"}.get(
        (info.mutation.data, info.mutation.metadata),
        "data and metadata mutated" if info.mutation.data else "metadata mutated",
    )
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
    return f"size {sizes}, stride {strides}, offset {number_text(geometry.offset)}"


def output_alias_text(info: OutputAliasInfo) -> str:
    name = type(info).__name__
    match info:
        case NonAlias(requires_grad) | UnsafeViewAlias(requires_grad) | CustomFunctionView(requires_grad):
            return name + (", requires grad" if requires_grad else "")
        case IsInput(index):
            return f"{name}({index})"
        case AliasOfInput(index):
            return f"{name}({index}): input {index}{replay_text(info.replay)}"
        case AliasOfIntermediate(base):
            return f"{name}({base}): base {base}{replay_text(info.replay)}"
        case AliasOfIntermediateBaseIsUserOutput(output):
            return f"{name}({output}): output {output}{replay_text(info.replay)}"
        case SymOutput():
            return name
        case ConstantOutput(value):
            return f"{name}({argument_text(value)})"


def replay_text(replay: ViewReplay) -> str:
    """The chain of view ops, each behind an arrow, how it must be run, and why it is not simply the recorded one."""
    chain = "".join(f" -> {step_text(step)}" for step in replay.steps)
    mode = "" if replay.grad_mode is None else f", under grad mode {on_off(replay.grad_mode)}"
    return chain + mode + ("" if replay.reason == USUAL_REASON else f"  ({replay.reason})")


def step_text(step: ViewStep) -> str:
    call = call_text(op_text(step.op), step.args, dict(step.kwargs))
    return call if step.item is None else f"{call}[{step.item}]"


def base_text(base: BaseInfo) -> str:
    return base.node.name + (", requires grad" if base.requires_grad else "")


# --- JointGraph and Partition ----------------------------------------------------------------------------------------


def joint_text(joint: JointGraph) -> str:
    """The joint graph, or the forward graph of a function without a backward."""
    notes = {
        **{Primal(i): "parameter or buffer" for i in joint.static_inputs},
        **{Primal(i): "overwritten after the forward" for i in joint.mutated_inputs},
        **{Primal(i): "updated buffer" for i in joint.static_inputs & joint.mutated_inputs},
    }
    name = "joint" if joint.differentiable else "inference"
    return graph_text(name, joint.module, joint.signature, notes, first_for_backward(joint))


def first_for_backward(joint: JointGraph) -> fx.Node | None:
    """The node from which on no forward result needs any; `None` if there is none."""
    pairs = zip(joint.signature.outputs, results_of(joint.module), strict=True)
    needed = {node for slot, node in pairs if isinstance(slot, FORWARD_RESULTS) and isinstance(node, fx.Node)}
    first = None
    for node in reversed(joint.module.graph.nodes):
        if node in needed or node.op == "placeholder":
            return first
        first = node if node.op != "output" else None
    return None


def partition_text(partition: Partition) -> str:
    """Both halves, and a table of what the forward saves for the backward."""
    if partition.backward is None:
        return half_text("inference", partition.forward)
    halves = [half_text("forward", partition.forward), half_text("backward", partition.backward)]
    return "\n\n".join([*halves, saved_text(partition)])


def half_text(name: str, half: GraphHalf) -> str:
    return graph_text(name, half.module, half.signature)


def saved_text(partition: Partition) -> str:
    if not partition.saved:
        return "nothing is saved for the backward"
    types = dict(output_types(partition.forward))
    rows = [saved_row(value, types) for value in partition.saved]
    table = tabulate(rows, headers=["value", "type", "bytes", "reason", "line"], tablefmt="plain", disable_numparse=True)
    count = "1 value" if len(rows) == 1 else f"{len(rows)} values"
    lines = [line.rstrip() for line in table.splitlines()]
    return "\n".join([f"saved for the backward: {count}, {partition.saved_bytes} bytes", *indented(lines)])


def saved_row(value: SavedValue, types: Mapping[Any, str]) -> tuple[str, ...]:
    line = source_line(value.source) or ""
    return (value.slot.name, types[value.slot], str(value.saved_bytes), value.reason, line)


def output_types(half: GraphHalf) -> Iterator[tuple[Any, str]]:
    for slot, node in zip(half.signature.outputs, results_of(half.module), strict=True):
        yield slot, type_text(node.meta.get("val")) if isinstance(node, fx.Node) else "None"


# --- Compiled --------------------------------------------------------------------------------------------------------


def compiled_text(compiled: Compiled) -> str:
    results = getattr(compiled.forward, "expected", None)
    forward = "compiled" if results is None else f"returns {results} value" + ("s" if results != 1 else "")
    backward = "no backward" if compiled.compile_backward is None else "backward compiled when it is needed"
    return f"backend {compiled.backend}: forward {forward}, {backward}"


# --- Graphs ----------------------------------------------------------------------------------------------------------


def graph_text(
    name: str,
    module: fx.GraphModule,
    signature: GraphSignature,
    notes: Mapping[Primal, str] | None = None,
    first_for_backward: fx.Node | None = None,
) -> str:
    """A graph as a Python function; every argument and result says what it means."""
    placeholders = module.graph.find_nodes(op="placeholder")
    meanings = {
        node.name: ", ".join(filter(None, [str(slot), (notes or {}).get(slot)]))
        for node, slot in zip(placeholders, signature.inputs, strict=True)
    }
    returned = [
        f"{argument_text(value)},  # {slot}"
        for value, slot in zip(results_of(module), signature.outputs, strict=True)
    ]
    nodes = body_lines(module.graph, first_for_backward)
    body = [*submodule_lines(module), *nodes, *bracketed("return", returned)]
    return "\n".join([*header(name, placeholders, meanings), *indented(body)])


def header(name: str, placeholders: Sequence[fx.Node], notes: Mapping[str, str]) -> list[str]:
    """`def name(` with one placeholder a line, typed and with its meaning."""
    typed = [f"{node.name}: {type_text(node.meta.get('val'))}," for node in placeholders]
    notes_of = [notes.get(node.name, "") for node in placeholders]
    return bracketed(f"def {name}", [f"{line}  # {note}" if note else line for line, note in zip(typed, notes_of, strict=True)], ":")


def bracketed(start: str, entries: Sequence[str], end: str = "") -> list[str]:
    space = " " if start == "return" else ""
    if not entries:
        return [f"{start}{space}(){end}"]
    return [f"{start}{space}(", *indented(entries), f"){end}"]


def results_of(module: fx.GraphModule) -> Sequence[Any]:
    (output,) = module.graph.find_nodes(op="output")
    return output.args[0]


def body_lines(graph: fx.Graph, first_for_backward: fx.Node | None = None) -> Iterator[str]:
    """One line a node, and the user's line wherever it changes."""
    unused = unused_numbers(graph)
    shown = None
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or node in unused:
            continue
        if node is first_for_backward:
            yield "# --- only for the backward"
            shown = None
        line = source_line(node.meta.get("stack_trace"))
        if line is not None and line != shown:
            yield f"# {line}"
            shown = line
        yield node_line(node)


def unused_numbers(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that compute symbolic numbers which no other node needs."""
    unused: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        is_number = isinstance(node.meta.get("val"), (*SYMBOLIC_NUMBERS, bool, int, float))
        if node.op == "call_function" and is_number and unused.issuperset(node.users):
            unused.add(node)
    return unused


def submodule_lines(module: fx.GraphModule) -> Iterator[str]:
    """The graphs that control-flow ops of this graph call, each as a nested function."""
    for node in module.graph.find_nodes(op="get_attr"):
        branch = getattr(module, node.target, None)
        if isinstance(branch, fx.GraphModule):
            yield from header(node.target, branch.graph.find_nodes(op="placeholder"), {})
            returned = [f"{argument_text(value)}," for value in results_of(branch)]
            yield from indented([*body_lines(branch.graph), *bracketed("return", returned)])


def node_line(node: fx.Node) -> str:
    """`name: type = op(arguments)`."""
    typed = f"{node.name}: {type_text(node.meta['val'])}" if "val" in node.meta else node.name
    return f"{typed} = {node_call_text(node)}"


def node_call_text(node: fx.Node) -> str:
    if node.op == "get_attr":
        return f"constant {node.target!r}"
    if op_text(node.target) == "getitem":
        return f"{argument_text(node.args[0])}[{argument_text(node.args[1])}]"
    return call_text(op_text(node.target), node.args, node.kwargs)


def call_text(function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    parts = [*map(argument_text, args), *(f"{key}={argument_text(value)}" for key, value in kwargs.items())]
    return f"{function}({', '.join(parts)})"


def op_text(target: Any) -> str:
    """`aten.mul.Tensor`; a plain function by its name."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return getattr(target, "__name__", str(target))


def argument_text(value: Any) -> str:
    match value:
        case fx.Node():
            return value.name
        case torch.Tensor():
            return type_text(value)
        case list():
            return f"[{', '.join(map(argument_text, value))}]"
        case tuple():
            return f"({', '.join(map(argument_text, value))}{',' if len(value) == 1 else ''})"
        case dict():
            return f"{{{', '.join(f'{key!r}: {argument_text(item)}' for key, item in value.items())}}}"
        case torch.device():
            return str(value)
        case _ if value == FULL_SLICE_END:
            return "int64_max"
        case _ if isinstance(value, SYMBOLIC_NUMBERS):
            return number_text(value)
    return without_address(repr(value))


def without_address(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


@functools.lru_cache(maxsize=4096)
def source_line(trace: str | None) -> str | None:
    """The user's code at the end of a stack trace, or else `file.py:line`; `None` if there is no trace."""
    lines = [line.strip() for line in (trace or "").splitlines() if line.strip()]
    if not lines:
        return None
    frame = re.match(r'File "(.*)", line (\d+)', lines[-1])
    return f"{os.path.basename(frame[1])}:{frame[2]}" if frame else lines[-1]


# --- Types -----------------------------------------------------------------------------------------------------------

DTYPES = {
    torch.bfloat16: "bf16",
    torch.bool: "b8",
    torch.complex32: "c32",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.float16: "f16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
}


def type_text(value: Any) -> str:
    """The type of a traced value: `f32[3, 4]`, `Sym(s0)`, `(f32[2], i64[2])`."""
    if isinstance(value, torch.Tensor):
        return tensor_type(value)
    if isinstance(value, SYMBOLIC_NUMBERS):
        return f"Sym({number_text(value)})"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(type_text, value))})"
    return "None" if value is None else type(value).__name__


def tensor_type(tensor: torch.Tensor) -> str:
    dtype = DTYPES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")
    device = "" if tensor.device.type == "cpu" else str(tensor.device)
    return f"{dtype}{number_list(tensor.size())}{layout_text(tensor)}{device}"


def layout_text(tensor: torch.Tensor) -> str:
    """The strides, unless they are those of a contiguous tensor."""
    if tensor.layout is not torch.strided:
        return f"[{str(tensor.layout).removeprefix('torch.')}]"
    pairs = zip(tensor.size(), tensor.stride(), contiguous_strides(tensor.size()), strict=True)
    plain = all(is_one(size) or number_text(actual) == number_text(expected) for size, actual, expected in pairs)
    return "" if plain else number_list(tensor.stride())


def contiguous_strides(size: Sequence[Any]) -> list[Any]:
    """Strides of a contiguous tensor; for symbolic sizes by multiplication only, which adds no guard."""
    strides: list[Any] = []
    step: Any = 1
    for extent in reversed(size):
        strides.append(step)
        step = step * extent
    return strides[::-1]


def is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def number_text(value: Any) -> str:
    return str(value)


def number_list(values: Sequence[Any]) -> str:
    return f"[{', '.join(map(number_text, values))}]"


def on_off(mode: bool) -> str:
    return "on" if mode else "off"


def indented(lines: Iterable[str]) -> list[str]:
    return [INDENT + line for line in lines]
