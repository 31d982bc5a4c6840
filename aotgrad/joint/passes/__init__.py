"""Passes over a joint graph: each takes a `JointGraph` and returns one that computes the same."""

from __future__ import annotations

from aotgrad.ir import JointGraph
from aotgrad.joint.passes.dead_code import eliminate_dead_code
from aotgrad.joint.passes.detach import remove_detach
from aotgrad.joint.passes.effects import unwrap_effects
from aotgrad.joint.passes.input_mutations import keep_input_mutations

TIDY = (unwrap_effects, remove_detach, eliminate_dead_code)


def tidy(joint: JointGraph) -> JointGraph:
    """What every joint graph goes through before it is partitioned."""
    for apply in TIDY:
        joint = apply(joint)
    joint.module.recompile()
    return joint


__all__ = ["eliminate_dead_code", "keep_input_mutations", "remove_detach", "tidy", "unwrap_effects"]
