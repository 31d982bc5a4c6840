"""An FX graph as a readable Python function.

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

A comment beside every argument and result says what it means. The user's line stands above its nodes. Computed symbolic
sizes without users are left out: they say nothing about the function.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx

from aotgrad.graph.ends import outputs_of
from aotgrad.graph.source_lines import source_line
from aotgrad.graph.symbols import SYMBOLIC_NUMBERS
from aotgrad.printing.types import type_text
from aotgrad.slots import SlotSignature

INDENT = "    "
FULL_SLICE_END = 2**63 - 1


def graph_text(
    name: str,
    module: fx.GraphModule,
    signature: SlotSignature,
    notes: Mapping[Any, str] | None = None,
    first_for_backward: fx.Node | None = None,
) -> str:
    """A graph as a Python function.

    Args:
        name: of the function.
        module, signature: the graph, and the meaning of its inputs and outputs.
        notes: more about inputs, by slot.
        first_for_backward: the first node that only the backward needs.
    """
    placeholders = module.graph.find_nodes(op="placeholder")
    meanings = {
        node.name: ", ".join(filter(None, [str(slot), (notes or {}).get(slot)]))
        for node, slot in zip(placeholders, signature.inputs, strict=True)
    }
    returned = [
        f"{argument_text(value)},  # {slot}" for value, slot in zip(outputs_of(module.graph), signature.outputs, strict=True)
    ]
    nodes = body_lines(module.graph, first_for_backward)
    body = [*submodule_lines(module), *nodes, *bracket_lines("return", returned)]
    return "\n".join([*header(name, placeholders, meanings), *indent_lines(body)])


def header(name: str, placeholders: Sequence[fx.Node], notes: Mapping[str, str]) -> list[str]:
    """`def name(`, with the type and the meaning of each placeholder on a line of its own."""
    lines = []
    for node in placeholders:
        note = notes.get(node.name)
        lines.append(f"{node.name}: {type_text(node.meta.get('val'))}," + (f"  # {note}" if note else ""))
    return bracket_lines(f"def {name}", lines, ":")


def bracket_lines(start: str, entries: Sequence[str], end: str = "") -> list[str]:
    space = " " if start == "return" else ""
    if not entries:
        return [f"{start}{space}(){end}"]
    return [f"{start}{space}(", *indent_lines(entries), f"){end}"]


def body_lines(graph: fx.Graph, first_for_backward: fx.Node | None = None) -> Iterator[str]:
    """One line per node, and the user's line wherever it changes."""
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
    """The nodes that compute symbolic numbers for no other node."""
    unused: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        is_number = isinstance(node.meta.get("val"), (*SYMBOLIC_NUMBERS, bool, int, float))
        if node.op == "call_function" and is_number and unused.issuperset(node.users):
            unused.add(node)
    return unused


def submodule_lines(module: fx.GraphModule) -> Iterator[str]:
    """The graphs that control-flow ops call, each as a nested function."""
    for node in module.graph.find_nodes(op="get_attr"):
        branch = getattr(module, node.target, None)
        if isinstance(branch, fx.GraphModule):
            yield from header(node.target, branch.graph.find_nodes(op="placeholder"), {})
            returned = [f"{argument_text(value)}," for value in outputs_of(branch.graph)]
            yield from indent_lines([*body_lines(branch.graph), *bracket_lines("return", returned)])


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
            return str(value)
    return remove_addresses(repr(value))


def remove_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def indent_lines(lines: Iterable[str]) -> list[str]:
    return [INDENT + line for line in lines]
