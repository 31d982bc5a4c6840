"""The file: a zip archive of a header and members, each with a checksum in the header.

write_archive(path, header, {"plans/0.json": b"..."})
archive = read_archive(path)                 raises ShippingError for any other file
archive.header["torch"], archive.members["plans/0.json"]
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotgrad.errors import ShippingError

HEADER_NAME = "header.json"
FILE_FORMAT = "aotgrad plans 1"


@dataclass(frozen=True)
class Archive:
    """What a file contains. Members are bytes: nothing of them was interpreted."""

    header: Mapping[str, Any]
    members: Mapping[str, bytes]

    def json(self, name: str) -> Any:
        """A member as plain data. Raises ShippingError."""
        try:
            return json.loads(self.members[name])
        except (KeyError, ValueError) as error:
            raise ShippingError(f"the file is damaged: {name}: {error}") from None


def write_archive(path: str | os.PathLike[str], header: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
    """Write a file atomically. Raises OSError, and then leaves an existing file as it was."""
    target = Path(path)
    unfinished = target.with_name(f"{target.name}.{secrets.token_hex(8)}.tmp")
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in members.items()}
    whole = {"format": FILE_FORMAT, **header, "members": checksums}
    try:
        with zipfile.ZipFile(unfinished, "x", zipfile.ZIP_DEFLATED) as file:
            file.writestr(HEADER_NAME, json.dumps(whole, indent=1))
            for name, content in members.items():
                file.writestr(name, content)
        os.replace(unfinished, target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def read_archive(path: str | os.PathLike[str]) -> Archive:
    """Read a file.

    Raises:
        ShippingError: it is no file of plans, of another format, truncated, or changed.
        OSError: it cannot be opened.
    """
    try:
        with zipfile.ZipFile(path) as file:
            contents = {info.filename: file.read(info) for info in file.infolist()}
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, zlib.error) as error:
        raise ShippingError(f"{path} is no file of plans, or it is truncated or damaged: {error}") from None
    try:
        header = json.loads(contents.pop(HEADER_NAME))
        found = header["format"]
    except (KeyError, TypeError, ValueError):
        raise ShippingError(f"{path} is no file of plans: it has no header") from None
    if found != FILE_FORMAT:
        raise ShippingError(f"{path} has the format {found!r}; this version of aotgrad reads {FILE_FORMAT!r}: save it again")
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    expected = header.get("members")
    if checksums != expected:
        names = sorted(set(expected or ()) ^ set(checksums)) or [k for k, v in checksums.items() if expected[k] != v]
        raise ShippingError(f"{path} is damaged: {names[0]} is missing, changed, or not in the header")
    return Archive(header, contents)
