"""Narrows ops that compute several gradients to those that are used: by their mask, or the backward of a kept call.

convolution_backward(..., [True, True, True])[0]    ->    convolution_backward(..., [True, False, False])[0]
"""

from __future__ import annotations

from typing import Any, cast

import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.graph.kept_calls import KeptBackward


def may_be_narrowed(target: Any) -> bool:
    """Whether an op that computes several gradients can compute some of them only."""
    return isinstance(target, KeptBackward) or op_table.position_of_mask(target) is not None


def narrow(node: fx.Node) -> None:
    """Make an op that computes several gradients compute only those that are used, as in eager."""
    if isinstance(node.target, KeptBackward):
        narrow_kept(node, node.target)
    else:
        narrow_mask(node)


def narrow_kept(node: fx.Node, target: KeptBackward) -> None:
    given: Any = (node.args, node.meta["val"])
    used = sorted({cast(int, item.args[1]) for item in node.users})
    if used and len(used) < len(target.outputs):
        node.target, needed = target.narrowed(used)
        for inner in node.target.graph.graph.nodes:
            narrow_mask(inner)
        node.args, node.meta["val"] = tuple(given[0][k] for k in needed), tuple(given[1][k] for k in used)
        for item in list(node.users):
            item.args = (node, used.index(cast(int, item.args[1])))


def narrow_mask(node: fx.Node) -> None:
    position = op_table.position_of_mask(node.target)
    if position is None or not all(op_table.is_getitem(user.target) for user in node.users):
        return
    given: Any = node.args
    taken = {cast(int, user.args[1]) for user in node.users}
    arguments = list(given)
    arguments[position] = [asked and k in taken for k, asked in enumerate(arguments[position])]
    if arguments[position] != list(given[position]):
        node.args = tuple(arguments)
        node.meta["val"] = type(node.meta["val"])(v if k in taken else None for k, v in enumerate(node.meta["val"]))
