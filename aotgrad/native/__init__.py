"""Our C++ functions, if the user built them; otherwise the same in Python.

    python -m aotgrad native build               builds them, once per torch and Python; nothing else does
    native.lookup("versions_of", in_python)      the function in C++, or `in_python`; a caller asks once per plan

`library.cpp` asks a list of tensors in one call, where Python takes 40 to 60 ns per question about a tensor. The functions,
and what runs without them, are in `docs/native.md`.
"""

from __future__ import annotations

import functools
import logging
from types import ModuleType
from typing import Any

from aotgrad.options import native_wanted

log = logging.getLogger("aotgrad.native")


def lookup(name: str, otherwise: Any) -> Any:
    """A function of the library, or `otherwise` if there is no library."""
    return getattr(library(), name, otherwise)


@functools.cache
def library() -> ModuleType | None:
    """The C++ functions, if they were built for this torch and Python, and are not turned off."""
    if not native_wanted():
        return None
    from aotgrad.native.build import load  # imports the cache, which imports callers of this module

    return load()
