"""Changes to the calling convention: what the graph gets is not always what the caller passes."""

from __future__ import annotations

from aotgrad.convention.dedupe import Dedupe
from aotgrad.convention.sharing import MemorySharing, same_storage
from aotgrad.convention.synthetic_base import share_memory

__all__ = ["Dedupe", "MemorySharing", "same_storage", "share_memory"]
