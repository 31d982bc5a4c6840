"""Which names the code of a function reads and assigns, its inner functions included.

    code_reads((lambda x: helper(x) * config.scale).__code__)      globals: helper, config; attributes: scale

Names that are computed (`getattr(config, name)`) are not found.
"""

from __future__ import annotations

import dis
import functools
import sysconfig
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class CodeReads:
    """Names in a piece of code: globals, attributes, attributes that are assigned or deleted, and imported modules."""

    globals: frozenset[str]
    attributes: frozenset[str]
    assigned: frozenset[str]
    modules: frozenset[str]


@functools.lru_cache(maxsize=4096)
def code_reads(code: types.CodeType) -> CodeReads:
    """The names in a piece of code."""
    found: dict[str, set[str]] = {name: set() for name in CodeReads.__dataclass_fields__}
    for operation, name in operations(code):
        for kind, beginnings in OPERATIONS.items():
            if operation.startswith(beginnings):
                found[kind].add(name)
    return CodeReads(**{kind: frozenset(names) for kind, names in found.items()})


OPERATIONS: dict[str, tuple[str, ...]] = {
    "globals": ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"),
    "attributes": ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM"),
    "assigned": ("STORE_ATTR", "DELETE_ATTR"),
    "modules": ("IMPORT_NAME",),
}
"""The beginnings of the names of Python's operations, by what their argument is."""


def operations(code: types.CodeType) -> Iterator[tuple[str, str]]:
    """Each operation on a name, those of inner functions included."""
    for each in dis.get_instructions(code):
        if isinstance(each.argval, str):
            yield each.opname, each.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from operations(constant)


def is_installed(file: str | None) -> bool:
    """Whether a file belongs to Python, to an installed package, or to aotgrad. Names in such code are constants."""
    return file is None or file.startswith((*INSTALLED_FOLDERS, "<frozen"))


def folders(*paths: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(path).rstrip("/") + "/" for path in paths if path))


SCHEMES: dict[str, Any] = sysconfig.get_paths()
INSTALLED_FOLDERS = folders(
    *(SCHEMES.get(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[1]),
)
