"""Inductor's C++ kernels: how to compile and to find them."""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from aotgrad.torch_compat.inductor.vector_instructions import vector_instructions_by_one_probe


def library_of(kernel: Any) -> tuple[str, str, str] | None:
    """The module name and path of a C++ kernel's library, and the kernel's name in it; `None` for other objects."""
    module = getattr(kernel, "__self__", None)
    path = getattr(module, "__file__", None)
    if not isinstance(module, types.ModuleType) or path is None:
        return None
    return module.__name__, path, kernel.__name__


def kernel_in(module: str, path: str, name: str) -> Callable:
    """The C++ kernel in a library."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    key = module.rpartition(".")[0]
    return getattr(CppPythonBindingsCodeCache._load_library_inner(path, key), name)


@contextlib.contextmanager
def collected_cpp_kernels(kernel: Callable[..., Any]) -> Iterator[list[tuple[dict[str, Any], str, Any]]]:
    """Inside and in this thread, the C++ kernels of graphs that Inductor compiles are not compiled, but collected.

    Args:
        kernel: types of arguments and a source -> an object that stands for the function until that is compiled.

    Yields:
        Where the functions belong: a namespace, the name in it, and the object that `kernel` has returned.
    """
    from torch._inductor.async_compile import AsyncCompile, kernel_code_log

    thread, one_by_one, wait = threading.get_ident(), AsyncCompile.cpp_pybinding, AsyncCompile.wait
    places: list[tuple[dict[str, Any], str, Any]] = []
    made: dict[int, Any] = {}

    def collect(self: AsyncCompile, argument_types: list[str], source: str) -> Any:
        if threading.get_ident() != thread:
            return one_by_one(self, argument_types, source)
        kernel_code_log.info("CPP+Bindings Kernel:\n%s", source)
        stand_in = kernel(tuple(argument_types), source)
        made[id(stand_in)] = stand_in
        return stand_in

    def note(self: AsyncCompile, scope: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            places.extend((scope, name, value) for name, value in scope.items() if id(value) in made)
        wait(self, scope)

    with mock.patch.multiple(AsyncCompile, cpp_pybinding=collect, wait=note):
        yield places


def cpp_compilers() -> int:
    """How many C++ compilers Inductor runs at once."""
    from torch._inductor.async_compile import get_compile_threads

    return max(1, get_compile_threads())


@vector_instructions_by_one_probe()
def start_cpp_kernel(argument_types: Sequence[str], source: str, submit: Callable | None) -> Callable[[], Callable]:
    """Start to compile one C++ kernel; returns a function that waits for it.

    Args:
        submit: starts some work; the method `result()` of what it returns waits. Without it, the returned function compiles.
    """
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    return CppPythonBindingsCodeCache.load_pybinding_async(list(argument_types), source, submit_fn=submit)


@vector_instructions_by_one_probe()
def start_cpp_library(source: str, submit: Callable | None) -> Callable[[], types.ModuleType]:
    """Start to compile a Python module with the function `PyInit_kernel`; otherwise as `start_cpp_kernel`."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    return CppPythonBindingsCodeCache.load_async(source, submit_fn=submit)
