"""The nodes of torch's autograd graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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


def nodes_reached(roots: Iterable[Any], behind: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
    """Each node that is reached from some nodes once, depth first; `behind` gives those that follow one, or `None`s."""
    left, seen = list(roots), set[Any]()
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            left += behind(node)
