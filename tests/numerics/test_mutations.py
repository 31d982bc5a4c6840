"""Inputs that the function mutates: their data, their metadata, or both; visible to autograd or hidden from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import aotgrad

from .against_eager import ALL, DYNAMO_BACKENDS, assert_matches, compiled, leaf, non_leaf, plain
from .cases import Case, Cases

CASES = Cases()


# --- Data: the new value is copied into the caller's tensor, and gradients flow through the copy ---------------------


@CASES.add(lambda: (plain(3),))
def scale_in_place(x):
    x.mul_(2)
    return x.sin()


@CASES.add(lambda: (non_leaf(3),))
def scale_in_place_with_a_gradient(x):
    x.mul_(2)
    return x.sin()


@CASES.add(lambda: (non_leaf(3),))
def result_of_old_and_new_value(x):
    y = x * 3
    x.mul_(2)
    return y + x


@CASES.add(lambda: (non_leaf(3), non_leaf(3)))
def results_of_old_and_new_values(x, w):
    y = x * 3 + w
    x.mul_(2)
    z = y + w.exp() + x
    w.add_(x)
    return z + x, w + y


@CASES.add(lambda: (non_leaf(3),))
def change_and_return_nothing(x):
    x.mul_(2)


@CASES.add(lambda: (non_leaf(3),))
def change_several_times(x):
    x.mul_(2)
    y = x.exp()
    x.add_(1).mul_(2)
    return y


@CASES.add(lambda: (non_leaf(3),), raises=RuntimeError)
def change_a_value_that_the_backward_needs(x):
    y = x.sin()
    x.add_(1)
    return y


@CASES.add(lambda: (plain(3), leaf(3)))
def input_that_starts_to_require_grad(x, w):
    x.mul_(w)
    return x + 1


@CASES.add(lambda: (plain(3), leaf(3)))
def input_that_starts_to_require_grad_and_nothing_else(x, w):
    x.add_(w)


@CASES.add(lambda: (non_leaf(3), leaf(3)))
def overwritten_by_another_input(x, w):
    x.copy_(w)
    return x * w


@CASES.add(lambda: (non_leaf(3),))
def zeroed(x):
    y = x.exp()
    x.zero_()
    return y


@CASES.add(lambda: (non_leaf(4, 3),))
def change_a_slice(x):
    x[1:3].mul_(2)
    return x.sum()


@CASES.add(lambda: (non_leaf(4, 3), leaf(3)))
def write_a_row(x, w):
    x[2] = w
    return x * 2


@CASES.add(lambda: (non_leaf(4, 3), torch.tensor([0, 2])))
def write_at_indices(x, index):
    x[index] = 1.0
    return x * x


@CASES.add(lambda: (plain(4, 3),))
def write_where_a_mask_says(x):
    x.masked_fill_(x > 0, 0.0)


@CASES.add(lambda: (non_leaf(4, 3).t(),))
def change_a_transposed_input(x):
    x.mul_(2)
    return x.sin()


@CASES.add(lambda: (non_leaf(8)[::2],))
def change_an_input_with_gaps(x):
    x.mul_(2)
    return x + 1


@CASES.add(lambda: (non_leaf(3), non_leaf(3)))
def change_two_inputs(x, y):
    x.add_(y)
    y.sub_(x)
    return x * y


@CASES.add(lambda: (torch.arange(3), leaf(3)))
def change_an_integer_input(count, x):
    count.add_(1)
    return x * count


@CASES.add(lambda: (torch.zeros(3, dtype=torch.bool), leaf(3)))
def change_a_boolean_input(seen, x):
    seen.logical_or_(x > 0)
    return torch.where(seen, x, -x)


@CASES.add(lambda: (plain(3), leaf(3)))
def change_an_input_that_is_not_used_otherwise(x, y):
    x.fill_(1)
    return y.sin()


@CASES.add(lambda: (plain(3),))
def change_that_comes_to_nothing(x):
    x.add_(1)
    x.sub_(1)
    return x * 2


@CASES.add(lambda: (non_leaf(3),))
def exchange_with_a_copy(x):
    y = x.clone()
    y.mul_(2)
    x.copy_(y.sin())
    return y


@CASES.add(lambda: (non_leaf(3),) * 2)
def change_one_of_two_names_of_a_tensor(x, y):
    x.mul_(2)
    return y + 1


# --- Hidden from autograd --------------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(3),))
def leaf_under_no_grad(w):
    with torch.no_grad():
        w.mul_(2)
    return w.sin()


@CASES.add(lambda: (leaf(3),))
def leaf_read_before_it_is_changed(w):
    y = w.clone()
    with torch.no_grad():
        w.add_(1)
    return y * 2


@CASES.add(lambda: (leaf(3),), raises=RuntimeError)
def leaf_saved_before_it_is_changed(w):
    y = w * w
    with torch.no_grad():
        w.add_(1)
    return y


@CASES.add(lambda: (non_leaf(3),))
def non_leaf_under_no_grad(x):
    with torch.no_grad():
        x.mul_(2)
    return x.sin()


@CASES.add(lambda: (plain(3),))
def constant_under_no_grad(x):
    with torch.no_grad():
        x.mul_(2)
    return x.sin()


@CASES.add(lambda: (leaf(3),))
def through_detach(w):
    w.detach().mul_(2)
    return w.sin()


@CASES.add(lambda: (leaf(3),))
def through_data(w):
    w.data.mul_(2)
    return w.sin()


@CASES.add(lambda: (leaf(3), leaf(3)))
def one_parameter_updates_another(w, target):
    with torch.no_grad():
        target.mul_(0.9).add_(w, alpha=0.1)
    return w * target


@CASES.add(lambda: (non_leaf(3),))
def hidden_then_seen(x):
    with torch.no_grad():
        x.mul_(2)
    x.add_(1)
    return x.sin()


@CASES.add(lambda: (non_leaf(3),))
def seen_then_hidden(x):
    x.add_(1)
    with torch.no_grad():
        x.mul_(2)
    return x.sin()


@CASES.add(lambda: (leaf(3),), around=torch.no_grad)
def leaf_with_no_grad_around(w):
    w.mul_(2)
    return w.sin()


@CASES.add(lambda: (non_leaf(3),), around=torch.no_grad)
def non_leaf_with_no_grad_around(x):
    x.mul_(2)
    return x.sin()


@CASES.add(lambda: (plain(3), leaf(3)))
def statistic_of_a_gradient_carrying_value(running, x):
    y = x * 2
    running.mul_(0.9).add_(y.detach(), alpha=0.1)
    return y


# --- Metadata --------------------------------------------------------------------------------------------------------


@CASES.add(lambda: (plain(2, 3),), without_dynamo="breaks the graph at metadata mutations")
def transposed_in_place(x):
    x.t_()
    return x * 2


@CASES.add(lambda: (non_leaf(2, 3),), without_dynamo="breaks the graph at metadata mutations")
def transposed_in_place_with_a_gradient(x):
    x.t_()
    return x * 2


@CASES.add(lambda: (non_leaf(2, 3),), without_dynamo="breaks the graph at metadata mutations")
def unsqueezed_in_place(x):
    x.unsqueeze_(0)
    return x * 2


@CASES.add(lambda: (non_leaf(2, 1, 3),), without_dynamo="breaks the graph at metadata mutations")
def squeezed_in_place(x):
    x.squeeze_(1)
    return x.sin()


@CASES.add(lambda: (non_leaf(2, 3),), without_dynamo="breaks the graph at metadata mutations")
def dimensions_swapped_in_place(x):
    x.transpose_(0, 1).unsqueeze_(-1)
    return x.sin()


@CASES.add(lambda: (non_leaf(2, 3),), without_dynamo="breaks the graph at metadata mutations")
def transposed_and_returned(x):
    return x.t_()


@CASES.add(lambda: (non_leaf(2, 3),), without_dynamo="breaks the graph at metadata mutations")
def transposed_there_and_back(x):
    x.t_()
    x.t_()
    return x.sin()


@CASES.add(lambda: (plain(2, 3),), without_dynamo="breaks the graph at metadata mutations", around=torch.no_grad)
def transposed_with_no_grad_around(x):
    x.t_()
    return x.sin()


@CASES.add(lambda: (leaf(2, 3),), without_dynamo="breaks the graph at metadata mutations")
def leaf_transposed_under_no_grad(w):
    with torch.no_grad():
        w.t_()
    return w.sin()


@CASES.add(lambda: (non_leaf(2, 3),), without_dynamo="breaks the graph at metadata mutations")
def restrided_in_place(x):
    x.as_strided_((3,), (2,))
    return x.sin()


# --- Data and metadata -----------------------------------------------------------------------------------------------


@CASES.add(lambda: (non_leaf(2, 3),), without_dynamo="breaks the graph at metadata mutations")
def scaled_then_transposed(x):
    x.mul_(2)
    x.t_()
    return x.sin()


@CASES.add(lambda: (non_leaf(2, 3),), without_dynamo="breaks the graph at metadata mutations")
def transposed_then_scaled(x):
    x.t_()
    x.mul_(torch.arange(3.0).unsqueeze(1))
    return x.sin()


@CASES.add(lambda: (plain(2, 3), leaf(3, 2)), without_dynamo="breaks the graph at metadata mutations")
def transposed_and_starts_to_require_grad(x, w):
    x.t_()
    x.mul_(w)
    return x.unsqueeze(0)


# --- Buffers ---------------------------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(4, 3), plain(3), torch.ones(3), torch.tensor(0)))
def batch_norm_statistics(x, mean, var, batches):
    batches.add_(1)
    return nn.functional.batch_norm(x, mean, var, training=True)


@CASES.add(lambda: (leaf(4, 3), plain(3), torch.ones(3)))
def batch_norm_in_evaluation(x, mean, var):
    return nn.functional.batch_norm(x, mean, var, training=False)


# --- Effects visible to the caller -----------------------------------------------------------------------------------


@CASES.add(lambda: (non_leaf(3),), caller=lambda outputs, args: args[0] * outputs)
def used_together_with_the_output(x):
    x.mul_(2)
    return x.sin()


@CASES.add(lambda: (non_leaf(2, 3),), without_dynamo="breaks the graph at metadata mutations")
def transposed_view_of_old_and_new(x):
    y = x * 2
    x.t_()
    view = x[0]
    return (view * view).sum() * y, view


@pytest.mark.parametrize("change", [lambda x: x.t_(), lambda x: x.mul_(2), lambda x: x.mul_(2).t_()])
def test_gradient_with_respect_to_a_changed_input(halves, change) -> None:
    """It is the gradient of the new value; values computed from the old one do not contribute."""

    def function(x):
        old = x.exp().sum()
        change(x)
        return x[0].cos() * old

    def gradients(called) -> list[torch.Tensor]:
        leaf = torch.arange(4.0).view(2, 2).requires_grad_()
        x = leaf * 1
        result = called(x)
        return list(torch.autograd.grad(result.sum(), [x, leaf]))

    assert_matches(gradients(aotgrad.aot_function(function, halves)), gradients(function), halves)


VIEWS = {
    "expand": lambda x: x.expand(2, 3),
    "expand_as": lambda x: x.expand_as(x),
    "expand with -1": lambda x: x.expand(-1, 3),
    "expand a transposed tensor": lambda x: x.t().expand(1, 1, 3, 2),
    "expand a part": lambda x: x[:1].expand(1, 3),
    "broadcast_to": lambda x: x.broadcast_to((1, 2, 3)),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.ones(3))[0],
    "select": lambda x: x[0],
    "diagonal": lambda x: x.diagonal(),
    "as_strided": lambda x: x.as_strided((2,), (3,)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("of", ["input", "clone"])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_write_through_a_view_does_not_round(halves, view, of: str, dynamic: bool) -> None:
    """`old + (new - old)` would be 0 where `new` is much smaller than `old`."""

    def function(x):
        changed = x.clone() if of == "clone" else x
        viewed = view(changed)
        viewed.mul_(1e-8)
        return viewed * 1, changed.sin()

    def results(called) -> list[torch.Tensor]:
        leaf = torch.full((2, 3), 1e8, requires_grad=True)
        x = leaf * 1
        viewed, sine = called(x)
        return [viewed, sine, x, *torch.autograd.grad(sine.sum(), leaf)]

    found = results(aotgrad.aot_function(function, halves, dynamic=dynamic))
    assert_matches(found, results(function), halves)


FIRST = torch.tensor([0])
REFUSED_IN_EAGER = {
    "index_put_": lambda x: x.index_put_((FIRST,), x[:1]),
    "setitem": lambda x: x.__setitem__(FIRST, x[:1]),
    "index_add_": lambda x: x.index_add_(0, FIRST, x[:1]),
    "index_copy_": lambda x: x.index_copy_(0, FIRST, x.detach()[:1]),
    "scatter_": lambda x: x.scatter_(0, torch.zeros(1, 2, dtype=torch.int64), x),
    "put_": lambda x: x.put_(torch.tensor([0, 1]), x.view(-1)[:2]),
    "overlapping pieces": lambda x: x.view(-1)[1:].mul_(x.view(-1)[:-1]),
}
ALLOWED_IN_EAGER = {
    "the same place": lambda x: x.mul_(x.view_as(x)),
    "beside it": lambda x: x[:1].copy_(x[1:]),
    "a copy": lambda x: x.index_add_(0, FIRST, x[:1].clone()),
}


def test_writes_from_a_detached_alias_of_what_they_write_to(halves) -> None:
    """In the trace, the two are wrappers of one value."""

    def results(called, *slices: slice) -> list:
        x = torch.arange(4.0)
        try:
            called(x.view(4)[slices[0]], x.detach()[slices[1]])
        except RuntimeError as error:
            return [str(error)]
        return x.tolist()

    def piece(x, y):
        x.add_(y)
        return x * 1

    def several(x, y):
        torch._foreach_mul_([x, y], 2)
        return x * 1

    for function in (piece, several):
        for slices in ((slice(1, 4), slice(0, 3)), (slice(0, 4), slice(0, 4)), (slice(0, 2), slice(2, 4))):
            assert results(aotgrad.aot_function(function, halves), *slices) == results(function, *slices)


@pytest.mark.parametrize("name", REFUSED_IN_EAGER)
def test_a_write_from_the_memory_that_it_writes_to(halves, name) -> None:
    for called in (
        REFUSED_IN_EAGER[name],
        aotgrad.aot_function(lambda x: (REFUSED_IN_EAGER[name](x), x * 1)[1], halves),
    ):
        with pytest.raises(
            RuntimeError, match="some elements of the input tensor and the written-to tensor refer to a single"
        ):
            called(torch.arange(4.0).view(2, 2))


@pytest.mark.parametrize("name", ALLOWED_IN_EAGER)
def test_a_write_from_elsewhere_in_the_same_tensor(halves, name) -> None:
    x, y = torch.arange(4.0).view(2, 2), torch.arange(4.0).view(2, 2)
    ALLOWED_IN_EAGER[name](x)
    aotgrad.aot_function(lambda x: (ALLOWED_IN_EAGER[name](x), x * 1)[1], halves)(y)
    assert torch.equal(x, y)


@pytest.mark.parametrize("dynamic", [False, None])
def test_a_written_tensor_with_gaps_is_viewed_as_in_eager(halves, dynamic) -> None:
    """Its new value has no gaps in the graph, so `view(-1)` succeeded where eager refuses the view."""

    def f(x):
        x.mul_(2)
        return x.view(-1)

    compiled = aotgrad.aot_function(f, halves, dynamic=dynamic)
    for called in (f, compiled):
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            called(torch.ones(2, 4)[:, :2])
    assert torch.equal(compiled(torch.ones(2, 4)[:1]), torch.full((4,), 2.0))
    assert aotgrad.aot_function(lambda x: x.mul_(2).reshape(-1), halves)(torch.ones(2, 4)[:, :2]).tolist() == [2.0] * 4


def test_a_view_of_a_view_of_a_leaf_keeps_its_size(halves) -> None:
    """Autograd refuses to squeeze it in place, like any view of the leaf; `no_grad` allows it."""

    def seen(x):
        x.squeeze(0).squeeze_()
        return x * 1

    def hidden(x):
        with torch.no_grad():
            x.squeeze(0).squeeze_()
        return x * 1

    for called in (seen, aotgrad.aot_function(seen, halves)):
        with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
            called(torch.view_as_complex(torch.ones(2, requires_grad=True)))
    versions = []
    for called in (hidden, aotgrad.aot_function(hidden, halves)):
        leaf = torch.ones(2, requires_grad=True)
        called(torch.view_as_complex(leaf))
        versions.append(leaf._version)
    assert versions == [1, 1]


LISTS = {
    "scalar": lambda x, y: torch._foreach_mul_([x, y], 2),
    "tensors": lambda x, y: torch._foreach_add_([x], [y]),
    "copy": lambda x, y: torch._foreach_copy_([x], [y]),
    "the same one twice": lambda x, y: torch._foreach_exp_([x, x]),
    "views": lambda x, y: torch._foreach_neg_([x[:2], x[1:]]),
    "crosswise": lambda x, y: torch._foreach_add_([x, y], [y, x]),
    "overlapping": lambda x, y: torch._foreach_addcmul_([x, x[:2]], [y, y[1:]], [y, y[:2]], [2.0, 3.0]),
    "among others": lambda x, y: (x.add_(1), torch._foreach_lerp_([x], [y], 0.5), x.mul_(y)),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_write_to_a_list_of_tensors(halves, name) -> None:
    """Later tensors of the list see writes to memory that they share with earlier ones, and versions rise."""

    def backward_across(called) -> list:
        x, y, weight = torch.arange(3.0), torch.ones(3), torch.ones(3, requires_grad=True)
        product = x * weight
        called(x, y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()
        return [x.tolist(), y.tolist(), x._version, y._version]

    def f(x, y):
        LISTS[name](x, y)
        return x * 1

    assert backward_across(aotgrad.aot_function(f, halves)) == backward_across(f)


@CASES.parametrize()
def test_mutations(case: Case, backend: str) -> None:
    case.check(backend)


@pytest.mark.parametrize("backend", DYNAMO_BACKENDS)
def test_a_leaf_in_place_of_a_result_is_refused_and_left_as_it_was(backend: str) -> None:
    """Dynamo guards on `requires_grad` of an argument, but not on `is_leaf`."""
    torch._dynamo.reset()
    function = compiled(lambda x: x.mul_(2) * x.sin(), backend)
    expected = function(leaf(3) * 1)
    argument = leaf(3)
    before = argument.detach().clone()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        function(argument)
    assert argument._version == 0 and torch.equal(argument, before)
    assert function(leaf(3) * 1).shape == expected.shape


@pytest.mark.parametrize("backend", DYNAMO_BACKENDS)
def test_a_tensor_of_its_own_in_place_of_a_view_is_written(backend: str) -> None:
    """Dynamo does not guard on being a view either; the gradients would be those of the base."""
    torch._dynamo.reset()

    def function(x):
        x.detach().mul_(2)
        return x * 3

    def run(called, make):
        torch.manual_seed(0)
        root = leaf(2, 3, dtype=torch.complex64)
        result = called(make(root))
        return result, torch.autograd.grad(result.abs().sum(), root)

    under_test = compiled(function, backend, options={"min_graph_ops": 0})
    for make in (lambda x: (x * 1).ravel(), lambda x: x.ravel().clone(), lambda x: (x * 1).ravel()):
        assert_matches(run(under_test, make), run(function, make), backend)


def views_of_bases_of_several_sizes() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Bases, and views of them of equal size at several places in their memory; the last is a view of all."""
    for rows, place in [(2, 0), (2, 1), (3, 1), (5, 4), (1, 0)]:
        base = leaf(rows, 4) * 1
        yield base, base[place : place + 1]


@pytest.mark.parametrize("backend", ALL)
def test_the_data_of_views_of_bases_of_several_sizes_is_written(backend: str) -> None:
    """Autograd does not see the write, so the graph gets the memory of the base; no frontend knows its size."""

    def function(x):
        x.data.add_(1)
        return x * x

    results = []
    for each in (compiled(function, backend), function):
        torch.manual_seed(0)
        results.append([])
        for base, view in views_of_bases_of_several_sizes():
            y = each(view)
            results[-1] += [y, base.detach().clone(), *torch.autograd.grad(y.sum(), [view, base], allow_unused=True)]
    torch.testing.assert_close(*results)
