"""The rows of a checked backend, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from tabulate import tabulate

from aotgrad.conformance.backend import BackendChecks
from aotgrad.conformance.sweep import Row
from aotgrad.conformance.tables import TABLE
from aotgrad.conformance.variants import OF_BACKENDS
from aotgrad.conformance.verdict import Inherited, NotSupported, Passed


@dataclass(frozen=True)
class Coverage:
    """How many operators of the database ran at least partly compiled, only in eager islands, or without any op."""

    compiled: int
    islands: int
    empty: int

    @classmethod
    def of(cls, rows: Iterable[Row], operators: Collection[str]) -> Coverage:
        totals: dict[str, tuple[int, int]] = {}
        for row in rows:
            if row.task.subject in operators and not isinstance(row.verdict, NotSupported) and row.ops is not None:
                before = totals.get(row.task.subject, (0, 0))
                totals[row.task.subject] = before[0] + row.ops[0], before[1] + row.ops[1]
        compiled = sum(ops[0] > 0 for ops in totals.values())
        islands = sum(ops[0] == 0 < ops[1] for ops in totals.values())
        return cls(compiled, islands, len(totals) - compiled - islands)

    def __str__(self) -> str:
        total = self.compiled + self.islands + self.empty
        return (
            f"Of {total} operators of the database, {self.compiled} ran at least partly compiled, {self.islands} only in "
            f"eager islands, and {self.empty} have nothing to compile."
        )


@dataclass(frozen=True)
class BackendReport:
    """What is known about a backend."""

    checks: BackendChecks
    rows: tuple[Row, ...]
    operators: frozenset[str]

    @property
    def failures(self) -> list[Row]:
        return sorted((row for row in self.rows if row.verdict.fails), key=lambda row: (row.task.subject, row.task.variant))

    @property
    def inherited(self) -> list[Row]:
        return [row for row in self.rows if isinstance(row.verdict, Inherited)]

    @property
    def coverage(self) -> Coverage:
        return Coverage.of(self.rows, self.operators)

    @property
    def compiled_nothing(self) -> bool:
        """Whether the backend got no op at all, so that nothing was checked."""
        return not any(row.ops and row.ops[0] for row in self.rows)

    @property
    def conforms(self) -> bool:
        return not self.failures and not self.compiled_nothing

    def __str__(self) -> str:
        parts = [f"{self.checks}, torch {torch.__version__}", self.summary(), str(self.coverage)]
        if self.inherited:
            names = ", ".join(sorted({row.task.subject for row in self.inherited}))
            parts.append(f"Not counted, since they fail with the eager backend, too: {names}.")
        if self.compiled_nothing:
            parts.append("The backend compiled nothing: this says nothing about it.")
        parts.append(self.table() if self.failures else "Nothing fails.")
        return "\n\n".join(parts)

    def summary(self) -> str:
        """How many pass, by variant."""
        counts = {name: [row.verdict for row in self.rows if row.task.variant == name] for name in OF_BACKENDS}
        rows = [
            [
                name,
                sum(not isinstance(each, NotSupported) for each in found),
                sum(isinstance(each, Passed) for each in found),
            ]
            for name, found in counts.items()
            if found
        ]
        return tabulate(rows, headers=["variant", "compared", "passed"], tablefmt=TABLE)

    def table(self) -> str:
        rows = [
            [row.task.subject, row.task.variant, type(row.verdict).__name__, row.verdict.reason, row.script]
            for row in self.failures
        ]
        return tabulate(rows, headers=["operator", "variant", "verdict", "reason", "script"], tablefmt=TABLE)

    def to_json(self) -> str:
        coverage = self.coverage
        return json.dumps(
            {
                "backend": self.checks.place,
                "without": list(self.checks.without),
                "torch": torch.__version__,
                "conforms": self.conforms,
                "checks": len(self.rows),
                "compared": sum(not isinstance(row.verdict, NotSupported) for row in self.rows),
                "operators": {"compiled": coverage.compiled, "islands": coverage.islands, "empty": coverage.empty},
                "inherited": [described_row(row) for row in self.inherited],
                "failures": [{**described_row(row), "script": row.script} for row in self.failures],
            },
            indent=2,
        )


def described_row(row: Row) -> dict[str, Any]:
    verdict = row.verdict
    task = row.task
    return {"operator": task.subject, "variant": task.variant, "verdict": type(verdict).__name__, "reason": verdict.reason}
