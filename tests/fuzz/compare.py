"""Compares a program's compiled run with its eager run, step by step.

check(program)      a list of `Rejection`s; raises `Difference` after the first step with a difference
check(program, "inductor")      the same, compiled in another way (ways.py)
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException
from torch._inductor.exc import OperatorIssue

import aotgrad
from aotgrad.errors import AOTGradError, CaptureError, HigherOrderError
from tests.fuzz.known import is_known, known_differences
from tests.fuzz.program import Program, Round
from tests.fuzz.ways import WAYS, by_dynamo_alone, has_graph_breaks
from tests.fuzz.worlds import Step, define, run_round, run_without_storage_errors

REJECTIONS = (CaptureError, HigherOrderError)
"""What aotgrad may answer instead of doing as eager does: errors that say what it cannot do."""

TOLD_BY_DYNAMO = "\nfrom user code:\n"
"""What Dynamo adds to the text of an error that an op raises while it traces."""

TOLD_BY_INTERPRETERS = "\n\nWhile executing %"
"""What an interpreter of a graph, such as Inductor's, adds to the text of an error that an op raises."""

MOST_LINES = 12
"""How many differences of one step are told."""


@dataclass(frozen=True)
class Rejection:
    """A program that aotgrad refuses: the class of the error, and its message without names and numbers."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: Exception) -> Rejection:
        first_line = str(error).splitlines()[0]
        message = re.sub(r", at .*?(?=\. |$)", "", first_line)
        return cls(type(error).__name__, re.sub(r"\d+|'[^']*'|\[[^]]*\]|torch\.\w+", "_", message)[:110])


class Difference(AssertionError):
    """A difference from eager: a line with its step, then one for each value or fact that differs."""

    @property
    def step(self) -> str:
        return str(self).splitlines()[0]

    @property
    def kind(self) -> str:
        """The first value or fact that differs."""
        return without_numbers(str(self).splitlines()[1])


def without_numbers(line: str) -> str:
    """What lines have in common that differ in numbers and lists."""
    return re.sub(r"-?\d[\d.e+-]*|\[[^]]*\]|\([^)]*\)", "_", line)


def check(program: Program, way: str = "eager") -> list[Rejection]:
    """Run every round of a program in eager and compiled.

    A difference that Dynamo makes without aotgrad, too, is none.

    Raises:
        Difference: with the first step that differs.
    """
    try:
        return check_rounds(program, way, WAYS[way])
    except Difference as difference:
        if way == "dynamo" and is_dynamos_own(program, difference):
            return []
        raise


def is_dynamos_own(program: Program, difference: Difference) -> bool:
    try:
        check_rounds(program, "dynamo", by_dynamo_alone)
    except Difference as other:
        return (other.step, other.kind) == (difference.step, difference.kind)
    return False


def check_rounds(program: Program, way: str, compiler: Callable) -> list[Rejection]:
    eager = define(program)
    compiled = eval(f"compiled(f, {program.options})", {"f": define(program), "aotgrad": aotgrad, "compiled": compiler})
    return [
        rejection
        for number, round in enumerate(program.rounds)
        if (rejection := compare_round(eager, compiled, round, f"round {number}", known_differences(program, round, way)))
        is not None
    ]


def compare_round(
    eager: Callable, compiled: Callable, round: Round, where: str, known: tuple[str, ...] = ()
) -> Rejection | None:
    """The steps of one round in both worlds, up to the first refusal."""
    expected = list(run_round(eager, round))
    before: Step | None = None
    for position, actual in enumerate(run_round(compiled, round)):
        wanted = expected[position]
        actual = unwrapped(actual, wanted)
        rejected = isinstance(actual.error, REJECTIONS)
        if rejected and not is_call(actual):
            return Rejection.of(actual.error)
        if rejected:
            wanted = unchanged(before, actual)
        if rejected and has_graph_breaks(compiled):
            return Rejection.of(actual.error)  # the code before the break has run
        both_fail = actual.error is not None and wanted.error is not None
        if is_call(actual) and both_fail and has_graph_breaks(compiled):
            return None  # the code before the break has run, the code after it has not
        if is_call(actual) and both_fail and before is not None:
            wanted = unchanged(before, wanted) if any(different(actual, wanted)) else wanted
        if actual.error is None and is_backward(actual) and is_storage_error(wanted.error):
            check_right(actual, eager, round, position, where)
            return None
        if type(actual.error) is not type(wanted.error) and is_known(error_line(actual, wanted), known):
            return None  # from here on the two diverge
        if differences := [line for line in different(actual, wanted) if not is_known(line, known)]:
            raise Difference("\n  ".join([f"{where}, after {actual.code!r}:", *differences[:MOST_LINES]]))
        if rejected:
            return Rejection.of(actual.error)
        before = actual
    return None


STORAGE_ERRORS = re.compile(
    "one of the variables needed for gradient computation has been modified by an inplace operation"
    "|Trying to backward through the graph a second time"
    "|(A view was created in no_grad mode|Output \\d+ of \\w+ is a view) and its base or another view of its base has been"
)
"""What eager raises because of how it stores values, where a right result is fine."""


def is_storage_error(error: Exception | None) -> bool:
    return error is not None and STORAGE_ERRORS.match(str(error)) is not None


def check_right(actual: Step, eager: Callable, round: Round, position: int, where: str) -> None:
    """Compare a backward that raises in eager with one that copies and retains what it needs.

    Torch's context for this loses the history of a view whose base an op on a list changes.

    Raises:
        Difference: a gradient is another one.
    """
    if any(name.startswith("_foreach_") and name.endswith("_") for name in eager.__code__.co_names):
        return
    right = list(itertools.islice(run_without_storage_errors(eager, round), position + 1))[-1]
    if right.code != actual.code or right.error is not None:
        return
    rounding = rounding_of(right.values.values())
    names = [name for name in right.values if not same(actual.values.get(name), right.values[name], rounding)]
    lines = [f"{name}: {listed(actual.values.get(name))}; right: {listed(right.values[name])}" for name in names]
    if lines:
        raise Difference("\n  ".join([f"{where}, after {actual.code!r}:", *lines[:MOST_LINES]]))


def unwrapped(step: Step, wanted: Step) -> Step:
    """A step without Dynamo's wrapper of errors: aotgrad's error, or eager's if a compiler raises where eager does."""
    error: Exception | None = step.error
    if isinstance(error, BackendCompilerFailed):
        error = error.inner_exception
    is_compilers = isinstance(error, (TorchDynamoException, OperatorIssue)) or TOLD_BY_DYNAMO in str(error)
    is_compilers |= TOLD_BY_INTERPRETERS in str(error) and not isinstance(error, AOTGradError)
    return replace(step, error=wanted.error if is_compilers and wanted.error is not None else error)


