"""The content of the store: entries as plain data, and compiled graphs in the form of their backend.

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
from aotgrad.backends.base import PartitionCompiler
from aotgrad.cache.graphs import StoredHalf, digest_of, encode_half, text_of
from aotgrad.cache.key import NotCacheable, settings
from aotgrad.cache.serialize import DamagedEntry, Decoder, Encoder, NotSerializable
from aotgrad.cache.store import Store, count_failure
from aotgrad.ir import GraphHalf
from aotgrad.options import cache_folder
from aotgrad.telemetry.code_version import code_version
from aotgrad.telemetry.counters import counters
from aotgrad.torch_compat import FakeTensorMode

log = logging.getLogger("aotgrad.cache")


def plan_store() -> Store:
    """The store of compiled functions."""
    return Store(cache_folder() / "plans")


def read_entry(content: bytes, mode: FakeTensorMode) -> Any:
    """The entry that `write_entry` wrote. Raises DamagedEntry, or another error, for other content."""
    data = json.loads(content)
    with torch_compat.normal_mode():
        return Decoder(mode, data["storages"]).decode(data["entry"])


def write_entry(store: Store, key: str, entry: Any) -> None:
    """Store an entry. Raises NotSerializable."""
    encoder = Encoder()
    data = {"entry": encoder.encode(entry), "storages": encoder.storages}
    store.write(key, text_of(data).encode())


def assume(conditions: Sequence[Any]) -> None:
    """Evaluate the conditions of an entry on symbolic sizes, which guards them.

    Raises:
        DamagedEntry: a condition does not hold.
    """
    failing = [str(condition) for condition in conditions if not condition]
    if failing:
        raise DamagedEntry(f"it holds for other sizes: {failing[0]}")


def count_bypass(reason: Exception) -> None:
    """Log why a function is not stored."""
    counters["cache_bypasses"] += 1
    log.info("a function is not stored: %s", reason)


# --- ArtefactStore of backends --------------------------------------------------------------------------------------------


def storing_backend(backend: PartitionCompiler, store: Store) -> PartitionCompiler:
    """The backend, which stores its compiled graphs if it can."""
    return backend.storing(ArtefactStore(store, repr((backend.name, backend.cache_key()))))


@dataclass(frozen=True)
class ArtefactStore:
    """Finds the stored code of a graph; `backend` is the backend's name and configuration."""

    store: Store
    backend: str

    def __call__(self, half: GraphHalf, how: str) -> StoredArtefact | None:
        return self.of_graph("artefact", half, how)

    def assembly(self, half: GraphHalf, how: str) -> StoredArtefact | None:
        return self.of_graph("assembly", half, how) if isinstance(half, StoredHalf) else None

    def with_key(self, key: str) -> StoredArtefact:
        return StoredArtefact(self.store, key)

    def of_graph(self, kind: str, half: GraphHalf, how: str) -> StoredArtefact | None:
        try:
            graph = encode_half(half, custom_ops=True)
            known = (code_version(), repr(torch_compat.torch_build()), repr(settings()[1:]))
        except (NotSerializable, NotCacheable):
            return None
        if graph.is_symbolic:  # Inductor's own cache stores the conditions of its code
            return None
        return self.with_key(digest_of(kind, *known, self.backend, how, graph.digest))


@dataclass(frozen=True)
class StoredArtefact:
    """The stored code of one graph. Implements `backends.base.Artefact`."""

    store: Store
    key: str

    def read(self) -> bytes | None:
        return self.store.read(self.key)

    def write(self, content: bytes) -> None:
        self.store.write(self.key, content)

    def failed(self, error: Exception) -> None:
        count_failure(f"{self.key} is unusable: {type(error).__name__}: {error}")
