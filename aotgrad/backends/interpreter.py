"""The `interpreter` backend: runs a graph node by node and compares every value with the traced one.

It finds the op that breaks a promise: an error names the node and the user's line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad.backends.checked_results import compared_properties
from aotgrad.backends.kit import FunctionBackend
from aotgrad.errors import AOTGradError, GraphCheckError, add_note
from aotgrad.graph import op_table
from aotgrad.ir import BoxedCallable


@dataclass(frozen=True)
class CheckedGraph:
    """A boxed callable that interprets `module`."""

    module: fx.GraphModule
    _boxed_call = True

    def __call__(self, args: list) -> Any:
        inputs = list(args)
        args.clear()
        return CheckingInterpreter(self.module).boxed_run(inputs)


class CheckingInterpreter(fx.Interpreter):
    """Compares dtype, shape, stride and device of every result with the node's `meta["val"]`."""

    def run_node(self, n: fx.Node) -> Any:
        try:
            result = super().run_node(n)
        except AOTGradError:
            raise
        except Exception as error:
            add_note(error, f"while running {describe(n)}")
            raise
        if n.op != "output":
            check_value(n, result, n.meta.get("val"))
        return result


def check_value(node: fx.Node, actual: Any, traced: Any) -> None:
    """Raise if `actual` differs from the traced value.

    Raises:
        GraphCheckError: names the node, its user's line, and what differs.
    """
    if isinstance(traced, (list, tuple, dict)):
        for one_actual, one_traced in zip(op_table.items_of(actual), op_table.items_of(traced), strict=True):
            check_value(node, one_actual, one_traced)
        return
    if not isinstance(traced, torch.Tensor):
        return
    for name, got, expected in compared_properties(actual, traced):
        if got != expected:
            raise GraphCheckError(f"{name} is {got}, traced as {expected}, at {describe(node)}")


def describe(node: fx.Node) -> str:
    """The node and the last line of its stack trace."""
    lines = [line for line in node.meta.get("stack_trace", "").splitlines() if line.strip(" ^~")]
    line = "\n".join(lines[-2:])
    return f"node {node.name} ({node.target})" + (f", from\n{line}" if line else "")


def compile_interpreter(module: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
    return CheckedGraph(module)


INTERPRETER = FunctionBackend("interpreter", compile_interpreter, fuses=False, key="", runs_torch=True)
