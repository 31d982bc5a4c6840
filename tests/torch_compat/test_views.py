"""Feature tests of `aotgrad/torch_compat/views.py`."""

from __future__ import annotations

import pytest
import torch

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import Tracing

aten = torch.ops.aten


def test_the_questions_after_the_history_of_a_tensor():
    assert sorted(compat.HISTORY_GETTERS.values()) == ["._base", "._is_view()", "._version"]
    x = torch.ones(2)
    y = x[1:]
    answers = [[getter(tensor) for getter in compat.HISTORY_GETTERS] for tensor in (x, y)]
    assert answers == [[0, None, False], [0, x, True]]


def test_what_a_view_answers_as_its_base_would_have_to():
    x = torch.ones(4)[1:]
    y = x[1:]
    x.add_(1)
    offset, version, base = (getter(y) for getter in compat.INHERITED_GETTERS)
    assert (offset, version) == (2, 1) and base is x._base


def test_a_view_knows_that_it_was_made_under_no_grad():
    base = torch.ones(2, 2)
    with torch.no_grad():
        hidden = base[0]
    assert compat.made_under_no_grad(hidden)
    assert not compat.made_under_no_grad(base[0])


def test_a_view_of_an_autograd_function_is_recognised():
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    x = torch.ones(2, requires_grad=True) * 1
    views = (Same.apply(x), Same.apply(x.detach()), x[:1], x)
    assert [compat.is_made_by_function(view) for view in views] == [True, False, False, False]


def test_views_that_a_write_forbids():
    base = torch.ones(4, requires_grad=True) * 1
    with torch.no_grad():
        hidden = base[:2]
    views = (hidden, base.split(2)[0], base[:2], base, base.detach().split(2)[0])
    assert [compat.is_forbidden_after_a_write(view) for view in views] == [True, True, False, False, False]


def test_a_view_of_a_leaf_is_recognised():
    leaf = torch.ones(2, requires_grad=True)
    views = (leaf[0], leaf.detach()[0], (leaf * 1)[0], leaf)
    assert [compat.is_view_of_leaf(view) for view in views] == [True, False, False, False]
    assert [compat.is_differentiable_view(view) for view in views] == [True, False, True, False]
    assert not any(map(compat.is_converted_view, views))
    assert not any(map(compat.is_hooked_view, views))
    views[0].register_hook(lambda gradient: None)
    assert compat.is_hooked_view(views[0])


def test_a_write_to_a_converted_view_that_was_transposed_comes_to_its_base_as_it_was_made():
    numbers = torch.ones(2, 3, dtype=torch.complex64, requires_grad=True) * 1
    for view in (numbers.real, numbers.conj()):
        assert compat.is_converted_view(view) and compat.kind_of_value(view) != compat.kind_of_value(numbers)
    assert not compat.is_converted_view(numbers.t())
    numbers.real.t_().copy_(torch.ones(3, 2, requires_grad=True))
    with pytest.raises(RuntimeError, match=r"CopySlices returned an invalid gradient at index 1 - got \[2, 3\]"):
        numbers.abs().sum().backward()


def test_a_view_is_stale_once_its_base_is_transposed_in_place(fake_mode):
    with Tracing(fake_mode, torch.ones(3, 3)).active() as x, torch.enable_grad():
        base = x.requires_grad_() * 1
        row = base[0]
        compat.refuse_stale_views([row])
        assert not compat.is_stale_view(row)
        base.t_()
        assert compat.is_stale_view(row)
        assert not compat.is_stale_view(base[0])
        with pytest.raises(RuntimeError, match="use of a view of a tensor whose metadata was changed"):
            compat.refuse_stale_views([row])


def test_a_piece_of_a_changed_tensor_has_no_usable_history():
    base = torch.ones(4, requires_grad=True) * 1
    views = base[:2], base.split(2)[0]
    assert [compat.has_usable_history(view) for view in (base, *views)] == [True, True, True]
    base.mul_(2)
    assert [compat.has_usable_history(view) for view in (base, *views)] == [True, True, False]


@pytest.mark.parametrize(
    ("op", "is_view"),
    [
        (aten.view.default, True),
        (aten.split.Tensor, True),
        (aten.detach.default, True),
        (aten.as_strided.default, True),
        (aten._reshape_alias.default, True),
        (aten.add.Tensor, False),
        (aten.add_.Tensor, False),
        (aten.t_.default, False),
        (aten.ones.default, False),
        (torch.sin, False),
    ],
)
def test_is_view_by_schema(op, is_view):
    assert compat.is_view_by_schema(op) == is_view
