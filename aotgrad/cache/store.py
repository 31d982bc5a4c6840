"""A private folder of files: entries by key, with checksums and a size limit.

In: keys and bytes. Out: the same bytes, or `None` if anything is wrong with the file or the folder; the caller then
recompiles.

    store = Store(folder)
    store.write("3f2a", b"...")
    store.read("3f2a")                    b"...", also in another process

A file gets its name when it is complete, so two processes may write the same one at once. When the folder is too large, the
least recently used files are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import stat
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aotgrad.telemetry.counters import counters

MAGIC = b"aotgrad cache 1\n"
LIMIT_BYTES = 1 << 30
STALE_SECONDS = 3600.0
"""The age at which an unfinished file is removed."""

IS_SUPPORTED = hasattr(os, "geteuid") and {os.open, os.rename, os.stat, os.unlink} <= os.supports_dir_fd
"""Whether the system tells who owns a folder, and can open files relative to it."""

log = logging.getLogger("aotgrad.cache")
_warned: set[str] = set()


@dataclass(frozen=True)
class File:
    """An entry on disk; `used` is the time of its last use, in seconds since the epoch."""

    name: str
    nbytes: int
    used: float


@dataclass(frozen=True)
class Store:
    """The entries in `folder`, at most `limit_bytes` in total."""

    folder: Path
    limit_bytes: int = LIMIT_BYTES

    def read(self, key: str) -> bytes | None:
        """The content stored under a key; `None` if there is none or the file is damaged."""
        try:
            with self.open_folder(create=False) as folder:
                found = read_file(folder, key)
                os.utime(key, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            count_failure(f"{key} cannot be read: {error}")
            return None
        content = verified_content(key, found)
        if content is None:
            count_failure(f"{key} is damaged, or of another version")
        return content

    def write(self, key: str, content: bytes) -> None:
        """Store `content`, if possible."""
        try:
            with self.open_folder(create=True) as folder:
                write_file(folder, key, MAGIC + checksum(key, content) + content)
                self.forget_oldest(folder)
        except OSError as error:
            count_failure(f"{key} cannot be written: {error}")

    def files(self) -> list[File]:
        """The entries, the least recently used first. Raises OSError if the folder is not used."""
        try:
            with self.open_folder(create=False) as folder:
                return oldest_first(folder)
        except FileNotFoundError:
            return []

    def clear(self) -> int:
        """Remove every entry and return their count. Raises OSError if the folder is not used."""
        found = self.files()
        if found:
            with self.open_folder(create=False) as folder:
                for file in found:
                    remove(folder, file.name)
        return len(found)

    def forget_oldest(self, folder: int) -> None:
        """Remove the least recently used files until the rest is small enough, and stale unfinished files."""
        files = oldest_first(folder)
        stale = [file for file in files if is_unfinished(file.name) and file.used < time.time() - STALE_SECONDS]
        excess = sum(file.nbytes for file in files) - self.limit_bytes
        for file in [*stale, *(file for file in files if file not in stale)]:
            if file not in stale and excess <= 0:
                return
            excess -= file.nbytes
            remove(folder, file.name)

    @contextlib.contextmanager
    def open_folder(self, create: bool) -> Iterator[int]:
        """A descriptor of the folder, which only its owner can use. It stays valid if the path is replaced.

        Raises:
            OSError: the folder does not exist, or others can read or write it.
        """
        if create:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise
        except OSError as error:
            warn_once(f"the cache in {self.folder} is not used: {error.strerror}")
            raise
        try:
            if (problem := why_unsafe(os.fstat(folder))) is not None:
                warn_once(f"the cache in {self.folder} is not used: {problem}")
                raise PermissionError(problem)
            yield folder
        finally:
            os.close(folder)


def why_unsafe(found: os.stat_result) -> str | None:
    """Why another user could have written or read a file or folder; `None` if no other user could."""
    if found.st_uid != os.geteuid():
        return "it belongs to another user"
    if found.st_mode & 0o077:
        return f"others can use it (mode {stat.S_IMODE(found.st_mode):o}, which should be 700)"
    return None


def read_file(folder: int, name: str) -> bytes:
    """The content of a file. Raises OSError, also if it is not a regular file, or if others can use it."""
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or (problem := why_unsafe(found)) is not None:
            raise PermissionError("it is not a regular file" if not stat.S_ISREG(found.st_mode) else problem)
        return file.read()


def write_file(folder: int, name: str, content: bytes) -> None:
    """Write a file atomically. Raises OSError, and then leaves an existing file as it was."""
    unfinished = f"{name}.{os.getpid()}.{secrets.token_hex(8)}.tmp"
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder), "wb") as file:
            file.write(content)
        os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        remove(folder, unfinished)
        raise


def files_in(folder: int) -> Iterator[File]:
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            yield File(name, found.st_size, found.st_mtime)


def oldest_first(folder: int) -> list[File]:
    return sorted(files_in(folder), key=lambda file: file.used)


def is_unfinished(name: str) -> bool:
    return name.endswith(".tmp")


def remove(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def checksum(key: str, content: bytes) -> bytes:
    """32 bytes that detect a truncated, changed or renamed file."""
    return hashlib.sha256(key.encode() + b"\n" + content).digest()


def verified_content(key: str, content: bytes) -> bytes | None:
    """The content of a file, if its checksum is right."""
    start = len(MAGIC)
    found, rest = content[start : start + 32], content[start + 32 :]
    return rest if content.startswith(MAGIC) and checksum(key, rest) == found else None


def count_failure(problem: str) -> None:
    """Count and log a file or folder that could not be used."""
    counters["cache_failures"] += 1
    log.info("%s", problem)


def warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=2)
