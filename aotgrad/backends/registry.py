"""Backends by name, or by where they are defined: `"mypackage.module:attribute"`."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from aotgrad.backends.base import AnyBackend, GraphCompiler, PartitionCompiler
from aotgrad.backends.eager import EAGER
from aotgrad.backends.inductor.backend import INDUCTOR, InductorBackend
from aotgrad.backends.interpreter import INTERPRETER
from aotgrad.backends.kit import Backend, FunctionBackend, class_for_backend
from aotgrad.errors import BackendError
from aotgrad.options import Options

_BACKENDS: dict[str, PartitionCompiler] = {backend.name: backend for backend in (EAGER, INDUCTOR, INTERPRETER)}


def register(
    name: str,
    *,
    fw_compiler: GraphCompiler,
    bw_compiler: GraphCompiler | None = None,
    inference_compiler: GraphCompiler | None = None,
    decompositions: Mapping[Any, Callable] | None = None,
    fuses: bool = True,
) -> PartitionCompiler:
    """Add a backend under `name`.

    Args:
        fw_compiler: `(fx.GraphModule, example_inputs) -> callable`; boxed callables (`make_boxed_func`) free their
            inputs early.
        bw_compiler, inference_compiler: for backward graphs, and for graphs without a backward; `fw_compiler` if `None`.
        decompositions: op overload -> function, applied while tracing.
        fuses: whether ops share kernels; then the backward recomputes cheap ones instead of saving their results.

    Raises:
        BackendError: if `fw_compiler` is not callable.
    """
    backend = FunctionBackend(name, fw_compiler, bw_compiler, inference_compiler, decompositions or {}, fuses=fuses)
    return register_backend(backend)


def register_backend(backend: PartitionCompiler) -> PartitionCompiler:
    """Make a backend known by its `name`, in place of an earlier one; returns it.

    Raises:
        BackendError: this is no backend.
    """
    if isinstance(backend, str) or not is_backend(backend):
        kind = type(backend).__name__
        raise BackendError(f"register_backend takes a backend, not a {kind}: register(name, fw_compiler=f) takes a function")
    registered = as_backend(backend)
    _BACKENDS[registered.name] = registered
    return registered


def get(name: str) -> PartitionCompiler:
    """The backend registered under `name`, or defined there: `"mypackage.module:attribute"`.

    Raises:
        BackendError: if there is none; the message lists the registered names.
    """
    if ":" in name:
        return defined_at(name)
    if name not in _BACKENDS:
        raise BackendError(f"no backend {name!r}; registered are {', '.join(sorted(_BACKENDS))}")
    return _BACKENDS[name]


def defined_at(place: str) -> PartitionCompiler:
    """The backend that `module:attribute` means: a backend, a class of backends, or a compile function.

    Raises:
        BackendError: there is none.
    """
    module, _, attribute = place.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except Exception as error:
        raise BackendError(f"there is no backend {place!r}: {type(error).__name__}: {error}") from error
    if isinstance(found, type) and issubclass(found, Backend):
        found = found()
    if not (callable(found) or hasattr(found, "decompositions")):
        raise BackendError(f"{place} is a {type(found).__name__}: neither a backend nor a function that compiles graphs")
    return as_backend(cast(AnyBackend, found))


def configured(backend: str | PartitionCompiler, options: Options) -> PartitionCompiler:
    """A backend, with the mode and settings for Inductor from the options.

    Raises:
        BackendError: there is none with this name.
    """
    found = as_backend(backend)
    return found.with_options(options) if isinstance(found, InductorBackend) else found


def is_backend(backend: AnyBackend) -> bool:
    """Whether this is a backend or the name of one; otherwise it is a compiler of one graph."""
    return isinstance(backend, str) or hasattr(backend, "decompositions")


def as_backend(backend: AnyBackend) -> PartitionCompiler:
    """The backend for a name or a compiler; a backend itself.

    Raises:
        BackendError: there is none with this name, or it is something else.
    """
    if isinstance(backend, str):
        return get(backend)
    if isinstance(backend, type) and issubclass(backend, Backend):
        raise class_for_backend(backend)
    if is_backend(backend):
        return cast(PartitionCompiler, backend)
    if not callable(backend):
        raise BackendError(
            f"{backend!r} is no backend: a backend is a name, an instance of aotgrad.backends.Backend, or a function of a "
            "graph and its inputs that returns a callable"
        )
    compiler = cast(GraphCompiler, backend)
    return FunctionBackend(getattr(compiler, "__name__", "user"), compiler)


def names() -> list[str]:
    """The names of all registered backends, sorted."""
    return sorted(_BACKENDS)
