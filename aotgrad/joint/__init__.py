"""`Capture` + `ViewAndMutationMeta` -> `JointGraph`: the backward is appended to the forward's own graph."""

from __future__ import annotations

from aotgrad.joint.again import joint_again
from aotgrad.joint.backward import build_joint
from aotgrad.joint.effects import shared_memory_changes

__all__ = ["build_joint", "joint_again", "shared_memory_changes"]
