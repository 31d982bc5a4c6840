"""When a plan is used again, and when another one is made."""

from __future__ import annotations

import contextlib

import pytest
import torch

import aotgrad
from aotgrad.guards.plan import structure_key

pytestmark = pytest.mark.usefixtures("implementation")


def add(x, y=1, *, scale=1.0):
    return (x + y) * scale


def is_reused(first, second, function=add, around=contextlib.nullcontext, **options) -> bool:
    """Whether the plan of the first arguments serves the second; results must be right in either case."""
    compiled = aotgrad.aot_function(function, aotgrad.nop, **options)
    compiled(*first)
    with around():
        torch.testing.assert_close(compiled(*second), function(*second), equal_nan=True)
    return len(compiled.plans()) == 1


def strided(*stride):
    return torch.randn(40).as_strided((2, 3), stride)


@pytest.mark.parametrize(
    ("first", "second", "reused"),
    [
        ((torch.ones(2),), (torch.zeros(2),), True),
        ((torch.ones(2),), (torch.ones(3),), False),
        ((torch.ones(2),), (torch.ones(2).double(),), False),
        ((torch.ones(2),), (torch.ones(2, requires_grad=True),), False),
        ((strided(3, 1),), (strided(1, 2),), False),
        ((torch.ones(3),), (torch.ones(4)[1:],), True),
        ((torch.ones(2), 1), (torch.ones(2), 2), False),
        ((torch.ones(2), 1), (torch.ones(2), 1.0), False),
        ((torch.ones(2), 1), (torch.ones(2), True), False),
        ((torch.ones(2), 0.0), (torch.ones(2), -0.0), False),
        ((torch.ones(2), float("nan")), (torch.ones(2), float("nan")), True),
        ((torch.ones(2), torch.ones(2)), (torch.ones(2), 1), False),
    ],
)
def test_arguments(first, second, reused):
    assert is_reused(first, second) == reused


def bf16_autocast():
    return torch.autocast("cpu", torch.bfloat16)


@contextlib.contextmanager
def double_by_default():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, bf16_autocast, double_by_default])
def test_global_state(around):
    x = torch.ones(2, 2, requires_grad=True)
    assert not is_reused((x,), (x,), lambda x: x @ x + torch.ones(2), around)


def test_identity_of_arguments():
    x, y = torch.ones(2), torch.ones(2)
    assert is_reused((x, y), (y, x))
    assert not is_reused((x, x), (x, y))
    assert not is_reused((x, y), (x, x))


def shift(x, y):
    x.add_(1)
    return x + y


def test_disjoint_slices_need_no_base():
    base = torch.arange(6.0)
    separate = (torch.ones(3), torch.ones(3))
    assert is_reused((base[:3], base[3:]), separate, lambda x, y: x + y)
    compiled = aotgrad.aot_function(shift, aotgrad.nop)
    compiled(*separate)
    detached = base.data
    assert torch.equal(compiled(base[:3], detached[3:]), torch.tensor([4.0, 6.0, 8.0]))
    (plan,) = compiled.plans()
    assert plan.hits == 1, "no element and no version counter in common"
    assert torch.equal(compiled(base[::2], base[1::2]), torch.tensor([4.0, 7.0, 10.0]))


@pytest.mark.parametrize("dynamic", [True, False])
def test_shared_elements_count_if_an_argument_is_changed(dynamic):
    base = torch.arange(6.0)
    assert is_reused((base[:4], base[2:]), (torch.ones(4), torch.ones(4)), lambda x, y: x + y)
    compiled = aotgrad.aot_function(shift, aotgrad.nop, dynamic=dynamic)
    compiled(torch.ones(4), torch.ones(4))
    (plan,) = compiled.plans()
    assert not plan.guards.check([base[:4], base[2:]])
    assert plan.guards.why_not([base[:4], base[2:]]).startswith("other arguments share memory")
    assert plan.guards.check([base[:4], torch.ones(4)])


def test_symbolic_sizes_serve_many_shapes():
    assert is_reused((torch.ones(3, 4),), (torch.ones(5, 6),), dynamic=True)
    assert not is_reused((torch.ones(3, 4),), (torch.ones(5, 1),), dynamic=True)


def test_sizes_become_symbolic_when_they_change():
    compiled = aotgrad.aot_function(add, aotgrad.nop, dynamic=None)
    for size in (2, 3, 4, 5):
        assert compiled(torch.ones(size)).shape == (size,)
    assert len(compiled.plans()) == 2


def test_a_symbolic_guard_is_checked():
    def half(x):
        return x[: x.shape[0] // 2] * 2 if x.shape[0] % 2 == 0 else x

    compiled = aotgrad.aot_function(half, aotgrad.nop, dynamic=True)
    for size in (4, 6, 5, 7):
        assert torch.equal(compiled(torch.ones(size)), half(torch.ones(size)))
    assert len(compiled.plans()) == 2


def test_a_closure_or_object_counts_by_identity():
    def apply(x, function):
        return function(x)

    compiled = aotgrad.aot_function(apply, aotgrad.nop)
    assert compiled(torch.ones(1), torch.exp).item() != compiled(torch.ones(1), torch.neg).item()
    assert len(compiled.plans()) == 2


def test_why_a_plan_does_not_fit_is_said():
    compiled = aotgrad.aot_function(add, aotgrad.nop)
    x = torch.ones(2)
    compiled(x)
    (plan,) = compiled.plans()
    assert plan.guards.why_not([x]) == ""
    assert "tensor argument 0" in plan.guards.why_not([torch.ones(3)])
    with torch.no_grad():
        assert "global state" in plan.guards.why_not([x])


def test_keys_tell_values_apart_that_python_calls_equal():
    keys = [structure_key([(0, value)], "spec", None) for value in (1, 1.0, True, -0.0, 0.0)]
    assert len(set(keys)) == 5


def test_values_that_cannot_be_hashed_are_compared():
    compiled = aotgrad.aot_function(lambda x, values: x * max(values), aotgrad.nop)
    values = {2}
    assert compiled(torch.ones(1), values).item() == 2
    values.add(7)
    assert compiled(torch.ones(1), values).item() == 7
