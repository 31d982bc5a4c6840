"""Data-dependent sizes and numbers, with Dynamo in front: one plan serves them all, with gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import aotgrad
from tests.numerics.against_eager import assert_like_eager, leaf

CASES = {}


@pytest.fixture(autouse=True)
def data_is_captured() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def case(function):
    CASES[function.__name__] = function
    return function


def positives(x: torch.Tensor) -> int:
    """The number of positive elements, as a number for a size."""
    count = int((x > 0).sum().item())
    torch._check(count >= 0)
    torch._check(count <= x.shape[0])
    return count


@case
def indices_of_what_is_not_zero(x):
    return x[torch.nonzero(x > 0).squeeze(1)].sin()


@case
def boolean_mask(x):
    return (x * 2)[x > 0].exp()


@case
def slice_up_to_a_number(x):
    count = positives(x)
    return x[:count].sin() * count


@case
def tensor_of_that_size(x):
    return torch.ones(positives(x)) * x.sum()


@case
def number_of_a_float(x):
    return x * x.detach().sum().item()


@case
def unique_values(x):
    return torch.unique((x * 3).int()).float().sum() * x


@case
def repeated(x):
    return torch.repeat_interleave(x, (x > 0).long() + 1) * 2


@case
def narrowed(x):
    return x.narrow(0, 0, positives(x)).sum() + x


@case
def split_in_two(x):
    count = positives(x)
    first, rest = torch.split(x, [count, x.shape[0] - count])
    return first.sin(), rest.cos()


@case
def size_as_a_result(x):
    kept = x[x > 0]
    return kept * 2, kept.shape[0]


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name):
    assert_like_eager(CASES[name], lambda: (leaf(8),), "dynamo")


@pytest.mark.parametrize("name", ["boolean_mask", "slice_up_to_a_number", "repeated"])
def test_through_inductor(name):
    assert_like_eager(CASES[name], lambda: (leaf(8),), "inductor")


@pytest.mark.parametrize("name", CASES)
def test_one_plan_serves_other_data(name):
    torch._dynamo.reset()
    before = aotgrad.counters["compilations"]
    compiled = torch.compile(CASES[name], backend="aotgrad_eager", fullgraph=True)
    for seed in range(4):
        results = []
        for function in (CASES[name], compiled):
            torch.manual_seed(seed)
            x = leaf(8)
            out = function(x)
            tensors = [out] if isinstance(out, torch.Tensor) else [o for o in out if isinstance(o, torch.Tensor)]
            results.append([*tensors, *torch.autograd.grad([tensor.sin().sum() for tensor in tensors], x)])
        assert all(map(torch.equal, *results))
    assert aotgrad.counters["compilations"] - before == 1


def test_a_check_that_fails_raises():
    def function(x):
        count = int(x.sum().item())
        torch._check(count < 5)
        torch._check(count >= 0)
        return torch.ones(count) * x.sum()

    compiled = torch.compile(function, backend="aotgrad_eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        compiled(torch.ones(7))
    assert torch.equal(compiled(torch.ones(4)), torch.full((4,), 4.0))


def test_a_size_that_is_marked_unbacked():
    """No branch may depend on it, not even on whether it is 0 or 1."""
    compiled = torch.compile(lambda x: x.sin().sum(0), backend="aotgrad_eager", fullgraph=True)
    before = aotgrad.counters["compilations"]
    for size in (4, 1, 0, 9):
        x = leaf(size, 3)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        out = compiled(x)
        assert torch.equal(out, x.sin().sum(0))
        assert torch.equal(*(torch.autograd.grad(o.sum(), x)[0] for o in (out, x.sin().sum(0))))
    assert aotgrad.counters["compilations"] - before == 1
