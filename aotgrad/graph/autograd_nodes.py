"""The nodes of torch's autograd graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def autograd_nodes(roots: Iterable[torch.Tensor]) -> list[Any]:
    """All autograd nodes that a backward from `roots` can visit."""
    stack = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = dict.fromkeys(stack)
    while stack:
        for parent, _ in stack.pop().next_functions:
            if parent is not None and parent not in seen:
                seen[parent] = None
                stack.append(parent)
    return list(seen)
