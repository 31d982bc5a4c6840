"""An `Explanation` as text: one table per topic.

In: an `Explanation`. Out: its report. Unchanged parameters share a line; the largest saved values come first.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

if TYPE_CHECKING:  # their __str__ calls this module
    from aotgrad.inspect.dynamo import DynamoExplanation
    from aotgrad.inspect.explanation import Explanation, InputRow, MemoryRow, OffloadedRow, PlanRow, SourceLine


def report_text(explanation: Explanation) -> str:
    """The whole report, without a newline at the end."""
    sections = [headline(explanation), *(sections_of(explanation) if explanation.note is None else ())]
    return "\n\n".join([*sections, *plan_sections(explanation.plans)])


def dynamo_report_text(explanation: DynamoExplanation) -> str:
    """The graph breaks, and the report of each graph."""
    count = len(explanation.graphs)
    head = f"{explanation.name}: Dynamo makes {count} graph{'' if count == 1 else 's'} of it"
    broken = [f"  {where_text(each.where)}\n{indented(each.reason)}" for each in explanation.breaks]
    return "\n\n".join([head, *(["broken at", *broken] if broken else []), *map(report_text, explanation.graphs)])


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines() if line.strip())


def headline(explanation: Explanation) -> str:
    note = explanation.note or f"saves {size_text(explanation.saved_bytes)} for the backward"
    return f"{explanation.name} with backend {explanation.backend}: {note}"


def sections_of(explanation: Explanation) -> Iterator[str]:
    yield section("inputs", ("", "kind", "type", "what happens to it", "gradient"), list(input_rows(explanation.inputs)))
    outputs = [(row.name, row.type, row.what, row.backward or "none") for row in explanation.outputs]
    yield section("outputs", ("", "type", "what it is", "its gradient enters"), outputs)
    graphs = [(row.name, row.ops, row.nodes, row.inputs, row.outputs) for row in explanation.graphs]
    yield section("graphs", ("", "ops that compute", "nodes", "inputs", "outputs"), graphs)
    if explanation.islands:
        islands = [(row.graph, row.name, row.type, line_text(row.where), row.reason) for row in explanation.islands]
        yield section("ops that run in eager between compiled graphs", ("in", "", "type", "line", "why"), islands)
    if any("backward" in row.name for row in explanation.graphs):
        yield saved_section(explanation)
        if explanation.offloaded:
            yield offloaded_section(explanation)
        yield recomputed_section(explanation)
    if explanation.peak_bytes:
        yield memory_section(explanation)
    steps = "\n".join(f"  {number}. {step}" for number, step in enumerate(explanation.steps, 1))
    yield f"what one call does\n{steps}"
    variants = [(row.name, row.ops) for row in explanation.variants]
    if variants:
        yield section("backward graphs compiled so far", ("", "ops that compute"), variants)
    elif len(explanation.graphs) > 1:
        yield "backward graphs compiled so far: none; each is compiled when a backward first needs it"


def section(title: str, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return f"{title}: none"
    table = tabulate(rows, headers, tablefmt="simple", disable_numparse=True, colalign=alignment(rows[0]))
    return "\n".join([title, *(f"  {line}".rstrip() for line in table.splitlines())])


def alignment(row: Sequence[Any]) -> list[str]:
    return ["right" if isinstance(cell, int) else "left" for cell in row]


# --- Inputs ----------------------------------------------------------------------------------------------------------


def input_rows(inputs: Sequence[InputRow]) -> Iterator[tuple[str, ...]]:
    """One row per input; unchanged parameters and buffers with the same gradient are counted in one row."""
    folded = Counter(fold_key(row) for row in inputs if is_foldable(row))
    for row in inputs:
        count = folded.get(fold_key(row), 0) if is_foldable(row) else 1
        if count == 1:
            yield (row.name, row.kind, row.type, row.happened, row.gradient)
        elif count > 1:
            sizes = sum(other.bytes for other in inputs if is_foldable(other) and fold_key(other) == fold_key(row))
            yield (f"({count} {row.kind}s)", row.kind, size_text(sizes), row.happened, row.gradient)
            folded[fold_key(row)] = 0


def is_foldable(row: InputRow) -> bool:
    return row.kind in ("parameter", "buffer") and row.happened == "unchanged"


def fold_key(row: InputRow) -> tuple[str, ...]:
    return (row.kind, row.happened, row.gradient)


# --- Saved and recomputed --------------------------------------------------------------------------------------------


def saved_section(explanation: Explanation) -> str:
    kept = [row for row in explanation.saved if not row.is_own]
    rows = [(row.where, row.bytes, (row.bytes, row.name, row.type, reason_text(row.reason))) for row in kept]
    lines = [f"saved for the backward: {size_text(explanation.saved_bytes)}"]
    lines += by_line(rows, ("bytes", "value", "type", "reason"))
    if own := len(explanation.saved) - len(kept):
        lines.append(f"  parameters and buffers, which are alive anyway: {own}")
    return "\n".join(lines) if explanation.saved else "saved for the backward: nothing"


def offloaded_section(explanation: Explanation) -> str:
    found = explanation.offloaded
    rows = [(row.where, row.bytes, (row.bytes, *micros(row), row.name, row.type, reason_text(row.reason))) for row in found]
    link, exposed = (sum(each) for each in zip(*map(micros, found), strict=True))
    cost = f"{size_text(explanation.host_bytes)}; {link} us on the link are estimated, {exposed} us of them exposed"
    headers = ("bytes", "us on the link", "us exposed", "value", "type", "reason")
    return "\n".join([f"on the host until the backward: {cost}", *by_line(rows, headers)])


def micros(row: OffloadedRow) -> tuple[int, int]:
    """The times of a row in microseconds."""
    return round(row.transfer_seconds * 1e6), round(row.exposed_seconds * 1e6)


def recomputed_section(explanation: Explanation) -> str:
    if not explanation.recomputed:
        return "recomputed in the backward: nothing"
    rows = [
        (row.where, row.traffic_bytes, (row.traffic_bytes, row.flops, row.name, row.type, reason_text(row.reason)))
        for row in explanation.recomputed
    ]
    cost = f"{size_text(explanation.recomputed_bytes)} read and written, {explanation.recomputed_flops} FLOPs"
    headers = ("bytes moved", "FLOPs", "value", "type", "reason")
    return "\n".join([f"recomputed in the backward: {cost}", *by_line(rows, headers)])


MOST_LINES = 8
"""The lines of the user's program that the report on memory shows."""


