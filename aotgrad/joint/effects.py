"""What a backward changes in place: inputs, results and gradients that an autograd function or a hook writes to.

In: a captured function, while its backward is traced. Out: which autograd nodes write, and to what memory.

    backward(ctx, g): ctx.history.mul_(2); return g * ctx.history
    segment           memory 0 as it is, tangent of output 0 -> gradient of primal 0, new value of memory 0
    memory 0          input 1

A trace in which a node writes for the first time is thrown away. In the next one, the node is a segment by itself: it runs
when eager's node runs, and between the same ones. What it writes to is `Memory` there: a placeholder, which all that reads
it in the backward gets, in place of what the forward knew. After each node it holds the placeholder again, as any other
segment finds it.

What a node has saved, and nobody else can see, is no such memory: eager raises where it is read again.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx

from aotgrad import op_table, torch_compat
from aotgrad.errors import CaptureError
from aotgrad.ir import Capture, ChangedMemory, Geometry, MemberInput, ViewAndMutationMeta
from aotgrad.slots import ForwardResult, IntermediateBase, Memory, Primal, Tangent, UserOutput

Place = Primal | ForwardResult
"""Where memory is found at run time."""


@dataclass(frozen=True)
class Cell:
    """Memory that a node writes to: `tensor` is all of it, `value` what the forward left there, as `node` computes it."""

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


@dataclass(frozen=True)
class Write:
    """What an autograd node left in a cell, by its storage, or in a gradient that came in, by its placeholder."""

    by: Any
    to: int | fx.Node
    value: fx.Node
    version_bumps: int


@dataclass
class Effects:
    """The nodes of one function that write, and to what: empty until a trace of its backward has seen some.

    `grown`: the last trace has seen a node or memory that was not known. `private` are the storages that the running node
    has saved, and does not keep otherwise, `last` is the last node of the graph when it began.
    """

    capture: Capture
    meta: ViewAndMutationMeta
    nodes: dict[Any, None] = field(default_factory=dict)
    cells: dict[int, Cell] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    grown: bool = False
    running: Any = None
    private: set[int] = field(default_factory=set)
    last: fx.Node | None = None
    seen: dict[int, Seen] = field(default_factory=dict)

    @property
    def new_results(self) -> dict[IntermediateBase, fx.Node]:
        """What the forward returns for the sake of these writes alone."""
        bases = [(cell.place, cell.node) for cell in self.cells.values() if isinstance(cell.place, IntermediateBase)]
        return {place: node for place, node in bases if place.index >= len(self.meta.bases)}

    # -- around a trace

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """While a backward is traced, the memory holds placeholders."""
        self.writes, self.grown, self.running = [], False, None
        for k, cell in enumerate(self.cells.values()):
            torch_compat.replace_value(cell.tensor, self.capture.trace.add_memory(f"tangents_{k + 1}", cell.tensor))
        try:
            yield
        finally:
            for cell in self.cells.values():
                torch_compat.replace_value(cell.tensor, cell.value)

    @contextlib.contextmanager
    def watched(self, nodes: Iterable[Any]) -> Iterator[None]:
        """Look at what the custom and the hooked ones among `nodes` write to."""
        trace, hooked = self.capture.trace, self.capture.hooked_nodes
        watched = [node for node in nodes if torch_compat.is_custom_node(node) or node in hooked]
        handles = [node.register_prehook(lambda gradients, node=node: self.enter(node, gradients)) for node in watched]
        handles += [node.register_hook(lambda *_, node=node: self.leave(node)) for node in watched]
        trace.on_hook = self.enter
        try:
            yield
        finally:
            trace.on_hook = None
            for handle in handles:
                handle.remove()

    # -- around a node

    def enter(self, node: Any, held: Sequence[Any]) -> None:
        """Note what is in all that `node` may write to, unless it is running; `held` is among it."""
        if self.running is not node:
            self.running, self.seen = node, {}
            self.last = next(reversed(self.capture.trace.graph.nodes))
            kept, saved = kept_by(node), saved_by(node)
            self.private = storages(saved) - storages(kept)
            held = [*held, *self.capture.arguments, *self.capture.outputs, *kept, *saved]
        for tensor in held:
            if torch_compat.is_functional(tensor) and (whole := torch_compat.whole(tensor)) is not None:
                self.seen.setdefault(id(whole), self.look_at(whole))

    def look_at(self, tensor: torch.Tensor) -> Seen:
        node, value = self.capture.trace.node_of(tensor), torch_compat.from_functional(tensor)
        return Seen(tensor, value, node, torch_compat.version_of(tensor) or 0, Geometry.of(tensor))

    def leave(self, node: Any) -> None:
        """Note what `node` has written to, and undo that, unless nobody can see it."""
        changed: dict[int, list[Seen]] = {}
        for seen in self.seen.values():
            if self.capture.trace.node_of(seen.tensor) is not seen.node:
                changed.setdefault(torch_compat.storage_id(seen.tensor), []).append(seen)
        for storage, tensors in changed.items():
            if (to := self.target(node, storage, tensors[0])) is not None:
                self.note(node, to, tensors)
        if self.has_drawn():  # it draws when eager's node runs, and only then
            self.add_node(node)
        self.running, self.seen = None, {}

    def has_drawn(self) -> bool:
        """Whether the running node, that of a custom function, has drawn random numbers itself."""
        made = itertools.takewhile(lambda each: each is not self.last, reversed(self.capture.trace.graph.nodes))
        return any(each.meta.get("own_backward") and op_table.is_random(each.target) for each in made)

    def target(self, node: Any, storage: int, seen: Seen) -> int | fx.Node | None:
        """What `node` has written to; `None` if nobody else can see it."""
        if storage in self.cells:
            self.add_node(node)
            return storage
        root = torch_compat.storage_node(seen.node)
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
        self.grown |= node not in self.nodes
        self.nodes[node] = None

    def place(self, storage: int, seen: Seen) -> Place | None:
        """The input or result that some memory is.

        Raises:
            CaptureError: it is an input that shares memory with others.
        """
        for index, (spec, argument) in enumerate(zip(self.capture.inputs, self.capture.arguments, strict=True)):
            if torch_compat.has_storage(argument) and torch_compat.storage_id(argument) == storage:
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
            is_same = torch_compat.has_storage(live) and torch_compat.storage_id(live) == storage
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
        bumps = [(torch_compat.version_of(seen.tensor) or 0) - seen.version for seen in tensors]
        self.writes.append(Write(node, to, self.capture.trace.node_of(tensors[0].tensor), max(bumps)))
        for seen in tensors:
            torch_compat.raise_version(seen.tensor, seen.version, 0)
        torch_compat.replace_value(tensors[0].tensor, tensors[0].value)

    # -- after a trace

    def memory(self, tangents: Mapping[fx.Node, Tangent]) -> list[Place | Tangent]:
        """Where each memory is found: the cells, then the gradients that are written to."""
        written = [tangents[to] for to in (w.to for w in self.writes) if isinstance(to, fx.Node) and to in tangents]
        return [*(cell.place for cell in self.cells.values()), *written]

    def outcome(
        self, tangents: Mapping[fx.Node, Tangent], segment_of: Mapping[Any, int]
    ) -> Iterator[tuple[int, ChangedMemory, fx.Node]]:
        """For each write the segment that does it, what it is to, and the new value.

        The trace runs what stands behind the function's inputs, too, with zeros: another function of which one is a result.
        """
        numbers: dict[Any, int] = {storage: k for k, storage in enumerate(self.cells)}
        numbers |= {place: k for k, place in enumerate(self.memory(tangents)) if isinstance(place, Tangent)}
        for write in (write for write in self.writes if write.by in segment_of):
            tangent = tangents[write.to] if isinstance(write.to, fx.Node) else None
            memory = Memory(numbers[write.to if tangent is None else tangent])
            yield segment_of[write.by], ChangedMemory(memory, write.version_bumps, tangent), write.value


def shared_memory_changes(argument: int) -> CaptureError:
    return CaptureError(
        f"input {argument} is changed in place by the backward of an autograd function, or by a hook, and shares memory "
        "with another input; pass a clone() of one of them"
    )


def kept_by(node: Any) -> list[Any]:
    return torch_compat.kept_by_function(node) if torch_compat.is_custom_node(node) else []


def saved_by(node: Any) -> list[Any]:
    return torch_compat.saved_by_function(node) if torch_compat.is_custom_node(node) else []


def storages(tensors: Collection[Any]) -> set[int]:
    return {torch_compat.storage_id(tensor) for tensor in tensors if torch_compat.has_storage(tensor)}
