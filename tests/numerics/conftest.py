"""Ignored warnings of torch itself while Dynamo or Inductor compile; every other warning is an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import aotgrad
from aotgrad.backends.inductor.backend import InductorBackend

from .against_eager import AOT

TORCH_WARNS = (
    # Dynamo reads it from every input; torch suppresses the warning, but not as an error.
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning",
    # The first import of Inductor, and of forward mode, scripts functions.
    "ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning",
    # Inductor leaves complex numbers to eager's kernels, and says so.
    "ignore:Torchinductor does not support code generation for complex operators:UserWarning",
    # Inductor checks the arguments of some ops with deprecated functions of torch.
    "ignore:`torch._prims_common.check` is deprecated:FutureWarning",
    # Dynamo itself instantiates a custom autograd function, which torch deprecates.
    "ignore:.*should not be instantiated:DeprecationWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Filter warnings in the tests of this folder, except those marked as compiled without Dynamo."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if item.path.is_relative_to(Path(__file__).parent) and parameters.get("backend") not in AOT:
            for warning in TORCH_WARNS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@dataclass(frozen=True)
class EveryGraph(InductorBackend):
    """Use Inductor for graphs of one op, too."""

    min_graph_ops = 0


HALVES = {"eager halves": aotgrad.nop, "inductor halves": EveryGraph()}


@pytest.fixture(params=HALVES)
def halves(request: pytest.FixtureRequest) -> Any:
    """The compiler of both halves: the first argument after the function of `aot_function` and `aot_module`."""
    return HALVES[request.param]


@pytest.fixture
def eagers_numbers() -> Iterator[None]:
    """Let Inductor draw from the generator, as eager does; its own random numbers differ."""
    with torch._inductor.config.patch(fallback_random=True):
        yield
