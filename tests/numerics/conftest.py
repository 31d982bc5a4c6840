"""Warnings that torch itself gives while Dynamo or Inductor compile; every other warning is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

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
