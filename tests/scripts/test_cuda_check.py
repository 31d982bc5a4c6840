"""The program that checks CUDA: its verdicts, its report, and a run on the emulated device."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "cuda_check"
NAMES = ("case", "check", "device", "report")


@pytest.fixture
def modules(monkeypatch):
    """The modules of the program, which import each other by their short names."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


def test_a_known_failure_that_passes_is_a_failure(modules):
    case, check = modules["case"], modules["check"]
    found = {}
    for known in (None, "a reason"):
        for problems in ((), ("wrong",)):
            each = case.Case("name", lambda: None, known=known)
            found[known, problems] = check.verdict_of(each, case.Outcome(problems)).value
    assert found == {
        (None, ()): "PASS",
        (None, ("wrong",)): "FAIL",
        ("a reason", ()): "FAIL",
        ("a reason", ("wrong",)): "KNOWN",
    }


def test_a_process_without_an_outcome_fails(modules):
    assert modules["check"].read_outcome("Killed\n") is None
    printed = modules["check"].MARK + '{"problems": ["wrong"], "figures": {"error": "1e-3"}}\n'
    assert modules["check"].read_outcome(f"noise\n{printed}").problems == ["wrong"]


def test_a_case_that_the_machine_cannot_run_is_skipped(modules):
    case, check = modules["case"], modules["check"]
    each = case.Case("name", lambda: None, needs=frozenset({case.Need.GPU}))
    row = check.run_apart(1, each, {case.Need.GPU})
    assert (row.verdict, row.text) == (case.Verdict.SKIP, "needs a real GPU")


def test_failures_come_first_in_the_report(modules):
    case, report = modules["case"], modules["report"]
    rows = [
        case.Row(1, "right", case.Verdict.PASS, 1.0, case.Outcome((), {"error": "1e-07"})),
        case.Row(1, "wrong", case.Verdict.FAIL, 2.0, case.Outcome(["a|b"])),
    ]
    text = report.render(rows, "a device", [1])
    assert "a device" in text and "1 PASS, 1 FAIL, 0 KNOWN, 0 SKIP" in text
    assert text.index("| wrong") < text.index("| right") and "a\\|b" in text and "error 1e-07" in text


def test_names_of_cases_are_unique(modules):
    done = subprocess.run(
        [sys.executable, "-c", "import check; [print(c.name) for part in check.PARTS for c in check.cases_of(part)]"],
        capture_output=True,
        text=True,
        cwd=FOLDER,
        check=True,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parents[1])},
    )
    names = done.stdout.split("\n")
    assert len(names) == len(set(names)) > 60


@pytest.mark.timeout(900)
def test_everything_passes_on_the_emulated_device(tmp_path):
    report = tmp_path / "report.md"
    command = ["bash", str(FOLDER.parent / "cuda_check.sh"), "--emulated", "--jobs", "1", "--out", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHON": sys.executable})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " 0 FAIL" in report.read_text() and "emulated CUDA" in report.read_text()
