"""Finds what a backward changes in place: inputs, results and gradients that an autograd function, a hook or a recomputed
checkpoint region writes to.

In: a captured function, while its backward is traced. Out: the autograd nodes that write, and the memory.

    backward(ctx, g): ctx.history.mul_(2); return g * ctx.history
    segment           memory 0 as it is, tangent of output 0 -> gradient of primal 0, new value of memory 0
    memory 0          input 1

A trace in which a node writes for the first time is discarded. In the next one, the node is a segment by itself: it runs
when eager's node runs, between the same nodes. The memory that it writes is a `Memory` placeholder there: all readers in
the backward get it in place of the forward's value. After each node, the memory holds the placeholder, as every other
segment expects.

A checkpointed region is recomputed once in a backward, when the first of its nodes needs a value. So its nodes are one
segment, together with those between them, and each finds in the memory what the one before left there.

Memory that only a node itself has saved does not count: eager raises if it is read after a write.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.graph import op_table
from aotgrad.graph.geometry import Geometry
from aotgrad.graph.memory_owners import memory_owner
from aotgrad.ir import Capture, ChangedMemory, MemberInput, Region, ViewAndMutationMeta
from aotgrad.slots import ForwardResult, IntermediateBase, Memory, Primal, Tangent, UserOutput

Place = Primal | ForwardResult
"""Where to find memory at run time."""


@dataclass
class LastNode:
    """The autograd node that a backward is running or ran last.

    `runs`: each node that ran, after the last node of the graph before it, in order.
    """

    node: Any = None
    runs: list[tuple[fx.Node | None, Any]] = field(default_factory=list)

    def start(self, graph: fx.Graph, node: Any) -> None:
        self.node = node
        self.runs.append((next(iter(reversed(graph.nodes))), node))


@dataclass(frozen=True)
class Cell:
    """Memory that a node writes: `tensor` is all of it, and `value` its value after the forward, computed by `node`."""

    tensor: torch.Tensor
    value: torch.Tensor
    node: fx.Node
    place: Place


@dataclass(frozen=True)
class Seen:
    """A tensor before a node ran."""

    tensor: torch.Tensor
    value: torch.Tensor
    node: fx.Node
    version: int
    geometry: Geometry


@dataclass
class SeenTensors:
    """Tensors before a node ran, by identity, and wrapper subclasses with their versions, which their parts do not have."""

    tensors: dict[int, Seen] = field(default_factory=dict)
    wrappers: dict[int, tuple[torch.Tensor, int | None]] = field(default_factory=dict)

    def bumps_of_wrapper(self, storage: int) -> int:
        """How far the version rose of a wrapper with a part in this storage."""
        parts = ((torch_compat.with_parts([wrapper]), version) for wrapper, version in self.wrappers.values())
        found = ((wrapper, version) for (wrapper, *inside), version in parts if storage in storages(inside))
        return max(((torch_compat.version_of(wrapper) or 0) - (version or 0) for wrapper, version in found), default=0)

    def restore_versions_of_wrappers(self) -> None:
        for wrapper, version in self.wrappers.values():
            torch_compat.raise_version(wrapper, version, 0)


@dataclass(frozen=True)
class Write:
    """The value that the nodes of a group left in a cell (`to` is its storage) or in a gradient (its placeholder).

    `fake` is the traced value. `by` is one of the nodes.
    """

    by: Any
    to: int | fx.Node
    value: fx.Node
    fake: torch.Tensor
    version_bumps: int


@dataclass
class Effects:
    """The nodes of one function that write, and the memory; empty until a trace of its backward finds some.

    `regions` are the checkpointed regions whose recomputation has effects. The nodes that trigger a region are a group,
    which is one segment; any other writing node is a segment by itself.
    `grown`: the last trace found a new node or new memory. `held` are the placeholders of the memory. `private` are the
    storages that the running node saved and does not keep otherwise. `last` is the last node of the graph before it ran.
    `runs` are those of `LastNode`. `seen` is what the running node may write, and `saved` what the nodes so far have saved.
    """

    capture: Capture
    meta: ViewAndMutationMeta
    nodes: dict[Any, None] = field(default_factory=dict)
    regions: dict[Region, set[Any]] = field(default_factory=dict)
    cells: dict[int, Cell] = field(default_factory=dict)
    writes: dict[tuple[Any, int | fx.Node], Write] = field(default_factory=dict)
    grown: bool = False
    held: dict[int, torch.Tensor] = field(default_factory=dict)
    running: Any = None
    private: set[int] = field(default_factory=set)
    last: fx.Node | None = None
    runs: list[tuple[fx.Node | None, Any]] = field(default_factory=list)
    seen: SeenTensors = field(default_factory=SeenTensors)
    saved: SeenTensors = field(default_factory=SeenTensors)

    @property
    def any(self) -> bool:
        """Whether there are such nodes."""
        return bool(self.nodes or self.regions)

    @property
    def new_results(self) -> dict[IntermediateBase, fx.Node]:
        """The additional results of the forward that these writes need."""
        bases = [(cell.place, cell.node) for cell in self.cells.values() if isinstance(cell.place, IntermediateBase)]
        return {place: node for place, node in bases if place.index >= len(self.meta.bases)}

    def group_of(self, node: Any) -> Any:
        """The key of a writing node's group: the region that it triggers, or the node itself; `None` for other nodes."""
        outer = (region for region in self.regions if not any(map(region.is_within, self.regions)))
        for region in outer:
            if region.holds(node) and (node in self.nodes or self.makes_run(node, region)):
                return region
        return node if node in self.nodes else None

    def makes_run(self, node: Any, region: Region) -> bool:
        return torch_compat.saves_packed_values(node) or any(node in nodes for nodes in self.regions.values())

    # -- around a trace

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """Put placeholders into the memory while a backward is traced."""
        self.writes, self.saved, self.grown, self.running = {}, SeenTensors(), False, None
        for k, (storage, cell) in enumerate(self.cells.items()):
            self.held[storage] = self.capture.trace.add_memory(f"tangents_{k + 1}", cell.tensor)
            torch_compat.replace_value(cell.tensor, self.held[storage])
        try:
            yield
        finally:
            self.undo([seen for tensors in self.changed(self.saved).values() for seen in tensors])  # what was private
            self.saved.restore_versions_of_wrappers()
            for cell in self.cells.values():
                torch_compat.replace_value(cell.tensor, cell.value)

    @contextlib.contextmanager
    def watched(self, nodes: Sequence[Any], last: LastNode) -> Iterator[None]:
        """Watch the writes of custom and hooked nodes among `nodes`, and of recomputed regions."""
        trace, hooked = self.capture.trace, self.capture.hooked_nodes
        writing = (node for node in nodes if self.group_of(node) is not None)
        watched = [*{*filter(torch_compat.is_custom_node, nodes), *hooked.intersection(nodes), *writing}]
        handles = [node.register_prehook(lambda gradients, node=node: self.enter(node, gradients)) for node in watched]
        handles += [node.register_hook(lambda *_, node=node: self.leave(node)) for node in watched]
        trace.on_hook = self.enter
        self.runs = last.runs
        trace.on_region = functools.partial(self.rerun_region, last)
        try:
            yield
        finally:
            trace.on_hook = trace.on_region = None
            for handle in handles:
                handle.remove()

    # -- around a node

    def enter(self, node: Any, held: Sequence[Any]) -> None:
        """Note the values of all tensors that `node` may write, `held` included, unless it is running already."""
        if self.running is not node:
            self.running, self.seen = node, SeenTensors()
            self.last = next(iter(reversed(self.capture.trace.graph.nodes)))
            self.runs.append((self.last, node))
            kept, saved = torch_compat.with_parts(kept_by(node)), saved_by(node)
            self.note_seen(torch_compat.with_parts(saved), self.saved)
            self.private = storages(saved) - storages(kept)
            self.go_on_with(self.group_of(node))
            held = [*held, *self.capture.arguments, *self.capture.outputs, *kept, *saved]
        self.note_seen(held, self.seen)

    def note_seen(self, held: Iterable[Any], seen: SeenTensors) -> None:
        for tensor in held:
            if isinstance(tensor, torch.Tensor) and torch_compat.is_wrapper_subclass(tensor):
                seen.wrappers.setdefault(id(tensor), (tensor, torch_compat.version_of(tensor)))
            elif torch_compat.is_functional(tensor) and (whole := torch_compat.view_root(tensor)) is not None:
                seen.tensors.setdefault(id(whole), self.look_at(whole))

    def go_on_with(self, group: Any) -> None:
        """Put the values that earlier nodes of the group left into the memory."""
        for (by, storage), write in self.writes.items():
            if by is group and isinstance(storage, int):
                torch_compat.replace_value(self.cells[storage].tensor, write.fake)

    def look_at(self, tensor: torch.Tensor) -> Seen:
        node, value = self.capture.trace.node_of(tensor), torch_compat.from_functional(tensor)
        return Seen(tensor, value, node, torch_compat.version_of(tensor) or 0, Geometry.of(tensor))

    def leave(self, node: Any) -> None:
        """Note the writes of `node`, and undo them unless they are private."""
        for storage, tensors in self.changed().items():
            if (to := self.target(node, storage, tensors[0])) is not None:
                self.note(node, to, tensors)
        if self.has_drawn():  # it draws when eager's node runs, and only then
            self.add_node(node)
        for storage, value in self.held.items():
            torch_compat.replace_value(self.cells[storage].tensor, value)
        self.running, self.seen = None, SeenTensors()

    def changed(self, among: SeenTensors | None = None) -> dict[int, list[Seen]]:
        """The tensors that were changed, by their storage."""
        changed: dict[int, list[Seen]] = {}
        for seen in (among or self.seen).tensors.values():
            if self.capture.trace.node_of(seen.tensor) is not seen.node:
                changed.setdefault(torch_compat.traced_memory_id(seen.tensor), []).append(seen)
        return changed

    @contextlib.contextmanager
    def rerun_region(self, last: LastNode, region: Region, held: Sequence[Any]) -> Iterator[None]:
        """Around the recomputation of a region while node `last` runs. Undoes changes of a region that is not known yet."""
        node = last.node
        is_known = region in self.regions and self.group_of(node) is not None
        outer = self.running, self.seen, self.private, self.last
        if not is_known:
            self.running, self.seen, self.private = region, SeenTensors(), set()
            held = [*held, *self.capture.arguments, *self.capture.outputs]
        self.last = next(iter(reversed(self.capture.trace.graph.nodes)))
        self.note_seen(held, self.seen)
        try:
            yield
        finally:
            draws = self.note_draws(region)
            if not is_known:
                if draws or self.changed():
                    self.add_region(region, node)
                self.undo([seen for tensors in self.changed().values() for seen in tensors])
                self.running, self.seen, self.private, self.last = outer
            else:
                self.last = outer[-1]

    def add_region(self, region: Region, node: Any) -> None:
        self.regions.setdefault(region, set()).add(node)
        self.capture.trace.changing.add(region)
        self.grown = True

    def note_draws(self, region: Region) -> bool:
        """Whether the recomputed region drew other random numbers than in the forward; marks these draws."""
        made = itertools.takewhile(lambda each: each is not self.last, reversed(self.capture.trace.graph.nodes))
        drawn = [node for node in made if not region.keeps_state and op_table.draws(node)]
        for node in drawn:
            node.meta["own_backward"] = True
        return bool(drawn)

    def has_drawn(self) -> bool:
        """Whether the running node, of a custom function, drew random numbers itself."""
        made = itertools.takewhile(lambda each: each is not self.last, reversed(self.capture.trace.graph.nodes))
        return any(each.meta.get("own_backward") and op_table.draws(each) for each in made)

    def target(self, node: Any, storage: int, seen: Seen) -> int | fx.Node | None:
        """The memory that `node` wrote; `None` if it is private."""
        if storage in self.cells:
            self.add_node(node)
            return storage
        root = memory_owner(seen.node)
        if root.meta.get("autograd_backward"):  # a gradient: that of the segment, once the node is one
            self.add_node(node)
            return None
        if root.op == "placeholder" and root not in self.capture.placeholders:
            self.add_node(node)
            return root
        place = self.place(storage, seen)
        if place is None and storage in self.private:
            return None
        self.add_node(node)
        new = IntermediateBase(len(self.meta.bases) + len(self.new_results))
        self.cells[storage] = Cell(seen.tensor, seen.value, seen.node, new if place is None else place)
        self.grown = True
        return storage

    def add_node(self, node: Any) -> None:
        self.grown |= self.group_of(node) is None
        if self.group_of(node) is None:
            self.nodes[node] = None

    def place(self, storage: int, seen: Seen) -> Place | None:
        """The input or result in whose memory a tensor lies, or `None`.

        Raises:
            CaptureError: an input shares the memory with others.
        """
        for index, (spec, argument) in enumerate(zip(self.capture.inputs, self.capture.arguments, strict=True)):
            if torch_compat.has_storage(argument) and torch_compat.traced_memory_id(argument) == storage:
                if isinstance(spec, MemberInput) or index >= self.capture.convention.placeholder_count:
                    raise shared_memory_changes(self.capture.convention.argument_of(index))
                return Primal(index)
        for slot in self.meta.forward_results():
            match slot:
                case UserOutput(index):
                    live: Any = self.capture.outputs[index]
                case IntermediateBase(index):
                    live = self.meta.bases[index].live
                case _:
                    continue
            is_same = torch_compat.has_storage(live) and torch_compat.traced_memory_id(live) == storage
            if is_same and Geometry.of(live) == seen.geometry:
                return slot
        return None

    def note(self, node: Any, to: int | fx.Node, tensors: Sequence[Seen]) -> None:
        """Note a write, and undo it.

        Raises:
            CaptureError: the size or stride was changed.
        """
        if any(Geometry.of(seen.tensor) != seen.geometry for seen in tensors):
            raise CaptureError(
                "the backward of an autograd function changes the size or stride of a tensor in place that it has not made "
                "itself (t_, resize_, ...); use t(), ... instead"
            )
        group, tensor = self.group_of(node), tensors[0].tensor
        bumps = max((torch_compat.version_of(seen.tensor) or 0) - seen.version for seen in tensors)
        of_wrapper = self.seen.bumps_of_wrapper(torch_compat.traced_memory_id(tensor))  # 0 for its next part: see `undo`
        bumps = max(bumps, of_wrapper)
        if (earlier := self.writes.get((group, to))) is not None:
            bumps += earlier.version_bumps
        value, fake = self.capture.trace.node_of(tensor), torch_compat.from_functional(tensor)
        self.writes[group, to] = Write(node, to, value, fake, bumps)
        self.undo(tensors)

    def undo(self, tensors: Sequence[Seen]) -> None:
        """Restore values and versions of tensors."""
        for seen in tensors:
            torch_compat.raise_version(seen.tensor, seen.version, 0)
            torch_compat.replace_value(seen.tensor, seen.value)
        self.seen.restore_versions_of_wrappers()

    # -- after a trace

    def collectives(self) -> dict[Any, list[fx.Node]]:
        """The autograd nodes that communicate, with the collectives and waits that they ran."""
        graph = self.capture.trace.graph
        starts = {id(before): node for before, node in self.runs}
        found: dict[Any, list[fx.Node]] = {}
        running: Any = None
        for node in graph.nodes if self.runs else ():
            if running is not None and node.meta.get("autograd_backward") and op_table.communicates(node.target):
                found.setdefault(running, []).append(node)
            running = starts.get(id(node), running)
        return found

    def memory(self, tangents: Mapping[fx.Node, Tangent]) -> list[Place | Tangent]:
        """The places of all memory: the cells, then the written gradients."""
        written = [tangents[to] for to in (w.to for w in self.writes.values()) if isinstance(to, fx.Node) and to in tangents]
        return [*(cell.place for cell in self.cells.values()), *written]

    def outcome(
        self, tangents: Mapping[fx.Node, Tangent], segment_of: Mapping[Any, int]
    ) -> Iterator[tuple[int, ChangedMemory, fx.Node]]:
        """For each write its segment, the changed memory, and the new value.

        Writes outside of the segments are left out: the trace also runs nodes behind the function's inputs, with zeros.
        """
        numbers: dict[Any, int] = {storage: k for k, storage in enumerate(self.cells)}
        numbers |= {place: k for k, place in enumerate(self.memory(tangents)) if isinstance(place, Tangent)}
        custom = {number for node, number in segment_of.items() if torch_compat.is_custom_node(node)}
        for write in (write for write in self.writes.values() if write.by in segment_of):
            tangent = tangents[write.to] if isinstance(write.to, fx.Node) else None
            memory = Memory(numbers[write.to if tangent is None else tangent])
            number = segment_of[write.by]
            for_saved = self.group_of(write.by) is not write.by and number not in custom  # which may ask for it always
            yield number, ChangedMemory(memory, write.version_bumps, tangent, for_saved), write.value


def shared_memory_changes(argument: int) -> CaptureError:
    return CaptureError(
        f"input {argument} is changed in place by the backward of an autograd function, a hook, or a checkpointed region, "
        "and shares memory with another input; pass a clone() of one of them"
    )


def kept_by(node: Any) -> list[Any]:
    return torch_compat.kept_by_function(node) if torch_compat.is_custom_node(node) else []


def saved_by(node: Any) -> list[Any]:
    return torch_compat.saved_by_function(node) if torch_compat.is_custom_node(node) else []


def storages(tensors: Collection[Any]) -> set[int]:
    return {torch_compat.traced_memory_id(tensor) for tensor in tensors if torch_compat.has_storage(tensor)}
