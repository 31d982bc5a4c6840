"""Each graph of a partition -> a callable.

`base.Backend` is the interface; a `FunctionBackend` wraps any callable of the user's. `registry` finds backends by name.
`eager` runs a graph's own code, `interpreter` runs it op by op, `inductor` compiles it. `corrected` lists the corrections of
Inductor, `own_rules` is for arguments with a `__torch_function__`; `buffer_reuse`, `in_place_updates`, `closed_over`,
`copies`, `floats`, `layouts` and `seeds` prepare graphs. `pieces` runs a graph that `uncompiled` or `layers` has cut.
"""

from __future__ import annotations

from aotgrad.backends.base import Backend, FunctionBackend, make_boxed_compiler, make_boxed_func
from aotgrad.backends.eager import nop
from aotgrad.backends.registry import get, names, register

__all__ = ["Backend", "FunctionBackend", "get", "make_boxed_compiler", "make_boxed_func", "names", "nop", "register"]
