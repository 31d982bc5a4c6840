"""Compiled functions on disk, so that a second process need not compile them. See `docs/cache.md`."""

from __future__ import annotations

from aotgrad.cache.restore import Restored
from aotgrad.cache.through import StoredSmallGraph, compile_through_cache, plan_store

__all__ = ["Restored", "StoredSmallGraph", "compile_through_cache", "plan_store"]
