"""Compiled functions on disk, so that a second process need not compile them. See `docs/cache.md`.

`lookup` looks for a plan before the function is compiled and stores the plan afterwards; `partition_entry` does the same
for the two halves. `key` lists what a plan depends on. `entry`, `graphs` and `serialize` turn a plan into bytes, `restore`
makes it callable, `io` and `store` keep the bytes. The API imports the names below.
"""

from __future__ import annotations

from aotgrad.cache.io import plan_store
from aotgrad.cache.lookup import Missing, StoredSmallGraph, look_up
from aotgrad.cache.partition_entry import lower_through_cache
from aotgrad.cache.restore import RestoredFunction

__all__ = ["Missing", "RestoredFunction", "StoredSmallGraph", "look_up", "lower_through_cache", "plan_store"]
