"""The compilation of one call as plain data: a row for each input, output, graph, node, saved value, step and plan.

An `Explanation` prints as a report (`inspect.report`), converts to JSON, and draws a page (`inspect.page`).
`inspect.rows` makes it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Any

from aotgrad.inspect.page.write import write_page
from aotgrad.inspect.report import report_text


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's program."""

    file: str
    line: int
    code: str


@dataclass(frozen=True)
class InputRow:
    """One tensor argument, symbolic number, or synthetic base (the memory that several arguments share).

    Attributes:
        name: the user's name for it: `x`, `batch['ids']`, `layers.0.weight`.
        kind: `"parameter"`, `"buffer"`, `"argument"`, `"symbolic number"` or `"synthetic base"`; of a training step also
            `"gradient"`, `"optimizer state"` and `"numbers"`.
        type: dtype, sizes, strides and device as FX prints them, `f32[2, 3]`.
        bytes: the size of its elements.
        requires_grad: at the start of the call.
        happened: what the function did to it.
        gradient: whether a backward computes one, or why not.
    """

    name: str
    kind: str
    type: str
    bytes: int
    requires_grad: bool
    happened: str
    gradient: str


@dataclass(frozen=True)
class OutputRow:
    """One leaf of the result: what it is an alias of, and which backward its gradient enters."""

    name: str
    type: str
    what: str
    backward: str


@dataclass(frozen=True)
class GraphRow:
    """One graph: `ops` of its `nodes` compute tensors (no views, no numbers)."""

    name: str
    ops: int
    nodes: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class NodeRow:
    """One node of the joint graph; without a backward of its own, as in a training step, of the graph that runs.

    Attributes:
        name: as in the other rows: of an input, the user's name.
        op: `aten.mm.default`, `input`, `constant`, or `getitem` for an item of what an op returns.
        type: of its result.
        bytes: of the memory that the result owns; 0 for views and numbers, and for sizes that are symbolic.
        graph: the first graph that computes it, as in `GraphRow`.
        state: `"saved"`, `"offloaded"` or `"recomputed"`; of others `"input"` or `"computed"`.
        reason: why it is saved, offloaded or recomputed; empty for others.
        is_island: whether it runs in eager between compiled parts.
        where: the user's line that computes it.
    """

    name: str
    op: str
    type: str
    bytes: int
    graph: str
    state: str
    reason: str
    is_island: bool
    where: SourceLine | None


@dataclass(frozen=True)
class SavedRow:
    """One value that the forward keeps for the backward.

    Attributes:
        name: of the argument or node; `max[1]` is an item of the result of `max`.
        bytes: of memory that stays allocated only because the value is saved.
        is_own: whether it is a parameter or buffer.
        where: the user's line that computes it; `None` for arguments.
    """

    name: str
    type: str
    bytes: int
    reason: str
    is_own: bool
    where: SourceLine | None


@dataclass(frozen=True)
class OffloadedRow:
    """One value that waits on the host between forward and backward.

    Attributes:
        bytes: on the host.
        transfer_seconds: on the link, there and back, as estimated.
        exposed_seconds: those during which the device would wait for the link.
        where: the user's line that computes it.
    """

    name: str
    type: str
    bytes: int
    transfer_seconds: float
    exposed_seconds: float
    reason: str
    where: SourceLine | None


@dataclass(frozen=True)
class RecomputedRow:
    """One op that the backward recomputes, and its cost when run alone; fused ops cost less."""

    name: str
    type: str
    traffic_bytes: int
    flops: int
    reason: str
    where: SourceLine | None


@dataclass(frozen=True)
class IslandRow:
    """One op that runs in eager between compiled parts of a graph.

    Attributes:
        graph: the name of the graph, as in `GraphRow`.
        name, type: of its result.
        where: the user's line that computes it.
    """

    graph: str
    name: str
    type: str
    reason: str
    where: SourceLine | None


