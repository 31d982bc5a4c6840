"""Wrappers that require grad, in functions that are called with gradients off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.subclasses.programs import WAYS, compiled, described, two


def asks(x: Any) -> Any:
    return x * 2 if x.requires_grad else x * 3


def turns_on(x: Any) -> Any:
    y = x * 2
    with torch.enable_grad():
        return y, x.exp() * x


def differentiates(x: Any) -> Any:
    with torch.enable_grad():
        y = (x.sin() * x).sum()
        return torch.autograd.grad(y, x)[0]


def outcome(function: Callable, mode: Callable, is_leaf: bool) -> list[Any]:
    leaf = two(3, 4)
    x = leaf if is_leaf else leaf * 1
    with mode():
        results = function(x)
    results = results if isinstance(results, Sequence) else [results]
    differentiable = [each for each in results if each.requires_grad]
    seen = [(described(each), each.is_leaf) for each in results]
    if differentiable:
        sum(each.sum() for each in differentiable).backward()
    return [*seen, described(leaf.grad)]


CASES = {
    "asks under no_grad": (asks, torch.no_grad),
    "asks in inference mode": (asks, torch.inference_mode),
    "turns gradients on": (turns_on, torch.no_grad),
    "differentiates": (differentiates, torch.no_grad),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("way", [way for way in WAYS if "eager" in way])
@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str, way: str, is_leaf: bool) -> None:
    function, mode = CASES[name]
    ours = compiled(function, way)
    for _ in range(2):
        assert outcome(ours, mode, is_leaf) == outcome(function, mode, is_leaf)
