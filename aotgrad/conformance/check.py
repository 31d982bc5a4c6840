"""Compares one subject, compiled, with eager.

check_subject(find_subjects("cpu")["add"], OF_BACKENDS["dynamic"], compile)        Passed(reason='')
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from aotgrad.conformance.differences import different_facts, different_strides, different_values
from aotgrad.conformance.observe import Observation, observe_calls
from aotgrad.conformance.subjects import Function, SampleCall, Subject
from aotgrad.conformance.variants import CallVariant
from aotgrad.conformance.verdict import (
    BreaksContract,
    FellBack,
    NotSupported,
    OtherStrides,
    Passed,
    Raised,
    Refused,
    SubjectVerdict,
    Wrong,
    worst,
)
from aotgrad.errors import AOTGradError, BackendError

CompileFunction = Callable[[Function, CallVariant], Callable]

OTHER_SEED = 1
LONGEST_REASON = 240

UNINITIALIZED_OPERATORS = ("empty", "new_empty", "resize_", "resize_as_")
"""How the names of operators start whose values are whatever lies in memory."""


def check_subject(
    subject: Subject, variant: CallVariant, compile: CompileFunction, most: int = 2, tolerance: float = 1
) -> SubjectVerdict:
    """The worst verdict of at most `most` samples. `tolerance` multiplies the errors that are allowed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            calls = subject.calls(variant, most)
        except Exception as error:
            return NotSupported(f"no samples: {message(error)}")
        check = CallCheck(subject.name, variant, compile, tolerance)
        return worst([check(call) for call in calls])


@dataclass(frozen=True)
class CallCheck:
    """Compares one call with eager."""

    name: str
    variant: CallVariant
    compile: CompileFunction
    tolerance: float = 1

    def __call__(self, call: SampleCall) -> SubjectVerdict:
        try:
            wanted = observe_calls(call)
        except Exception as error:
            return NotSupported(f"eager raises {message(error)}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                actual = observe_calls(call, lambda function: self.compile(function, self.variant))
            except Exception as error:
                return verdict_on_error(getattr(error, "inner_exception", error))  # Dynamo wraps the errors of a backend
        ran_eagerly = [str(warning.message) for warning in caught if " ran eagerly: " in str(warning.message)]
        if ran_eagerly:
            return FellBack(one_line(ran_eagerly[0].partition(" ran eagerly: ")[2]))
        return self.compare(call, actual, wanted)

    def compare(self, call: SampleCall, actual: Sequence[Observation], wanted: Sequence[Observation]) -> SubjectVerdict:
        found = in_calls(different_facts, actual, wanted)
        if not found and (values := in_calls(self.different_values, actual, wanted)):
            found = [] if self.is_open(call, wanted) else values
        if found:
            return Wrong(one_line("; ".join(found)))
        other_strides = in_calls(different_strides, actual, wanted)[:3]
        return OtherStrides(one_line("; ".join(other_strides))) if other_strides else Passed()

    def is_open(self, call: SampleCall, wanted: Sequence[Observation]) -> bool:
        """Whether a second eager run gives other values; after another seed, where decompositions draw differently."""
        if self.name.startswith(UNINITIALIZED_OPERATORS):
            return True
        if in_calls(self.different_values, observe_calls(call), wanted):
            return True
        return not self.variant.runs_eager_ops and bool(
            in_calls(different_values, observe_calls(call, seed=OTHER_SEED), wanted)
        )

    def different_values(self, actual: Observation, wanted: Observation) -> Iterator[str]:
        return different_values(actual, wanted, self.tolerance)


Differences = Callable[[Observation, Observation], Iterator[str]]


def in_calls(differences: Differences, actual: Sequence[Observation], wanted: Sequence[Observation]) -> list[str]:
    """The differences of the first call that has any; those of a later one name it."""
    for k, (got, expected) in enumerate(zip(actual, wanted, strict=True), start=1):
        if found := list(differences(got, expected)):
            return found if k == 1 else [f"call {k}: {text}" for text in found]
    return []


def verdict_on_error(error: Exception) -> SubjectVerdict:
    if isinstance(error, BackendError):
        return BreaksContract(one_line(str(error)))
    return Refused(message(error)) if isinstance(error, AOTGradError) else Raised(message(error))


def message(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}")


def one_line(text: str) -> str:
    text = re.sub(r"/\S*/(site-packages|tests)/", "", " ".join(text.split()))
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 3] + "..."
