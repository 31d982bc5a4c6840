"""Changes to the calling convention: what the graph gets is not always what the caller passes."""

from __future__ import annotations

from aotgrad.convention.dedupe import Dedupe
from aotgrad.convention.overlap import reject_mutated_overlap

__all__ = ["Dedupe", "reject_mutated_overlap"]
