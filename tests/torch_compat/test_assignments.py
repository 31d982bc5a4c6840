"""Feature tests of `aotgrad/torch_compat/assignments.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from aotgrad import torch_compat as compat
from aotgrad.capture.function_mode import FunctionHandlers
from tests.torch_compat.tracing import Tracing


def test_a_view_that_is_reshaped_in_place_is_another_view_for_autograd(fake_mode):
    with pytest.raises(RuntimeError, match=compat.VIEW_OF_LEAF):
        torch.ones(2, requires_grad=True).view(2).unsqueeze_(0)
    with Tracing(fake_mode, torch.ones(2, 3)).active() as x:
        base = x.requires_grad_() * 1
        row, saved, whole = base[0], base[1], x * 1
        product = saved * saved
        assert [compat.may_be_swapped(each) for each in (row, x[0], base.split(1)[0], base, 3)] == [True] + 4 * [False]
        reshaped = compat.ReshapedViews([whole, row])
        with FunctionHandlers([reshaped]):
            assert row.unsqueeze_(0) is row
            assert saved.unsqueeze_(0) is saved
            with torch.no_grad():
                whole.t_()
        assert (row.shape, saved.shape, whole.shape, base._version) == ((1, 3), (1, 3), (3, 2), 2)
        assert reshaped.hidden == {0}
        row[0].mul_(2)
        assert (row.grad_fn.name(), row.shape) == ("UnsqueezeBackward0", (1, 3))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


def test_views_and_changes_in_place_show_the_same():
    assert set(compat.OUT_OF_PLACE) < compat.RESHAPES
    for in_place, view in compat.OUT_OF_PLACE.items():
        arguments = {"as_strided": ((2,), (1,)), "t": (), "squeeze": (), "unsqueeze": (0,)}.get(view.__name__, (0, 1))
        x, y = torch.ones(1, 3), torch.ones(1, 3)
        in_place(x, *arguments)
        assert view(y, *arguments).shape == x.shape


def test_swapped_tensors_are_each_other():
    x = torch.ones(3)
    row, other = x[0], x[1:]
    row.note = 1
    compat.swap_tensors(row, other)
    assert (row.shape, other.shape, other.note, hasattr(row, "note")) == ((2,), (), 1, False)
    parameter = torch.nn.Parameter(torch.ones(2))
    compat.swap_tensors(row, parameter)
    assert (type(row), type(parameter)) == (torch.nn.Parameter, torch.Tensor) and row.requires_grad


@contextlib.contextmanager
def assigning(trace: Tracing, x: torch.Tensor) -> Iterator[compat.Assignments]:
    with compat.Assignments(trace.functional_mode, [x]) as assignments, FunctionHandlers([assignments]):
        yield assignments


def test_data_is_assigned(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    with trace.active() as x, assigning(trace, x) as assignments:
        y = x * 2
        before = compat.from_functional(x)
        x.data = y
        assert compat.from_functional(x) is compat.from_functional(y)
        assert compat.from_functional(assignments.before[0]) is before
        assert (x._version, compat.storage_id(x)) == (0, compat.storage_id(y))
        x.set_(x * 3)
        assert (x._version, compat.from_functional(x) is compat.from_functional(y)) == (1, False)


def test_data_of_another_size_is_assigned(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    with trace.active() as x, assigning(trace, x):
        x.data = torch.cat([x, x])
        assert (x.shape, x._version) == ((4,), 0)
        x.set_(x[1:])
        assert (x.shape, x.storage_offset(), x._version) == ((3,), 1, 1)


def test_an_assignment_of_data_is_refused(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    with trace.active() as x, assigning(trace, x):
        for value, other in ((x.view(2), x * 1), (x, x.double()), (x.detach().requires_grad_(), x[:1])):
            with pytest.raises(RuntimeError, match=compat.ANOTHER_STORAGE):
                value.data = other
        assert x.data.shape == (2,)


def test_a_converted_view_is_not_reshaped():
    x = torch.ones(2, 3, dtype=torch.complex64, requires_grad=True)
    for view in (x.conj(), x.real):
        with (
            FunctionHandlers([compat.ReshapedViews([])]),
            pytest.raises(RuntimeError, match=compat.RESHAPED_CONVERSION),
            torch.no_grad(),
        ):
            assert view.squeeze_(0).shape == (2, 3)
            view.t_()


def test_swapped_tensors_exchange_what_their_class_keeps_in_slots():
    class WithSlot(torch.Tensor):
        __slots__ = ("label",)

    one, other = (torch.full((2,), value).as_subclass(WithSlot) for value in (1.0, 2.0))
    one.label, other.label = "one", "other"
    compat.swap_tensors(one, other)
    assert (one.label, other.label, one.sum().item()) == ("other", "one", 4.0)
