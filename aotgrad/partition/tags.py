"""The user's wishes for a value: the tags of activation checkpointing, selective or whole.

In: a node of the joint graph. Out: `SAVE`, `RECOMPUTE`, `OFFLOAD` or `None`, and for weaker wishes a factor on its cost.

A node's `meta["recompute"]` is a `torch.utils.checkpoint.CheckpointPolicy`. Dynamo gives it to every op in a
`torch.utils.checkpoint` region, with the number of the region in `meta["ac_graph_id"]`. Without a policy of the user's own
it is `PREFER_RECOMPUTE`, which therefore means that the value is not saved. A value that a later region reads is saved:
otherwise recomputing the last region would need all regions before it. So is one that the backward of an op outside of the
region needs (`read_outside`): eager's op saves it, and the region is not rerun for it. `MUST_CPU_OFFLOAD` and
`PREFER_CPU_OFFLOAD`, which newer versions of torch have, both mean that the value waits on the host.

A value with a name (`aotgrad.checkpoint_name`) has the policy of the option `checkpoint_policies` in
`meta["checkpoint_policy"]`. It comes before that of a region.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

import torch.fx as fx
from torch.utils.checkpoint import CheckpointPolicy


class Tag(Enum):
    """A wish that is always followed."""

    SAVE = "save"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"


SAVE, RECOMPUTE, OFFLOAD = Tag.SAVE, Tag.RECOMPUTE, Tag.OFFLOAD

IS_RECOMPUTED = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
OFFLOADED = ("MUST_CPU_OFFLOAD", "PREFER_CPU_OFFLOAD")  # names, since torch has these policies from 2.13 on
RELUCTANCE = 100  # the factor on the cost of recomputing a value tagged PREFER_SAVE


def verdict_of(node: fx.Node) -> Tag | None:
    """What to do with the node's value, or `None` if costs decide."""
    if (given := node.meta.get("checkpoint_policy")) is not None:
        return Tag(given)
    policy = node.meta.get("recompute")
    if policy is CheckpointPolicy.MUST_SAVE:
        return Tag.SAVE
    if policy is not None and policy.name in OFFLOADED:
        return Tag.OFFLOAD
    if policy not in IS_RECOMPUTED:
        return None
    return Tag.SAVE if _is_read_by_later_region(node) or _has_hook_at_the_end(node) else Tag.RECOMPUTE


def read_outside(forward: Collection[fx.Node], backward: Iterable[fx.Node]) -> set[fx.Node]:
    """The values of checkpointed regions that the backward of ops outside of their region reads.

    Or that values outside, which it reads, are made of. The backward of an op has the `seq_nr` of the op. What the second
    run of a region does in another way, such as the update of a buffer, has the number of the region.
    """
    regions = {node: region for node in forward if (region := node.meta.get("ac_graph_id")) is not None}
    if not any(map(is_rerun, regions)):
        return set()
    region_of = {node.meta.get("seq_nr"): region for node, region in regions.items()}
    readers = [(node, node.meta.get("ac_graph_id", region_of.get(node.meta.get("seq_nr")))) for node in backward]
    pairs = [(arg, region) for node, region in readers for arg in node.all_input_nodes]
    found: set[fx.Node] = set()
    seen: set[fx.Node] = set()
    while pairs:
        node, reader = pairs.pop()
        if node in regions:
            found.update([node] if reader != regions[node] and is_rerun(node) else [])
        elif node in forward and node not in seen:
            seen.add(node)
            pairs += [(arg, None) for arg in node.all_input_nodes]
    return found


def is_pinned(node: fx.Node) -> bool:
    """Whether the user wants the value saved on the device."""
    return node.meta.get("recompute") is CheckpointPolicy.MUST_SAVE or node.meta.get("checkpoint_policy") == SAVE.value


def is_rerun(node: fx.Node) -> bool:
    """Whether the node is recomputed with the rest of its region."""
    return node.meta.get("recompute") in IS_RECOMPUTED and node.meta.get("ac_graph_id") is not None


def reluctance(node: fx.Node) -> int:
    """The factor on the cost of recomputing the node."""
    return RELUCTANCE if node.meta.get("recompute") is CheckpointPolicy.PREFER_SAVE else 1


def _is_read_by_later_region(node: fx.Node) -> bool:
    region = node.meta.get("ac_graph_id")
    later = (user.meta.get("ac_graph_id") for user in node.users if user.meta.get("recompute") in IS_RECOMPUTED)
    return region is not None and any(other is not None and other > region for other in later)


def _has_hook_at_the_end(node: fx.Node) -> bool:
    """Whether the node ends a region and has a backward hook: recomputing what the hook reads may need the value."""
    in_region = any(user.meta.get("recompute") in IS_RECOMPUTED for user in node.users)
    return bool(node.meta.get("has_backward_hook")) and not in_region