def unchanged(before: Step, failed: Step) -> Step:
    """The expected record of a failed step without effects: a graph mutates its inputs only after it has run."""
    return Step(failed.code, failed.error, before.facts, before.values)


def is_call(step: Step) -> bool:
    return "result = f(" in step.code


def is_backward(step: Step) -> bool:
    return "backward(" in step.code or "gradients(" in step.code


def different(actual: Step, wanted: Step) -> Iterator[str]:
    """One line a difference."""
    if type(actual.error) is not type(wanted.error):
        yield error_line(actual, wanted)
    if actual.error is not None and is_backward(actual):
        return  # the gradients that had arrived by then are unspecified
    yield from different_facts(actual.facts, wanted.facts)
    rounding = rounding_of(wanted.values.values())
    for name in {**wanted.values, **actual.values}:
        if not same(actual.values.get(name), wanted.values.get(name), rounding):
            yield f"{name}: {listed(actual.values.get(name))}; eager: {listed(wanted.values.get(name))}"


def error_line(actual: Step, wanted: Step) -> str:
    return f"raised {described(actual.error)}; eager: {described(wanted.error)}"


def described(error: Exception | None) -> str:
    return "nothing" if error is None else f"{type(error).__name__}: {str(error)[:300]}"


def different_facts(actual: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    for name in {**wanted, **actual}:
        got, expected = actual.get(name, "absent"), wanted.get(name, "absent")
        if got != expected:
            yield f"{name}: {got}; eager: {expected}"


def listed(value: Tensor | None) -> Any:
    return None if value is None else f"{value.tolist()} ({value.dtype})"


def rounding_of(values: Iterable[Tensor | None]) -> float:
    """The relative error to allow: a program that computes in single precision may convert its results to double."""
    dtypes = {value.dtype for value in values if value is not None and (value.is_floating_point() or value.is_complex())}
    return 1e-9 if dtypes <= {torch.float64, torch.complex128} else 1e-4


def same(actual: Tensor | None, wanted: Tensor | None, rounding: float) -> bool:
    """Equal up to rounding, relative to the largest number in the tensor: sums may be taken in another order."""
    if actual is None or wanted is None:
        return actual is wanted
    if (actual.shape, actual.dtype) != (wanted.shape, wanted.dtype):
        return False
    if torch.equal(actual, wanted):
        return True
    if not wanted.dtype.is_floating_point and not wanted.dtype.is_complex:
        return False
    finite = wanted[torch.isfinite(wanted)]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    return torch.allclose(actual, wanted, rtol=rounding, atol=rounding * max(scale, 1.0), equal_nan=True)