@dataclass(frozen=True)
class MemoryRow:
    """The most bytes alive while an op runs, as simulated, without arguments of the call.

    Attributes:
        half: `"forward"` or `"backward"`.
        op: the name of its result.
        where: the user's line that computes it.
    """

    half: str
    op: str
    bytes: int
    where: SourceLine | None


@dataclass(frozen=True)
class SegmentRow:
    """One autograd node of the function: a part of the backward that runs alone.

    Attributes:
        name: of its graph, as in `GraphRow`.
        tangents: the results whose gradients enter.
        gradients: the inputs and other results whose gradients it computes.
        ops: that compute tensors.
    """

    name: str
    tangents: tuple[str, ...]
    gradients: tuple[str, ...]
    ops: int


@dataclass(frozen=True)
class VariantRow:
    """A compiled backward graph: its name, with undefined tangents and unwanted gradients, and its ops."""

    name: str
    ops: int


@dataclass(frozen=True)
class PlanRow:
    """A plan of the function; `explained`: the report is about this one."""

    explained: bool
    hits: int
    compile_ms: float
    guards: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """The compilation of one call. Print it, read its attributes, or export it with `to_json()`.

    Attributes:
        name: the name of the function.
        backend: the name of the backend.
        note: why there are no graphs, if the original function runs in place of a plan.
        inputs, outputs, graphs, nodes, islands, saved, offloaded, recomputed, memory, segments: one row each, see their
            types.
        steps: the steps of one call, in words.
        source: the emitted Python function.
        variants: the backward graphs compiled so far.
        plans: every plan of the function.
    """

    name: str
    backend: str
    note: str | None
    inputs: tuple[InputRow, ...] = ()
    outputs: tuple[OutputRow, ...] = ()
    graphs: tuple[GraphRow, ...] = ()
    nodes: tuple[NodeRow, ...] = ()
    islands: tuple[IslandRow, ...] = ()
    saved: tuple[SavedRow, ...] = ()
    offloaded: tuple[OffloadedRow, ...] = ()
    recomputed: tuple[RecomputedRow, ...] = ()
    memory: tuple[MemoryRow, ...] = ()
    steps: tuple[str, ...] = ()
    source: str = ""
    segments: tuple[SegmentRow, ...] = ()
    variants: tuple[VariantRow, ...] = ()
    plans: tuple[PlanRow, ...] = ()

    @property
    def saved_bytes(self) -> int:
        """The bytes that stay allocated on the device between forward and backward because they are saved."""
        return sum(row.bytes for row in self.saved)

    @property
    def host_bytes(self) -> int:
        """The bytes that wait on the host between forward and backward."""
        return sum(row.bytes for row in self.offloaded)

    @property
    def recomputed_bytes(self) -> int:
        """The memory traffic of the recomputed ops, each run alone."""
        return sum(row.traffic_bytes for row in self.recomputed)

    @property
    def recomputed_flops(self) -> int:
        """The floating point operations of the recomputed ops."""
        return sum(row.flops for row in self.recomputed)

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at any moment of the call, as simulated, without its arguments."""
        return max((row.bytes for row in self.memory), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Lists, dictionaries, strings and numbers, with the totals."""
        totals = ("saved_bytes", "host_bytes", "recomputed_bytes", "recomputed_flops", "peak_bytes")
        return {**dataclasses.asdict(self), **{name: getattr(self, name) for name in totals}}

    def to_json(self, indent: int | None = 2) -> str:
        """`to_dict()` as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def html(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict()` as a page for a browser, in one file that loads nothing from elsewhere.

        It shows the nodes by source line, what is saved and recomputed, and the memory over the call.

        Raises:
            MissingPackage: plotly is not installed, which `pip install "aotgrad[plot]"` does.

        Example:
            >>> import tempfile, torch, aotgrad
            >>> report = aotgrad.explain(lambda x: x.sin().sum())(torch.ones(2, 3, requires_grad=True))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     report.html(f"{folder}/report.html")
        """
        write_page(self.to_dict(), path)

    def __str__(self) -> str:
        return report_text(self)
