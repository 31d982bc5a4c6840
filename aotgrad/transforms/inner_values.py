"""The inner values of a function that gradients of gradients are added up at.

In: the results of a run of the function, with their autograd graph. Out: tensors inside of the graph, always in the same
order.

    y = gelu(x @ a) @ b        x @ a, which `gelu` has saved; not gelu(x @ a): no product lies between the two

These are values that eager saves. What the first derivative computes from one of them depends on it, so a loss of the
derivative has a gradient there. One is left out if its gradient reaches others, or inputs, without a product of matrices.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.joint.segments import Edge

PRODUCT_NODES = frozenset(
    (
        "AddbmmBackward",
        "AddmmBackward",
        "AddmvBackward",
        "BaddbmmBackward",
        "BmmBackward",
        "ConvolutionBackward",
        "ConvolutionOverrideableBackward",
        "EfficientAttentionBackward",
        "LinearBackward",
        "MmBackward",
        "MvBackward",
        "ScaledDotProductEfficientAttentionBackward",
        "ScaledDotProductFlashAttentionBackward",
        "ScaledDotProductFlashAttentionForCpuBackward",
    )
)
"""The autograd nodes, without their number, of products of matrices."""


def find_inner_values(
    roots: Iterable[torch.Tensor], ends: Collection[Any], joined: Collection[Edge] = ()
) -> list[torch.Tensor]:
    """The inner values of a function; none where saved-tensor hooks, such as a checkpoint's, hide what was saved.

    Args:
        roots: its results.
        ends: the autograd nodes at which the histories of its inputs start.
        joined: the edges of values that the function also gets as inputs.
    """
    entered = {torch_compat.gradient_edge(root) for root in roots if root.grad_fn is not None}
    nodes = inputs_first([node for node, _ in entered], ends)
    if any(map(torch_compat.saves_packed_values, nodes)):
        return []
    saved = saved_inside(nodes)
    costly: dict[Any, bool] = {}
    found: dict[Edge, torch.Tensor] = {}
    for node in nodes:
        edges = (edge for edge in node.next_functions if edge not in found and edge not in joined)
        costly[node] = multiplies_matrices(node) or any(costly.get(behind, False) for behind, _ in edges)
        own = (edge for edge in saved.get(node, {}) if costly[node] and edge not in entered and edge not in joined)
        found.update({edge: saved[node][edge] for edge in own})
    return list(found.values())


def inputs_first(roots: Iterable[Any], ends: Collection[Any]) -> list[Any]:
    """The nodes between `roots` and `ends`, each after those that it passes gradients on to."""
    found: dict[Any, None] = {}
    open_nodes: dict[Any, Iterator[Any]] = {}
    for root in roots:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in found or node in ends:
                stack.pop()
                continue
            left = open_nodes.setdefault(node, (behind for behind, _ in node.next_functions if behind is not None))
            following = next((each for each in left if each not in found), None)
            if following is None:
                found[node] = None
                stack.pop()
            else:
                stack.append(following)
    return list(found)


def saved_inside(nodes: Collection[Any]) -> Mapping[Any, Mapping[Edge, torch.Tensor]]:
    """The values that these nodes have saved and computed, by the node that computed them."""
    inside = set(nodes)
    found: dict[Any, dict[Edge, torch.Tensor]] = {}
    for tensor in itertools.chain.from_iterable(map(torch_compat.saved_tensors, nodes)):
        if tensor.requires_grad and tensor.grad_fn in inside:
            found.setdefault(tensor.grad_fn, {}).setdefault(torch_compat.gradient_edge(tensor), tensor)
    return found


def multiplies_matrices(node: Any) -> bool:
    """Whether an autograd node multiplies matrices."""
    return node.name().rstrip("0123456789") in PRODUCT_NODES
