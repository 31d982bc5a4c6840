"""Narrows the mask of ops that compute several gradients to those that are used.

convolution_backward(..., [True, True, True])[0]    ->    convolution_backward(..., [True, False, False])[0]
"""

from __future__ import annotations

from typing import Any, cast

import torch.fx as fx

from aotgrad.graph import op_table


def narrow_mask(node: fx.Node) -> None:
    """Make an op that computes several gradients compute only those that are used, as in eager."""
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
