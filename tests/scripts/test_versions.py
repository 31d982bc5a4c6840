"""What `scripts/versions.py` makes of what pytest says, and which runs it leaves out."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scripts import versions
from scripts.versions import Combination, Result, counts, every, files, keep, output_of, results, run_part, table

COMBINATION = Combination("3.12", "2.11", Path("python"))
SAID = """\
..F.E                                                                    [100%]
=========================== short test summary info ============================
FAILED tests/a.py::test_b[a case - with a dash and spaces] - AssertionError: assert 1 == 2
FAILED tests/a.py::test_c
ERROR tests/a.py::test_d[c++-0] - AssertionError
2 failed, 3 passed, 1 skipped, 1 xfailed, 1 error in 12.34s
"""
COUNTS = {"failed": 2, "passed": 3, "skipped": 1, "xfailed": 1, "error": 1}


def result(part: str, commit: str = "abc", counted: dict[str, int] | None = COUNTS) -> Result:
    return Result("2.11", "3.12", part, commit, counted, [], 12)


@pytest.mark.parametrize("said", ["", "no tests ran", "Killed\n"])
def test_a_run_without_a_last_line_is_not_finished(said):
    assert counts(said) is None


def test_a_part_that_was_run(monkeypatch):
    monkeypatch.setattr(versions, "output_of", lambda command, every, minutes: SAID)
    found = run_part(Path("python"), COMBINATION, "tests/a.py", minutes=1)
    assert (found.torch, found.python, found.part, found.counts) == ("2.11", "3.12", "tests/a.py", COUNTS)
    assert found.failed == [
        "tests/a.py::test_b[a case - with a dash and spaces]",
        "tests/a.py::test_c",
        "tests/a.py::test_d[c++-0]",
    ]


def test_the_latest_result_of_a_part_counts(tmp_path):
    assert results(tmp_path) == []
    for each in (result("tests/a.py", "old"), result("tests/b.py"), result("tests/a.py", "new")):
        keep(each, tmp_path)
    assert {each.part: each.commit for each in results(tmp_path)} == {"tests/a.py": "new", "tests/b.py": "abc"}


def test_the_table_is_in_the_order_of_versions_and_says_what_did_not_finish():
    older = Result("2.9", "3.13", "tests/a.py", "abc", COUNTS, [], 3)
    _, _, first, second = table([result("tests/b.py", counted=None), older]).splitlines()
    assert first == "| 2.9 | 3.13 | `tests/a.py` | 3 | 2 | 1 | 1 | 1 | 3 | abc |"
    assert second == "| 2.11 | 3.12 | `tests/b.py` | not finished |  |  |  |  | 12 | abc |"


def test_a_combination_with_all_parts_is_one_row(monkeypatch):
    monkeypatch.setattr(versions, "all_parts", lambda: ["tests/a.py", "tests/b.py"])
    failed = replace(result("tests/b.py", "new"), failed=["tests/b.py::test_c[1]"])
    said = table([result("tests/a.py", "old"), failed, result("tests/part_of_a.py")])
    assert said.splitlines()[2:] == [
        "| 2.11 | 3.12 | `all of tests` | 6 | 4 | 2 | 2 | 2 | 24 | new old |",
        *("", "What failed:", "", "- 2.11, Python 3.12: `tests/b.py` 1"),
    ]


def test_the_parts_hold_every_test_file_once():
    found = [path for part in versions.all_parts() for path in files(part)]
    folders = [Path(part) for part in found if not part.endswith(".py")]
    below = {path for folder in folders for path in (versions.ROOT / folder).rglob("test_*.py")}
    assert below | {Path(path) for path in found if path.endswith(".py")} == {*(versions.ROOT / "tests").rglob("test_*.py")}


def test_what_is_installed_without_libraries_for_gpus(monkeypatch):
    asked = [
        "torch>=2.11",
        "nvidia-cublas==13; sys_platform == 'linux'",
        "triton==3",
        "sympy>=1.13",
        "expecttest; extra == 'test'",
    ]
    monkeypatch.setattr(versions, "answer", lambda python, question: asked)
    assert versions.requirements(Path("python"), "aotgrad") == ["sympy>=1.13", "expecttest"]
    assert versions.requirements(Path("python"), "torch") == ["sympy>=1.13"]


def test_a_sample_is_of_all_tests_below_a_folder():
    assert (every("every 10th of tests"), files("every 10th of tests")) == (10, ["tests"])
    assert every("tests/numerics") == 1


def test_a_sample_is_every_so_many_th_test(monkeypatch):
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # -v changes what is printed
    monkeypatch.setenv("AOTGRAD_TEST_ALL", "1")

    def collected(every: int) -> list[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/graph/test_strided_overlap.py"]
        return [line for line in output_of(command, every, minutes=1).splitlines() if "::" in line]

    assert len(collected(1)) > 3
    assert collected(3) == collected(1)[::3]
