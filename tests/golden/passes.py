"""The effect of each pass on a joint graph."""

from __future__ import annotations

import torch

from aotgrad.passes import (
    BatchMM,
    CheckFunctional,
    CommonSubexpressionElimination,
    ConstantPropagation,
    DeadCodeElimination,
    Peephole,
    RemoveLeftovers,
    RemoveRepeatedDraws,
    UnwrapEffects,
)
from tests.golden.cases import pass_case

LEFTOVERS, CONSTANTS, PEEPHOLE = RemoveLeftovers(), ConstantPropagation(), Peephole()
CSE = CommonSubexpressionElimination()


@pass_case(DeadCodeElimination(), args=["f32[3]"])
def dead_random_numbers(x):
    """Unused values are removed. A random op stays: the numbers drawn after it depend on it."""
    x.exp().log()
    torch.rand_like(x)
    return x + 1


@pass_case(LEFTOVERS, args=["f32[3] requires_grad"])
def copies_of_fresh_tensors(x):
    """A copy of a value without other users is that value. The copy of an input stays: the caller may mutate the input."""
    y = x.clone()
    z = y.sin().clone()
    return y * z.exp()


@pass_case(LEFTOVERS, args=["f32[3]"])
def overwritten_in_full(x):
    """An assignment to all of a tensor is a copy, and the written memory is not needed."""
    y = torch.empty(3)
    y[:] = x.exp()
    return y + 1


@pass_case(LEFTOVERS, args=["f32[3]"])
def returned_copy(x):
    """An output in memory of its own stays in memory of its own."""
    y = x.exp()
    return y, y.clone()


@pass_case(CONSTANTS, args=["f32[3, 3]"])
def constant_mask(x):
    """Values that depend only on numbers are computed once. Two masks with equal bits are merged."""
    upper = torch.ones(3, 3).tril() == 0
    again = torch.ones(3, 3).triu(1) == 1
    return x.masked_fill(upper, 0) + x.masked_fill(again, 1)


@pass_case(CONSTANTS, args=["f32[3] requires_grad"])
def tensors_made_of_numbers(x):
    """`torch.tensor` is a constant without a copy on every call, and `ones_like` reads nothing of its argument."""
    return x * torch.tensor([1.0, 2.0, 3.0]) + (torch.ones_like(x) + 1)


@pass_case(PEEPHOLE, args=["f32[2, 3] requires_grad", "f32[3, 2]"])
def views_of_views(x, w):
    """Views that cancel out are removed, and neighbours are merged."""
    y = x.sin().t().t().view(6).view(3, 2).expand(3, 2)
    return y.view(1, 6).view(2, 3) @ w


@pass_case(PEEPHOLE, args=["f32[2, 3] requires_grad", "f32[3, 4] requires_grad"])
def transposed_twice(x, w):
    """The gradient of a weight is transposed and transposed back."""
    return torch.nn.functional.linear(x, w.t())


@pass_case(PEEPHOLE, args=["f32[3]", "i64[3]"])
def neutral_operands(x, n):
    """`x + 0` stays for floating point: it turns -0.0 into 0.0. `x - 0` and `n + 0` change nothing."""
    y = x.exp()
    return (y * 1 - 0).sin(), (y + 0).cos(), (n * n + 0) // 2


@pass_case(PEEPHOLE, args=["bf16[3] requires_grad"])
def widened_and_back(x):
    """A value that was widened is narrowed back without loss; one that was narrowed first is not."""
    wide = x.sin().float()
    return wide.bfloat16().cos(), wide.double().sin().float().exp()


@pass_case(CSE, args=["f32[3] requires_grad", "f32[3]"])
def computed_twice(x, y):
    """Equal calls run once, in the forward and in the backward."""
    return (x * y).sin() + (x * y).sin() * 2


@pass_case(CSE, args=["f32[3]"])
def not_the_same(x):
    """Random numbers are drawn twice, `1` and `1.0` differ, and two outputs are two tensors."""
    return torch.rand_like(x) + torch.rand_like(x), x.exp(), x.exp()


@pass_case(RemoveRepeatedDraws(), args=["f32[3]"])
def drawn_again(x):
    """From a state that the function has restored: equal calls are merged already, the rest of the other one is removed."""
    with torch.random.fork_rng(devices=()):
        y = torch.rand_like(x).sin()
    return torch.rand_like(x) + y


@pass_case(RemoveRepeatedDraws(), args=["f32[3]"])
def drawn_again_of_another_value(x):
    """An op that reads values restarts from the state of the generator before the first one."""
    with torch.random.fork_rng(devices=()):
        y = torch.bernoulli(x.sigmoid())
    return torch.bernoulli(x.cos().abs()) + y


@pass_case(BatchMM(), args=["f32[4, 3]", "f32[4, 3]", "f32[3, 2]", "f32[3, 2]", "f32[2, 3]"])
def small_products(x, y, w, v, u):
    """Products with one right operand become one product of all rows; then those of equal shapes become one batch."""
    return (x @ w).sin() + (y @ w).cos(), (x @ v).sin() + (y @ u.t()).cos()


@pass_case(UnwrapEffects(), args=["f32[3]"])
def printed_in_order(x):
    """Effects are traced in sequence, by a token that each takes and returns; in a graph their order suffices."""
    torch.ops.aten._print("before")
    y = x.sin()
    torch.ops.aten._print("after")
    return y


@pass_case(CheckFunctional(), args=["f32[3]"])
def written_and_returned(x):
    """A trace has no op that writes: a write is a new value. The check finds nothing, and changes nothing."""
    y = x.exp()
    y.add_(1)
    return y