def memory_section(explanation: Explanation) -> str:
    """The lines that run while most bytes are alive, in the order in which they run."""
    highest: dict[tuple[str, SourceLine | None], MemoryRow] = {}
    for row in filter(lambda row: row.bytes, explanation.memory):
        known = highest.setdefault((row.half, row.where), row)
        if row.bytes > known.bytes:
            highest[row.half, row.where] = row
    shown = sorted(highest.values(), key=lambda row: -row.bytes)[:MOST_LINES]
    rows = [(row.bytes, row.half, row.op, line_text(row.where)) for row in highest.values() if row in shown]
    title = f"memory of one call, simulated, without its arguments: {size_text(explanation.peak_bytes)} at the peak"
    return section(title, ("bytes", "in", "computing", "line"), rows)


def line_text(where: SourceLine | None) -> str:
    return "" if where is None else where_text(where)


Placed = tuple["SourceLine | None", int, tuple[Any, ...]]
"""The user's line, the bytes and the cells of a row."""


def by_line(rows: Sequence[Placed], headers: Sequence[str]) -> Iterator[str]:
    """One table, its rows grouped by the user's line. The most bytes come first, among lines and within a line."""
    totals: Counter[SourceLine | None] = Counter()
    for where, size, _ in rows:
        totals[where] += size
    ordered = sorted(rows, key=lambda row: (-totals[row[0]], row[0] is not None, str(row[0]), -row[1]))
    cells = [cells for *_, cells in ordered]
    if not cells:
        return
    head, rule, *body = tabulate(cells, headers, "simple", disable_numparse=True, colalign=alignment(cells[0])).splitlines()
    yield from (f"  {head}".rstrip(), f"  {rule}")
    before: tuple = ()
    for (where, *_), line in zip(ordered, body, strict=True):
        if (where,) != before:
            before = (where,)
            yield f"  {where_text(where)}"
        yield f"  {line}".rstrip()


def where_text(where: SourceLine | None) -> str:
    if where is None:
        return "arguments of the call"
    return f"{os.path.basename(where.file)}:{where.line}  {where.code}"


def reason_text(reason: str) -> str:
    """The reason without the words of the title."""
    return reason.replace(" in the backward", "")


def size_text(count: int) -> str:
    """A number of bytes with a unit.

    >>> size_text(800), size_text(12_345_678)
    ('800 bytes', '12.35 MB')
    """
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= 10 * size or (unit == "GB" and count >= size):
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"


# --- Plans -----------------------------------------------------------------------------------------------------------


def plan_sections(rows: Sequence[PlanRow]) -> Iterator[str]:
    """The table of plans; none at the first call of the function."""
    if len(rows) > 1 or any(row.hits for row in rows):
        marks = [("-> " if row.explained else "") + str(number) for number, row in enumerate(rows)]
        table = [(mark, row.hits, "\n".join(row.guards)) for mark, row in zip(marks, rows, strict=True)]
        yield section("plans of the function (-> is the one above)", ("plan", "hits", "used if"), table)
