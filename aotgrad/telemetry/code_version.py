"""Which code of aotgrad this is: what another one has stored on disk must not be used."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path


@functools.cache
def code_version() -> str:
    """A digest of aotgrad's own code."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)} ".encode() + file.read_bytes())
    return digest.hexdigest()
