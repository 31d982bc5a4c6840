"""The difference between the observations of two runs.

    difference(expected, found)   # Difference(of="step 3 gradient weight", relative=2e-07)

A tensor's difference is the largest one of its items over its largest item; but for a gradient that is smaller than a
thousandth of the largest gradient of its step, which is rounding mostly, over that thousandth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

SMALL = 1e-3
Observations = Mapping[str, Tensor | None]


@dataclass(frozen=True)
class Difference:
    """The largest difference and its place; `relative` is infinite for a different `None`, type or size."""

    of: str
    relative: float


def difference(expected: Observations, found: Observations) -> Difference:
    """Where two runs differ most; 0 if they are equal to the bit."""
    if expected.keys() != found.keys():
        missing = sorted(expected.keys() ^ found.keys())
        return Difference(f"{missing[0]}, which one run has and the other has not", float("inf"))
    scales = largest_by_place(expected)
    differences = [Difference(name, relative(expected[name], found[name], scales[place_of(name)])) for name in expected]
    return max(differences, key=lambda each: each.relative)


def place_of(name: str) -> str:
    """The prefix of a parameter's name; gradients of one step are compared with each other."""
    before, separator, _ = name.partition(" gradient ")
    return before if separator else name


def largest_by_place(observations: Observations) -> dict[str, float]:
    scales: dict[str, float] = {}
    for name, value in observations.items():
        place = place_of(name)
        scales[place] = max(scales.get(place, 0.0), largest(value))
    return scales


def largest(value: Tensor | None) -> float:
    return 0.0 if value is None or not value.numel() else value.abs().max().item()


def relative(expected: Tensor | None, found: Tensor | None, scale: float) -> float:
    """The difference of two tensors; `scale` is the largest item of all gradients beside them."""
    if expected is None or found is None:
        return 0.0 if expected is found else float("inf")
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return float("inf")
    if torch.equal(expected, found):
        return 0.0
    expected, found = expected.double(), found.double()
    distance = largest(expected - found) / max(largest(expected), SMALL * scale, 1e-30)
    return distance if distance == distance else float("inf")  # NaN in one of them
