"""Changes to the calling convention: what the graph gets is not always what the caller passes.

`dedupe` passes a tensor once that the caller passes twice, `synthetic_base` passes one tensor for several that share memory
and of which one is changed. `sharing` finds such tensors, `geometry` says how they lie in their memory.
"""

from __future__ import annotations

from aotgrad.convention.dedupe import Dedupe
from aotgrad.convention.sharing import MemorySharing, same_storage
from aotgrad.convention.synthetic_base import share_memory

__all__ = ["Dedupe", "MemorySharing", "same_storage", "share_memory"]
