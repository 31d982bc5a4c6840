"""The tensors that a function has closed over, as attributes of its graph. Others may change them at any time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.fx as fx

FOLDED = "_folded_"
"""The prefix of attributes whose values passes have computed."""

MADE_OF_NUMBERS = ("aten.lift_fresh_copy.default", "aten.lift_fresh.default")
"""The ops that take a tensor which the function has made of numbers."""


def closed_over_nodes(graph: fx.Graph, root: torch.nn.Module) -> Iterator[fx.Node]:
    """The nodes that read such a tensor, and no constant of the graph. `root` has the attributes."""
    for node in graph.find_nodes(op="get_attr"):
        is_made = str(node.target).startswith(FOLDED) or all(str(user.target) in MADE_OF_NUMBERS for user in node.users)
        if not is_made and isinstance(getattr(root, str(node.target), None), torch.Tensor):
            yield node
