"""`Capture` + `ViewAndMutationMeta` -> `JointGraph`: the backward is appended to the forward's own graph.

`backward.build_joint` is the stage. `segments` divides the backward among the autograd nodes that the caller sees, `chunks`
cuts it further so that gradients arrive early, `effects` finds what the backward changes in place, `saved_values` what eager
saves, and `failures` what cannot be computed. `cases` traces the backwards that custom functions choose among. `joins` says
where gradients end at results that are arguments, too, `gradient_order` orders gradients, `none_gradients` finds what eager
runs behind one that is `None`, `outside_views` the views that are made outside of the graph, and `attribution` what is
watched while the backward is traced.
"""

from __future__ import annotations

from aotgrad.joint.backward import build_joint
from aotgrad.joint.effects import shared_memory_changes
from aotgrad.joint.segments import Cuts

__all__ = ["Cuts", "build_joint", "shared_memory_changes"]
