"""The name of the graph that is being compiled, for backends that name files and logs by it.

    with names.compiling("forward"):
        get_aot_graph_name()                    "model__3_forward_7": the 3rd function, and the 7th graph of the process

Numbers start at 0 and are unique in the process. Each thread has its own current graph.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from aotgrad.ir import BoxedCallable, CompileBackward, Compiled, GraphHalf
from aotgrad.telemetry.counters import counters
from aotgrad.torch_compat import CompilerSettings, compiler_context

MODEL = "model"

_functions = itertools.count()
_compiling = threading.local()
_lock = threading.Lock()
_graphs = 0


def qualified_name(function: Callable) -> str:
    """What messages call a function: its own name, or that of its class."""
    return getattr(function, "__qualname__", type(function).__qualname__)


@dataclass(frozen=True)
class GraphNames:
    """The names of the graphs of one function: `joint`, `forward`, `backward` or `inference`."""

    function: int = field(default_factory=_functions.__next__)

    @contextlib.contextmanager
    def compiling(self, role: str) -> Iterator[None]:
        """A context for compiling one graph.

        The next graph gets the next number.
        """
        global _graphs
        outer = _names()
        _compiling.names = [f"{self.function}_{role}"]
        try:
            with compiler_context():
                yield
        finally:
            _compiling.names = outer
            with _lock:
                _graphs += 1
                counters["graphs"] += role != "joint"

    def of_backward(self, compiled: Compiled) -> Compiled:
        """`compiled`, with a compiler that names backward graphs, and has the settings that this thread has now."""
        return compiled.with_backward(functools.partial(NamedBackward, self, CompilerSettings.now()))


@dataclass(frozen=True)
class NamedBackward:
    """Compiles a backward graph under its name, with the settings of its forward: another thread may have others."""

    names: GraphNames
    settings: CompilerSettings
    compile: CompileBackward

    def __call__(self, half: GraphHalf) -> BoxedCallable:
        with self.settings.active(), self.names.compiling("backward"):
            return self.compile(half)


def _names() -> list[str]:
    return getattr(_compiling, "names", [])


def get_aot_compilation_context() -> tuple[list[str], str, int]:
    """`(["3_forward"], "model", 7)`: the function's number with the graph's role, a prefix, and the graph's number.

    The list is empty outside a compilation.
    """
    return list(_names()), MODEL, _graphs


def get_aot_graph_name() -> str:
    """The name of the graph that is being compiled in this thread, such as `"model__3_forward_7"`."""
    names, model, number = get_aot_compilation_context()
    return f"{model}__{'_'.join(names)}_{number}"


get_graph_being_compiled = get_aot_graph_name
