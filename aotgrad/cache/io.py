"""What is in the store: entries as plain data, and what backends make of graphs in a form of their own.

write_entry(plan_store(), key, entry)
read_entry(plan_store().read(key), fake_mode)      the same entry, in another process
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aotgrad import torch_compat
from aotgrad.backends.base import Backend
from aotgrad.cache.graphs import digest, text_of, write_half
from aotgrad.cache.key import NotStored, code_version, settings
from aotgrad.cache.serialize import Damaged, NotPlain, Reader, Writer
from aotgrad.cache.store import Store, failed
from aotgrad.ir import GraphHalf
from aotgrad.options import cache_folder
from aotgrad.telemetry.counters import counters
from aotgrad.torch_compat import FakeTensorMode

log = logging.getLogger("aotgrad.cache")


def plan_store() -> Store:
    """Where compiled functions are kept."""
    return Store(cache_folder() / "plans")


def read_entry(content: bytes, mode: FakeTensorMode) -> Any:
    """What was written by `write_entry`. Raises Damaged, or another error, for what was not."""
    data = json.loads(content)
    with torch_compat.normal_mode():
        return Reader(mode, data["storages"]).read(data["entry"])


def write_entry(store: Store, key: str, entry: Any) -> None:
    """Raises NotPlain."""
    writer = Writer()
    data = {"entry": writer.write(entry), "storages": writer.storages}
    store.write(key, text_of(data).encode())


def assume(conditions: Sequence[Any]) -> None:
    """Assume of symbolic sizes what an entry was made under, so that it is guarded.

    Raises:
        Damaged: a condition does not hold.
    """
    failing = [str(condition) for condition in conditions if not condition]
    if failing:
        raise Damaged(f"it holds for other sizes: {failing[0]}")


def bypassed(reason: Exception) -> None:
    """Say why something is not kept."""
    counters["cache_bypasses"] += 1
    log.info("a function is not kept: %s", reason)


# --- Artefacts of backends --------------------------------------------------------------------------------------------


def storing_backend(backend: Backend, store: Store) -> Backend:
    """The backend that keeps what it makes in `store`, if it can."""
    return backend.storing(Artefacts(store, repr((backend.name, backend.cache_key()))))


@dataclass(frozen=True)
class Artefacts:
    """The places of what a backend makes of graphs; `backend` says which backend, and how it is configured."""

    store: Store
    backend: str

    def __call__(self, half: GraphHalf, how: str) -> StoredArtefact | None:
        try:
            graph = write_half(half, of_users=True)
            known = (code_version(), repr(torch_compat.torch_build()), repr(settings()[1:]))
        except (NotPlain, NotStored):
            return None
        if graph.is_symbolic:  # Inductor's own cache says under which conditions it holds
            return None
        return StoredArtefact(self.store, digest("artefact", *known, self.backend, how, graph.digest))


@dataclass(frozen=True)
class StoredArtefact:
    """The place of what was made of one graph. Implements `backends.base.Artefact`."""

    store: Store
    key: str

    def read(self) -> bytes | None:
        content = self.store.read(self.key)
        counters["artefact_misses" if content is None else "artefact_hits"] += 1
        return content

    def write(self, content: bytes) -> None:
        self.store.write(self.key, content)

    def failed(self, error: Exception) -> None:
        failed(f"{self.key} is of no use: {type(error).__name__}: {error}")
