"""The rows of a sweep as tables.

print(summary(rows))        for each variant, the percentage of passing calls, of aotgrad and of the peer
print(exceptions(rows))     what does not pass: operator, variants, verdict, reason
print(page(rows, command))  both tables, as a document
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Sequence

import torch
from tabulate import tabulate

from aotgrad.conformance.sweep import Row
from aotgrad.conformance.tables import TABLE, escaped
from aotgrad.conformance.verdict import VERDICTS, NotSupported, Passed
from tests.conformance.expectations import expected
from tests.conformance.variants import VARIANTS


def counts(rows: Collection[Row]) -> Counter[type]:
    return Counter(NotSupported if isinstance(row.verdict, NotSupported) else type(row.verdict) for row in rows)


def share(count: Counter[type]) -> str:
    """Percentage of passed rows among those that eager supports."""
    counted = sum(count.values()) - count[NotSupported]
    return f"{100 * count[Passed] / counted:.2f} %" if counted else "-"


def summary(rows: Collection[Row]) -> str:
    """The passing share by variant; at the end, over all variants that every compiler ran in."""
    compilers = sorted({row.task.compiler for row in rows})
    variants = list(dict.fromkeys(row.task.variant for row in rows))
    pairs = {(row.task.compiler, row.task.variant) for row in rows}
    common = [variant for variant in variants if all((compiler, variant) in pairs for compiler in compilers)]
    table = [summary_line(variant, [variant], rows, compilers) for variant in variants]
    table.append(summary_line("variants with all figures", common, rows, compilers))
    return tabulate(table, headers=["variant", "compared", *compilers], tablefmt=TABLE)


def summary_line(title: str, variants: Sequence[str], rows: Collection[Row], compilers: Sequence[str]) -> list[str | int]:
    chosen = [row for row in rows if row.task.variant in variants]
    by_compiler = [counts([row for row in chosen if row.task.compiler == compiler]) for compiler in compilers]
    compared = max(sum(count.values()) - count[NotSupported] for count in by_compiler)
    return [title, compared, *map(share, by_compiler)]


def verdicts(rows: Collection[Row]) -> str:
    """The number of each verdict."""
    compilers = sorted({row.task.compiler for row in rows})
    by_compiler = [counts([row for row in rows if row.task.compiler == compiler]) for compiler in compilers]
    table = [[kind.__name__, *(count[kind] for count in by_compiler)] for kind in VERDICTS]
    return tabulate(table, headers=["verdict", *compilers], tablefmt=TABLE)


def exceptions(rows: Collection[Row]) -> str:
    """The failures, one line per subject and verdict."""
    groups: dict[tuple[str, type], list[Row]] = {}
    for row in rows:
        if not isinstance(row.verdict, (Passed, NotSupported)):
            groups.setdefault((row.task.subject, type(row.verdict)), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: (-VERDICTS.index(item[0][1]), item[0][0]))
    table = [[name, variants_of(bad), kind.__name__, reason_of(bad[0])] for (name, kind), bad in ordered]
    return tabulate(table, headers=["operator", "variant", "verdict", "reason"], tablefmt=TABLE)


def variants_of(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(row.task.variant for row in rows))


def reason_of(row: Row) -> str:
    """The reason in the table of expected failures, or else the observed one."""
    line = expected(row) if row.task.compiler == "aotgrad" else None
    return escaped(row.verdict.reason if line is None else line.reason)


def page(rows: Collection[Row], command: str, note: str = "") -> str:
    """The document of a sweep's results; `note` describes the sweep."""
    ours = [row for row in rows if row.task.compiler == "aotgrad"]
    samples = max(row.task.samples for row in rows)
    return PAGE.format(
        command=command,
        note=f"\n\n{textwrap.fill(note, 120)}" if note else "",
        samples=samples,
        torch=torch.__version__,
        summary=summary(rows),
        verdicts=verdicts(rows),
        exceptions=exceptions(ours),
        not_run=", ".join(variant for variant in VARIANTS if variant not in {row.task.variant for row in rows}) or "none",
    )


PAGE = """# Conformance

Made by `{command}` with torch {torch} on a CPU.
The command runs only what its file of results lacks (`conformance.jsonl`, or `--results FILE`).{note}

The sweep calls every operator and module of torch's databases with up to {samples} sample inputs, forward and backward, in
eager and compiled. It compares values, dtypes, strides, flags, aliases and memory of outputs; the arguments, parameters
and buffers afterwards; and which gradients exist, with their values and strides. The peer, torch's own `aot_function`,
is held to the same.

## How many pass

Percentages of what eager supports in the variant; the aim is 99.5. A cell without a number was not run.
Variants that were not run at all: {not_run}.

{summary}

The verdicts in all variants that were run:

{verdicts}

`OtherStrides`: an output or gradient has another memory layout than in eager. `FellBack`: a warning says that the original
ran instead of a plan. `Refused`: an aotgrad error at compile time says what is not supported. `Wrong`: a difference from
eager without an error. `NotSupported`: eager raises or there is no sample; not counted.

## What does not pass

{exceptions}
"""
