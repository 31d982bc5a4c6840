"""Classes whose context holds sizes, behind Dynamo with symbolic sizes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from tests.subclasses.classes import Padded, Wrapper
from tests.subclasses.programs import compiled, described, two


class Named(NamedTuple):
    shape: tuple
    unit: str


@dataclass
class Inner:
    """Cannot be hashed."""

    shape: tuple
    named: Named


@dataclass(frozen=True)
class Frozen:
    shape: tuple
    inner: Inner


CONTEXTS: dict[str, Callable[[tuple], Any]] = {
    "a number": lambda shape: sum(shape),
    "a tuple": lambda shape: ("m", shape),
    "a size": torch.Size,
    "a list": list,
    "a dict": lambda shape: {"shape": shape, "unit": "m"},
    "an ordered dict": lambda shape: OrderedDict(shape=shape),
    "a named tuple": lambda shape: Named(shape, "m"),
    "a dataclass": lambda shape: Inner(shape, Named(shape, "m")),
    "a frozen dataclass": lambda shape: Frozen(shape, Inner(shape, Named(shape, "m"))),
}


class Sized(Wrapper):
    """A part, and a context made of its sizes by `CONTEXTS`."""

    @staticmethod
    def __new__(cls, part, how, held):
        return torch.Tensor._make_wrapper_subclass(cls, part.shape, part.stride(), dtype=part.dtype)

    def __init__(self, part, how, held):
        self.part, self.how, self.held = part, how, held

    @classmethod
    def of(cls, part: torch.Tensor, how: str) -> Sized:
        return cls(part, how, CONTEXTS[how](tuple(part.shape)))

    def names(self) -> list[str]:
        return ["part"]

    def context(self) -> Any:
        return self.how, self.held

    def like(self, part):
        return Sized.of(part, self.how)

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return Sized(parts["part"], *context)

    @classmethod
    def __metadata_guard__(cls, one, other) -> bool:
        """Dynamo does not guard the sizes."""
        return one[0] == other[0]


def numbers_in(text: Any) -> str:
    return f"{type(text).__name__} {text!r}"


def outcome(function: Callable, how: str, rows: int) -> list[Any]:
    generator = torch.Generator().manual_seed(rows)
    x = Sized.of(torch.randn(rows, 3, dtype=torch.float64, generator=generator), how).requires_grad_()
    y = function(x)
    (y * y).sum().backward()
    seen = [each for value in (y, x.grad) for each in (value.shape, value.stride(), numbers_in(value.held))]
    return [*seen, y.part.tolist(), x.grad.part.tolist()]


FUNCTIONS = {
    "of its size": lambda x: x.sin() * x,
    "of another size": lambda x: torch.cat([x, x]) * 2,
    "transposed": lambda x: x.t() * x.shape[0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("how", CONTEXTS)
def test_results_and_gradients_have_the_sizes_of_the_call(how: str, name: str) -> None:
    ours = compiled(FUNCTIONS[name], "dynamo, eager halves", dynamic=True)
    for rows in (4, 5, 7, 5):
        assert outcome(ours, how, rows) == outcome(FUNCTIONS[name], how, rows)


def padded(size: int) -> torch.Tensor:
    return Padded(torch.linspace(0.1, 1, size + 1), None, (size,)).requires_grad_()


@pytest.mark.parametrize("way", ["dynamo, eager halves", "dynamo, inductor halves"])
@pytest.mark.parametrize("argument", [two, padded])
def test_gradients_of_gradients(argument, way) -> None:
    """The function runs once more for them, with fixed sizes; later calls are those of the first run."""

    def function(x):
        return x.exp(), x.sin() * x

    def run(function: Callable, size: int) -> list[Any]:
        x = argument(size)
        first, second = function(x)
        (gradient,) = torch.autograd.grad((first * second).sum(), x, create_graph=True)
        return [described(each.detach()) for each in (first, second, *torch.autograd.grad((gradient**2).sum(), x))]

    ours = compiled(function, way, dynamic=True)
    for size in (3, 4, 5):
        assert run(ours, size) == run(function, size)
