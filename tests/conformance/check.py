"""One subject, in one variant, by one compiler.

check(find_subjects()["add"], VARIANTS["dynamic"], "aotgrad")        Passed(reason='')
"""

from __future__ import annotations

import itertools
import re
import warnings
from dataclasses import dataclass

from aotgrad.errors import AOTGradError
from tests.conformance.compilers import COMPILERS, Compiler
from tests.conformance.differences import different_facts, different_strides, different_values
from tests.conformance.observe import Outcome, observe
from tests.conformance.subjects import Call, Subject
from tests.conformance.variants import Backend, Variant
from tests.conformance.verdict import (
    NotSupported,
    OtherStrides,
    Passed,
    Raised,
    RanEagerly,
    Refused,
    Verdict,
    Wrong,
    worst,
)

OTHER_SEED = 1
LONGEST_REASON = 240

UNINITIALIZED = ("empty", "new_empty", "resize_", "resize_as_")
"""How the names of operators start whose values are whatever lies in memory."""


def check(subject: Subject, variant: Variant, compiler: str, most: int = 2) -> Verdict:
    """The worst verdict of at most `most` samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            calls = subject.calls(variant, most)
        except Exception as error:
            return NotSupported(f"no samples: {message(error)}")
        check = CallCheck(subject.name, variant, COMPILERS[compiler])
        return worst([check(call) for call in calls])


@dataclass(frozen=True)
class CallCheck:
    """Compares one call with eager."""

    name: str
    variant: Variant
    compile: Compiler

    def __call__(self, call: Call) -> Verdict:
        try:
            wanted = observe(call)
        except Exception as error:
            return NotSupported(f"eager raises {message(error)}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                actual = observe(call, lambda function: self.compile(function, self.variant))
            except Exception as error:
                return verdict_of(getattr(error, "inner_exception", error))  # Dynamo wraps the errors of a backend
        ran_eagerly = [str(warning.message) for warning in caught if " ran eagerly: " in str(warning.message)]
        if ran_eagerly:
            return RanEagerly(one_line(ran_eagerly[0].partition(" ran eagerly: ")[2]))
        return self.compare(call, actual, wanted)

    def compare(self, call: Call, actual: Outcome, wanted: Outcome) -> Verdict:
        found = list(different_facts(actual, wanted))
        if not found and any(different_values(actual, wanted)) and not self.is_open(call, wanted):
            found = list(different_values(actual, wanted))
        if found:
            return Wrong(one_line("; ".join(found)))
        other_strides = list(itertools.islice(different_strides(actual, wanted), 3))
        return OtherStrides(one_line("; ".join(other_strides))) if other_strides else Passed()

    def is_open(self, call: Call, wanted: Outcome) -> bool:
        """Whether a second eager run gives other values; after another seed, where decompositions draw differently."""
        if self.name.startswith(UNINITIALIZED):
            return True
        if any(different_values(observe(call), wanted)):
            return True
        same_ops = self.variant.decompositions == "none" and self.variant.backend is Backend.EAGER
        return not same_ops and any(different_values(observe(call, seed=OTHER_SEED), wanted))


def verdict_of(error: Exception) -> Verdict:
    return Refused(message(error)) if isinstance(error, AOTGradError) else Raised(message(error))


def message(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}")


def one_line(text: str) -> str:
    text = re.sub(r"/\S*/(site-packages|tests)/", "", " ".join(text.split()))
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 3] + "..."
