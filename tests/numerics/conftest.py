"""Runs tests through both backends, and hides warnings that torch itself gives while Dynamo or Inductor compile.

A module with `pytestmark = pytest.mark.usefixtures("halves")` runs each of its tests twice. In the second run, Inductor
compiles what is given to `aotgrad.nop`. A test that depends on eager's halves says why: `@pytest.mark.eager_halves(reason)`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import aotgrad

from .against_eager import AOT

TORCH_WARNS = (
    # Dynamo reads it of every input; torch hides the warning, but cannot keep it from being raised as an error.
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning",
    # The first import of Inductor, and of forward mode, scripts functions.
    "ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning",
    # Inductor leaves complex numbers to eager's kernels, and says so.
    "ignore:Torchinductor does not support code generation for complex operators:UserWarning",
    # Dynamo itself instantiates a custom autograd function, which torch deprecates.
    "ignore:.*should not be instantiated:DeprecationWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Filters for the tests of this folder, but for those that say that they compile without Dynamo."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if item.path.is_relative_to(Path(__file__).parent) and parameters.get("backend") not in AOT:
            for warning in TORCH_WARNS:
                item.add_marker(pytest.mark.filterwarnings(warning))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of modules that use the fixture `halves` run with eager's halves, and through Inductor if they may."""
    if "halves" in metafunc.fixturenames:
        is_exact = metafunc.definition.get_closest_marker("eager_halves") is not None
        metafunc.parametrize("halves", ["nop"] if is_exact else ["nop", "inductor"], indirect=True)


@pytest.fixture
def halves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What compiles the halves of functions that the test compiles with `aotgrad.nop`."""
    if request.param == "inductor":
        monkeypatch.setattr(aotgrad, "nop", "inductor")
    return request.param
