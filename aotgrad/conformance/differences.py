"""Differences between two runs, and whether they concern more than strides.

list(different_facts(actual, wanted))       ["output 0: requires_grad is False, not True"]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from aotgrad import torch_compat
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
    if actual.draws and not wanted.draws:
        yield "a random generator moves, and in eager none does"


def different_values(actual: Observation, wanted: Observation, tolerance: float = 1) -> Iterator[str]:
    """What differs, the largest error first. `tolerance` multiplies the errors that torch allows for a dtype."""
    found: list[tuple[float, str]] = []
    for name in {**wanted.values, **actual.values}:
        got, expected = actual.values.get(name), wanted.values.get(name)
        if got is None or expected is None:
            if got is not expected:
                found.append((math.inf, f"{name} is {tensor_text(got)}, not {tensor_text(expected)}"))
        elif message := value_message(got, expected, tolerance):
            found.append((largest_error(got, expected), f"{name}: {message}"))
    yield from (text for _, text in sorted(found, key=lambda each: each[0], reverse=True))


def largest_error(got: Tensor, expected: Tensor) -> float:
    """The largest difference of two elements over the largest number that is expected; infinite where there is none."""
    if got.shape != expected.shape or got.dtype != expected.dtype or got.layout is not expected.layout:
        return math.inf
    if got.layout is not torch.strided or got.is_quantized:
        return math.inf
    kind = torch.complex128 if got.is_complex() else torch.float64
    one, other = got.detach().to(kind), expected.detach().to(kind)
    scale, error = (float(each.abs().max()) if each.numel() else 0.0 for each in (other, one - other))
    return error / scale if math.isfinite(error) and scale > 0 else math.inf


def value_message(got: Tensor, expected: Tensor, tolerance: float = 1) -> str:
    """One line on why two tensors are not close; empty if they are."""
    rtol, atol = torch_compat.tolerances_of(got, expected)
    try:
        torch.testing.assert_close(
            got, expected, rtol=rtol * tolerance, atol=atol * tolerance, equal_nan=True, check_stride=False
        )
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
