"""Compiled functions on disk, so that a second process need not compile them. See `docs/cache.md`."""

from __future__ import annotations

from aotgrad.cache.files import plan_store
from aotgrad.cache.halves import StoringRecipe
from aotgrad.cache.restore import Restored
from aotgrad.cache.through import StoredSmallGraph, compile_through_cache

__all__ = ["Restored", "StoredSmallGraph", "StoringRecipe", "compile_through_cache", "plan_store"]
