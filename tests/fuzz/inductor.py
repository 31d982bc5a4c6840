"""Inductor for many small programs: all their C++ kernels are compiled at once.

A compiler spends more time on torch's headers than on a hundred kernels. But a program's backward is compiled only after
its forward has run. So each program runs twice. In the rehearsal, Inductor generates code for each graph, and the graph
runs as it is. After all kernels are compiled, the performance compiles the same graphs and reuses that code.

    stage = Stage()
    for program in programs:
        with stage.rehearsal(program): ...          collects the compilations of `aotgrad.backends.get("inductor")`
    stage.compile_kernels()
    for program in programs:
        with stage.performance(program): ...

The C++ compiler does not optimize: the tests concern only the meaning of the kernels.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch.fx as fx
from torch._guards import TracingContext
from torch._inductor import config

from aotgrad.backends import registry
from aotgrad.backends.base import example_inputs
from aotgrad.backends.boxed_code import boxed_code
from aotgrad.backends.inductor import cpp_kernels
from aotgrad.backends.inductor.backend import InductorBackend, Job, Shared
from aotgrad.backends.inductor.cpp_kernels import CppKernel
from aotgrad.ir import BoxedCallable

PLAIN = "#define FLATTENED"
"""Nothing is inlined into kernels that share a library."""


@dataclass(frozen=True)
class Made:
    """Inductor's code for a graph, and the strides that it reported for the results."""

    text: str
    function: Callable
    strides: tuple[Any, ...]


@dataclass(frozen=True)
class Rehearsing(InductorBackend):
    """Generates code, and runs the graphs as they are."""

    made: list[Made] = field(default_factory=list)

    def _make(self, job: Job, shared: Shared) -> BoxedCallable:
        text, graph = text_of(job), fx.Graph()
        graph.output(graph.graph_copy(job.half.module.graph, {}))
        as_it_is = boxed_code(fx.GraphModule(job.half.module, graph))
        known = len(strides_told())
        function = super()._make(job, shared)
        self.made.append(Made(text, function, tuple(strides_told()[known:])))
        return as_it_is


@dataclass(frozen=True)
class Performing(InductorBackend):
    """Uses the generated code; a graph that is absent from the rehearsal is compiled by itself."""

    made: list[Made] = field(default_factory=list)

    def _make(self, job: Job, shared: Shared) -> Callable:
        text = text_of(job)
        if not self.made or self.made[0].text != text:
            return super()._make(job, shared)
        first = self.made.pop(0)
        strides_told().extend(first.strides)
        return first.function


def text_of(job: Job) -> str:
    """A graph with the types of its inputs, and the other dependencies of its code."""
    graph = job.half.module.graph
    types = [(v.dtype, v.size(), v.stride()) if hasattr(v, "stride") else v for v in example_inputs(job.half.module)]
    return f"{graph} {types} {job.text}"


def strides_told() -> list[Any]:
    """Where Inductor writes the strides of a graph's results, if requested."""
    context = TracingContext.try_get()
    return [] if context is None or context.output_strides is None else context.output_strides


@dataclass
class Stage:
    """The code of rehearsed programs; `waiting` are the kernels that are not compiled yet."""

    made: dict[Hashable, list[Made]] = field(default_factory=dict)
    kernels: dict[CppKernel, Callable] = field(default_factory=dict)
    waiting: dict[CppKernel, None] = field(default_factory=dict)

    @contextmanager
    def rehearsal(self, program: Hashable) -> Iterator[None]:
        with self.compiling_by(Rehearsing(made=self.made.setdefault(program, []))):
            yield

    @contextmanager
    def performance(self, program: Hashable) -> Iterator[None]:
        with self.compiling_by(Performing(made=self.made.pop(program, []))):
            yield

    @contextmanager
    def directly(self) -> Iterator[None]:
        """Without a rehearsal: kernels are compiled at their first call."""
        with self.compiling_by(InductorBackend()):
            yield

    @contextmanager
    def compiling_by(self, backend: InductorBackend) -> Iterator[None]:
        with (
            mock.patch.dict(registry._BACKENDS, inductor=backend),
            mock.patch.object(cpp_kernels, "start_together", lambda kernels: functools.partial(self.promised, kernels)),
            config.patch(fx_graph_cache=False),
        ):
            yield

    def promised(self, kernels: Sequence[CppKernel]) -> list[Callable]:
        self.waiting.update(dict.fromkeys(kernel for kernel in kernels if kernel not in self.kernels))
        return [Promised(self, kernel) for kernel in kernels]

    def compile_kernels(self) -> None:
        """Compiles kernels that fit into one source together, the others one by one."""
        kernels, self.waiting = list(self.waiting), {}
        sharing = [kernel for kernel in kernels if kernel.can_share]
        with unoptimized():
            self.kernels.update({kernel: cpp_kernels.start_alone(kernel)() for kernel in kernels if not kernel.can_share})
            if sharing:
                self.kernels.update(zip(sharing, cpp_kernels.start_library(sharing)(), strict=True))


@dataclass(frozen=True)
class Promised:
    """A kernel that is looked up at its call."""

    stage: Stage
    kernel: CppKernel

    def __call__(self, *args: Any) -> None:
        if self.kernel not in self.stage.kernels:
            self.stage.compile_kernels()
        self.stage.kernels[self.kernel](*args)


@contextmanager
def unoptimized() -> Iterator[None]:
    with mock.patch.dict(os.environ, TORCHINDUCTOR_DEBUG_COMPILE="1"), mock.patch.object(cpp_kernels, "FLATTENED", PLAIN):
        yield
