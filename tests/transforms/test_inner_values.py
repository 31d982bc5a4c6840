"""Which inner values of a function gradients of gradients are added up at."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aotgrad.transforms.inner_values import find_inner_values


def leaf(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, requires_grad=True)


def names_of(root: torch.Tensor, *ends: torch.Tensor) -> list[str]:
    """The autograd nodes of the inner values of one result."""
    found = find_inner_values([root], {end.grad_fn for end in ends})
    return [str(value.grad_fn and value.grad_fn.name()) for value in found]


def test_a_value_behind_a_product() -> None:
    x, a, b = leaf(2, 3), leaf(3, 4), leaf(4, 5)
    assert names_of((x @ a).tanh() @ b) == ["TanhBackward0"]


def test_of_values_without_a_product_between_them_the_first() -> None:
    x, a, b = leaf(2, 3), leaf(3, 4), leaf(4, 5)
    assert names_of(F.gelu((x @ a).exp()) @ b) == ["ExpBackward0"]


def test_values_of_several_layers_are_in_the_order_of_the_forward() -> None:
    x, a, b, c = leaf(2, 3), leaf(3, 4), leaf(4, 4), leaf(4, 5)
    hidden = (x @ a).sigmoid()
    assert names_of((hidden @ b).tanh() @ c) == ["SigmoidBackward0", "TanhBackward0"]


def test_a_result_and_a_view_of_an_input_are_none() -> None:
    x, a, b = leaf(3, 2), leaf(3, 4), leaf(5, 4)
    assert names_of(x.t() @ a @ b.t()) == ["MmBackward0"]
    assert names_of((x.t() @ a).tanh()) == []


def test_nothing_before_the_inputs() -> None:
    x, a, b = leaf(2, 3), leaf(3, 4), leaf(4, 5)
    argument = (x @ a).tanh()
    assert names_of(argument.sin() @ b, argument) == []


def test_none_where_hooks_pack_what_is_saved() -> None:
    x, a, b = leaf(2, 3), leaf(3, 4), leaf(4, 5)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        y = (x @ a).tanh() @ b
    assert names_of(y) == []


def test_a_long_function() -> None:
    x, a = leaf(2, 2), leaf(2, 2)
    y = x @ a
    for _ in range(3000):
        y = y.sin()
    assert names_of(y @ a) == ["MmBackward0"]
