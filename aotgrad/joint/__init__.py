"""`Capture` + `ViewAndMutationMeta` -> `JointGraph`: the backward is appended to the forward's own graph."""

from __future__ import annotations

from aotgrad.joint.again import joint_again
from aotgrad.joint.backward import build_joint

__all__ = ["build_joint", "joint_again"]
