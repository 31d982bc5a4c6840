"""Our C++ functions, if the user built them; otherwise the same in Python.

    python -m aotgrad native build               builds them, once per torch and Python; nothing else does
    native.lookup("versions_of", in_python)      the function in C++, or `in_python`

From Python, each question about a tensor takes torch 40 to 60 ns; `library.cpp` asks a list of tensors in one call. Its
functions, and what runs without it:

    tensor_check      whether arguments match those of the trace          torch's own `TensorGuards`
    separation        whether arguments share no memory with changed ones `aotgrad.guards.disjoint_storage.Separation`
    sharing           how arguments share memory with changed ones        `aotgrad.guards.memory.Places`
    global_flags      flags that torch's guard leaves out                 fifteen questions in Python
    below_autograd    run a compiled graph                                a context in Python
    versions_of       the versions of many tensors                        one by one
    attaching         make an autograd node with many inputs              `apply` of the autograd function
    same_contents     whether a module's dictionaries are unchanged       a comparison of all items
    in_vmap_mode      whether a batched backward is open                  a question to torch

A caller asks here once per plan, and need not know which of the two it got.
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
