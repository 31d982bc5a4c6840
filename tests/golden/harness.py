"""Golden files: a test compares its text with a file under expect/, which a person reads and commits.

    def test_f(golden):
        golden("analysis/input_mutation", text)         expect/analysis/input_mutation.expect

A missing or different file fails the test; `EXPECTTEST_ACCEPT=1` writes it instead. A name can be used once.
"""

from __future__ import annotations

import ast
import difflib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EXPECT = REPOSITORY / "expect"
SUFFIX = ".expect"


@dataclass
class Golden:
    """Compares texts with the files under `root`. `command` rewrites them."""

    root: Path
    accept: bool
    command: str
    used: dict[str, str] = field(default_factory=dict)

    def check(self, name: str, text: str, test: str) -> None:
        """Compare `text` with the file of `name`, or write it there.

        Raises:
            pytest.fail.Exception: the file is missing or differs, or the name was used before.
        """
        __tracebackhide__ = True
        if name in self.used:
            pytest.fail(f"the golden name {name!r} is used twice: in {self.used[name]} and in {test}")
        self.used[name] = test
        path = self.root / f"{name}{SUFFIX}"
        if self.accept:
            write(path, text)
        elif not path.exists():
            pytest.fail(f"{self.shown(path)} does not exist; make it with\n    {self.command} {test!r}")
        elif (expected := path.read_text()) != text:
            difference = "".join(unified(expected, text, self.shown(path)))
            pytest.fail(f"{difference}\nif this is right, accept it with\n    {self.command} {test!r}")

    def shown(self, path: Path) -> str:
        return str(path.relative_to(self.root.parent))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def unified(expected: str, actual: str, name: str) -> Iterator[str]:
    lines = expected.splitlines(keepends=True), actual.splitlines(keepends=True)
    return difflib.unified_diff(*lines, f"{name} (expected)", f"{name} (now)")


ACCEPT_COMMAND = "EXPECTTEST_ACCEPT=1 python -m pytest"
GOLDEN = Golden(EXPECT, os.environ.get("EXPECTTEST_ACCEPT") == "1", ACCEPT_COMMAND)


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """`golden(name, text)` compares the text with `expect/<name>.expect`."""

    def compare(name: str, text: str) -> None:
        __tracebackhide__ = True
        GOLDEN.check(name, text, request.node.nodeid)

    return compare


def literal_names(tests: Path) -> list[str]:
    """The names in calls `golden("...", text)` under a folder."""
    names = []
    for path in sorted(tests.rglob("test_*.py")):
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        names += [name for call in calls if (name := literal_name(call)) is not None]
    return names


def literal_name(call: ast.Call) -> str | None:
    is_golden = isinstance(call.func, ast.Name) and call.func.id == "golden"
    if is_golden and call.args and isinstance(call.args[0], ast.Constant):
        return call.args[0].value
    return None


def names_on_disk(root: Path = EXPECT) -> set[str]:
    return {str(path.relative_to(root).with_suffix("")) for path in root.rglob(f"*{SUFFIX}")}


def repeated(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)
