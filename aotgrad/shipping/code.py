"""The backend's code for the graphs in a file: what Inductor has generated, and the libraries of its C++ kernels.

In the process that saves, a `ShippedCode` collects what the backend makes; in the process that loads, it has it. Libraries
have to be files to be loaded, so they are copied to a folder that only its owner can write to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aotgrad.backends.base import Artefact
from aotgrad.backends.closed_over import closed_over_tensors
from aotgrad.backends.inductor.backend import libraries_of, with_libraries_at
from aotgrad.cache.graphs import NO_ATTRIBUTES, StoredHalf, digest_of, encode_half
from aotgrad.cache.store import Store, write_file
from aotgrad.errors import ShippingError
from aotgrad.ir import GraphHalf
from aotgrad.options import cache_folder


@dataclass(frozen=True)
class ShippedCode:
    """Code by a digest of its graph and of how it was compiled. Implements `backends.base.Artefacts`."""

    content: dict[str, bytes] = field(default_factory=dict)

    def __call__(self, half: GraphHalf, how: str) -> Artefact:
        # Tensors that the function has closed over are inputs of the code.
        inputs = NO_ATTRIBUTES if isinstance(half, StoredHalf) else closed_over_tensors(half.module)
        graph = encode_half(half, held=inputs, custom_ops=True, unbacked=True)
        return self.with_key(digest_of("code", how, graph.digest))

    def assembly(self, half: GraphHalf, how: str) -> Artefact | None:
        return self.with_key(digest_of("assembly", how, half.stored.digest)) if isinstance(half, StoredHalf) else None

    def with_key(self, key: str) -> Artefact:
        return CodeOfGraph(self.content, key)

    def members(self) -> Iterator[tuple[str, bytes]]:
        """The members of an archive: code, and the libraries that it refers to."""
        for key, content in self.content.items():
            yield f"code/{key}", content
            for digest, path in libraries_of(content).items():
                yield f"libraries/{digest}", Path(path).read_bytes()

    @classmethod
    def of_members(cls, members: Mapping[str, bytes]) -> ShippedCode:
        """The code in an archive; its libraries are copied to the cache's folder."""
        libraries = {name.partition("/")[2]: content for name, content in members.items() if name.startswith("libraries/")}
        paths = dict(libraries_as_files(libraries))
        code = {name.partition("/")[2]: content for name, content in members.items() if name.startswith("code/")}
        return cls({key: with_libraries_at(content, paths) for key, content in code.items()})


def libraries_as_files(libraries: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """The digests and paths of libraries, after each is a file.

    Raises:
        ShippingError: others can write to the folder.
    """
    if not libraries:
        return
    store = Store(cache_folder() / "libraries")
    try:
        with store.open_folder(create=True) as folder:
            for digest, content in libraries.items():
                path = store.folder / f"{digest}.so"
                if hashlib.sha256(content).hexdigest() != digest:
                    raise ShippingError(f"the file is damaged: library {digest}")
                if not path.exists() or path.read_bytes() != content:
                    write_file(folder, path.name, content)
                yield digest, str(path)
    except OSError as error:
        raise ShippingError(f"the libraries of the file cannot be copied to {store.folder}: {error}") from error


@dataclass(frozen=True)
class CodeOfGraph:
    """The code of one graph. Implements `backends.base.Artefact`."""

    content: dict[str, bytes]
    key: str

    def read(self) -> bytes | None:
        return self.content.get(self.key)

    def write(self, content: bytes) -> None:
        self.content[self.key] = content

    def failed(self, error: Exception) -> None:
        raise ShippingError(
            f"compiled code in the file cannot be used, {type(error).__name__}: {error}; load it with trust=False, so that "
            "its graphs are compiled here"
        ) from error
