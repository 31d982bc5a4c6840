"""`python -m aotgrad check`: what is right passes, each mistake is found at its op, with a script that has it, too."""

from __future__ import annotations

import argparse
import json
import runpy
from pathlib import Path

import pytest

from aotgrad.conformance.backend import BackendChecks, BackendMinimizer
from aotgrad.conformance.command import add_check_arguments, check_backend_named, names_with
from aotgrad.conformance.excluded import WithoutOps, draw_ops
from aotgrad.conformance.programs import PROGRAMS
from aotgrad.conformance.report import BackendReport, Coverage
from aotgrad.conformance.sweep import Row, Task, read_rows
from aotgrad.conformance.variants import OF_BACKENDS
from aotgrad.conformance.verdict import BreaksContract, Crashed, Inherited, Passed, Raised, TimedOut, Wrong
from aotgrad.errors import BackendError
from aotgrad.inspect.command_line import main

PLACE = "tests.conformance.backends_under_test"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(backend: str, *words: str) -> BackendReport:
    parser = argparse.ArgumentParser()
    add_check_arguments(parser)
    return check_backend_named(parser.parse_args([f"{PLACE}:{backend}", "--quiet", "--variants", "float32", *words]))


def fails_when_run(script: str) -> str:
    with pytest.raises(AssertionError) as failure:
        runpy.run_path(script, run_name="__main__")
    return str(failure.value)


@pytest.mark.parametrize(
    ("backend", "problem"),
    [
        ("ReturnsInput", "is in the memory of the input primals_1; in the trace it is new"),
        ("ChangesInput", "the forward graph changes its input primals_1"),
        ("OtherLayout", "has stride [1, 4] and not [4, 1]"),
    ],
)
def test_a_broken_contract_is_a_verdict_of_its_own(backend, problem):
    found = BackendChecks(f"{PLACE}:{backend}")()(Task("", "float32", "alias: the argument", 1)).verdict
    wide = BackendChecks(f"{PLACE}:{backend}")()(Task("", "float32", "gradients: one of two", 1)).verdict
    assert isinstance(found, BreaksContract) and isinstance(wide, BreaksContract)
    assert problem.split(" [")[0] in wide.reason


# --- Workers ---------------------------------------------------------------------------------------------------------


def test_mistakes_are_told_by_op_and_minimized(folder):
    report = checked("CosForSin", "--operators", "sin", "cos", "sinh", "--samples", "1", "--json", "report.json")
    assert [(row.task.subject, type(row.verdict)) for row in report.failures] == [
        ("cos", Wrong),
        ("sin", Wrong),
        ("sinc", Wrong),
    ]
    assert not report.conforms and "check_failures/sin-float32.py" in str(report)
    assert "differs" in fails_when_run("check_failures/sin-float32.py")
    written = json.loads((folder / "report.json").read_text())
    assert [row["operator"] for row in written["failures"]] == ["cos", "sin", "sinc"]
    assert written["operators"] == {"compiled": 5, "islands": 0, "empty": 0} and not written["conforms"]


def test_results_are_read_and_failures_repeated_on_demand(folder):
    first = checked("correct", "--operators", "expm1", "--samples", "1")
    (task,) = [row.task for row in first.rows]
    assert first.conforms and first.coverage == Coverage(1, 0, 0)
    wrong = Row(task, Wrong("an old mistake"), 0.0, (1, 0), "expm1.py")
    Path("check.jsonl").write_text(wrong.to_line() + "\n")
    assert checked("correct", "--operators", "expm1", "--samples", "1").failures == [wrong]
    assert checked("correct", "--operators", "expm1", "--samples", "1", "--again").conforms
    assert isinstance(read_rows(Path("check.jsonl"))[task].verdict, Passed)


def test_backends_that_end_the_process_or_hang(folder):
    report = checked("AbortsOrHangs", "--operators", "erfinv", "ceil", "floor", "--samples", "1", "--limit", "3")
    found = {row.task.subject: row for row in report.rows}
    assert found["floor"].verdict == found["floor_divide"].verdict == Passed()
    for operator, kind, text in (("erfinv", Crashed, "SIGABRT"), ("ceil", TimedOut, "hangs")):
        assert isinstance(found[operator].verdict, kind)
        assert (folder / "check_failures" / f"{operator}-float32.py").read_text().startswith(f'"""{text}')


# --- In this process -------------------------------------------------------------------------------------------------


def answer(backend: str, subject: str, variant: str = "float32"):
    return BackendChecks(f"{PLACE}:{backend}")()(Task(backend, variant, subject, 1))


