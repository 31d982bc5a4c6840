"""Which ops Inductor makes faster even by themselves, on a CPU: `scripts/bench/small_graphs.py --lone`.

    x[order], x.t().contiguous()      read in another order: one kernel in place of a general loop, 2 to 5 times as fast
    x.var(1)                          one pass in place of a general loop, 5 to 17 times as fast
    x.amax(1)                         with backward, which eager computes in four passes, twice as fast
    x.sin(), x / y                    large only: up to 1.3 times as fast, with backward 1.2 to 1.6 times
    x.maximum(y), x.atan2(y)          large only: as fast, with backward up to 4 times as fast
    x.tanh(), x.exp()                 large only, where eager's library is slow: 1.6 to 2.9 times as fast

A call costs more, and compilation takes seconds, so small tensors are left alone. So are all other ops: Inductor leaves
products, sorts and scans to eager's kernels, gains nothing for a sum of two tensors, and nothing for `tanh` and `exp` on a
processor that eager's library, MKL, is made for. An op that Inductor takes apart, such as `softmax`, is several ops.
"""

from __future__ import annotations

import math

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.layouts import differ
from aotgrad.graph import op_table

MOVED = 1 << 16
"""The number of elements from which on reading in another order gains, and some reductions."""

LARGE = 1 << 22
"""The same of pointwise ops."""

LEAST_ELEMENTS = {
    **dict.fromkeys(("aten.amax", "aten.amin", "aten.var", "aten.var_mean"), MOVED),
    **dict.fromkeys(("aten.abs", "aten.addcmul", "aten.atan2", "aten.cos", "aten.div", "aten.maximum"), LARGE),
    **dict.fromkeys(("aten.minimum", "aten.pow", "aten.sin", "aten.sqrt", "aten.where"), LARGE),
}
"""The number of elements from which on an op gains."""

OF_MATH_LIBRARY = frozenset({"aten.erf", "aten.exp", "aten.expm1", "aten.log", "aten.tan", "aten.tanh"})
"""The ops that gain from `LARGE` elements on where the library by which eager computes them in float32 is slow."""


def reason_to_leave(node: fx.Node) -> str | None:
    """Why an op is not worth compiling by itself. Symbolic sizes count as what they were in the call."""
    values = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    name = op_table.op_name(node.target)
    if any(value.device.type != "cpu" for value in tensors):
        return f"{name} alone gains nothing on this device"
    if any(map(torch_compat.has_unknown_sizes, tensors)):
        return f"{name} alone has an unknown number of elements"
    least = MOVED if op_table.reads_indirectly(node.target) or changes_layout(node) else least_elements(node, name)
    if least is None:
        return f"Inductor makes {name} alone no faster"
    elements = max((math.prod(torch_compat.hints(value.size())) for value in tensors), default=0)
    return None if elements >= least else f"Inductor makes {name} alone faster from {least} elements on, not {elements}"


def least_elements(node: fx.Node, name: str) -> int | None:
    """The number of elements from which on an op gains that does not move elements; `None` if it never does."""
    uses_library = name in OF_MATH_LIBRARY and node.meta["val"].dtype is torch.float32
    return LARGE if uses_library and torch_compat.math_library_is_slow() else LEAST_ELEMENTS.get(name)


def changes_layout(node: fx.Node) -> bool:
    """Whether an op copies a tensor to another layout."""
    if op_table.op_name(node.target) not in COPYING or not isinstance(node.args[0], fx.Node):
        return False
    copy, original = node.meta["val"], node.args[0].meta["val"]
    return differ(*map(torch_compat.hints, (copy.size(), copy.stride(), original.stride())))


COPYING = frozenset({"aten.clone", "aten._to_copy"})
