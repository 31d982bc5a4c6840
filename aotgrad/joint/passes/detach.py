"""Removes `detach`: in a functional graph without autograd it is the identity."""

from __future__ import annotations

import torch

from aotgrad.ir import JointGraph


def remove_detach(joint: JointGraph) -> JointGraph:
    """`joint` with every use of `detach(x)` a use of `x`."""
    for node in joint.module.graph.nodes:
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
    return joint
