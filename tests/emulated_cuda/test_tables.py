"""The tables of what runs on the emulated device, and of what fails there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.emulated_cuda.expected_failures import DEFECTS, GAPS, MACHINE_DEPENDENT, ORDER_DEPENDENT, matches, reason_of
from tests.emulated_cuda.selection import SELECTION
from tests.emulated_cuda.test_device import ROOT
from tests.sampling import COLLECTED


def test_the_selected_tests_are_there():
    assert all((ROOT / argument.partition("::")[0]).exists() for argument in SELECTION)


def test_each_row_names_a_test(request):
    """Of the rows of the files that are collected here as a whole; one that fits nothing is outdated."""
    if request.config.option.keyword:
        pytest.skip("-k selects a part of the tests")
    names = [name.removeprefix("tests/") for name in request.config.stash[COLLECTED]]
    whole = {argument.removeprefix("tests/") for argument in SELECTION if "::" not in argument}
    rows = [row for row in (*GAPS, *DEFECTS, *ORDER_DEPENDENT, *MACHINE_DEPENDENT) if row.partition("::")[0] in whole]
    collected = {name.partition("::")[0] for name in names}
    assert [
        row for row in rows if row.partition("::")[0] in collected and not any(matches(row, name) for name in names)
    ] == []


def test_reasons_are_found():
    assert reason_of("tests/a.py::test[x-nop]", {"a.py::test[*-nop]": "this"}) == "this"
    assert reason_of("tests/a.py::test[x-nop]", {"a.py::test": "this"}) == "this"
    assert reason_of("tests/a.py::test", {"a.py": "this"}) == "this"
    assert reason_of("tests/a.py::test_more[x]", {"a.py::test": "this", "a.py::test_more[y]": "that"}) is None


def test_the_command_prints_the_selection():
    command = [sys.executable, "-m", "tests.emulated_cuda.selection"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines() == list(SELECTION)
