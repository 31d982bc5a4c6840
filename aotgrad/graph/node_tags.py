"""What the `meta` of a node asks of the partition, by name.

    recompute            the policy of its checkpointed region: a `torch.utils.checkpoint.CheckpointPolicy`
    ac_graph_id          the number of the region
    has_backward_hook    it ends the region, and a hook reads its gradient
    checkpoint_policy    the policy of its name (`aotgrad.checkpoint_name`), from the option `checkpoint_policies`
    inner_backward       the number of the backward that the function itself runs, and that the node belongs to
    inner_gradient       it computes a gradient there
    partitioner_tag      the half that it must be in

A copy of a node has all of them, and nodes are merged only if they have equal policies.
"""

from __future__ import annotations

from typing import Any

import torch.fx as fx

REGION_TAGS = ("recompute", "ac_graph_id", "has_backward_hook")
"""Those that Dynamo and the trace give."""

PARTITION_TAGS = (*REGION_TAGS, "checkpoint_policy", "inner_backward", "inner_gradient", "partitioner_tag")
"""All of them."""


def recompute_policy(node: fx.Node) -> tuple[Any, ...]:
    """Equal for nodes that activation checkpointing treats alike."""
    return tuple(node.meta.get(tag) for tag in ("recompute", "ac_graph_id", "checkpoint_policy"))
