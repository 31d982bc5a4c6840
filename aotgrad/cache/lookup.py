"""Compiles a function of Dynamo's, or takes it from the cache, where it is put for the next process.

In: Dynamo's graph, the flat function that runs it, its inputs. Out: what the pipeline makes of it, or `Restored`. Whatever
goes wrong with the cache, the function is compiled. `counters` and the logger `aotgrad.cache` say what happened:

    cache_hits, cache_misses        functions that were found, or not
    cache_bypasses                  functions that cannot be stored; the log says why
    cache_failures                  files that could not be read or written, or were damaged
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.fx as fx

from aotgrad.cache.entry import Entry, GraphText, StoredPlan, StoredSmallGraph
from aotgrad.cache.graphs import Origins, write_half
from aotgrad.cache.io import assume, bypassed, plan_store, read_entry, storing_backend, write_entry
from aotgrad.cache.key import NotStored, key_of, stack_traces
from aotgrad.cache.partition_entry import StoringRecipe
from aotgrad.cache.restore import Restored, joint_digest, restore
from aotgrad.cache.serialize import LIKE_NUMBERS, Damaged, NotPlain
from aotgrad.cache.store import IS_SUPPORTED, Store, failed
from aotgrad.capture.fake import find_fake_mode
from aotgrad.capture.trace import FlatFunction
from aotgrad.convention import Dedupe, MemorySharing
from aotgrad.ir import InputHint, JointGraph, Partition
from aotgrad.pipeline import Executable, SmallGraph, Toolchain
from aotgrad.plan_cache.compiler import Recipe
from aotgrad.runtime.steps import ReturnValue
from aotgrad.telemetry import observer as observe
from aotgrad.telemetry.counters import counters
from aotgrad.torch_compat import FakeTensorMode, conditions_since, guards_of_mode

log = logging.getLogger("aotgrad.cache")


def compile_through_cache(
    module: fx.GraphModule,
    function: FlatFunction,
    dedupe: Dedupe,
    tensors: Sequence[Any],
    hints: Sequence[InputHint],
    recipe: Recipe,
) -> Executable | SmallGraph | Restored | StoredSmallGraph:
    """What `recipe.compile` makes of `function`, from the cache if it is there.

    Args:
        module: Dynamo's graph, which `function` runs.
        function: what is traced.
        dedupe: which of the arguments of `module` are one tensor.
        tensors, hints: as for `recipe.compile`.
        recipe: how to compile.
    """
    recipe = recipe.as_awaited(tensors)
    if recipe.options.verify or observe.is_watched():  # somebody looks at the stages
        return recipe.compile(function, tensors, hints)
    try:
        request = Request.of(module, dedupe, tensors, hints, recipe)
        found = request.restored(function)
    except NotStored as reason:
        log.info("a function is traced in every process: %s", reason)
        return StoringRecipe(recipe.backend, recipe.partition_fn, recipe.options).compile(function, tensors, hints)
    if found is not None:
        counters["cache_hits"] += 1
        return found
    counters["cache_misses"] += 1
    recording = RecordingRecipe.of(request)
    made = recording.compile(function, tensors, hints)
    request.keep(made, recording.stages)
    return made


@dataclass(frozen=True)
class Request:
    """One function that is looked for. `recipe` has a backend that keeps what it makes in `store`, too."""

    key: str
    store: Store
    recipe: Recipe
    tensors: Sequence[Any]
    origins: Origins
    mode: FakeTensorMode
    guards_before: int

    @classmethod
    def of(
        cls, module: fx.GraphModule, dedupe: Dedupe, tensors: Sequence[Any], hints: Sequence[InputHint], recipe: Recipe
    ) -> Request:
        """Raises NotStored."""
        if not IS_SUPPORTED:
            raise NotStored("this system does not say who owns a folder")
        mode = find_fake_mode(tensors)
        key, store = key_of(module, dedupe, tensors, hints, recipe, mode), plan_store()
        recipe = replace(recipe, backend=storing_backend(recipe.backend, store))
        return cls(key, store, recipe, tensors, tuple(stack_traces(module)), mode, guards_of_mode(mode))

    def restored(self, function: FlatFunction) -> Restored | StoredSmallGraph | None:
        """What another process has made of the function, if it is there and of use."""
        content = self.store.read(self.key)
        if content is None:
            return None
        try:
            match self.entry(content):
                case StoredSmallGraph() as small:
                    return small
                case StoredPlan() as plan if self.shares_as(plan.sharing):
                    assume(plan.conditions)
                    return restore(plan, function, self.recipe, self.mode, self.origins)
        except Exception as error:  # an entry that was whole, and is of no use: what it says is not relied on
            failed(f"{self.key} is of no use: {type(error).__name__}: {error}")
        return None

    def entry(self, content: bytes) -> Entry:
        entry = read_entry(content, self.mode)
        if not isinstance(entry, (StoredPlan, StoredSmallGraph)):
            raise Damaged(f"an entry that is a {type(entry).__name__}")
        return entry

    def shares_as(self, sharing: MemorySharing) -> bool:
        """Whether the inputs share memory as those did that the entry was made for."""
        return sharing.matches(self.tensors)

    def keep(self, made: Executable | SmallGraph, stages: StagesSeen) -> None:
        """Store what was made, if it can be."""
        try:
            write_entry(self.store, self.key, self.entry_of(made, stages))
        except (NotPlain, NotStored) as reason:
            bypassed(reason)

    def entry_of(self, made: Executable | SmallGraph, stages: StagesSeen) -> Entry:
        """Raises NotPlain, NotStored."""
        if isinstance(made, SmallGraph):
            return StoredSmallGraph(made.ops, made.limit)
        returned = [step for step in made.plan.steps if isinstance(step, ReturnValue) and not step.is_name]
        if not all(type(step.value) in LIKE_NUMBERS for step in returned):
            raise NotStored("it returns an object of this process")
        if stages.problem is not None:
            raise stages.problem
        assert stages.forward is not None and stages.joint is not None, "the stages ran"
        return StoredPlan(
            convention=made.capture.convention,
            inputs=made.meta.inputs,
            sharing=made.sharing(self.tensors),
            plan=replace(made.plan, segments=()),
            source=made.source,
            segments=made.joint.segments,
            forward=stages.forward,
            halves=tuple(write_half(half, self.origins) for half in made.plan.segments),
            static_inputs=made.joint.static_inputs,
            joint=stages.joint,
            conditions=conditions_since(self.mode, self.guards_before),
        )


# --- What is only there while a function is compiled -----------------------------------------------------------------


class StagesSeen:
    """Called after every stage: writes down what the backend changes later."""

    def __init__(self, observe: Callable[[str, Any], None], origins: Origins) -> None:
        self.observe, self.origins = observe, origins
        self.joint: str | None = None
        self.forward: GraphText | None = None
        self.problem: NotPlain | None = None

    def __call__(self, stage: str, result: Any) -> None:
        self.observe(stage, result)
        try:
            match result:
                case JointGraph():
                    self.joint = joint_digest(result)
                case Partition():
                    self.forward = write_half(result.forward, self.origins)
        except NotPlain as problem:
            self.problem = problem


@dataclass(frozen=True)
class RecordingRecipe(Recipe):
    """A recipe for one compilation, of which the stages are written down."""

    stages: StagesSeen

    @classmethod
    def of(cls, request: Request) -> RecordingRecipe:
        recipe = request.recipe
        stages = StagesSeen(recipe.toolchain().observe, request.origins)
        return cls(recipe.backend, recipe.partition_fn, recipe.options, stages)

    def toolchain(self) -> Toolchain:
        return replace(super().toolchain(), observe=self.stages)
