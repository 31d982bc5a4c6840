"""How the plans of one function are made: backend, partition function and options, bound to the pipeline."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.backends.base import Backend, FunctionBackend
from aotgrad.backends.eager import nop
from aotgrad.capture.values import ValueReads
from aotgrad.ir import Capture, InputHint, JointGraph, ViewAndMutationMeta
from aotgrad.options import Options
from aotgrad.partition import default_partition, min_cut_rematerialization_partition, recompute_all_partition
from aotgrad.passes import KnownValues
from aotgrad.pipeline import Executable, SmallGraph, Toolchain, compile_flat, compile_halves
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.runtime.recomputation import HigherOrder
from aotgrad.telemetry.observer import Observer
from aotgrad.transforms.vjp import CapturedFunction, CompiledVjp, check_old_values
from aotgrad.transforms.vmap import CompiledBatches

PARTITIONERS: Mapping[str, Callable] = {
    "min_cut": min_cut_rematerialization_partition,
    "recompute_all": recompute_all_partition,
    "save_all": default_partition,
}
"""Partition functions by the option `partitioner`."""

MOST_PLANS = 1024
"""The limit for the vjps of one plan: what they are called with is bounded by its structure, and has its shapes."""


@dataclass(frozen=True)
class Recipe:
    """Makes executables of flat functions."""

    backend: Backend
    partition_fn: Callable
    options: Options

    @property
    def answers_values(self) -> bool:
        """Whether what is made may hold for some values of the arguments only."""
        return True

    def compile(
        self,
        function: Callable,
        args: Sequence[Any],
        hints: Sequence[InputHint],
        known: KnownValues | None = None,
        values: ValueReads | None = None,
    ) -> Executable | SmallGraph:
        recipe = self.as_awaited(args)
        higher_order = functools.partial(recipe.higher_order, function, known)
        return compile_flat(function, args, hints, recipe.toolchain(), higher_order, known, values)

    def as_awaited(self, args: Sequence[Any]) -> Recipe:
        """This recipe for these arguments: the backward is cut only if the options say so, or somebody waits for it."""
        return self if are_awaited(args) else self.in_one_piece()

    def in_one_piece(self) -> Recipe:
        """This recipe, for a backward that is cut only if the options say so."""
        if self.options.grad_segments != "auto":
            return self
        return replace(self, options=self.options.replace(grad_segments=1))

    def of_transforms(self) -> Recipe:
        """For plans of batches and derivatives of a function: it has several for each plan of its own."""
        return replace(self, options=self.options.replace(plan_limit=8 * self.options.plan_limit))

    def of_changing_sizes(self) -> Recipe:
        """For plans beside one with symbolic sizes: sizes that change are symbolic there, too."""
        return replace(self, options=self.options.replace(dynamic=None))

    def of_flags(self) -> Recipe:
        """For plans that are never run, only asked what they know of the results."""
        return replace(self.of_transforms(), backend=FunctionBackend("flags", nop))

    def toolchain(self) -> Toolchain:
        """What one compilation is run with."""
        observer = Observer(self.options.verify)
        return Toolchain(self.backend, self.partition_fn, self.options, observer, observer.after_pass, compile_halves)

    def higher_order(
        self,
        function: Callable,
        known: KnownValues | None,
        capture: Capture,
        meta: ViewAndMutationMeta,
        joint: JointGraph,
    ) -> HigherOrder:
        """The gradients of gradients of a function that was just captured; compiled when first asked for."""
        autocast = torch_compat.autocast_state()
        captured = CapturedFunction(function, capture, meta, joint, self.options.grad_segments, known, autocast)
        name = getattr(function, "__qualname__", "a compiled function")
        whole = replace(self, options=self.options.replace(min_graph_ops=0, plan_limit=MOST_PLANS))
        vjps = PlanCache(whole, f"vjp of {name}", check=functools.partial(check_old_values, captured))
        return CompiledVjp(captured, vjps, CompiledBatches(PlanCache(self, f"batched backward of {name}")))


def are_awaited(args: Sequence[Any]) -> bool:
    """Whether somebody acts on a gradient of one of the arguments as soon as it is there."""
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    return any(map(torch_compat.is_awaited, tensors)) or torch_compat.ddp_awaits_gradients()
