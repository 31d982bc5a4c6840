"""The compilers under comparison with eager: aotgrad, and the peer in its place.

compiled = COMPILERS["aotgrad"](function, VARIANTS["dynamic"])
compiled(*tensors)
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import functorch.compile
import torch
from torch._decomp import core_aten_decompositions
from torch.utils import _pytree as pytree

import aotgrad
from aotgrad.conformance.check import check_subject
from aotgrad.conformance.subjects import Function, ModuleFunction, find_subjects
from aotgrad.conformance.sweep import Task
from aotgrad.conformance.variants import CallVariant, Compilation
from aotgrad.conformance.verdict import SubjectVerdict
from tests.conformance.variants import VARIANTS
from tests.device import TYPE


@functools.cache
def decompositions(name: str) -> dict[Any, Callable]:
    match name:
        case "core":
            return dict(core_aten_decompositions())
        case "inductor":
            import torch._inductor.lowering  # noqa: F401  # some of the decompositions use it without importing it
            from torch._inductor.decomposition import select_decomp_table

            return dict(select_decomp_table())
        case _:
            return {}


def by_aotgrad(function: Function, variant: CallVariant) -> Callable:
    options = {"verify": True, "min_graph_ops": 0}
    if variant.compilation is not Compilation.DIRECT:
        torch.compiler.reset()
        backend = "aotgrad" if variant.compilation is Compilation.INDUCTOR else "aotgrad_eager"
        return torch.compile(function, backend=backend, dynamic=variant.dynamic, options=options)
    settings = {"decompositions": decompositions(variant.decompositions), "dynamic": variant.dynamic, "options": options}
    if isinstance(function, ModuleFunction):
        return replace(function, module=aotgrad.aot_module(function.module, aotgrad.nop, **settings))
    return aotgrad.aot_function(function, aotgrad.nop, **settings)


def by_peer(function: Function, variant: CallVariant) -> Callable:
    if variant.compilation is not Compilation.DIRECT:
        torch.compiler.reset()
        backend = "inductor" if variant.compilation is Compilation.INDUCTOR else "aot_eager"
        return torch.compile(function, backend=backend, dynamic=variant.dynamic)
    nop = functorch.compile.nop
    settings: Any = {"decompositions": decompositions(variant.decompositions), "dynamic": variant.dynamic}
    if isinstance(function, ModuleFunction):
        return replace(function, module=functorch.compile.aot_module(function.module, nop, nop, **settings))
    flat = FlatResults(function)
    compiled = functorch.compile.aot_function(flat, nop, nop, **settings)
    return lambda *tensors: pytree.tree_unflatten(compiled(*tensors), flat.structure)


@dataclass
class FlatResults:
    """A function that returns a list: the peer, called directly, returns lists for tuples. That must not count."""

    function: Function
    structure: Any = None

    def __call__(self, *tensors: Any) -> list[Any]:
        results, self.structure = pytree.tree_flatten(self.function(*tensors))
        return results


Compiler = Callable[[Function, CallVariant], Callable]

COMPILERS: dict[str, Compiler] = {"aotgrad": by_aotgrad, "peer": by_peer}


def checks() -> Callable[[Task], SubjectVerdict]:
    """What a worker of a sweep answers tasks with."""
    os.chdir(tempfile.mkdtemp())  # the peer leaves a file behind if its partitioner fails
    subjects = find_subjects(TYPE)

    def answer(task: Task) -> SubjectVerdict:
        return check_subject(subjects[task.subject], VARIANTS[task.variant], COMPILERS[task.compiler], task.samples)

    return answer
