"""Every golden case against its file, and the files against the cases."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from aotgrad.analysis.refusals import REFUSALS as REFUSED_CHANGES
from aotgrad.capture.trace import EXPLANATIONS
from aotgrad.errors import EagerError
from tests.golden import errors, export_errors, graphs, kinds, modes, mutations, outputs, passes, training_step
from tests.golden.cases import CASES, ERROR_CASES, error_text
from tests.golden.harness import Golden, literal_names, names_on_disk, repeated
from tests.numerics.against_eager import assert_like_eager

CASE_MODULES = (errors, export_errors, graphs, kinds, modes, mutations, outputs, passes, training_step)
TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "aotgrad"
PAIRS = [(folder, case) for case in CASES.values() for folder in case.folders]
CASE_NAMES = [f"{folder}/{case.name}" for folder, case in PAIRS] + [f"errors/{name}" for name in ERROR_CASES]

RAISES_IN_BACKWARD = {
    "saved_value_overwritten": RuntimeError,
    "gradients_beside_an_overwritten_value": RuntimeError,
}
SUMMED_IN_ANOTHER_ORDER = {"overlapping_inputs_with_gradients": "three terms meet in the memory that the inputs share"}


NOT_OF_NEW_TORCHES = {
    **dict.fromkeys(
        ("capture/symbolic_sizes", "joint/symbolic_sizes", "partition/symbolic_sizes"),
        "torch >= 2.15 asks for a size where it is first used",
    ),
    "errors/resized_beyond_its_storage": "torch >= 2.15 refuses it in the trace, and we say it with another class",
    "errors/operation_on_a_sparse_tensor": "torch >= 2.15 traces the product",
}

NOT_OF_OLD_TORCHES = {
    "errors/linearized_inside": "torch < 2.12 runs no trace of its own",
    "joint/gradients_beside_an_overwritten_value": "torch < 2.12 calls the value the output of MulBackward0",
}


def reason_of_another_text(name: str) -> str | None:
    if torch.__version__ >= "2.15":
        return NOT_OF_NEW_TORCHES.get(name)
    return NOT_OF_OLD_TORCHES.get(name) if torch.__version__ < "2.12" else None


def named(name: str, *values: Any) -> Any:
    """The case of this name, with the text of torch 2.13."""
    reason = reason_of_another_text(name)
    marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
    return pytest.param(*values, id=name.removeprefix("errors/"), marks=marks)


@pytest.mark.parametrize(("folder", "case"), [named(f"{folder}/{case.name}", folder, case) for folder, case in PAIRS])
def test_stage_text(golden, folder, case):
    golden(f"{folder}/{case.name}", case.text(folder))


@pytest.mark.parametrize("name", [named(f"errors/{name}", name) for name in ERROR_CASES])
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


REFUSED = re.findall(
    r"^\| .* \| `(\w+)` \| \[(.*)\]\(\.\./expect/errors/(\w+)\.expect\) \| .+ \|$",
    (TESTS.parent / "docs" / "limits.md").read_text(),
    re.MULTILINE,
)
"""What docs/limits.md says is refused: the error, a part of the message, and the golden file."""


def test_the_table_of_what_is_refused_is_read():
    assert len(REFUSED) > 100


@pytest.mark.parametrize(("error", "message", "name"), REFUSED, ids=[name for *_, name in REFUSED])
def test_the_messages_in_the_document_are_real(error, message, name):
    _, raised = (TESTS.parent / f"expect/errors/{name}.expect").read_text().split("--- raises ---")
    assert raised.strip().startswith(f"{error}: ")
    assert message in raised


REFUSALS = {
    "CaptureError",
    "ExportError",
    "UnsupportedOutputError",
    "UnsupportedAliasingError",
    "UnsupportedMutationError",
    "HigherOrderError",
}
SAFETY_NETS = (
    "an as_strided() view, or a view of one, is changed in place",
    "draws random numbers, at",
    "the graph does not record a size of it",
    "in a way that no recorded view explains",
    "is a view of an input that is changed in place and whose size or stride is changed after",
    "a view of what was changed in place cannot be replayed",
    "would need zeros of a symbolic",
    "cannot be traced, because something outside of Python",
    "and the function computes other values than when it was first traced",
    "which neither its parts nor other arguments have",
)
"""Refusals that no program is known to meet: parts of their messages."""


def refusals() -> Iterator[tuple[str, str]]:
    """Every place that refuses a program, and its message, as a pattern with gaps for variable parts."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in REFUSALS and node.args:
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", pattern_of(node.args[0])
    explained = (re.sub(r"\\{(line|island)\\}", ".*", re.escape(text)) for text in EXPLANATIONS.values())
    yield from (("capture/trace.py", pattern) for pattern in explained)
    changes = (refusal.message for refusal in REFUSED_CHANGES if refusal.error is not EagerError)
    yield from (("analysis/refusals.py", re.escape(text).replace(r"\{\}", ".*")) for text in changes)


def pattern_of(message: ast.expr) -> str:
    match message:
        case ast.Constant(str(text)):
            return re.escape(text)
        case ast.JoinedStr(parts):
            return "".join(map(pattern_of, parts))
        case ast.BinOp(left, ast.Add(), right):
            return pattern_of(left) + pattern_of(right)
    return ".*"


def test_every_refusal_is_in_the_document():
    """A message that is built elsewhere (`.*`) is found where it is built."""
    shown = [(TESTS.parent / f"expect/errors/{name}.expect").read_text() for *_, name in REFUSED]
    nets = tuple(map(re.escape, SAFETY_NETS))
    missing = [
        f"{place}: {pattern}"
        for place, pattern in refusals()
        if pattern != ".*"
        and not any(net in pattern for net in nets)
        and not any(re.search(pattern, text) for text in shown)
    ]
    assert missing == []
    assert len(list(refusals())) > 50


@pytest.mark.parametrize("net", SAFETY_NETS)
def test_a_safety_net_is_there(net):
    assert any(re.escape(net) in pattern for _, pattern in refusals())


def test_a_refusal_without_a_row_would_be_found(monkeypatch, tmp_path):
    (tmp_path / "new.py").write_text("raise CaptureError(f'input {k} is ' + 'of a new kind')")
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    with pytest.raises(AssertionError, match=r"new\.py:1: input"):
        test_every_refusal_is_in_the_document()


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
