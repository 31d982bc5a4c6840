"""Compares programs with tensor subclasses with eager: python scripts/conformance/subclasses.py

The programs of tests/subclasses run compiled by aotgrad and by the peer, torch's own AOTAutograd, with both kinds of halves.
Prints how many of each group give what eager gives, and which do not. Flags, strides and version counters do not count.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.subclasses.catalogue import Program, programs
from tests.subclasses.dtensor_programs import dtensor_programs, four_processes
from tests.subclasses.dtensor_upstream import dtensor_upstream
from tests.subclasses.jagged_programs import jagged_programs
from tests.subclasses.jagged_upstream import jagged_upstream
from tests.subclasses.programs import Raised, Seen, compiled
from tests.subclasses.upstream_programs import upstream_programs

SUBJECTS: dict[str, tuple[str, str]] = {
    "peer": ("peer aot_eager", "peer inductor"),
    "aotgrad": ("dynamo, eager halves", "dynamo, inductor halves"),
    "aotgrad, no Dynamo": ("eager halves", "inductor halves"),
}
"""Each with its two ways: eager halves, and those of Inductor."""

SAME, OTHER, ERROR, EAGERLY, DYNAMO, NONE = "as eager", "other values", "error", "runs eagerly", "Dynamo", "not asked"
"""`DYNAMO`: Dynamo raises, whatever compiles its graphs."""


@dataclass(frozen=True)
class Row:
    """The verdicts on one program by subject: the worse of its two ways."""

    program: Program
    verdicts: dict[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", help="only groups with one of these prefixes")
    parser.add_argument("--eager-halves", action="store_true", help="without Inductor")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    warnings.filterwarnings("error", ".*ran eagerly")
    logging.disable()
    with four_processes():
        chosen = [p for p in everything() if not arguments.groups or p.group.startswith(tuple(arguments.groups))]
        rows = [row_of(program, arguments.eager_halves) for program in chosen]
    print("\n".join(table(rows)))
    return 0


def everything() -> Iterator[Program]:
    for made in (programs, upstream_programs, dtensor_programs, dtensor_upstream, jagged_programs, jagged_upstream):
        yield from made()


def row_of(program: Program, eager_only: bool) -> Row:
    verdicts = {}
    for subject, ways in SUBJECTS.items():
        found = [verdict(program, way) for way in (ways[:1] if eager_only else ways)]
        verdicts[subject] = next((worst for worst in (ERROR, OTHER, EAGERLY, DYNAMO, NONE) if worst in found), SAME)
    return Row(program, verdicts)


def verdict(program: Program, way: str) -> str:
    """What two calls in a row give, beside eager. "peer eager" is Dynamo alone."""
    if program.behind_dynamo_only and "halves" in way and not way.startswith("dynamo"):
        return NONE
    expected = attempt(program, program.function)
    ours = compile_by(program, way)
    for _ in range(2):
        found = attempt(program, ours)
        if without_flags(found) != without_flags(expected):
            break
    else:
        return SAME
    if not raises(found):
        return OTHER
    if ran_eagerly(found):
        return EAGERLY
    is_dynamos = way.startswith(("peer", "dynamo")) and raises(attempt(program, compile_by(program, "peer eager")))
    return DYNAMO if is_dynamos else ERROR


def compile_by(program: Program, way: str) -> Callable:
    if not way.startswith("peer"):
        return compiled(program.function, way, program.dynamic)
    torch._dynamo.reset()
    return torch.compile(program.function, backend=way.split()[1], dynamic=program.dynamic)


def attempt(program: Program, function: Callable) -> Any:
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return program.run(function, program.arguments())
    except Exception as error:
        return Raised(type(error), str(error))


def without_flags(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [without_flags(each) for each in value]
    return value.without_flags if isinstance(value, Seen) else value


def ran_eagerly(value: Any) -> bool:
    """Whether a warning says so: warnings of aotgrad are errors here."""
    if isinstance(value, Raised):
        return "ran eagerly" in value.message
    return isinstance(value, (list, tuple)) and any(map(ran_eagerly, value))


def raises(value: Any) -> bool:
    return isinstance(value, Raised) or (isinstance(value, (list, tuple)) and any(map(raises, value)))


def table(rows: list[Row]) -> Iterator[str]:
    """Markdown: how many programs of each group are as eager, and the verdicts on those that are not."""
    yield "| programs | number | " + " | ".join(SUBJECTS) + " |"
    yield "|---|---:|" + "---:|" * len(SUBJECTS)
    for group in dict.fromkeys(row.program.group for row in rows):
        members = [row for row in rows if row.program.group == group]
        counts = [sum(row.verdicts[subject] == SAME for row in members) for subject in SUBJECTS]
        asked = [sum(row.verdicts[subject] != NONE for row in members) for subject in SUBJECTS]
        shown = (
            f"{count}" if all_of == len(members) else f"{count} of {all_of}"
            for count, all_of in zip(counts, asked, strict=True)
        )
        yield f"| {group} | {len(members)} | " + " | ".join(shown) + " |"
    yield ""
    yield "| not as in eager | " + " | ".join(SUBJECTS) + " |"
    yield "|---|" + "---|" * len(SUBJECTS)
    for row in rows:
        if any(verdict in (OTHER, ERROR, EAGERLY, DYNAMO) for verdict in row.verdicts.values()):
            shown = ("" if verdict == SAME else verdict for verdict in row.verdicts.values())
            yield f"| {row.program.group}: {row.program.name} | " + " | ".join(shown) + " |"


if __name__ == "__main__":
    sys.exit(main())
