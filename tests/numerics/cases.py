"""Tables of cases: small functions that are compared with eager under every backend.

CASES = Cases()

@CASES.add(non_leaf(3))
def scaled(x):
    return x.mul_(2)

@CASES.parametrize()
def test_mutations(case, backend):
    case.check(backend)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from .against_eager import ALL, DYNAMO_BACKENDS, EXACT, Function, MakeArguments, assert_like_eager


@dataclass(frozen=True)
class Case:
    """A function, the factory of its arguments, and further arguments of `assert_like_eager`."""

    function: Function
    make_args: MakeArguments
    backends: tuple[str, ...]
    known_difference: str
    expectations: dict[str, Any]

    @property
    def name(self) -> str:
        return self.function.__name__

    def check(self, backend: str, **more: Any) -> None:
        assert_like_eager(self.function, self.make_args, backend, **{**self.expectations, **more})


@dataclass
class Cases:
    """The cases of one file, in source order."""

    cases: list[Case] = field(default_factory=list)

    def add(
        self,
        make_args: MakeArguments,
        *,
        without_dynamo: str = "",
        without_inductor: str = "",
        known_difference: str = "",
        **expectations: Any,
    ) -> Callable[[Function], Function]:
        """Add the decorated function, under its name.

        Args:
            make_args: see `assert_like_eager`.
            without_dynamo: why Dynamo cannot capture the function in one graph, or differs from eager by itself.
            without_inductor: why it depends on eager halves.
            known_difference: the known difference from eager; the test is expected to fail.
            **expectations: for `assert_like_eager`.
        """
        ways = EXACT if without_inductor else ALL
        backends = tuple(way for way in ways if not (without_dynamo and way in DYNAMO_BACKENDS))

        def add_function(function: Function) -> Function:
            assert function.__name__ not in {case.name for case in self.cases}
            self.cases.append(Case(function, make_args, backends, known_difference, expectations))
            return function

        return add_function

    def __getitem__(self, name: str) -> Case:
        return next(case for case in self.cases if case.name == name)

    def parametrize(self) -> pytest.MarkDecorator:
        """One test per case and backend, with the arguments `case` and `backend`."""
        pairs = [(case, backend) for case in self.cases for backend in case.backends]
        parameters = [
            pytest.param(case, backend, id=f"{case.name}-{backend}", marks=known(case.known_difference))
            for case, backend in pairs
        ]
        return pytest.mark.parametrize(("case", "backend"), parameters)


def known(difference: str) -> list[pytest.MarkDecorator]:
    """The marks of a test with a known difference from eager; none without one."""
    return [pytest.mark.xfail(strict=True, reason=difference)] if difference else []
