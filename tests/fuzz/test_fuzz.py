"""Random programs: each behaves as in eager, or is refused with an error of ours.

The tests print the seed and the command that repeats the programs. The seed is fixed, unless `AOTGRAD_FUZZ_SEED`
gives another one, or is `random`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from aotgrad.backends.inductor.backend import InductorBackend
from tests.fuzz import compare
from tests.fuzz.campaign import Report, chunks, run_chunk
from tests.fuzz.compare import Difference, check
from tests.fuzz.inductor import Stage
from tests.fuzz.program import Apply, Backward, Block, Leaf, Name, Program, Round
from tests.fuzz.reduce import reduced
from tests.fuzz.script import standalone
from tests.fuzz.strategies import has_unordered_writes

EXAMPLES = 500
MOST_REFUSED = 15
"""Calls in a hundred; more would say that the fuzzer no longer tests what it is meant to."""


@pytest.mark.timeout(900)
def test_fresh_programs_are_as_in_eager(capsys) -> None:
    given = os.environ.get("AOTGRAD_FUZZ_SEED", "41")
    seed = random.randrange(10**6) if given == "random" else int(given)
    again = f"python scripts/conformance/fuzz.py --examples {EXAMPLES} --seed {seed}"
    with capsys.disabled():
        print(f"\nfuzzing with seed {seed}; again: {again}")
    report = Report()
    for chunk_seed, examples in chunks(EXAMPLES, seed):
        report.add(run_chunk(chunk_seed, examples))
    assert not report.failures, "\n\n".join([f"seed {seed}; again: {again}", *report.failures])
    assert report.programs == EXAMPLES
    assert report.rejected_share < MOST_REFUSED, report.rejections


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("way", "examples"), [("inductor", 60), ("pieces", 40), ("islands", 300), ("dynamo", 20)])
def test_programs_compiled_otherwise_are_as_in_eager(way: str, examples: int) -> None:
    """A longer campaign: `python scripts/conformance/fuzz.py --way inductor`."""
    report = run_chunk(41, examples, way)
    assert not report.failures, "\n\n".join(report.failures)
    assert report.programs == examples


@pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("way", ["inductor", "dynamo"])
def test_a_mistake_of_inductor_is_found(way: str, monkeypatch) -> None:
    """Kernels that do nothing."""
    monkeypatch.setattr(Stage, "promised", lambda stage, kernels: [lambda *args: None for _ in kernels])
    with Stage().directly(), pytest.raises(Difference, match=r"round 0, after 'result = f\(w0\)'"):
        check(PROGRAM, way)


def test_what_is_rehearsed_is_what_is_performed(monkeypatch) -> None:
    """Nothing is compiled in the performance."""
    stage = Stage()
    with stage.rehearsal(0):
        check(PROGRAM, "inductor")
    assert len(stage.made[0]) == 2 and stage.waiting
    stage.compile_kernels()
    monkeypatch.setattr(InductorBackend, "_make", lambda *_: pytest.fail("compiled in the performance"))
    with stage.performance(0):
        assert check(PROGRAM, "inductor") == []


PROGRAM = Program(
    parameters=("p0",),
    body=(Apply("v0", "{0} * 2", ("p0",)), Apply("", "{0}.add_(1)", ("v0",))),
    result=[Name("v0"), (Name("v0"), None)],
    options="aotgrad.nop",
    rounds=(
        Round(
            setup=(Leaf("w0", (2, 3), "torch.float32", True),),
            arguments=("w0",),
            context="",
            actions=(Apply("", "{0}.mul_(2)", ("o0",)), Backward(("o0",))),
        ),
    ),
)

MISTAKES = {
    "a value": lambda result: [result[0] + 1, result[1]],
    "an alias": lambda result: [result[0], (result[0].clone(), None)],
    "a gradient": lambda result: [result[0].detach(), (result[0].detach(), None)],
    "a version": lambda result: [result[0].clone(), result[1]],
    "a structure": lambda result: (result[0], result[1]),
    "an error": lambda result: result.missing,
}


def test_a_program_without_a_difference() -> None:
    assert check(PROGRAM) == []


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, monkeypatch) -> None:
    """A compiler that gets one thing wrong."""
    spoil = MISTAKES[mistake]

    def compile_wrongly(function, *_, **__):
        return lambda *args: spoil(function(*args))

    monkeypatch.setattr(compare.aotgrad, "aot_function", compile_wrongly)
    with pytest.raises(Difference, match=r"round 0, after 'result = f\(w0\)'"):
        check(PROGRAM)


def test_a_program_that_differs_is_made_small() -> None:
    """Necessary parts stay: here the write to `v0`, and a backward."""

    def differs(program: Program) -> bool:
        body = [statement for statement in program.body if "add_" in getattr(statement, "template", "")]
        return bool(body) and any(isinstance(action, Backward) for round in program.rounds for action in round.actions)

    block = Block("torch.no_grad()", (Apply("", "{0}.add_(1)", ("v0",)), Apply("", "{0}.mul_(1)", ("v0",))))
    large = replace(PROGRAM, body=(*PROGRAM.body[:1], block), rounds=PROGRAM.rounds * 2)
    assert not differs(large)
    small = reduced(replace(large, body=(*large.body, *PROGRAM.body[1:])), differs)
    assert small.body == PROGRAM.body[1:]
    assert [round.actions for round in small.rounds] == [(Backward(("o0",)),)]


@pytest.mark.parametrize(("argument", "depends"), [("x0", False), ("w0", False), ("x1", True)])
@pytest.mark.parametrize("context", ["", "torch.no_grad()"])
def test_no_round_depends_on_the_order_of_a_kernel(argument: str, depends: bool, context: str) -> None:
    """Aliases of one round may let a write read what it has written."""
    write = Apply("", "{0}.add_({1})", ("p0", "p1"))
    body = (Block(context, (write,)),) if context else (write,)
    setup = (
        Leaf("w0", (2, 2), "torch.float32", False),
        Apply("x0", "{0}.clone()", ("w0",)),
        Apply("x1", "{0}.movedim(0, -1)[0]", ("w0",)),
    )
    program = replace(PROGRAM, parameters=("p0", "p1"), body=body)
    assert has_unordered_writes(program, Round(setup, ("w0", argument), "", ())) == depends


def test_every_program_that_differs_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(compare.aotgrad, "aot_function", lambda function, *_, **__: lambda *args: None)
    report = run_chunk(seed=3, examples=5)
    assert report.programs == 0
    assert all(failure.startswith("# round 0, after 'result = f(") for failure in report.failures)


@pytest.mark.parametrize(("spoilt", "shown"), [(False, ""), (True, "+    w0 = ")])
def test_the_standalone_script_shows_the_difference(spoilt: bool, shown: str, tmp_path) -> None:
    text = standalone(PROGRAM, "found: nothing")
    if spoilt:
        text = text.replace("compiled = ", "compiled = lambda w0: [w0.mul_(3), (w0, None)]  # ")
        text = text.replace("requires_grad=True", "requires_grad=False")
    script = tmp_path / "program.py"
    script.write_text(text)
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert shown in run.stdout
    assert bool(run.stdout.strip()) == spoilt


def test_a_seed_gives_the_same_programs() -> None:
    first, second = run_chunk(3, 10), run_chunk(3, 10)
    assert (first.programs, first.calls, first.rejections) == (second.programs, second.calls, second.rejections)
    assert torch.is_grad_enabled()


class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return first


def test_a_defect_of_torch_that_is_known():
    """If this no longer raises, remove `KEPT_GRADIENT_OF_ONE_OF_SEVERAL`."""
    _, second = Two.apply(torch.ones(2, requires_grad=True))
    second.retain_grad()
    with pytest.raises(RuntimeError, match="INTERNAL ASSERT FAILED"):
        second.mul_(2)


def test_dynamo_does_not_check_what_nobody_needs():
    """If this fails, remove `DROPPED_BEHIND_DYNAMO`."""

    def function(x, y):
        torch.view_as_complex(x)
        return y.clone()

    x, y = torch.ones(5)[1:].view(2, 2), torch.ones(3)
    with pytest.raises(RuntimeError, match="storage_offset divisible by 2"):
        function(x, y)
    compiled = torch.compile(function, backend="aot_eager", dynamic=False)
    compiled(torch.ones(2, 2), y)
    assert torch.equal(compiled(x, y), y)


FAILING = {
    "an error that Dynamo adds a line to": ((), (Apply("", "{0}.split(1)", ("p0",)),)),
    "an error behind a graph break": (
        (2, 3),
        (
            Apply("", "{0}.as_strided_((2,), (1,))", ("p0",)),
            Apply("", "{0}.mul_(2)", ("p0",)),
            Apply("", "{0}.squeeze(7)", ("p0",)),
        ),
    ),
    "an error of a lowering": ((2, 3), (Apply("v0", "{0}.index_put((torch.tensor([0]),), torch.ones(4, 5))", ("p0",)),)),
}


@pytest.mark.parametrize("way", ["eager", "dynamo"])
@pytest.mark.parametrize("case", FAILING)
@pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
def test_a_program_that_fails_in_eager_fails(case: str, way: str) -> None:
    shape, body = FAILING[case]
    round = Round((Leaf("w0", shape, "torch.float32", False),), ("w0",), "", ())
    result = Name("v0") if body[-1].target else Name("p0")
    program = replace(PROGRAM, body=body, result=result, options="aotgrad.nop", rounds=(round,))
    with Stage().directly():
        check(program, way)


def test_a_program_that_fails_in_eager_alone_is_found(monkeypatch) -> None:
    round = Round((Leaf("w0", (), "torch.float32", False),), ("w0",), "", ())
    program = replace(PROGRAM, body=(Apply("", "{0}.split(1)", ("p0",)),), result=Name("p0"), rounds=(round,))
    monkeypatch.setattr(compare.aotgrad, "aot_function", lambda *_, **__: lambda x: x)
    with pytest.raises(Difference, match="raised nothing; eager: RuntimeError: split expects"):
        check(program)
