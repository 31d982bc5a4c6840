"""Every golden case against its file, and the files against the cases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.golden import errors, graphs, kinds, modes, mutations, outputs, passes
from tests.golden.cases import CASES, ERROR_CASES, error_text
from tests.golden.harness import Golden, literal_names, names_on_disk, repeated
from tests.numerics.against_eager import assert_like_eager

CASE_MODULES = (errors, graphs, kinds, modes, mutations, outputs, passes)
TESTS = Path(__file__).parents[1]
PAIRS = [(folder, case) for case in CASES.values() for folder in case.folders]
CASE_NAMES = [f"{folder}/{case.name}" for folder, case in PAIRS] + [f"errors/{name}" for name in ERROR_CASES]

RAISES_IN_BACKWARD = {"saved_value_overwritten": RuntimeError}
SUMMED_IN_ANOTHER_ORDER = {"overlapping_inputs_with_gradients": "three terms meet in the memory that the inputs share"}


@pytest.mark.parametrize(("folder", "case"), PAIRS, ids=[f"{folder}/{case.name}" for folder, case in PAIRS])
def test_stage_text(golden, folder, case):
    golden(f"{folder}/{case.name}", case.text(folder))


@pytest.mark.parametrize("name", ERROR_CASES)
def test_error_text(golden, name):
    golden(f"errors/{name}", error_text(ERROR_CASES[name]))


FUNCTIONS = [pytest.param(case, id=name) for name, case in CASES.items() if not case.is_module]


@pytest.mark.parametrize("case", FUNCTIONS)
def test_what_is_shown_is_like_eager(case):
    raises = RAISES_IN_BACKWARD.get(case.name)
    close = SUMMED_IN_ANOTHER_ORDER.get(case.name, "")
    expected = {"around": case.around, "raises": raises, "gradients_close": close, **case.options}
    assert_like_eager(case.function, case.make_args, "eager", **expected)


def test_every_expect_file_belongs_to_a_test():
    unused = names_on_disk() - {*CASE_NAMES, *literal_names(TESTS)}
    assert not unused, f"delete these files under expect/, which no test uses: {sorted(unused)}"


def test_every_name_is_used_once():
    assert repeated([*CASE_NAMES, *literal_names(TESTS)]) == []


README_ROWS = re.findall(
    r"^\| .* \| `(\w+)` \| \[(.*)\]\(expect/errors/(\w+)\.expect\) \|$", (TESTS.parent / "README.md").read_text(), re.M
)


def test_the_table_of_what_is_refused_is_read():
    assert len(README_ROWS) > 20


@pytest.mark.parametrize(("error", "message", "name"), README_ROWS, ids=[name for *_, name in README_ROWS])
def test_the_messages_in_the_readme_are_real(error, message, name):
    _, raised = (TESTS.parent / f"expect/errors/{name}.expect").read_text().split("--- raises ---")
    assert raised.strip().startswith(f"{error}: ")
    assert message in raised


# --- the harness itself ----------------------------------------------------------------------------------------------


def make_golden(root: Path, accept: bool = False) -> Golden:
    return Golden(root / "expect", accept, "accept-command")


def test_a_missing_file_fails_with_the_command_that_makes_it(tmp_path):
    message = r"expect/joint/f.expect does not exist.*\n.*accept-command 'the_test'"
    with pytest.raises(pytest.fail.Exception, match=message):
        make_golden(tmp_path).check("joint/f", "text\n", "the_test")


def test_accepting_writes_the_file_and_comparing_reads_it(tmp_path):
    make_golden(tmp_path, accept=True).check("joint/f", "text\n", "the_test")
    make_golden(tmp_path).check("joint/f", "text\n", "the_test")


def test_a_difference_is_shown_line_by_line(tmp_path):
    make_golden(tmp_path, accept=True).check("joint/f", "one\ntwo\n", "the_test")
    with pytest.raises(pytest.fail.Exception, match=r"-two\n\+three\n"):
        make_golden(tmp_path).check("joint/f", "one\nthree\n", "the_test")


def test_a_name_cannot_be_used_by_two_tests(tmp_path):
    golden = make_golden(tmp_path, accept=True)
    golden.check("joint/f", "text\n", "one_test")
    with pytest.raises(pytest.fail.Exception, match="'joint/f' is used twice: in one_test and in another_test"):
        golden.check("joint/f", "text\n", "another_test")


def test_names_are_found_in_the_source_of_tests(tmp_path):
    source = "def test(golden):\n    golden('joint/g', 'text')\n    other('joint/h')\n"
    (tmp_path / "test_something.py").write_text(source)
    assert literal_names(tmp_path) == ["joint/g"]
