"""Which ops Inductor makes faster even by themselves, on a CPU: `scripts/bench/small_graphs.py --lone`.

    x[order], x.t().contiguous()      read in another order: one kernel in place of a general loop, 2 to 5 times as fast
    x.sin(), x / y                    large only: up to 1.3 times as fast, with backward 1.2 to 1.6 times

A call costs more, and compilation takes seconds, so small tensors are left alone. So are all other ops: Inductor leaves
products, sorts and scans to eager's kernels, gains nothing for a sum of two tensors, and is slower for `tanh` and `exp`.
"""

from __future__ import annotations

import math

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.layouts import differ
from aotgrad.graph import op_table

MOVED = 1 << 16
"""The number of elements from which on reading in another order gains."""

LARGE = 1 << 22
"""The same of `POINTWISE`."""

POINTWISE = frozenset({"aten.cos", "aten.div", "aten.pow", "aten.sin", "aten.where"})


def gains_alone(node: fx.Node) -> bool:
    """Whether an op is worth compiling by itself. Symbolic sizes count as what they were in the call."""
    values = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if any(value.device.type != "cpu" or torch_compat.has_unknown_sizes(value) for value in tensors):
        return False
    elements = max((math.prod(torch_compat.hints(value.size())) for value in tensors), default=0)
    if elements >= MOVED and (op_table.reads_indirectly(node.target) or changes_layout(node)):
        return True
    return elements >= LARGE and op_table.op_name(node.target) in POINTWISE


def changes_layout(node: fx.Node) -> bool:
    """Whether an op copies a tensor to another layout."""
    if op_table.op_name(node.target) not in COPYING or not isinstance(node.args[0], fx.Node):
        return False
    copy, original = node.meta["val"], node.args[0].meta["val"]
    return differ(*map(torch_compat.hints, (copy.size(), copy.stride(), original.stride())))


COPYING = frozenset({"aten.clone", "aten._to_copy"})
