"""The sweep itself: it finds a compiler's mistakes, and a worker that dies or hangs costs only its own check."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

import aotgrad
from aotgrad.conformance.check import check_subject
from aotgrad.conformance.subjects import find_subjects
from aotgrad.conformance.sweep import Row, Task, read_rows, sweep
from aotgrad.conformance.verdict import (
    Crashed,
    FellBack,
    NotSupported,
    Passed,
    Raised,
    Refused,
    SubjectVerdict,
    TimedOut,
    Wrong,
    worst,
)
from aotgrad.errors import CaptureError
from tests.conformance.compilers import COMPILERS, checks
from tests.conformance.report import exceptions, page, summary
from tests.conformance.variants import VARIANTS
from tests.device import TYPE


@pytest.mark.parametrize("variant", sorted({*VARIANTS} - {"through Inductor", "higher-order"}))
@pytest.mark.parametrize("subject", ["mul", "nn.Linear (training)"])
def test_a_subject_in_every_variant(subject: str, variant: str) -> None:
    verdict = check_subject(find_subjects(TYPE)[subject], VARIANTS[variant], COMPILERS["aotgrad"], most=1)
    has_no_such_form = subject.startswith("nn.") and variant in ("in-place", "out=", "int64", "bool", "complex128")
    assert isinstance(verdict, NotSupported if has_no_such_form else Passed), verdict


def test_a_higher_order_operator() -> None:
    subject = find_subjects(TYPE)["map_simple"]
    assert isinstance(check_subject(subject, VARIANTS["higher-order"], COMPILERS["aotgrad"], most=1), Passed)
    assert subject.calls(VARIANTS["static"], 1) == find_subjects(TYPE)["mul"].calls(VARIANTS["higher-order"], 1) == []


def refuse(*_) -> None:
    raise CaptureError("no")


def fail(*_) -> None:
    raise ValueError("no")


MISTAKES: dict[str, tuple[str, str, Callable, type]] = {
    "a value": ("mul", "static", lambda f, x, y: f(x, y) + 1, Wrong),
    "a gradient": ("mul", "static", lambda f, x, y: f(x, y) + x - x.detach(), Wrong),
    "a missing gradient": ("mul", "static", lambda f, x, y: f(x, y.detach()), Wrong),
    "a flag": ("mul", "static", lambda f, x, y: f(x, y).detach(), Wrong),
    "a structure": ("mul", "static", lambda f, x, y: [f(x, y)], Wrong),
    "another object": ("mul", "in-place", lambda f, x, y: f(x, y).view_as(x), Wrong),
    "an argument that does not change": ("mul", "in-place", lambda f, x, y: f(x.clone(), y), Wrong),
    "an out that does not change": ("mul", "out=", lambda f, x, y, out: f(x, y, out.clone()), Wrong),
    "a refusal": ("mul", "static", lambda f, x, y: refuse(), Refused),
    "an error": ("mul", "static", lambda f, x, y: fail(), Raised),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str) -> None:
    subject, variant, spoil, kind = MISTAKES[mistake]

    def wrong(function, variant):
        return lambda *tensors: spoil(function, *tensors)

    assert isinstance(check_subject(find_subjects(TYPE)[subject], VARIANTS[variant], wrong), kind)


def test_a_function_that_runs_eagerly_does_not_pass() -> None:
    def raises_in_a_trace(function, variant):
        def traced(*tensors):
            return function(*tensors) if type(tensors[0]) is torch.Tensor else fail()

        return aotgrad.aot_function(traced, aotgrad.nop)

    assert isinstance(check_subject(find_subjects(TYPE)["mul"], VARIANTS["static"], raises_in_a_trace), FellBack)


def test_random_operators_draw_their_own_numbers() -> None:
    """Torch's database seeds inside them, which would hide their draws."""
    call = find_subjects(TYPE)["randn_like"].calls(VARIANTS["static"], 1)[0]
    torch.manual_seed(5)
    assert not torch.equal(call.function(*call.tensors), call.function(*call.tensors))


def test_workers_that_die_or_hang() -> None:
    fine, missing = Task("aotgrad", "static", "mul", 1), Task("aotgrad", "static", "no such operator", 1)
    rows = {done.task: done.answer for done in sweep([missing, fine], checks, jobs=1, limit_s=60)}
    assert rows == {fine: Passed(), missing: Crashed("exit status 1")}
    assert [done.answer for done in sweep([fine], checks, jobs=1, limit_s=0)] == [TimedOut("longer than 0 s")]


def test_results_are_read_again(tmp_path) -> None:
    row = Row(Task("peer", "static", "mul", 2), Wrong("output 0"), 1.5)
    newer = dataclasses.replace(row, verdict=Passed())
    path = tmp_path / "results.jsonl"
    path.write_text(f"{row.to_line()}\n{newer.to_line()}\n{row.to_line()[:30]}")
    assert read_rows(path) == {row.task: newer}
    assert read_rows(tmp_path / "none") == {}


def test_tables() -> None:
    verdicts = {"a": Passed(), "b": Wrong("output 0 | 1"), "c": NotSupported("no sample")}
    rows = [Row(Task("aotgrad", "static", name, 1), verdict, 0.0) for name, verdict in verdicts.items()]
    assert [line.split("|")[-2].strip() for line in summary(rows).splitlines()[2:]] == ["50.00 %", "50.00 %"]
    only_of_the_peer = [Row(Task("peer", variant, "a", 1), Passed(), 0.0) for variant in ("static", "dynamic")]
    lines = [
        [cell.strip() for cell in line.split("|")[2:-1]] for line in summary([*rows, *only_of_the_peer]).splitlines()[2:]
    ]
    assert lines == [["2", "50.00 %", "100.00 %"], ["1", "-", "100.00 %"], ["2", "50.00 %", "100.00 %"]]
    assert exceptions(rows).splitlines()[-1].split() == [
        "|",
        "b",
        "|",
        "static",
        "|",
        "Wrong",
        "|",
        "output",
        "0",
        "\\|",
        "1",
        "|",
    ]


def test_the_document() -> None:
    text = page([row_of("peer", Passed()), row_of("aotgrad", Wrong("output 0"))], "python ops.py")
    assert "Made by `python ops.py`" in text and "were not run at all: float32, " in text
    assert "| mul        | static    | Wrong     | output 0 |" in text


def row_of(compiler: str, verdict: SubjectVerdict) -> Row:
    return Row(Task(compiler, "static", "mul", 2), verdict, 0.0)


def test_the_worst_verdict_counts() -> None:
    assert worst([NotSupported("no"), Passed()]) == Passed()
    assert worst([Wrong("a"), Refused("b"), Wrong("c")]) == Wrong("a")
    assert isinstance(worst([]), NotSupported)
