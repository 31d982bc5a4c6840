"""Random small functions, compiled with every built-in pass, against eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.numerics.against_eager import Scenario, assert_like_eager, leaf, non_leaf, plain, random_cotangent

UNARY: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.sin,
    torch.tanh,
    torch.clone,
    torch.relu,
    torch.zeros_like,
    torch.ones_like,
    lambda x: x * 1,
    lambda x: x + 0,
    lambda x: x - 0,
    lambda x: x / 1.0,
    lambda x: x**1,
    lambda x: x + -0.0,
    lambda x: x.double().float(),
    lambda x: x.bfloat16().float(),
    lambda x: x.double().bfloat16().double().float(),
    lambda x: x.detach(),
    lambda x: x.t().t() * 2,
    lambda x: x.view(6).view(2, 3).cos(),
    lambda x: x.t().contiguous().t().sin(),
    lambda x: x.expand(2, 3) * x[:, :],
    lambda x: x.view(1, 6).expand(2, 6).sum(0).view(2, 3),
    lambda x: x * torch.ones(2, 3).tril() + torch.arange(6.0).view(2, 3),
    lambda x: x * torch.tensor([1.0, 2.0, 3.0]),
    lambda x: torch.cat([x[:1].sin(), x[1:].sin()]),
    lambda x: overwritten(x, x.exp()),
    lambda x: scaled_in_place(x),
)

BINARY: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    torch.add,
    torch.mul,
    lambda x, y: x @ y.t() @ y,
    lambda x, y: torch.where(x > 0, x, y),
    lambda x, y: overwritten(torch.empty_like(x), y) + x,
    lambda x, y: torch.stack([x, y]).unbind()[1] * x.split(2)[0],
)


def overwritten(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z[:] = y
    return z * z


def scaled_in_place(x: Tensor) -> Tensor:
    y = x * 1
    y.view(-1)[::2].mul_(3)
    return y


@dataclass(frozen=True)
class Program:
    """Values are numbered: two inputs, then the result of each step. `steps`: (op, operand, operand)."""

    steps: tuple[tuple[int, int, int], ...]
    outputs: tuple[int, ...]

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        values = [x, y]
        for op, first, second in self.steps:
            a, b = values[first % len(values)], values[second % len(values)]
            values.append(UNARY[op](a) if op < len(UNARY) else BINARY[op - len(UNARY)](a, b))
        return [values[2 + index % len(self.steps)] for index in self.outputs]


OPS = st.integers(0, len(UNARY) + len(BINARY) - 1)
PROGRAMS = st.builds(
    Program,
    st.lists(st.tuples(OPS, st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8).map(tuple),
    st.lists(st.integers(0, 9), min_size=1, max_size=3, unique_by=lambda k: k).map(tuple),
)


def write_to_first(outputs: list[Tensor], args: tuple) -> None:
    """What a caller may do between the forward and the backward."""
    with torch.no_grad():
        outputs[0].mul_(2)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(PROGRAMS, st.booleans())
def test_gradients_and_outputs(program, second_requires_grad):
    def make_args():
        return leaf(2, 3), (non_leaf if second_requires_grad else plain)(2, 3)

    assert_like_eager(program, make_args, "eager", raises=what_eager_raises(program, make_args, None))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(PROGRAMS)
def test_no_gradients(program):
    def make_args():
        return plain(2, 3), plain(2, 3)

    assert_like_eager(program, make_args, "interpreter", raises=what_eager_raises(program, make_args, None))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(PROGRAMS)
def test_outputs_that_the_caller_changes(program):
    def make_args():
        return leaf(2, 3), plain(2, 3)

    raised = what_eager_raises(program, make_args, write_to_first)
    assert_like_eager(program, make_args, "eager", caller=write_to_first, raises=raised)


def what_eager_raises(program: Program, make_args: Callable, caller: Callable | None) -> type[Exception] | None:
    scenario = Scenario(make_args, contextlib.nullcontext, caller, random_cotangent)
    return scenario.run(program, seed=1, catch=True).facts.get("raised")
