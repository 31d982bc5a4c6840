"""Inputs that share memory with a mutated one: they see the change, and gradients reach the right inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import aotgrad

from .against_eager import THROUGH_INDUCTOR, assert_like_eager, assert_matches, compiled, leaf, non_leaf, plain
from .cases import Case, Cases

CASES = Cases()
ORDER = "gradients of the elements that several inputs have in common are summed in another order"
WRAPPED = "Dynamo wraps the error in one of its own"


def cut(x, *slices):
    return tuple(x[piece] for piece in slices)


def scale_first(x, y):
    x.mul_(2)
    return x.sin(), y * 3, (x * 1).sum() + (y * y).sum()


def first_rows(x, rows):
    x.mul_(2)
    return rows * 3, rows[0] + rows[1]


def changed_beside_nothing(x, nothing):
    x.mul_(2)
    return nothing.sin(), x * 1


def in_containers(given, others):
    given["a"].mul_(2)
    return [others[0] * 2, given["a"]], others[1].sum()


def add(name, make, function=scale_first, **expectations):
    """A case of `function` under another name."""

    def case(*args):
        return function(*args)

    case.__name__ = name
    CASES.add(make, gradients_close=ORDER, **expectations)(case)


HALVES = (slice(0, 5), slice(3, 8))

# --- Positions of the inputs -----------------------------------------------------------------------------------------

add("halves", lambda: cut(plain(8), *HALVES))
add("halves_with_gradients", lambda: cut(non_leaf(8), *HALVES))


def rows_and_a_column(rows, column):
    column.mul_(2)
    rows.copy_(rows.flip(0))
    return (rows * 1).sum(), column.sin()


def rows_columns_and_a_diagonal(rows, column, diagonal):
    column.add_(1)
    diagonal.mul_(3)
    rows.copy_(rows.t() * 2)
    diagonal.sub_(column * 1)
    return rows * 2, column.sum(), diagonal * 3


add("rows_and_a_column", lambda: (lambda x: (x[1:], x[:, 1]))(plain(5, 5)), rows_and_a_column)
add(
    "rows_and_a_column_with_gradients",
    lambda: (lambda x: (x[1:], x[:, 1]))(non_leaf(5, 5)),
    rows_and_a_column,
)
add(
    "rows_columns_and_a_diagonal",
    lambda: (lambda x: (x, x[:, 1], x.diagonal()))(plain(4, 4)),
    rows_columns_and_a_diagonal,
)
add("the_whole_first", lambda: (lambda x: (x, x[2:]))(plain(5)))
add("the_whole_first_with_gradients", lambda: (lambda x: (x, x[2:]))(non_leaf(5)))
add("the_whole_last_with_gradients", lambda: (lambda x: (x[2:], x))(non_leaf(5)))
add("strict_parts_of_a_superset", lambda: cut(non_leaf(12), slice(2, 6), slice(4, 9)))
add("disjoint", lambda: cut(plain(8), slice(0, 3), slice(4, 8)))
add("disjoint_with_gradients", lambda: cut(non_leaf(8), slice(0, 3), slice(4, 8)))
add("disjoint_columns", lambda: (lambda x: (x[:, :2], x[:, 2:]))(non_leaf(3, 4)))
add("overlapping_columns", lambda: (lambda x: (x[:, :3], x[:, 1:]))(non_leaf(3, 4)))
add("transposed", lambda: (lambda x: (x.t(), x))(non_leaf(3, 4)))
add("diagonal", lambda: (lambda x: (x.diagonal(), x[1:]))(non_leaf(3, 3)))
add("every_other", lambda: cut(non_leaf(8), slice(0, 8, 2), slice(2, 7, 3)))
add("expanded_reader", lambda: (lambda x: (x, x[:1].expand(4, 3)))(plain(2, 3)))
add("expanded_reader_with_gradients", lambda: (lambda x: (x, x[:1].expand(4, 3)))(non_leaf(2, 3)))
add("unfolded_reader", lambda: (lambda x: (x, x.unfold(0, 2, 1)))(plain(5)), first_rows)
add("unfolded_reader_with_gradients", lambda: (lambda x: (x, x.unfold(0, 2, 1)))(non_leaf(5)), first_rows)
add(
    "expanded_writer",
    lambda: (lambda x: (x[:1].expand(4, 3), x))(non_leaf(2, 3)),
    raises=RuntimeError,
    without_dynamo=WRAPPED,
)
add("no_elements", lambda: (lambda x: (x[:0], x))(non_leaf(3)))
add("no_elements_at_the_end", lambda: (lambda x: (x, x[3:]))(non_leaf(3)), changed_beside_nothing)
add("in_containers", lambda: (lambda x: ({"a": x[:3]}, [x[1:], x[2:]]))(non_leaf(4)), in_containers)
add("offset_in_a_larger_storage", lambda: cut(plain(40)[13:], slice(0, 5), slice(4, 9)))
add("one_element", lambda: (lambda x: (x[1], x))(non_leaf(3)))
add("a_column_of_a_batch", lambda: (lambda x: (x[:, 1], x.view(-1)[2:9]))(non_leaf(4, 3)))

# --- Other dtypes, conjugates, negatives -----------------------------------------------------------------------------


def overwrite(x, y):
    x.fill_(1)
    return y * 1, x + 1


add("bits_of_a_float", lambda: (lambda x: (x, x.view(torch.int32)))(plain(4)), overwrite)
add("a_float_of_bits", lambda: (lambda x: (x.view(torch.int32), x[1:3]))(plain(4)), overwrite)
add("bytes_of_a_matrix", lambda: (lambda x: (x, x.view(torch.int8)))(plain(3, 2)), overwrite)


def complex_and_parts(x):
    z = torch.view_as_complex(x)
    return z, torch.view_as_real(z)


def double_first(x, y):
    x.mul_(2)
    return (x * x).abs().sum() + (y * y).abs().sum()


COMPLEX = "Dynamo gives complex inputs and their parts as unrelated tensors"
add("parts_of_a_complex", lambda: complex_and_parts(non_leaf(3, 2)), double_first, without_dynamo=COMPLEX)
add("a_complex_of_parts", lambda: complex_and_parts(non_leaf(3, 2))[::-1], double_first, without_dynamo=COMPLEX)
add("conjugate", lambda: (lambda z: (z, z.conj()))(plain(3, dtype=torch.complex64)), double_first)
add("imaginary_part", lambda: (lambda z: (z, z.imag))(plain(3, dtype=torch.complex64)), double_first)
add("negative", lambda: (lambda z: (z, z.conj().imag))(plain(3, dtype=torch.complex64)), double_first)

# --- Detached aliases ------------------------------------------------------------------------------------------------


def change_second(x, y):
    with torch.no_grad():
        y.mul_(2)
    return x * 3


add("detached_alias", lambda: (lambda x: (x, x.detach()))(leaf(3)), change_second)
add("part_of_a_detached_alias", lambda: (lambda x: (x, x.detach()[1:]))(non_leaf(3)), change_second)


def saved_then_changed(x, y):
    z = x.sin()
    y.mul_(2)
    return z


add("detached_after_it_was_saved", lambda: (lambda x: (x, x.detach()))(leaf(3)), saved_then_changed, raises=RuntimeError)
add("disjoint_after_it_was_saved", lambda: cut(non_leaf(8), HALVES[0], slice(5, 8)), saved_then_changed, raises=RuntimeError)


def changed_then_saved(x, y):
    y.mul_(2)
    return x.sin()


add("detached_before_it_is_saved", lambda: (lambda x: (x, x.detach()))(leaf(3)), changed_then_saved)
add("disjoint_before_it_is_saved", lambda: cut(non_leaf(8), HALVES[0], slice(5, 8)), changed_then_saved)
add("data_alias", lambda: (lambda x: (x, x.data))(plain(3)), change_second)

# --- Functions -------------------------------------------------------------------------------------------------------


@CASES.add(lambda: cut(non_leaf(8), *HALVES), gradients_close=ORDER)
def both_change(x, y):
    x.mul_(2)
    y.add_(x.detach().clone())
    x.add_(1)
    return x.sin() + y.cos()


@CASES.add(lambda: cut(plain(8), *HALVES), raises=RuntimeError, without_dynamo=WRAPPED)
def written_from_memory_that_is_partly_the_same(x, y):
    y.add_(x)


@CASES.add(lambda: cut(non_leaf(8), *HALVES), gradients_close=ORDER)
def written_from_each_other(x, y):
    x.copy_(y.flip(0))
    return y * x


@CASES.add(lambda: cut(non_leaf(8), *HALVES))
def a_view_of_a_member_is_written(x, y):
    x[3:].zero_()
    return y.exp()


@CASES.add(lambda: cut(non_leaf(8), *HALVES))
def members_and_views_of_them_are_returned(x, y):
    x.mul_(2)
    return y, x, y[1:], x.view(5, 1)[2], y[1:]


@CASES.add(lambda: (*cut(plain(8), *HALVES), *cut(plain(6), slice(0, 4), slice(2, 6)), leaf(5)))
def two_groups_and_a_weight(a, b, c, d, weight):
    b.mul_(2)
    c.add_(b[:4])
    return a * weight, d.sum()


@CASES.add(lambda: cut(non_leaf(8), *HALVES), caller=lambda outputs, args: args[0].mul_(3) * args[1])
def the_caller_goes_on(x, y):
    x.mul_(2)
    return x.sum()


@CASES.add(lambda: cut(non_leaf(8), *HALVES), caller=lambda outputs, args: args[1].mul_(3).sum(), raises=RuntimeError)
def the_caller_overwrites_what_was_saved(x, y):
    x.mul_(2)
    return (y * y).sum()


@CASES.add(lambda: (lambda x: (x, x[1:]))(leaf(3)), raises=RuntimeError, without_dynamo=WRAPPED)
def a_leaf_is_written(x, y):
    y.mul_(2)
    return x


@CASES.add(lambda: (lambda x: (x, x[1:]))(leaf(3)))
def a_leaf_is_written_under_no_grad(x, y):
    with torch.no_grad():
        y.mul_(2)
    return x * 2


@CASES.add(lambda: cut(plain(8)[1:], *HALVES), without_dynamo="unsqueeze_() of an input breaks its graph")
def the_geometry_of_a_member_changes(x, y):
    row = y[1:3]
    y.mul_(2).unsqueeze_(0)
    return row, y.unsqueeze(0), x.detach()


@CASES.add(lambda: (plain(4)[1:],), without_dynamo="unsqueeze_() of an input breaks its graph")
def views_of_an_input_that_has_new_data_and_a_new_geometry(x):
    first = x[:2]
    x.mul_(2).unsqueeze_(0)
    return first, x.unsqueeze(0), x[0, 1:]


@CASES.parametrize()
def test_overlap(case: Case, backend: str) -> None:
    case.check(backend)


# --- Several calls ---------------------------------------------------------------------------------------------------


PATTERNS = {
    "separate": lambda: (non_leaf(5), non_leaf(5)),
    "overlapping": lambda: cut(non_leaf(8), *HALVES),
    "the same": lambda: (non_leaf(5),) * 2,
    "disjoint": lambda: cut(non_leaf(12), slice(0, 5), slice(6, 11)),
    "overlapping elsewhere": lambda: cut(non_leaf(9), slice(0, 5), slice(2, 7)),
    "overlapping the other way round": lambda: cut(non_leaf(8), *HALVES[::-1]),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("first", ["separate", "overlapping", "the same"])
@pytest.mark.parametrize("backend", ["nop", "dynamo"])
def test_each_pattern_of_overlap_is_right(backend: str, first: str, dynamic: bool) -> None:
    """Values and gradients for all patterns in turn, twice, starting from any of them."""
    under_test = compiled(scale_first, backend, dynamic=dynamic)
    for pattern in (first, *PATTERNS, *PATTERNS):
        assert_like_eager(scale_first, PATTERNS[pattern], under_test, compilations=None, gradients_close=ORDER)


@pytest.mark.parametrize("first", ["separate", "overlapping"])
@pytest.mark.parametrize("backend", THROUGH_INDUCTOR)
def test_each_pattern_of_overlap_is_right_under_inductor(backend: str, first: str) -> None:
    under_test = compiled(scale_first, backend)
    for pattern in (first, "separate", "overlapping", "the same", "overlapping"):
        expectations = {"compilations": None, "values_close": "Inductor fuses and reorders floating point arithmetic"}
        assert_like_eager(scale_first, PATTERNS[pattern], under_test, **expectations)


@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
def test_buffers_of_a_module_that_come_to_overlap_under_dynamo(backend: str) -> None:
    """Dynamo does not see that a buffer became a part of another one; the values are still right."""

    class Running(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            self.total.add_(x.detach())
            return x * self.seen

    torch._dynamo.reset()
    eager, module = Running(), Running()
    under_test = torch.compile(module, backend=backend, options={"min_graph_ops": 0})
    for overlapping in (False, True, False, True):
        for model in (eager, module):
            memory = torch.zeros(6)
            model.total, model.seen = (memory[:3], memory[2:5]) if overlapping else (torch.zeros(3), torch.zeros(3))
        for x in (plain(3), leaf(3)):
            assert torch.equal(under_test(x), eager(x))
        assert torch.equal(module.total, eager.total) and torch.equal(module.seen, eager.seen)


def test_a_pattern_is_compiled_once(halves) -> None:
    under_test = aotgrad.aot_function(scale_first, halves)
    for start in range(3):
        under_test(*cut(plain(16)[start:], *HALVES))
    assert len(under_test.plans()) <= 3  # positions of the pieces within 16 bytes are part of the pattern
    under_test(*cut(plain(16)[4:], *HALVES))
    assert len(under_test.plans()) <= 3


@pytest.mark.parametrize("used", range(3))
def test_what_does_not_overlap_has_a_backward_of_its_own(halves, used: int) -> None:
    """`None` for the inputs that an output does not depend on, and no call of their hooks."""

    def function(x, y, z):
        x.mul_(2)
        return x * 3, z * 2, y * z

    def run(function):
        torch.manual_seed(0)
        origin, z = leaf(8), leaf(5)
        whole, seen = origin * 1, []
        x, y = cut(whole, *HALVES)
        for k, tensor in enumerate((x, y, z)):
            tensor.register_hook(lambda gradient, k=k: seen.append((k, gradient.tolist())))
        function(x, y, z)[used].sum().backward()
        return sorted(seen), *(None if tensor.grad is None else tensor.grad.tolist() for tensor in (origin, z))

    assert_matches(run(aotgrad.aot_function(function, halves)), run(function), halves)


def test_parameters_that_share_memory(halves) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("history", torch.zeros(6))
            self.register_buffer("recent", self.history[3:])

        def forward(self, x):
            self.recent.add_(x)
            return self.history * 2

    eager, module = Tied(), aotgrad.aot_module(Tied(), halves)
    for _ in range(2):
        assert torch.equal(module(torch.ones(3)), eager(torch.ones(3)))
    assert torch.equal(module.history, eager.history) and module.recent._version == eager.recent._version


def test_a_gradient_of_the_gradient_is_refused_where_the_old_value_is_gone(halves) -> None:
    x = leaf(8)
    _, _, z = aotgrad.aot_function(scale_first, halves)(*cut(x * 1, *HALVES))
    with pytest.raises(aotgrad.errors.HigherOrderError, match="clone"):
        torch.autograd.grad(z, x, create_graph=True)


# --- Gradients with respect to the inputs themselves, and their hooks -------------------------------------------------


def writes_data(x, y):
    before = y * 3
    x.data.mul_(2)
    return (x.sum() * y).sin() + before.sum()


def writes_without_grad(x, y):
    before = y * 3
    with torch.no_grad():
        y.mul_(2)
    return x.sum() * y, before


def writes_one(x, y):
    before = y * 3 + 1
    x.mul_(2)
    return x.sum() * y, before


def writes_one_and_uses_the_other(x, y):
    x.mul_(2)
    return (y * y,)


def writes_one_and_returns_a_view_of_the_other(x, y):
    x.mul_(2)
    view = y[1:]
    return view * view, view


def writes_both(x, y):
    x.mul_(2)
    y.mul_(3)
    return (x.sum() * y,)


WRITES = [
    writes_data,
    writes_without_grad,
    writes_one,
    writes_one_and_uses_the_other,
    writes_one_and_returns_a_view_of_the_other,
    writes_both,
]

VIEWED = {
    "two parts": lambda leaf: (leaf * 1, HALVES),
    "the whole and a part": lambda leaf: (leaf * 1, (slice(None), slice(2, 6))),
    "a leaf and a part": lambda leaf: (leaf, (None, slice(2, 6))),
}


LEGAL = [
    pytest.param(function, name, id=f"{function.__name__}, {name}")
    for function in WRITES
    for name in VIEWED
    if name != "a leaf and a part" or function in (writes_data, writes_without_grad)
]
"""A leaf may not be written to where autograd sees it."""


@pytest.mark.parametrize(("function", "name"), LEGAL)
def test_each_input_sees_its_own_gradient(halves, function, name) -> None:
    """Also values computed from an input before the write; hooks from before the call see only these."""

    def run(called) -> list:
        origin, seen = torch.arange(8.0).requires_grad_(), []
        whole, slices = VIEWED[name](origin)
        x, y = (whole if piece is None else whole[piece] for piece in slices)
        for k, tensor in enumerate((x, y)):
            tensor.register_hook(lambda gradient, k=k: seen.append((k, gradient.tolist())))
        outputs = called(x, y)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        found = torch.autograd.grad(sum(o.sum() for o in outputs), [x, y, whole, origin], allow_unused=True)
        return [sorted(seen), *(None if gradient is None else gradient.tolist() for gradient in found)]

    assert_matches(run(aotgrad.aot_function(function, halves)), run(function), halves)


def view_from_before(x):
    view = x.mT
    x.div_(2)
    return view


def view_from_after(x):
    x.div_(2)
    return x.mT


def view_that_is_written(x):
    view = x.mT
    view.div_(2)
    return view, view * 3


def view_used_before_and_after(x):
    view = x.mT
    before = view * 3
    x.div_(2)
    return view, before, view * 5, x.mT


def view_from_before_a_hidden_write(x):
    view = x.mT
    with torch.no_grad():
        x.div_(2)
    return view, view * 3


def views_of_views(x):
    view = x.mT
    older = view[1:]
    x.div_(2)
    return view, older, view[:1]


VIEWS_AND_WRITES = [
    *(view_from_before, view_from_after, view_that_is_written, view_used_before_and_after),
    *(view_from_before_a_hidden_write, views_of_views),
]


def views_of_one_tensor(hook, leaf: torch.Tensor, beside: bool) -> tuple[torch.Tensor, list]:
    """A tensor and the views of it that are passed: one, or two that share memory."""
    whole = leaf.clone()
    x = whole.t()
    x.register_hook(hook)
    return whole, [x, whole.view(-1)] if beside else [x]


def uses_an_older_view(x):
    view = x.mT
    x.div_(2)
    return view * 3


def uses_a_written_view(x):
    return x.view(-1).div_(2) * 3


@pytest.mark.parametrize("function", [uses_an_older_view, uses_a_written_view])
@pytest.mark.parametrize("backend", ["nop", "dynamo", *THROUGH_INDUCTOR])
def test_a_result_of_an_older_view_passes_the_input_by(function, backend: str) -> None:
    def gradients(called) -> list:
        leaf = torch.ones(3, 3, requires_grad=True)
        whole = leaf.clone()
        x = whole.view(3, 3)
        result = called(x)
        found = torch.autograd.grad(result.sum(), [x, whole, leaf], allow_unused=True)
        return [None if gradient is None else gradient.tolist() for gradient in found]

    expected = gradients(function)
    assert expected[0] is None
    assert gradients(compiled(function, backend)) == expected


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "with another view"])
@pytest.mark.parametrize("function", VIEWS_AND_WRITES)
def test_views_are_older_or_newer_than_a_write(halves, function, beside: bool) -> None:
    """In eager, the gradient of an older view goes to the common base, past the view that it was made of.

    A hook from before the call sees gradients of the old value.
    """

    def gradients(called) -> list:
        leaf, seen = torch.ones(3, 3, requires_grad=True), []
        whole, args = views_of_one_tensor(lambda gradient: seen.append(gradient.tolist()), leaf, beside)
        outputs = called(*args)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        watched = [whole, args[0], *outputs]
        for tensor in watched:
            tensor.retain_grad()
        torch.autograd.backward(outputs, [torch.arange(1.0, 1 + o.numel()).view(o.shape) for o in outputs])
        return [seen, *(None if tensor.grad is None else tensor.grad.tolist() for tensor in (leaf, *watched))]

    called = aotgrad.aot_function(lambda x, *_: function(x), halves, options={"min_graph_ops": 0})
    assert_matches(gradients(called), gradients(lambda x, *_: function(x)), halves)


def test_a_hook_on_a_written_view_is_guarded(halves) -> None:
    """A plan made without one routes the gradient through the view; with one, past it, as in eager."""

    def seen_by_hook(called, hooked: bool) -> list:
        whole, seen = torch.ones(3, 3, requires_grad=True) * 2, []
        x = whole.t()
        if hooked:
            x.register_hook(lambda gradient: seen.append(gradient.tolist()))
        called(x).sum().backward()
        return seen

    called = aotgrad.aot_function(view_from_after, halves, options={"min_graph_ops": 0})
    assert [seen_by_hook(called, hooked) for hooked in (False, True, False)] == [[], [], []]
    assert len(called.plans()) == 2
    assert seen_by_hook(view_from_after, True) == []


WRITES_THROUGH_ONE_OF_TWO_VIEWS = {
    "the first": lambda x, y: x.mul_(2),
    "the second": lambda x, y: y.mul_(2),
    "a part of the first": lambda x, y: x[0].fill_(2.0),
    "both": lambda x, y: (x.mul_(2), y.add_(1)),
    "a scatter": lambda x, y: x.scatter_(0, torch.zeros(3, 3, dtype=torch.int64), 1.0),
}


@pytest.mark.parametrize("name", WRITES_THROUGH_ONE_OF_TWO_VIEWS)
def test_views_that_were_written_have_the_history_of_what_they_are_views_of(halves, name: str) -> None:
    """Each gets its own copy; once, the gradient of the first bypassed the history of the second copy."""

    def function(x, y):
        WRITES_THROUGH_ONE_OF_TWO_VIEWS[name](x, y)
        return x

    def gradients(called) -> list:
        leaf, tangent = torch.ones(3, 3, requires_grad=True), torch.arange(9.0).view(3, 3)
        whole = leaf.clone()
        x, y = whole.t(), whole.view(-1)
        called(x, y)
        whole.retain_grad()
        torch.autograd.backward([whole, x, y], [tangent, tangent, tangent.view(-1)])
        return [whole.grad.tolist(), leaf.grad.tolist(), whole._version]

    assert_matches(gradients(aotgrad.aot_function(function, halves)), gradients(function), halves)


def before_and_after_a_hidden_write(x):
    before = x * 2
    with torch.no_grad():
        x.fill_(3.0)
    return before, x.clone()


def twice_after_a_hidden_write(x):
    with torch.no_grad():
        x.fill_(3.0)
    return x * 1, x.clone()


def squared_after_a_hidden_write(x):
    with torch.no_grad():
        x.fill_(3.0)
    return (x * x,)


@pytest.mark.parametrize(
    "function", [before_and_after_a_hidden_write, twice_after_a_hidden_write, squared_after_a_hidden_write]
)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("of", ["a leaf", "a tensor with a history", "no view"])
def test_a_view_has_another_history_after_a_write_that_autograd_does_not_see(
    halves, function, of: str, dynamic: bool
) -> None:
    def run(called) -> list:
        origin, seen = torch.arange(6.0).view(2, 3).clone().requires_grad_(), []
        x = origin[:1] if of == "a leaf" else (origin * 1)[:1] if of == "a tensor with a history" else origin[:1] * 1
        x.register_hook(lambda gradient: seen.append(("from before", gradient.tolist())))
        outputs = called(x)
        x.register_hook(lambda gradient: seen.append(("from after", gradient.tolist())))
        asked = {"retain_graph": True, "allow_unused": True}
        found = [torch.autograd.grad(output.sum(), each, **asked)[0] for output in outputs for each in (x, origin)]
        return [None if gradient is None else gradient.tolist() for gradient in found] + seen

    assert_matches(run(aotgrad.aot_function(function, halves, dynamic=dynamic)), run(function), halves)


def gradients_of_what_was_computed_beside_a_write(called) -> tuple[Tensor | None, ...]:
    origin = torch.arange(6.0).requires_grad_()
    whole = origin * 1
    x, y = cut(whole, slice(0, 2), slice(2, 6))
    result = called(x, y)
    return torch.autograd.grad(result.sum(), [y, origin, whole], allow_unused=True)


def test_gradients_of_what_was_computed_beside_a_write(halves) -> None:
    """Eager rebuilds the history of the other view, too: its gradient enters the current history of the common base."""
    found = gradients_of_what_was_computed_beside_a_write(aotgrad.aot_function(writes_x, halves))
    assert_matches(found, gradients_of_what_was_computed_beside_a_write(writes_x), halves)


def writes_x(x, y):
    x.mul_(2)
    return y * y


# --- What is written back ----------------------------------------------------------------------------------------------


def writes_the_first(x, y):
    x.mul_(2)
    return x + y


def writes_a_part_of_the_second(x, y):
    y[1:3].copy_(x[:2] + 1)
    return x * y


def writes_both(x, y):
    x.mul_(2)
    y.add_(1)
    return x - y


def writes_a_view_of_the_first(x, y):
    x.view(2, 2).t()[0].mul_(3)
    return x + y


COPIES = {writes_the_first: 1, writes_a_part_of_the_second: 1, writes_both: 2, writes_a_view_of_the_first: 1}


def neighbours(how: str) -> tuple[Tensor, Tensor]:
    whole = torch.arange(6.0)
    x, y = cut(whole, slice(0, 4), slice(2, 6))
    return {"views": (x, y), "data": (x, y.data), "an input twice": (x, x[:]), "detached": (x, y.detach())}[how]


@pytest.mark.parametrize("how", ["views", "data", "an input twice", "detached"])
@pytest.mark.parametrize("backend", ["nop", "aot_inductor", "inductor"])
@pytest.mark.parametrize("function", COPIES)
def test_versions_of_inputs_that_others_change(function, backend: str, how: str) -> None:
    def run(called) -> list:
        torch._dynamo.reset()
        arguments = neighbours(how)
        found = [called(*arguments) for _ in range(2)]
        return [*found, *arguments, *(torch.tensor(argument._version) for argument in arguments)]

    assert_matches(run(compiled(function, backend)), run(function), backend)


@pytest.mark.parametrize("function", COPIES)
def test_what_others_change_is_not_written_again(halves, function) -> None:
    called = aotgrad.aot_function(function, halves)
    called(*neighbours("views"))
    (plan,) = called.plans()
    assert plan.executable.source.count(".copy_(") == COPIES[function]
