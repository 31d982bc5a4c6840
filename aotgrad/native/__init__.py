"""Our C++ functions, as soon as they are built; otherwise the same in Python.

    native.lookup("versions_of", in_python)      the function in C++, or `in_python`; a caller asks once per plan

The first caller, which is about to run what it has compiled, lets another process build them (`background`), once per torch
and Python; `build` runs the compiler.

`library.cpp` asks a list of tensors in one call, where Python takes 40 to 60 ns per question about a tensor. `node.h` makes
and runs autograd nodes. The functions, and what runs without them, are in `docs/native.md`.
"""

from __future__ import annotations

import functools
import logging
from types import ModuleType
from typing import Any

from aotgrad.options import native_build_wanted, native_wanted

log = logging.getLogger("aotgrad.native")


def lookup(name: str, otherwise: Any) -> Any:
    """A function of the library, or `otherwise` if there is no library yet; then another process builds it."""
    if library() is None:
        build_later()
    return getattr(library(), name, otherwise)


@functools.cache
def library() -> ModuleType | None:
    """The C++ functions, if they were built for this torch and Python, and are not turned off."""
    if not native_wanted():
        return None
    from aotgrad.native.build import load_built  # imports the cache, which imports callers of this module

    return load_built()


def build_later() -> None:
    """Let another process build the library. Once it is there, plans that are made then use it."""
    if not native_build_wanted():
        return
    from aotgrad.native.background import started

    if (file := started()) is not None and file.exists():
        look_again()


@functools.cache
def look_again() -> None:
    """Forget, once, that there was no library: a file that cannot be loaded is not read again for each plan."""
    library.cache_clear()
