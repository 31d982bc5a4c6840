"""Compares the rows of a sweep with the table of expected failures.

unexpected(rows)        rows of aotgrad that fail and are not in the table, or fail in another way
outdated(rows)          lines of the table without a failing row
"""

from __future__ import annotations

from collections.abc import Collection

from aotgrad.conformance.sweep import Row
from aotgrad.conformance.verdict import NotSupported
from tests.conformance.expected_failures import EXPECTED_FAILURES, Failure

COMPILER = "aotgrad"


def expected(row: Row) -> Failure | None:
    """The line of the table that a row belongs to."""
    lines = (line for line in EXPECTED_FAILURES if line.subject == row.task.subject)
    return next((line for line in lines if not line.variants or row.task.variant in line.variants), None)


def unexpected(rows: Collection[Row]) -> list[Row]:
    def is_unexpected(row: Row) -> bool:
        line = expected(row)
        return row.verdict.fails and (line is None or line.kind is not type(row.verdict))

    return [row for row in rows if row.task.compiler == COMPILER and is_unexpected(row)]


def outdated(rows: Collection[Row]) -> list[Failure]:
    """A line without variants stands for all supported ones; at least one must fail."""
    found: dict[Failure, bool] = {}
    for row in rows:
        line = expected(row)
        if row.task.compiler == COMPILER and line is not None and not isinstance(row.verdict, NotSupported):
            found[line] = found.get(line, False) or row.verdict.fails
    return [line for line, still_fails in found.items() if not still_fails]
