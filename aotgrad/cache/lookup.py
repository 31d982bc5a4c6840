"""Looks up a function of Dynamo's in the cache on disk, and stores what this process compiles.

In: Dynamo's graph, the flat function that runs it, its inputs. Out: `RestoredFunction`, or `Missing` with a compiler.
Where the cache fails, the function is compiled. `counters` and the logger `aotgrad.cache` tell what happened:

    cache_hits, cache_misses        functions that were found, or were not
    cache_bypasses                  functions that cannot be stored; the log says why
    cache_failures                  files that could not be read or written, or were damaged
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.fx as fx

from aotgrad.cache.entry import Entry, GraphText, StoredPlan, StoredSmallGraph
from aotgrad.cache.graphs import Origins, encode_half
from aotgrad.cache.io import assume, count_bypass, plan_store, read_entry, storing_backend, write_entry
from aotgrad.cache.key import NotCacheable, plan_key, reject_code_of_subclasses, stack_traces
from aotgrad.cache.partition_entry import lower_through_cache
from aotgrad.cache.restore import RestoredFunction, joint_digest, restore
from aotgrad.cache.serialize import PLAIN_RESULTS, DamagedEntry, NotSerializable
from aotgrad.cache.store import Store, count_failure
from aotgrad.capture.fake import find_fake_mode
from aotgrad.capture.trace import FlatFunction
from aotgrad.convention import Dedupe, MemorySharing
from aotgrad.ir import Compiled, JointGraph, Partition
from aotgrad.passes.known_values import KnownValues
from aotgrad.pipeline import Compiler, Executable, SmallGraph, Source, Stages, compile_forward, lower, partition_graph
from aotgrad.runtime.steps import ReturnValue
from aotgrad.subclasses.layout import WrapperLayout
from aotgrad.telemetry.counters import counters
from aotgrad.telemetry.graph_names import GraphNames
from aotgrad.telemetry.observer import Observer, is_watched
from aotgrad.torch_compat import FakeTensorMode, conditions_since, guards_of_mode

log = logging.getLogger("aotgrad.cache")


def look_up(
    module: fx.GraphModule, layout: WrapperLayout, dedupe: Dedupe, source: Source, compiler: Compiler
) -> RestoredFunction | StoredSmallGraph | Missing:
    """What another process compiled of a function, or how this one compiles it.

    Args:
        module: Dynamo's graph, which the function runs.
        layout: where the tensor subclasses are among the arguments of `module`.
        dedupe: which arguments of `module` are one tensor.
        source: the function.
        compiler: how to compile it.
    """
    if compiler.options.verify or is_watched():  # the stages are looked at
        return Missing(compiler)
    try:
        reject_code_of_subclasses(module, layout)
        search = PlanLookup.of(module, dedupe, source, compiler)
        found = search.find(source.function)
    except NotCacheable as reason:
        log.info("a function is traced in every process: %s", reason)
        return Missing(replace(compiler, lower=lower_through_cache))
    if found is not None:
        counters["cache_hits"] += 1
        return found
    counters["cache_misses"] += 1
    recording = Recording(search.origins)
    return Missing(replace(search.compiler, lower=recording), search, recording)


@dataclass(frozen=True)
class Missing:
    """A function that the cache does not have. `compiler` compiles it, and `keep` stores the stages for the next process."""

    compiler: Compiler
    search: PlanLookup | None = None
    recording: Recording | None = None

    def keep(self, stages: Stages) -> Stages:
        """Store the stages, if they can be stored."""
        if self.search is not None and self.recording is not None:
            self.search.keep(stages, self.recording)
        return stages


@dataclass(frozen=True)
class PlanLookup:
    """The lookup of one function. The backend of `compiler` stores its compiled graphs in `store`, too."""

    key: str
    store: Store
    compiler: Compiler
    args: Sequence[Any]
    origins: Origins
    mode: FakeTensorMode
    guards_before: int

    @classmethod
    def of(cls, module: fx.GraphModule, dedupe: Dedupe, source: Source, compiler: Compiler) -> PlanLookup:
        """Raises NotCacheable."""
        mode = find_fake_mode(source.args)
        key, store = plan_key(module, dedupe, source.args, source.hints, compiler, mode), plan_store()
        compiler = replace(compiler, backend=storing_backend(compiler.backend, store))
        return cls(key, store, compiler, source.args, tuple(stack_traces(module)), mode, guards_of_mode(mode))

    def find(self, function: FlatFunction) -> RestoredFunction | StoredSmallGraph | None:
        """The function as another process compiled it, if a usable entry exists."""
        content = self.store.read(self.key)
        if content is None:
            return None
        try:
            match self.entry(content):
                case StoredSmallGraph() as small:
                    return small
                case StoredPlan() as plan if self.shares_as(plan.sharing):
                    assume(plan.conditions)
                    return restore(plan, function, self.compiler, self.mode, self.origins)
        except Exception as error:  # the file is intact, but its content is unusable
            count_failure(f"{self.key} is unusable: {type(error).__name__}: {error}")
        return None

    def entry(self, content: bytes) -> Entry:
        entry = read_entry(content, self.mode)
        if not isinstance(entry, (StoredPlan, StoredSmallGraph)):
            raise DamagedEntry(f"an entry that is a {type(entry).__name__}")
        return entry

    def shares_as(self, sharing: MemorySharing) -> bool:
        """Whether the inputs share memory as they did when the entry was made."""
        return sharing.matches(self.args)

    def keep(self, made: Stages, recording: Recording) -> None:
        """Store the compiled function, if possible."""
        try:
            write_entry(self.store, self.key, self.entry_of(made, recording))
        except (NotSerializable, NotCacheable) as reason:
            count_bypass(reason)

    def entry_of(self, made: Stages, recording: Recording) -> Entry:
        """Raises NotSerializable, NotCacheable."""
        if isinstance(made, SmallGraph):
            return StoredSmallGraph(made.ops, made.reason)
        assert isinstance(made, Executable), "it was compiled"
        if recording.problem is not None:
            raise recording.problem
        assert recording.forward is not None and recording.joint is not None, "the graph was lowered"
        conditions = conditions_since(self.mode, self.guards_before)
        halves = tuple(encode_half(half, self.origins) for half in made.schedule.segments)
        return stored_plan(made, made.sharing(self.args), recording.forward, halves, recording.joint, conditions)


def stored_plan(
    made: Executable,
    sharing: MemorySharing,
    forward: GraphText,
    halves: tuple[GraphText, ...],
    joint: str,
    conditions: tuple[Any, ...],
) -> StoredPlan:
    """The entry of a compiled function; for the arguments see `StoredPlan`.

    Raises:
        NotSerializable: it returns an object that only this process has.
    """
    returned = (step.value for step in made.schedule.steps if isinstance(step, ReturnValue) and not step.is_name)
    if other := [type(value).__name__ for value in returned if type(value) not in PLAIN_RESULTS]:
        raise NotSerializable(f"a result that is a {other[0]}, an object of this process")
    return StoredPlan(
        convention=made.capture.convention,
        inputs=made.meta.inputs,
        sharing=sharing,
        schedule=replace(made.schedule, segments=()),
        source=made.source,
        segments=made.joint.segments,
        forward=forward,
        halves=halves,
        static_inputs=made.joint.static_inputs,
        joint=joint,
        depends_on_offsets=made.depends_on_offsets,
        conditions=conditions,
    )


# --- Recorded while a function is compiled ---------------------------------------------------------------------------


@dataclass
class Recording:
    """Lowers the joint graph of a function, and encodes the parts that the backend changes later."""

    origins: Origins
    joint: str | None = None
    forward: GraphText | None = None
    problem: NotSerializable | None = None

    def __call__(
        self, joint: JointGraph, compiler: Compiler, observe: Observer, known: KnownValues | None
    ) -> tuple[Partition, Compiled]:
        if self.joint is not None or self.problem is not None:  # a graph of a derivative, which is not stored
            return lower(joint, compiler, observe, known)
        names = GraphNames()
        partition = partition_graph(joint, compiler, names, known)
        try:
            self.joint, self.forward = joint_digest(joint), encode_half(partition.forward, self.origins)
        except NotSerializable as problem:
            self.problem = problem
        return compile_forward(partition, joint, compiler, observe, names)
