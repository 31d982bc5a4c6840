"""Each graph of a partition -> a callable."""

from __future__ import annotations

from aotgrad.backends.base import Backend, FunctionBackend, make_boxed_compiler, make_boxed_func
from aotgrad.backends.eager import nop
from aotgrad.backends.registry import get, names, register

__all__ = ["Backend", "FunctionBackend", "get", "make_boxed_compiler", "make_boxed_func", "names", "nop", "register"]
