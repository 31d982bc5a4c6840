"""Removes repeated effects: a second-order function reruns the original function, whose prints have already happened.

first   forward(x):           print("x"); y = sin(x)                     prints
second  vjp(x, t):            print("x"); g = t * cos(x)                 the first node is marked as repeated
becomes                       g = t * cos(x)
"""

from __future__ import annotations

from typing import Any

import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.eager_calls.ops import is_eager_call
from aotgrad.errors import HigherOrderError
from aotgrad.graph import op_table
from aotgrad.ir import JointGraph
from aotgrad.passes.dead_code import erase_unused, must_stay


def remove_repeated_effects(joint: JointGraph) -> JointGraph:
    """`joint` without effects that are marked as repeated. Changes `joint` in place.

    Raises:
        HigherOrderError: the result of a custom op with an effect is needed.
    """
    if not any(map(is_repeated_effect, joint.module.graph.nodes)):
        return joint
    erase_unused_repeats(joint.module.graph, 1)
    for node in filter(is_repeated_effect, joint.module.graph.nodes):
        reject_repeated_effect(node.target)
    joint.module.recompile()
    return joint


def erase_unused_repeats(graph: fx.Graph, depth: int) -> None:
    """Erase what nothing needs, also effects that are repeated for the `depth`th time."""
    erase_unused(graph, lambda node: must_stay(node) and not is_repeated_effect(node, depth))


def is_repeated_effect(node: fx.Node, depth: int = 1) -> bool:
    return node.op == "call_function" and node.meta.get("repeated", 0) >= depth and op_table.has_effect(node.target)


def reject_repeated_effect(target: Any) -> None:
    """Raise if an op must not run a second time. Collectives may, if all ranks run them.

    Raises:
        HigherOrderError: names the op.
    """
    if torch_compat.has_registered_effect(target) or is_eager_call(target):
        raise HigherOrderError(
            f"a gradient of a gradient needs the result of {op_table.op_name(target)}, which was not saved; the op has an "
            "effect, so it does not run a second time. Call it outside of the compiled function"
        )
