"""A backend of functions whose arguments have a `__torch_function__`: their graphs do not ask it.

Dynamo has asked it where the program does, and recorded what it does instead. The whole call runs past the rules, and so
do the backward halves: they get arguments that the call saved, and the engine of autograd asks no `__torch_function__`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from aotgrad import torch_compat
from aotgrad.backends.base import Artefacts, PartitionCompiler, WrappedBackend
from aotgrad.ir import Compiled, GraphHalf, Partition


@dataclass(frozen=True)
class PastOwnRules(WrappedBackend):
    """Compiles as another backend does."""

    def compile_partition(self, partition: Partition, static_inputs: frozenset[int]) -> Compiled:
        return self.wrapped(self.backend.compile_partition(partition, static_inputs))

    def compile_forward(self, forward: GraphHalf, static_inputs: frozenset[int], differentiable: bool) -> Compiled:
        return self.wrapped(self.backend.compile_forward(forward, static_inputs, differentiable))

    def cache_key(self) -> str | None:
        return self.backend.cache_key()

    def storing(self, artefacts: Artefacts) -> PartitionCompiler:
        return replace(self, backend=self.backend.storing(artefacts))

    def wrapped(self, compiled: Compiled) -> Compiled:
        return compiled.with_backward(lambda compile: lambda half: past_own_rules(compile(half)))


def past_own_rules(function: Callable) -> Callable:
    """A function that runs with the `__torch_function__` of subclasses off."""

    def run(*args: Any) -> Any:
        with torch_compat.without_own_rules():
            return function(*args)

    return run
