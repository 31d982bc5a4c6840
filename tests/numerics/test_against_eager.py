"""The comparison itself: every kind of difference from eager is noticed."""

from __future__ import annotations

import pytest
import torch

from .against_eager import assert_like_eager, leaf, non_leaf, plain


def same(x):
    return x * 2


def last_bit(x):
    return torch.nextafter(x * 2, torch.tensor(torch.inf))


def other_strides(x):
    return (x * 2).t().contiguous().t()


def no_gradient(x):
    return x.detach() * 2


def other_gradient(x):
    return x * 2 + (x - x.detach())


def other_container(x):
    return [x * 2]


def other_dtype(x):
    return (x * 2).double()


def changes_its_input(x):
    with torch.no_grad():
        x.add_(1)
        x.sub_(1)
    return x * 2


def leaves_grad_mode_off(x):
    y = x * 2
    torch.set_grad_enabled(False)
    return y


def fails(x):
    raise ValueError("always")


WRONG = {
    last_bit: "output 0: ",
    other_strides: "strides|stride: ",
    no_gradient: "requires_grad: False",
    other_gradient: "gradient 0: ",
    other_container: "structure: ",
    other_dtype: "dtype: torch.float64",
    changes_its_input: "version: 2",
    leaves_grad_mode_off: "grad mode afterwards: False",
}


def check(actual, expected, make_args, **expectations):
    assert_like_eager(expected, make_args, actual, compilations=None, **expectations)


def test_what_is_the_same_passes() -> None:
    check(same, same, lambda: (leaf(4, 3),))


@pytest.mark.parametrize("wrong", WRONG, ids=lambda function: function.__name__)
def test_a_difference_of_the_result_is_noticed(wrong) -> None:
    with pytest.raises(AssertionError, match=WRONG[wrong]):
        check(wrong, same, lambda: (leaf(4, 3),))


def row(x):
    return x[1]


def copied_row(x):
    return x[1].clone()


def row_as_a_slice(x):
    return x.view(-1)[3:6]


def row_of_a_detached_alias(x):
    return x.detach()[1]


def row_made_below_autograd(x):
    with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(ADINPLACEORVIEW):
        return x[1]


ADINPLACEORVIEW = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


def two_rows(x):
    y = x * 2
    return y[0], y[1]


def two_rows_of_two_bases(x):
    return (x * 2)[0], (x * 2)[1]


def input_and_a_view_of_it(x):
    return x, x.view_as(x)


def the_input_twice(x):
    return x, x


@pytest.mark.parametrize(
    ("wrong", "right", "difference"),
    [
        (copied_row, row, "base: None, eager has input 0"),
        (copied_row, row, "storage of: output 0, eager has input 0"),
        (row_of_a_detached_alias, row, "has a grad_fn: False"),
        (row_made_below_autograd, row, "counts its versions together with"),
        (two_rows_of_two_bases, two_rows, "storage of: "),
        (input_and_a_view_of_it, the_input_twice, "is: output 1, eager has input 0"),
    ],
)
def test_another_relation_is_noticed(wrong, right, difference: str) -> None:
    with pytest.raises(AssertionError, match=difference):
        check(wrong, right, lambda: (non_leaf(4, 3),))


def test_views_of_the_same_memory_are_the_same_however_they_are_made() -> None:
    check(row_as_a_slice, row, lambda: (non_leaf(4, 3),))


def test_none_is_no_zero_gradient() -> None:
    with pytest.raises(AssertionError, match=r"gradient 1: .*eager has None"):
        check(lambda x, y: x + y * 0, lambda x, y: x + 0, lambda: (leaf(3), leaf(3)))


def test_another_error_is_noticed() -> None:
    with pytest.raises(AssertionError, match="raised: <class 'ValueError'>, eager has <class 'RuntimeError'>"):
        check(fails, lambda x: x.view(7), lambda: (plain(3),), raises=RuntimeError)


def test_an_error_where_eager_has_none_passes_through() -> None:
    with pytest.raises(ValueError, match="always"):
        check(fails, same, lambda: (plain(3),))


def test_a_missing_error_is_noticed() -> None:
    with pytest.raises(AssertionError, match="raised: absent"):
        check(same, fails, lambda: (plain(3),), raises=ValueError)


def test_an_expected_error_must_be_eagers() -> None:
    with pytest.raises(AssertionError, match="eager raised None"):
        check(same, same, lambda: (plain(3),), raises=ValueError)


def test_what_the_caller_does_is_compared() -> None:
    """An output with the right values that reacts wrongly to the caller's mutation."""
    with pytest.raises(AssertionError, match="after the caller, input 0"):
        assert_like_eager(
            lambda x: x.view(-1),
            lambda: (plain(3),),
            lambda x: x.clone(),
            caller=lambda output, args: output.add_(1),
            compilations=None,
        )
