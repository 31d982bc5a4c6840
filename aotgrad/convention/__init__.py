"""Changes to the calling convention, where the graph's inputs differ from the caller's arguments.

`dedupe` passes a tensor once that the caller passes twice. `synthetic_base` passes one tensor for several that share memory,
if one of them is changed. `sharing` finds these tensors; `geometry` makes each of them from the shared memory.
"""

from __future__ import annotations

from aotgrad.convention.dedupe import Dedupe
from aotgrad.convention.sharing import MemorySharing
from aotgrad.convention.synthetic_base import share_memory

__all__ = ["Dedupe", "MemorySharing", "share_memory"]
