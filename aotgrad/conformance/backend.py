"""Checks a backend: each task -> a verdict; each failure -> a minimized script.

BackendChecks("mypackage:backend")()(task)                          a CheckedOps
BackendMinimizer(BackendChecks("mypackage:backend"), folder)()(task)        the file of a script, or why there is none
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from aotgrad.api import aot_function, aot_module
from aotgrad.backends.base import PartitionCompiler, WrappedBackend
from aotgrad.backends.eager import EAGER
from aotgrad.backends.kit import may_be_unsupported
from aotgrad.backends.registry import get
from aotgrad.conformance.check import check_subject, one_line
from aotgrad.conformance.excluded import WithoutOps
from aotgrad.conformance.programs import PROGRAMS
from aotgrad.conformance.subjects import Function, ModuleFunction, SampleCall, Subject, find_subjects
from aotgrad.conformance.sweep import Task
from aotgrad.conformance.variants import OF_BACKENDS, CallVariant
from aotgrad.conformance.verdict import Inherited, SubjectVerdict
from aotgrad.debug.check import TOLERANCE, TOLERANCES
from aotgrad.debug.minify import minify
from aotgrad.errors import NothingToMinify
from aotgrad.ir import BoxedCallable, Compiled, GraphHalf, Partition


@dataclass(frozen=True)
class CountingBackend(WrappedBackend):
    """Compiles as another backend, and notes for each op of its graphs whether the backend compiles it."""

    compiled: list[bool] = field(default_factory=list)

    def compile_partition(self, partition: Partition, static_inputs: frozenset[int]) -> Compiled:
        self.count(partition.forward)
        compiled = self.backend.compile_partition(partition, static_inputs)
        return compiled.with_backward(lambda compile: lambda half: self.counted(half, compile))

    def counted(self, half: GraphHalf, compile: Callable[[GraphHalf], BoxedCallable]) -> BoxedCallable:
        self.count(half)
        return compile(half)

    def count(self, half: GraphHalf) -> None:
        graph = half.module.graph
        islands = self.backend.islands(graph)
        self.compiled.extend(node not in islands for node in filter(may_be_unsupported, graph.nodes))


@dataclass(frozen=True)
class CheckedOps:
    """A verdict, and how many ops ran compiled and in eager islands."""

    verdict: SubjectVerdict
    ops: tuple[int, int]


@dataclass(frozen=True)
class BackendChecks:
    """What a worker answers tasks with.

    Attributes:
        place: the backend's name, or `module:attribute`.
        without: the ATen ops that it does not get.
        device: of the sample inputs.
        tolerance: multiplies the errors that are allowed.
    """

    place: str
    without: tuple[str, ...] = ()
    device: str = "cpu"
    tolerance: float = 1

    def __call__(self) -> Callable[[Task], CheckedOps]:
        checker = BackendChecker(self.backend(), self.subjects(), self.tolerance)
        checker.verdict(Task("", "float32", "mul", 1), EAGER)  # what is imported on first use does not count for a check
        return checker

    def backend(self) -> PartitionCompiler:
        """Raises BackendError if there is none."""
        return WithoutOps(self.place, self.without) if self.without else get(self.place)

    def subjects(self) -> dict[str, Subject]:
        return {**find_subjects(self.device), **{program.name: replace(program, device=self.device) for program in PROGRAMS}}

    def __str__(self) -> str:
        without = f" without {', '.join(self.without)}" if self.without else ""
        return f"{self.place}{without}{f', tolerance {self.tolerance:g}' if self.tolerance != 1 else ''}"


@dataclass(frozen=True)
class BackendChecker:
    """Answers tasks, in a worker."""

    backend: PartitionCompiler
    subjects: dict[str, Subject]
    tolerance: float = 1

    def __call__(self, task: Task) -> CheckedOps:
        counting = CountingBackend(self.backend)
        verdict = self.verdict(task, counting)
        if verdict.fails and isinstance(reference := self.verdict(task, EAGER), type(verdict)):
            verdict = Inherited(reference.reason)
        compiled = sum(counting.compiled)
        return CheckedOps(verdict, (compiled, len(counting.compiled) - compiled))

    def verdict(self, task: Task, backend: PartitionCompiler) -> SubjectVerdict:
        def compile(function: Function, variant: CallVariant) -> Callable:
            return compiled_by(backend, function, variant)

        variant = OF_BACKENDS[task.variant]
        return check_subject(self.subjects[task.subject], variant, compile, task.samples, self.tolerance)


def compiled_by(backend: PartitionCompiler, function: Function, variant: CallVariant) -> Callable:
    settings: dict[str, Any] = {
        "dynamic": variant.dynamic,
        "options": {"min_graph_ops": 0, "verify": True, "verify_results": True},
    }
    if isinstance(function, ModuleFunction):
        return replace(function, module=aot_module(function.module, backend, **settings))
    return aot_function(function, backend, **settings)


@dataclass(frozen=True)
class BackendMinimizer:
    """What a worker writes scripts with.

    Attributes:
        folder: of the scripts.
        limit_s: the seconds that one graph may take, in a process of its own; `None`: in the worker.
    """

    checks: BackendChecks
    folder: Path
    limit_s: float | None = None

    def __call__(self) -> Callable[[Task], str]:
        subjects = self.checks.subjects()
        backend = WithoutOps(self.checks.place, self.checks.without) if self.checks.without else self.checks.place

        def answer(task: Task) -> str:
            variant = OF_BACKENDS[task.variant]
            path = self.folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', f'{task.subject}-{task.variant}').strip('_')}.py"
            for call in subjects[task.subject].calls(variant, task.samples):
                torch.manual_seed(0)
                settings = {"dynamic": variant.dynamic, "limit_s": self.limit_s}
                try:
                    minify(*plain_call(call), backend, path=path, tolerance=self.tolerance_of(variant), **settings)
                except NothingToMinify:
                    continue
                except Exception as error:
                    return one_line(f"none: {type(error).__name__}: {error}")
                return str(path)
            return "none: each graph alone agrees with eager"

        return answer

    def tolerance_of(self, variant: CallVariant) -> float | None:
        """The error that `minify` allows; `None`: by dtype."""
        factor = self.checks.tolerance
        return None if factor == 1 else factor * TOLERANCES.get(variant.dtype or torch.float32, TOLERANCE)


def plain_call(call: SampleCall) -> tuple[Callable, tuple[torch.Tensor, ...]]:
    """A function for `minify`, and its arguments. It changes copies of what the call changes, since leaves cannot change."""
    function = call.function.fresh()
    if isinstance(function, ModuleFunction):
        return CallOfModule(function, call.changed), call.tensors

    def run(*tensors: torch.Tensor) -> Any:
        return function(*copies_of_changed(tensors, call.changed))

    return run, call.tensors


def copies_of_changed(tensors: Sequence[torch.Tensor], changed: Collection[int]) -> list[torch.Tensor]:
    return [tensor * 1 if k in changed else tensor for k, tensor in enumerate(tensors)]


class CallOfModule(torch.nn.Module):
    """A call of a module as a module, whose parameters and buffers are those of the part."""

    def __init__(self, function: ModuleFunction, changed: Collection[int]) -> None:
        super().__init__()
        self.part = function.module
        self.arguments = lambda tensors: function.rebuild(copies_of_changed(tensors, changed))

    def forward(self, *tensors: torch.Tensor) -> Any:
        args, kwargs = self.arguments(tensors)
        return self.part(*args, **kwargs)
