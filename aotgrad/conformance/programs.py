"""Small models, functions that return views of what they are given, and functions that change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aotgrad.conformance.subjects import SEED, ModuleFunction, SampleCall, Stateless
from aotgrad.conformance.variants import CallVariant, Compilation, First, OperatorForm

FLOATS = (torch.float32, torch.float64)


@dataclass(frozen=True)
class TensorFunction(Stateless):
    """A function of tensors."""

    function: Callable

    def __call__(self, *tensors: Tensor) -> Any:
        return self.function(*tensors)


@dataclass(frozen=True)
class SmallProgram:
    """A function of random tensors, or the constructor of a module.

    Attributes:
        make: the function, or makes the module.
        sizes: of its arguments.
        changed: the arguments that it changes.
    """

    name: str
    make: Callable
    sizes: Sequence[tuple[int, ...]] = ((3, 4),)
    changed: frozenset[int] = frozenset()
    device: str = "cpu"

    def calls(self, variant: CallVariant, most: int) -> list[SampleCall]:
        dtype = next((dtype for dtype in variant.dtypes if dtype in FLOATS), None)
        is_plain = variant.form is OperatorForm.FUNCTION and variant.first is First.PLAIN
        if dtype is None or not is_plain or variant.compilation is not Compilation.DIRECT:
            return []
        torch.manual_seed(SEED)
        tensors = [torch.randn(size, dtype=dtype).to(self.device).requires_grad_() for size in self.sizes]
        return [SampleCall(self.function(dtype), tuple(tensors), self.changed)]

    def function(self, dtype: torch.dtype) -> TensorFunction | ModuleFunction:
        if not isinstance(made := self.make(), nn.Module):
            return TensorFunction(made)
        return ModuleFunction(made.to(self.device, dtype), lambda tensors: (tensors, {}))


class Counting(nn.Module):
    """Counts its calls in one buffer, and keeps a mean in another."""

    calls: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean.copy_(0.9 * self.mean + 0.1 * x.detach().mean(0))
        return (x - self.mean).sin() / self.calls


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))


def convolutions() -> nn.Module:
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5)
    return nn.Sequential(*layers)


def transformer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def returns(function: Callable) -> Callable[[], Callable]:
    return lambda: function


def change_a_view(x: Tensor) -> Tensor:
    x[0].mul_(2)
    return x.sin()


def change_and_return(x: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    return x, x.t()


def change_and_read_before(x: Tensor, y: Tensor) -> Tensor:
    before = x + y
    x.copy_(y.exp())
    return before + x


def view_of_a_result(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    return y, y[1:]


PAIR = ((3, 4), (3, 4))
PROGRAMS = (
    SmallProgram("model: perceptron", mlp),
    SmallProgram("model: convolutions with batch norm", convolutions, ((2, 3, 8, 8),)),
    SmallProgram("model: transformer layer", transformer, ((2, 5, 8),)),
    SmallProgram("model: recurrent", lambda: nn.GRUCell(4, 6), ((3, 4), (3, 6))),
    SmallProgram("model: buffers that change", Counting),
    SmallProgram("alias: the argument", returns(lambda x: (x, x.sin()))),
    SmallProgram("alias: a view of the argument", returns(lambda x: (x.t(), x.cos()))),
    SmallProgram("alias: two views of the argument", returns(lambda x: (x[1:], x.view(-1), x.sum()))),
    SmallProgram("alias: a result twice", returns(lambda x: (lambda y: (y, y))(x.sin()))),
    SmallProgram("alias: a result and a view of it", returns(view_of_a_result)),
    SmallProgram("alias: a detached result", returns(lambda x: (lambda y: (y, y.detach()))(x.sin()))),
    SmallProgram("alias: an expanded result", returns(lambda x: x.sum(0, keepdim=True).expand(3, 4))),
    SmallProgram("mutation: the argument", returns(lambda x: x.mul_(2).sin()), changed=frozenset({0})),
    SmallProgram("mutation: a view of the argument", returns(change_a_view), changed=frozenset({0})),
    SmallProgram("mutation: the argument, which is returned", returns(change_and_return), changed=frozenset({0})),
    SmallProgram("mutation: an argument that was read", returns(change_and_read_before), PAIR, frozenset({0})),
    SmallProgram("gradients: one of two", returns(lambda x, y: x.sin() * y.detach()), PAIR),
    SmallProgram("gradients: two results", returns(lambda x, y: ((x @ y.t()).tanh(), y.exp().sum())), PAIR),
)
