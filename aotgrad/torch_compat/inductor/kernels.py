"""Inductor's C++ kernels: how to compile and to find them."""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock


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
def compile_cpp_kernels_with(
    compile_all: Callable[[list[Any]], list[Callable]], kernel: Callable[..., Any]
) -> Iterator[None]:
    """Inside and in this thread, `compile_all` compiles the C++ kernels of each graph that Inductor compiles.

    Args:
        compile_all: the kernels of a graph, as `kernel` returned them -> functions.
        kernel: types of arguments and a source -> an object that stands for the function until it is compiled.
    """
    from torch._inductor.async_compile import AsyncCompile, kernel_code_log

    thread, one_by_one, wait = threading.get_ident(), AsyncCompile.cpp_pybinding, AsyncCompile.wait
    pending: list[Any] = []

    def collect(self: AsyncCompile, argument_types: list[str], source: str) -> Any:
        if threading.get_ident() != thread:
            return one_by_one(self, argument_types, source)
        kernel_code_log.info("CPP+Bindings Kernel:\n%s", source)
        pending.append(kernel(tuple(argument_types), source))
        return pending[-1]

    def compile_pending(self: AsyncCompile, scope: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            made = dict(zip(map(id, pending), compile_all(pending), strict=True))
            scope.update({name: made[id(value)] for name, value in scope.items() if id(value) in made})
            pending.clear()
        wait(self, scope)

    with mock.patch.multiple(AsyncCompile, cpp_pybinding=collect, wait=compile_pending):
        yield


def cpp_compilers() -> int:
    """How many C++ compilers Inductor runs at once."""
    from torch._inductor.async_compile import get_compile_threads

    return max(1, get_compile_threads())


def submit_cpp() -> Callable | None:
    """A function that hands work to another process; `None` if Inductor has no workers and compiles on demand."""
    from torch._inductor.async_compile import AsyncCompile

    return AsyncCompile.submit if cpp_compilers() > 1 else None


def start_cpp_kernel(argument_types: Sequence[str], source: str) -> Callable[[], Callable]:
    """Start to compile one C++ kernel; returns a function that waits for it."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    return CppPythonBindingsCodeCache.load_pybinding_async(list(argument_types), source, submit_fn=submit_cpp())


def start_cpp_library(source: str) -> Callable[[], types.ModuleType]:
    """Start to compile a Python module with the function `PyInit_kernel`; returns a function that waits for it."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    return CppPythonBindingsCodeCache.load_async(source, submit_fn=submit_cpp())
