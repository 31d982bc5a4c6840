"""Functions of our own in C++, where they were built; everywhere else the same in Python.

    python -m aotgrad native build               once for each torch and Python; nothing is ever built by itself
    native.offered("versions_of", in_python)     the function in C++, or `in_python`

Torch answers questions about a tensor one by one, 40 to 60 ns each from Python; `library.cpp` asks a list of tensors in one
call. What it offers, and what there is without it:

    tensor_check      whether arguments are like those of the trace       torch's own `TensorGuards`
    separation        whether arguments lie apart from changed ones       `aotgrad.guards.disjoint_storage.Separation`
    sharing           how arguments share memory with changed ones        `aotgrad.guards.memory.Places`
    global_flags      global state that torch's guard leaves out          eight questions in Python
    below_autograd    run a compiled graph                                a context in Python
    versions_of       the versions of many tensors                        one by one
    attaching         make an autograd node with many inputs              `apply` of the autograd function
    same_contents     whether a module's dictionaries are as they were    a comparison of all items
    in_vmap_mode      whether a batched backward is open                  a question to torch

Whoever uses one of them asks here once for each plan, and does not know what it got.
"""

from __future__ import annotations

import functools
import logging
from types import ModuleType
from typing import Any

from aotgrad.options import native_wanted

log = logging.getLogger("aotgrad.native")


def offered(name: str, otherwise: Any) -> Any:
    """A function of the library, or `otherwise` where there is no library."""
    return getattr(library(), name, otherwise)


@functools.cache
def library() -> ModuleType | None:
    """The C++ functions, if they were built for this torch and this Python and nobody turned them off."""
    if not native_wanted():
        return None
    from aotgrad.native.build import load  # the cache, whose folder it is in, is above what uses this

    return load()
