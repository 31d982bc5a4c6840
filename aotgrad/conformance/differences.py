"""Differences between two runs, and whether they concern more than strides.

list(differences(actual, wanted))       ["output 0: requires_grad is False, not True"]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from aotgrad.conformance.observe import Observation


def different_facts(actual: Observation, wanted: Observation) -> Iterator[str]:
    for name in {**wanted.facts, **actual.facts}:
        got, expected = actual.facts.get(name), wanted.facts.get(name)
        if got == expected:
            continue
        if isinstance(got, dict) and isinstance(expected, dict):
            yield from (f"{name}: {key} is {got[key]}, not {expected[key]}" for key in got if got[key] != expected[key])
        else:
            yield f"{name} is {got}, not {expected}"


def different_values(actual: Observation, wanted: Observation) -> Iterator[str]:
    for name in {**wanted.values, **actual.values}:
        got, expected = actual.values.get(name), wanted.values.get(name)
        if got is None or expected is None:
            if got is not expected:
                yield f"{name} is {tensor_text(got)}, not {tensor_text(expected)}"
        elif message := value_message(got, expected):
            yield f"{name}: {message}"


def value_message(got: Tensor, expected: Tensor) -> str:
    """One line on why two tensors are not close; empty if they are."""
    try:
        torch.testing.assert_close(got, expected, equal_nan=True, check_stride=False)
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return " ".join([lines[0], *(line for line in lines if "absolute difference" in line)])
    return ""


def different_strides(actual: Observation, wanted: Observation) -> Iterator[str]:
    for name, expected in wanted.values.items():
        got = actual.values.get(name)
        if got is not None and expected is not None and significant_strides(got) != significant_strides(expected):
            yield f"{name}: strides of {list(got.shape)} are {got.stride()}, not {expected.stride()}"


def significant_strides(tensor: Tensor) -> list[int] | None:
    """The strides of dimensions with several elements; the others are arbitrary."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return None
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def tensor_text(value: Any) -> str:
    return "None" if value is None else f"a tensor of {list(value.shape)}"
