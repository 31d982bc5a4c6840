"""The rows of a sweep as tables.

print(summary(rows))        how many of what eager supports passes, variant by variant, aotgrad beside the peer
print(exceptions(rows))     operator, variant, verdict, reason
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from tabulate import tabulate

from tests.conformance.sweep import Row
from tests.conformance.verdict import KINDS, NotSupported, Passed

TABLE = "github"


def counts(rows: Collection[Row]) -> Counter[type]:
    return Counter(type(row.verdict) for row in rows)


def share(count: Counter[type]) -> str:
    """Passed ones in a hundred of those that eager supports."""
    counted = sum(count.values()) - count[NotSupported]
    return f"{100 * count[Passed] / counted:.2f} %" if counted else "-"


def summary(rows: Collection[Row]) -> str:
    compilers = sorted({row.task.compiler for row in rows})
    variants = list(dict.fromkeys(row.task.variant for row in rows))
    table = [summary_line(variant, rows, compilers) for variant in variants]
    table.append(summary_line(None, rows, compilers))
    return tabulate(table, headers=["variant", "compared", *compilers], tablefmt=TABLE)


def summary_line(variant: str | None, rows: Collection[Row], compilers: Sequence[str]) -> list[str | int]:
    """One variant, or all."""
    chosen = [row for row in rows if variant in (None, row.task.variant)]
    by_compiler = [counts([row for row in chosen if row.task.compiler == compiler]) for compiler in compilers]
    compared = max(sum(count.values()) - count[NotSupported] for count in by_compiler)
    return [variant or "all", compared, *map(share, by_compiler)]


def verdicts(rows: Collection[Row]) -> str:
    """How many of each verdict."""
    compilers = sorted({row.task.compiler for row in rows})
    by_compiler = [counts([row for row in rows if row.task.compiler == compiler]) for compiler in compilers]
    table = [[kind.__name__, *(count[kind] for count in by_compiler)] for kind in KINDS]
    return tabulate(table, headers=["verdict", *compilers], tablefmt=TABLE)


def exceptions(rows: Collection[Row]) -> str:
    """What does not pass, a line each."""
    bad = [row for row in rows if not isinstance(row.verdict, (Passed, NotSupported))]
    bad.sort(key=lambda row: (-KINDS.index(type(row.verdict)), row.task.subject, row.task.variant))
    table = [[row.task.subject, row.task.variant, type(row.verdict).__name__, escaped(row.verdict.reason)] for row in bad]
    return tabulate(table, headers=["operator", "variant", "verdict", "reason"], tablefmt=TABLE)


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