@pytest.mark.parametrize("variant", ["float32", "dynamic"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_right_backend_passes_small_programs(program, variant):
    found = answer("correct", program.name, variant)
    assert found.verdict == Passed() and found.ops[1] == 0


@pytest.mark.parametrize("variant", OF_BACKENDS)
def test_a_function_is_a_backend_and_passes(variant):
    subject = "logical_not" if variant in ("int64", "bool") else "exp"
    assert answer("compile_graph", subject, variant).verdict == Passed()


@pytest.mark.parametrize(
    ("backend", "subject", "kind", "message"),
    [
        ("CosForSin", "cos", Wrong, "differs"),
        ("Draws", "sinh", Wrong, "differs: the graph moves a random generator"),
        ("OtherDtype", "floor", BreaksContract, "BackendError: backend 'other dtype' breaks its contract"),
        ("Raises", "tan", Raised, "ValueError: no tan"),
    ],
)
def test_a_mistake_of_a_backend(backend, subject, kind, message, tmp_path):
    assert isinstance(answer(backend, subject).verdict, kind)
    assert answer(backend, "mul").verdict == Passed()
    path = BackendMinimizer(BackendChecks(f"{PLACE}:{backend}"), tmp_path)()(Task(backend, "float32", subject, 1))
    assert fails_when_run(path).startswith(message)


@pytest.mark.parametrize(
    ("backend", "kind", "message"),
    [
        ("FailsLater", Raised, "StopIteration"),
        ("ReturnsFirstResult", Wrong, "call 2: output 0: Tensor-likes are not close!"),
        ("ChangesEarlierInput", Wrong, "argument 0: Tensor-likes are not close!"),
    ],
)
def test_a_mistake_of_a_second_call(backend, kind, message):
    found = answer(backend, "sin").verdict
    assert isinstance(found, kind) and message in found.reason


def test_a_lower_precision_may_be_allowed(tmp_path):
    task = Task("slightly off", "float32", "exp", 1)
    found = {}
    for tolerance in (1, 10, 1000):
        checks = BackendChecks(f"{PLACE}:SlightlyOff", tolerance=tolerance)
        found[tolerance] = type(checks()(task).verdict)
        assert ("tolerance" in str(checks)) == (tolerance != 1)
    assert found == {1: Wrong, 10: Wrong, 1000: Passed}
    strict, lax = (BackendMinimizer(BackendChecks("", tolerance=factor), tmp_path) for factor in (1, 1000))
    assert strict.tolerance_of(OF_BACKENDS["float32"]) is None and lax.tolerance_of(OF_BACKENDS["float32"]) == 0.1


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "many"])
def test_a_tolerance_is_a_positive_number(text, capsys):
    with pytest.raises(SystemExit):
        main(["check", "eager", "--tolerance", text])
    assert "invalid positive value" in capsys.readouterr().err


def test_gradients_of_a_kept_call_get_a_script(tmp_path):
    task = Task("Doubling", "float32", "nn_functional_layer_norm", 1)
    checks = BackendChecks(f"{PLACE}:Doubling")
    assert isinstance(checks()(task).verdict, Wrong)
    path = BackendMinimizer(checks, tmp_path)()(task)
    assert "KeptBackward(torch.nn.functional.layer_norm" in Path(path).read_text()
    assert fails_when_run(path).startswith("differs")


def test_names_may_be_written_as_in_torch():
    names = ["nn.Linear (training)", "nn_functional_linear", "sin"]
    assert names_with(["nn.functional.linear", "nn.Lin"], names) == names[:2]


def test_a_mistake_in_a_module_gets_a_script(tmp_path):
    task = Task("RaisesForProducts", "float32", "nn.Linear (training)", 1)
    path = BackendMinimizer(BackendChecks(f"{PLACE}:RaisesForProducts"), tmp_path)()(task)
    assert fails_when_run(path).startswith("ValueError: no addmm")


def test_what_eager_halves_do_not_do_either_is_not_counted():
    assert isinstance(answer("correct", "to_sparse").verdict, Inherited)


def test_a_backend_that_supports_nothing_is_not_called_conformant():
    found = answer("SupportsNothing", "exp")
    assert found.verdict == Passed() and found.ops[0] == 0 < found.ops[1]
    row = Row(Task("", "float32", "exp", 1), found.verdict, 0.0, found.ops)
    report = BackendReport(BackendChecks("mine"), (row,), frozenset({"exp"}))
    assert report.coverage == Coverage(0, 1, 0) and not report.conforms
    assert "The backend compiled nothing" in str(report)


def test_random_ops_can_be_taken_away():
    ops = draw_ops(30, seed=3)
    assert len(set(ops)) == 30 and ops == draw_ops(30, seed=3) != draw_ops(30, seed=4)
    checks = BackendChecks(f"{PLACE}:correct", ("exp",))
    found = checks()(Task(str(checks), "float32", "exp", 1))
    assert found.verdict == Passed() and found.ops[0] == 1  # the product of the backward; exp itself is an island
    assert str(checks) == f"{PLACE}:correct without exp"


def test_a_script_says_what_was_taken_away(tmp_path):
    checks = BackendChecks(f"{PLACE}:Raises", ("exp", "sin"))
    path = BackendMinimizer(checks, tmp_path)()(Task("", "float32", "tan", 1))
    assert "WithoutOps(backend='tests.conformance.backends_under_test:Raises', ops=('exp', 'sin'))" in Path(path).read_text()
    assert "ValueError: no tan" in fails_when_run(path)


def test_only_backends_of_the_kit_can_do_without_ops():
    with pytest.raises(BackendError, match="ops cannot be excluded from inductor"):
        WithoutOps("inductor", ("exp",))
    with pytest.raises(BackendError, match="of which 10000 cannot be drawn"):
        draw_ops(10_000, 0)


# --- The command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, message",
    [
        (["tpu"], "no backend 'tpu'; registered are"),
        (["no_such_module:backend"], "No module named 'no_such_module'"),
        ([f"{PLACE}:missing"], "has no attribute 'missing'"),
        ([f"{PLACE}:number"], "is a int: neither a backend nor a function that compiles graphs"),
        (["eager", "--operators", "sin", "no such operator"], "no operator starts with no such operator"),
        (["inductor", "--without", "3"], "ops cannot be excluded from inductor"),
    ],
)
def test_bad_arguments(words, message, folder, capsys):
    assert main(["check", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_exit_status_and_the_current_folder(folder, capsys):
    (folder / "mine.py").write_text(f"from {PLACE} import Raises\nbackend = Raises()\n")
    words = ["--quiet", "--variants", "float32", "--samples", "1", "--operators"]
    assert main(["check", "mine:backend", *words, "expm1", "tan"]) == 1
    assert "ValueError: no tan" in capsys.readouterr().out
    assert main(["check", "mine:backend", *words, "expm1"]) == 0  # from the file of results
    assert "Nothing fails." in capsys.readouterr().out
