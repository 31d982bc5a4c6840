"""Under `torch.autograd.detect_anomaly()`: where a node was made, and which op of its backward first returned a NaN.

The graph of the variant runs node by node before the compiled one does. Eager checks the results of its autograd nodes;
here, the values are checked that pass from the derivative of one forward op to that of another.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat

LIBRARY_PREFIXES = tuple(os.path.dirname(path) + os.sep for path in (torch.__file__, os.path.dirname(__file__)))


def user_traceback(frames: Sequence[str], module: fx.GraphModule, tangent: int) -> list[str]:
    """The stack of the call that made a node, without our own frames, down to the line that computes its first output.

    Args:
        frames: the text that anomaly mode recorded for each frame.
        module: the node's backward graph.
        tangent: the position of its first tangent among the inputs.
    """
    called_from = [frame for frame in frames if not is_library_frame(frame)]
    users = module.graph.find_nodes(op="placeholder")[tangent].users
    lines = (user.meta.get("stack_trace") for user in users)
    return [*called_from, *(f"{line}\n" for line in itertools.islice(filter(None, lines), 1))]


def is_library_frame(frame: str) -> bool:
    file = frame.partition('"')[2].partition('"')[0]
    return file.startswith(("<aotgrad plan", *LIBRARY_PREFIXES))


def find_nan(module: fx.GraphModule, values: Sequence[Any]) -> None:
    """Run a backward graph and check for NaNs.

    Raises:
        RuntimeError: as eager's, at a NaN; names the op, the forward op and the user's line.
    """
    with torch_compat.below_autograd(), torch_compat.disable_autocast():
        finder = NanFinder(module)
        finder.extra_traceback = False
        finder.run(*values)


class NanFinder(fx.Interpreter):
    """Raises at the first node of a backward that passes on a NaN."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if leaves_its_derivative(n) and isinstance(result, torch.Tensor) and has_nan(result):
            raise RuntimeError(nan_message(n))
        return result


def leaves_its_derivative(node: fx.Node) -> bool:
    """Whether the result of a backward node goes to the derivative of another forward op, or to the caller."""
    if not node.meta.get("autograd_backward"):
        return False
    own = node.meta.get("seq_nr")
    return any(user.op == "output" or user.meta.get("seq_nr") != own for user in node.users)


def has_nan(value: torch.Tensor) -> bool:
    if value.layout is not torch.strided:
        value = value.coalesce().values() if value.layout is torch.sparse_coo else value.values()
    return bool(value.isnan().any())


def nan_message(node: fx.Node) -> str:
    forward_op = node.meta.get("forward_op", "an op of the forward")
    line = node.meta.get("stack_trace", "")
    location = f", at\n{line}" if line else ""
    return f"Function '{node.target}' returned nan values in the backward (node {node.name}), for {forward_op}{location}"
