"""Functions with joint graphs that every partition function must split correctly; each covers one feature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tests.partition.joints import grad


@dataclass(frozen=True)
class Case:
    """A function, its inputs, and its arguments of `joint_of`."""

    name: str
    fn: Callable[..., Any]
    inputs: Callable[[], list[torch.Tensor]]
    static: Sequence[int] = ()
    mutated: Sequence[int] = ()
    dynamic: bool = False


def mlp(x, w1, w2):
    return F.gelu(x @ w1) @ w2


def layer_norm(x, weight, bias):
    return F.layer_norm(x, (8,), weight, bias)


def attention(x, w):
    q, k, v = (x @ w).split(8, dim=-1)
    return torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, dim=-1) @ v


def sdpa(x, w):
    q, k, v = (x @ w).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def dropouts(x, w):
    return F.dropout(F.dropout(x.sin(), 0.3) @ w, 0.4).cos()


def two_heads(x):
    h = x.exp()
    return h.sin(), h.cos()


def conv_batch_norm(x, w):
    return F.batch_norm(F.conv2d(x, w), None, None, training=True).relu()


def updates_input(x, y):
    """`x.mul_(y)` in functional form: the updated input comes first."""
    return x * y, (x.sin() * y).sum()


def updates_input_and_views_it(x, y):
    return x + 1, (x.view(-1)[2:5] * y).sum()


def reads_as_strided_old_value(x, y):
    return x + 1, torch.as_strided(x, (2, 2), (1, 2), 1) * y


def detached_output(x):
    h = x * x
    return h, h.detach()


def output_twice(x):
    h = x.sin()
    return h, h


def primal_as_output(x, y):
    return x, x * y


def integer_output(x):
    return x.sort()


def unused_tangent(x, y):
    return x * 1.0, torch.zeros_like(y) * y


def mask(x):
    return torch.where(x > 0, x, x * 0.1).relu()


def residual(x, w):
    for _ in range(4):
        x = x + F.silu(x @ w)
    return x


def long_chain(x):
    for _ in range(20):
        x = x.sin().cos()
    return x


def embedding(table, index):
    return F.embedding(index, table).tanh()


def cast(x, w):
    return (x.bfloat16() @ w.bfloat16()).float().sigmoid()


def complex_values(x):
    return torch.view_as_real(torch.view_as_complex(x) ** 2)


def concatenated(x, y):
    return torch.cat([x.sin(), y.cos(), x * y], dim=1)[:, 1:-1]


def sized(x):
    return x.sum(0, keepdim=True).expand(x.shape[0] * 2, x.shape[1]) * x.shape[0]


def sized_by_view(x, w):
    return (x.view(x.shape[0] * x.shape[1], -1) @ w).view(x.shape[0], x.shape[1], -1).mean()


CASES = [
    Case("attention", attention, lambda: [grad(2, 5, 8), grad(8, 24)], static=[1]),
    Case("cast", cast, lambda: [grad(4, 8), grad(8, 8)], static=[1]),
    Case("complex_values", complex_values, lambda: [grad(4, 2)]),
    Case("concatenated", concatenated, lambda: [grad(3, 4), grad(3, 4)]),
    Case("conv_batch_norm", conv_batch_norm, lambda: [grad(2, 3, 6, 6), grad(4, 3, 3, 3)], static=[1]),
    Case("detached_output", detached_output, lambda: [grad(3)]),
    Case("dropouts", dropouts, lambda: [grad(4, 4), grad(4, 4)]),
    Case("embedding", embedding, lambda: [grad(9, 4), torch.tensor([1, 2, 2])]),
    Case("integer_output", integer_output, lambda: [grad(7)]),
    Case("layer_norm", layer_norm, lambda: [grad(4, 8), grad(8), grad(8)]),
    Case("long_chain", long_chain, lambda: [grad(6)]),
    Case("mask", mask, lambda: [grad(3, 3)]),
    Case("mlp", mlp, lambda: [grad(4, 8), grad(8, 16), grad(16, 3)], static=[1, 2]),
    Case("mlp_dynamic", mlp, lambda: [grad(4, 8), grad(8, 16), grad(16, 3)], dynamic=True),
    Case("output_twice", output_twice, lambda: [grad(3)]),
    Case("primal_as_output", primal_as_output, lambda: [grad(3), grad(3)]),
    Case("residual", residual, lambda: [grad(4, 4), grad(4, 4)]),
    Case("sdpa", sdpa, lambda: [grad(2, 5, 8), grad(8, 24)]),
    Case("sized", sized, lambda: [grad(3, 5)], dynamic=True),
    Case("sized_by_view", sized_by_view, lambda: [grad(3, 5, 4), grad(4, 6)], dynamic=True),
    Case("two_heads", two_heads, lambda: [grad(5)]),
    Case("unused_tangent", unused_tangent, lambda: [grad(3), grad(3)]),
    Case("updates_input", updates_input, lambda: [torch.randn(4), grad(4)], mutated=[0]),
    Case("updates_input_transposed", updates_input, lambda: [torch.randn(3, 4).t(), grad(4, 3)], mutated=[0]),
    Case("updates_input_with_gaps", updates_input, lambda: [torch.randn(4, 6)[:, :4], grad(4, 4)], mutated=[0]),
    Case(
        "updates_input_with_gaps_dynamic",
        updates_input,
        lambda: [torch.randn(5, 6)[:, :4], grad(5, 4)],
        mutated=[0],
        dynamic=True,
    ),
    Case("updates_static_input", updates_input, lambda: [torch.randn(4), grad(4)], static=[0], mutated=[0]),
    Case("updates_and_views", updates_input_and_views_it, lambda: [torch.randn(2, 4), grad(3)], mutated=[0]),
    Case("updates_and_as_strided", reads_as_strided_old_value, lambda: [torch.randn(9)[2:], grad(2, 2)], mutated=[0]),
]
