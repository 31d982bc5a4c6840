"""Programs that once differed from eager, found by the fuzzer (tests/fuzz) and minimized."""

from __future__ import annotations

import pytest
import torch

import aotgrad
from aotgrad.errors import AOTGradError

from .against_eager import AOT, assert_like_eager, compiled, leaf, non_leaf, plain
from .cases import Case, Cases

CASES = Cases()


# --- Version counters of results -------------------------------------------------------------------------------------


def versions(outputs, args):
    """A caller returns it so that it is compared."""
    tensors = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    return [torch.tensor(float(value._version), requires_grad=True) for value in tensors]


@CASES.add(lambda: (plain(3, 2),), caller=versions)
def running_sums_of_a_transposed_view(x):
    y = x.view(2, -1)
    y.swapdims_(0, -1)
    y.cumsum_(0)
    return y


@CASES.add(lambda: (leaf(3, 2),), caller=versions)
def running_sums_within_an_intermediate(x):
    y = x * 2
    y.view(2, -1).t().cumsum_(0)
    return y, y * 3


@CASES.add(lambda: (leaf(3),))
def result_that_gains_a_dimension_under_no_grad(x):
    y = x.clone()
    z = torch.where(x > 0, x, y)
    with torch.no_grad():
        y.unsqueeze_(0)
    return z, y


@CASES.add(lambda: (leaf(3),), caller=versions)
def result_changed_twice(x):
    return (x * 2).add_(1).mul_(3)


@CASES.add(lambda: (leaf(3),), caller=versions)
def saved_result_that_was_changed(x):
    y = (x * 2).add_(1)
    return y, y.sin()


@CASES.add(lambda: (leaf(3),), caller=versions, without_dynamo="breaks the graph at metadata mutations")
def saved_result_that_was_transposed(x):
    y = x * 2
    y.t_()
    return y * y, y


@CASES.add(lambda: (leaf(4, 3),), caller=versions)
def views_of_a_changed_intermediate(x):
    y = x * 2
    y.add_(1)
    return y[0], y[1]


@CASES.add(lambda: (leaf(4, 3),), caller=versions)
def changed_through_its_detached_alias(x):
    y = x * 2
    y.detach().add_(1)
    return y, y.detach()


# --- Views of views --------------------------------------------------------------------------------------------------


def with_hook(outputs, args):
    """The gradient that a hook on the first output receives, written where it is compared."""
    outputs[0].register_hook(lambda gradient: gradient * 3)


@CASES.add(lambda: (leaf(4, 3),), caller=with_hook)
def a_view_and_its_view(x):
    flat = x.view(-1)
    return flat, flat[1:]


@CASES.add(lambda: (leaf(4, 3),), caller=with_hook)
def a_view_of_an_intermediate_and_its_view(x):
    rows = (x * 2)[1:]
    return rows, rows.t(), rows[0]


@CASES.add(lambda: (leaf(4, 3),), caller=with_hook)
def a_view_before_the_one_it_was_made_from(x):
    rows = x[1:]
    first = rows[0]
    return first, rows


@CASES.add(lambda: (leaf(4, 3),))
def a_detached_alias_and_its_view(x):
    alias = x.detach()
    return alias, alias[0]


@CASES.add(lambda: (plain(2, 3),))
def views_of_another_dtype(x):
    whole = x.view(torch.int32)
    return whole, whole.view(-1)


@CASES.add(lambda: (plain(4),))
def views_of_another_dtype_of_a_changed_input(x):
    whole = x.view(torch.float32)
    unsqueezed = whole[None]
    whole.unbind()[0].mul_(2)
    integers = unsqueezed.view(torch.int32)
    return integers[0], integers, unsqueezed


def column_and_integers():
    whole = plain(2, 2)
    return whole[:, 0], whole.view(torch.int32).unflatten(0, (1, -1))


@CASES.add(column_and_integers, without_dynamo="it breaks the graph at `transpose_` of an input")
def a_transposed_and_changed_input_that_shares_memory_with_another_dtype(column, integers):
    integers.transpose_(0, -1)
    integers.relu_()
    return integers.clone()


@CASES.add(lambda: (leaf(4, 6),))
def a_changed_view_with_gaps(x):
    columns = (x * 2)[:, ::2]
    columns.mul_(2)
    return columns


def base_comes_to_require_grad(outputs, args):
    """Eager forbids to use the view from then on."""
    args[0].mul_(torch.ones((), requires_grad=True))
    return outputs * 2


@CASES.add(lambda: (plain(4),), caller=base_comes_to_require_grad, raises=RuntimeError)
def a_view_under_no_grad_of_a_constant(x):
    with torch.no_grad():
        return x[1:]


@CASES.add(lambda: (plain(4, 3),), without_dynamo="breaks the graph at metadata mutations")
def a_row_of_an_intermediate_that_is_transposed_later(x):
    y = x * 2
    row = y[0]
    y.t_()
    return row, y


# --- Inputs with offsets ---------------------------------------------------------------------------------------------


def behind_another(*shape):
    """A view with an offset: the layout of a fresh traced tensor differs from the input's."""
    count = torch.Size(shape).numel()
    return (leaf(count + 1) * 1)[1:].view(shape)


@CASES.add(lambda: (behind_another(2, 1, 3),), without_dynamo="breaks the graph at metadata mutations")
def moved_then_changed_with_a_view(x):
    x.swapdims_(0, -1)
    x.mul_(2)
    return x.transpose(0, -1), x.view_as(x)


@CASES.add(lambda: (behind_another(4, 3),))
def a_changed_row_of_a_changed_input(x):
    x.mul_(2)
    row = x[1]
    row.mul_(2)
    return row


@CASES.add(lambda: (behind_another(4, 3),), without_dynamo="breaks the graph at metadata mutations")
def changed_then_moved(x):
    x.mul_(2)
    x.t_()
    return x[0]


@CASES.add(lambda: (plain(2, 3, dtype=torch.complex64),), without_dynamo="breaks the graph at metadata mutations")
def changed_through_a_view_of_another_dtype_and_moved(x):
    parts = torch.view_as_real(x)
    x.t_()
    parts.mul_(2)
    return parts, parts[0], x * 1


# --- Inputs that no gradient reaches ---------------------------------------------------------------------------------


def hook_that_must_not_run(outputs, args):
    """Eager runs no hook of an input that the outputs do not depend on."""
    args[1].register_hook(lambda gradient: gradient * 2)


@CASES.add(lambda: (leaf(3), leaf(3)), caller=hook_that_must_not_run)
def an_input_of_which_only_the_shape_is_used(x, y):
    return x * 2, torch.zeros_like(y)


# --- Views of leaves -------------------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(2, 3).view(3, 2),), raises=RuntimeError, without_dynamo="raises an error class of its own")
def view_of_a_leaf_changed(x):
    x.mul_(2)
    return x.sum()


@CASES.add(lambda: (leaf(2, 3).view(3, 2),), raises=RuntimeError, without_dynamo="breaks the graph at metadata mutations")
def view_of_a_leaf_unsqueezed(x):
    x.unsqueeze_(0)
    return x * 2


@CASES.add(lambda: (leaf(2, 3).view(3, 2),))
def view_of_a_leaf_changed_under_no_grad(x):
    with torch.no_grad():
        x.mul_(2)
    return x * 2


@CASES.add(lambda: (leaf(3),))
def converted_to_complex_under_no_grad(x):
    with torch.no_grad():
        hidden = x.to(torch.complex64)
    return hidden, hidden.real * x


@CASES.add(lambda: (leaf(3, 2),))
def a_complex_number_changed_under_no_grad(x):
    value = torch.view_as_complex(x * 2)
    with torch.no_grad():
        value.mul_(2j)
        conjugate = value.conj()
    return value * 1, conjugate * 1, x.to(torch.complex64) * 2


@CASES.add(lambda: (plain(4, 3),))
def moved_and_copied_from_its_flip(x):
    m = x.contiguous().movedim(0, -1)
    m.copy_(m.flip(0))
    return m


@CASES.add(lambda: (non_leaf(4, 3),))
def a_differentiable_one_moved_and_copied_from_its_flip(x):
    m = (x * 2).contiguous().movedim(0, -1)
    m.copy_(m.flip(0))
    return m


# --- Views with two histories: eager recreates the history after a write that autograd does not see ------------------


def hook_of_the_new_history(outputs, args):
    """The hook multiplies what reaches the view after the call, and not what was computed from it before the write."""
    assert args[0].grad_fn is not None  # without this, eager's `register_hook` crashes
    args[0].register_hook(lambda gradient: gradient * 3)
    return args[0] * 2


def view_of_a_leaf(*shape):
    return leaf(*shape).as_strided(shape, torch.empty(shape).stride())


TWO_HISTORIES = {"caller": hook_of_the_new_history, "without_dynamo": "breaks the graph at metadata mutations"}


@CASES.add(lambda: (view_of_a_leaf(2),), **TWO_HISTORIES)
def a_view_of_an_argument_is_strided_under_no_grad(x):
    before = x.clone()
    view = x.unfold(0, 2, 1)
    with torch.no_grad():
        view.as_strided_((2,), (1,))
    return before * 1


@CASES.add(lambda: (non_leaf(3, 2)[1:],), **TWO_HISTORIES)
def a_view_of_an_argument_is_transposed_under_no_grad(x):
    before = x * 2
    view = x[:1]
    with torch.no_grad():
        view.t_()
    return before, x.cos()


@CASES.add(lambda: (view_of_a_leaf(2, 3),), **TWO_HISTORIES)
def an_argument_keeps_its_size_under_no_grad(x):
    before = x * 2
    with torch.no_grad():
        x.squeeze_(0)
    return before, x.cos()


@CASES.add(lambda: (lambda base: (base[:2], base[1:]))(non_leaf(3)), **TWO_HISTORIES)
def one_of_two_views_is_strided_under_no_grad(x, y):
    before = x * 2 + y * 3
    view = y[None]
    with torch.no_grad():
        view.as_strided_((2,), (1,))
    return before, x.cos() + y


@CASES.add(lambda: (non_leaf(2, 3)[:],), caller=hook_of_the_new_history)
def an_older_view_is_used_by_keyword(x):
    view = x.mT
    x.mul_(2)
    return torch.mul(input=view, other=3)


@CASES.add(lambda: (non_leaf(2, 3)[:],), caller=hook_of_the_new_history)
def an_older_view_is_used_in_a_list(x):
    view = x.mT
    x.mul_(2)
    return torch.cat([view, view])


@CASES.add(lambda: (plain(2, 3),), without_dynamo="breaks the graph at metadata mutations")
def strided_in_place_by_keywords(x):
    torch.as_strided_(input=x, size=(3, 2), stride=(2, 1))
    return torch.as_strided_(input=x * 2, size=(6,), stride=(1,))


# --- Errors ----------------------------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(3),), raises=RuntimeError)
def one_result_of_two_cannot_be_differentiated(x):
    y = x.exp()
    z = y * 2
    y.add_(1)
    return z, y, x * 2


# --- Conjugated and negated views that are written to ----------------------------------------------------------------


@CASES.add(lambda: (leaf(3), leaf(3)))
def parts_of_a_written_conjugate(x, y):
    value = torch.complex(x, y)
    conjugate = value.conj()
    conjugate.mul_(2)
    return value * 1, conjugate.real * 1, conjugate.imag * 1


@CASES.add(lambda: (plain(3), plain(3)))
def a_written_conjugate_is_returned(x, y):
    conjugate = torch.complex(x, y).conj()
    conjugate.copy_(conjugate.flip(0))
    return conjugate, conjugate.view(3, 1)


@CASES.add(lambda: (plain(3, dtype=torch.complex64),))
def integers_beside_a_written_conjugate(x):
    integers = x.view(torch.int32)
    x.conj().mul_(2)
    return integers


@CASES.add(lambda: (leaf(3), leaf(3)))
def parts_of_a_written_negative(x, y):
    value = torch.complex(x, y)
    negative = value.conj().imag
    negative.mul_(3)
    return value * 1, negative.view(3, 1) * 1


def conjugated(*shape):
    return plain(*shape, dtype=torch.complex64).conj()


@CASES.add(lambda: (plain(3), plain(3)))
def a_conjugate_is_returned_of_which_a_part_was_written(x, y):
    conjugate = torch.complex(x, y).conj()
    conjugate[0] = 2
    return conjugate, conjugate.imag


@CASES.add(lambda: (leaf(3), leaf(3)))
def a_part_of_a_conjugate_is_multiplied(x, y):
    value = torch.complex(x, y)
    conjugate = value.conj()
    conjugate[0].mul_(2)
    return value.imag * 1, conjugate.imag * 1


@CASES.add(lambda: (conjugated(3),))
def a_part_of_a_conjugated_input_is_multiplied(x):
    x[0].mul_(2)
    return x.imag * 1


@CASES.add(lambda: (plain(3, dtype=torch.complex64),))
def integers_beside_a_conjugate_of_which_a_part_was_written(x):
    integers = x.view(torch.int32)
    x.conj()[0].mul_(2)
    return integers


@CASES.add(lambda: (leaf(3), leaf(3)))
def the_real_part_beside_a_written_imaginary_part(x, y):
    conjugate = torch.complex(x, y).conj()
    conjugate.imag[0].mul_(2)
    return conjugate.real[1:] * 1, conjugate.imag[:2] * 1


@CASES.add(lambda: (plain(3, dtype=torch.complex64),))
def parts_of_a_conjugate_that_is_not_returned(x):
    conjugate = (x * 1).conj()
    conjugate[0].mul_(2)
    return conjugate[:1], conjugate[1:]


def views_of(x):
    """Views that exist before their base is written to, whose values are regenerated when they are read."""
    return x.real, x.imag[1:], torch.view_as_real(x), x.view(torch.float32), x.view(torch.int32)


@CASES.add(lambda: (plain(3, dtype=torch.complex64),))
def views_read_after_a_write_to_the_conjugate(x):
    views = views_of(x)
    x.conj()[0].mul_(2)
    return [view.clone() for view in views]


@CASES.add(lambda: (plain(3, dtype=torch.complex64),))
def views_read_after_a_write_to_the_negated_part_of_the_conjugate(x):
    value = x * 1
    views = views_of(value)
    value.conj().imag[0].mul_(2)
    return [view.clone() for view in views]


@CASES.add(lambda: (leaf(3), leaf(3)))
def the_real_part_of_a_value_of_which_the_conjugate_was_written(x, y):
    value = torch.complex(x, y)
    real = value.real
    value.conj()[0].mul_(2)
    return real * 3


# --- Results that are a part of their memory -------------------------------------------------------------------------


def shared_afterwards(outputs, args):
    """A write to each output shows in the others as in eager."""
    for k, value in enumerate(outputs):
        value.add_(k + 1)


@CASES.add(lambda: (plain(8),), caller=shared_afterwards)
def a_constant_of_which_a_part_is_shown_later(x):
    zeros = torch.zeros_like(x)
    view = zeros.as_strided(zeros.shape, zeros.stride())
    zeros.as_strided_((2,), (1,), 1)
    return view, x * 2


@CASES.add(lambda: (plain(8),), caller=shared_afterwards, without_dynamo="breaks the graph at metadata mutations")
def a_part_of_a_constant_and_a_view_of_the_whole(x):
    ones = torch.zeros_like(x) + 1
    view = ones[2:]
    ones.as_strided_((2,), (1,), 3)
    return ones, view, x * 2


@CASES.add(lambda: (plain(8),), caller=shared_afterwards, without_dynamo="differs by itself where `.data` is assigned")
def a_constant_that_is_assigned_a_part_of_itself(x):
    zeros = torch.zeros_like(x)
    view = zeros[:2]
    zeros.data = zeros.data.split(2)[1]
    return zeros, view, x * 2


def a_part_and_the_whole():
    whole = plain(3)
    return whole.clone(), whole[:1], whole


@CASES.add(a_part_and_the_whole)
def a_part_that_is_written_beside_another_input(other, part, whole):
    other[0] = 3
    whole.detach().relu_()
    return whole, part.clone()


@CASES.add(a_part_and_the_whole)
def a_part_that_is_written_beside_a_copy_of_the_whole(other, part, whole):
    copy = whole.clone()
    other.mul_(2)
    part.mul_(2)
    torch._foreach_neg_([copy, copy])
    return part


@CASES.add(lambda: (lambda z: (z.imag, z.imag))(torch.tensor(1 + 2j)))
def imaginary_parts_of_one_number(one, other):
    other.fill_(3)
    return one.clone(), other


# --- Copies of inputs between two writes to them ---------------------------------------------------------------------


@CASES.add(lambda: (plain(3, 4),))
def a_copy_before_the_last_write(x):
    x[0].add_(1)
    before = x.clone()
    x[0].add_(1)
    return before


@CASES.add(lambda: (plain(1, 3),))
def a_copy_of_a_copy_before_a_write_to_the_diagonal(x):
    diagonal = x.diagonal()
    torch._foreach_neg_([diagonal, diagonal])
    before = x.clone().clone()
    diagonal.add_(1)
    return before


@CASES.add(lambda: (plain(3, 4),))
def elements_written_copied_and_written_again(x):
    x.index_put_((torch.tensor([0]),), torch.tensor(5.0))
    before = x.clone()
    x.add_(1)
    return before, before.t().clone()


@CASES.add(lambda: (plain(3, 4), plain(3, 4) + 1))
def inputs_that_are_swapped(x, y):
    copy = x.clone()
    x.copy_(y)
    y.copy_(copy)
    return x * 2


@CASES.add(lambda: (plain(3, 4), plain(3, 4) + 1))
def an_input_that_becomes_what_another_was(x, y):
    y.copy_(x)
    x.add_(1)
    return x * 2


@CASES.add(lambda: (plain(3, 4), plain(3, 4) + 1))
def an_input_that_becomes_what_another_was_in_between(x, y):
    between = x.index_put((torch.tensor([0]),), torch.tensor(5.0))
    x.copy_(between * 2)
    y.copy_(between)
    return x * 2


# --- Views of which a view is transposed in place: autograd recreates the history of each ----------------------------


def views_of_a_non_leaf():
    base = leaf(4, 4) * 1
    return base, base[:2]


def gradients_of_both(outputs, args):
    """The gradients of the base and of its view, one output at a time. A caller returns them so that they are compared."""
    tensors = [value for value in outputs if value.requires_grad]
    pairs = [torch.autograd.grad(value.sum(), args, retain_graph=True, allow_unused=True) for value in tensors]
    found = [gradient for pair in pairs for gradient in pair]
    count = torch.tensor([float(gradient is not None) for gradient in found], requires_grad=True)
    return [count, *(gradient.requires_grad_() for gradient in found if gradient is not None)]


RENEWED = {"caller": gradients_of_both, "without_dynamo": "breaks the graph at metadata mutations"}


def one_view():
    return views_of_a_non_leaf()[1:]


@CASES.add(one_view, **RENEWED)
def computed_before_a_part_is_transposed(x):
    part = x[:, :3]
    double = part * 2
    part.t_()
    return double, x[:0]


@CASES.add(one_view, **RENEWED)
def computed_from_a_part_after_it_is_transposed(x):
    part = x[:, :3]
    part.t_()
    return part * 4


@CASES.add(one_view, **RENEWED)
def computed_between_two_transpositions_of_a_part(x):
    part = x[:, :3]
    part.t_()
    between = x * 2
    part.t_()
    return between, (x * 3).sum() + between.sum()


@CASES.add(one_view, **RENEWED)
def a_transposed_part_is_returned(x):
    part = x[0]
    other = x[1:]
    part.unsqueeze_(0)
    return part, other, x[1], other * 2


@CASES.add(one_view, **RENEWED)
def a_detached_alias_is_transposed(x):
    double = x * 2
    x.detach().t_()
    return double, x * 3


@CASES.add(one_view, **RENEWED)
def a_part_is_transposed_under_no_grad(x):
    double = x * 2
    with torch.no_grad():
        x[0].unsqueeze_(0)
    return double, x * 3


@CASES.add(one_view, **RENEWED)
def a_part_is_written_and_transposed(x):
    part = x[0]
    part.mul_(2)
    part.unsqueeze_(0)
    return part, part * 3, x * 2


@CASES.add(one_view, **RENEWED)
def a_part_is_laid_out_anew(x):
    part = x[:]
    part.as_strided_((1,), (1,), 1)
    return part * 2, x * 3


@CASES.add(views_of_a_non_leaf, **RENEWED)
def a_part_is_transposed_beside_the_base(base, view):
    double, triple = view * 2, base * 3
    base[0].unsqueeze_(0)
    return double, triple, view * 4, base * 5


@CASES.add(lambda: (lambda base: (base[:2], base[2:]))(leaf(4, 4) * 1), **RENEWED)
def a_part_is_transposed_beside_another_view(one, other):
    double = other * 2
    one[0].unsqueeze_(0)
    return double, other * 3, one * 4


@CASES.parametrize()
def test_found_by_fuzzing(case: Case, backend: str) -> None:
    case.check(backend)


@pytest.mark.parametrize("backend", ("no compiler", *AOT))
def test_a_result_can_be_differentiated_where_another_cannot(backend: str) -> None:
    function = one_result_of_two_cannot_be_differentiated
    x = leaf(3)
    changed, _, double = (function if backend == "no compiler" else compiled(function, backend))(x)
    double.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed.sum().backward()


def test_a_view_whose_base_is_no_argument_is_traced_with_symbolic_sizes() -> None:
    make_args = lambda: (leaf(4, 4).detach()[0].select(-1, 0), leaf(4, 4))  # noqa: E731
    assert_like_eager(lambda x, y: x * y, make_args, "nop", dynamic=True)


# --- Refused: the trace does not determine eager's history of such a view --------------------------------------------


def row_used_after_a_transposition(x):
    row = x[0]
    x.t_()
    return row * 2


def row_of_an_intermediate_used_after_a_transposition(x):
    y = x * 2
    row = y[0]
    y.t_()
    return row * 2


def row_returned_after_a_transposition(x):
    row = x[0]
    x.t_()
    return row


def piece_of_what_was_changed(x):
    piece, _ = x.split(2)
    x.mul_(2)
    return piece


def view_under_no_grad_of_what_was_changed(x):
    with torch.no_grad():
        row = x[0]
    x.mul_(2)
    return row


def reshaped_under_no_grad(x):
    y = x[:2] * 2
    with torch.no_grad():
        y.t_()
    return y


def test_an_unfolded_input_is_not_changed(halves) -> None:
    row = torch.ones(3)
    with pytest.raises(AOTGradError, match="is expanded or unfolded"):
        aotgrad.aot_function(lambda x: x.mul_(2), halves)(row.unfold(0, 2, 1))
    assert torch.equal(row, torch.ones(3))


def part_of_an_expanded_input_changed(x):
    x[0] = 3
    return x * 2


def strided_after_a_change(x):
    x.mul_(2)
    return x[1:].as_strided((2,), (1,)) + 1


def changed_after_it_was_strided(x):
    row = x[1:].as_strided((2,), (1,))
    x.mul_(2)
    return row + 1


@pytest.mark.parametrize("function", [strided_after_a_change, changed_after_it_was_strided])
def test_refused_where_the_geometry_matters(halves, function) -> None:
    x = torch.arange(20.0).view(4, 5)[:, 1:]
    with pytest.raises(AOTGradError, match=r"as_strided\(\)"):
        aotgrad.aot_function(function, halves)(x)
    assert torch.equal(x, torch.arange(20.0).view(4, 5)[:, 1:])


@pytest.mark.parametrize("no_grad", [True, False])
def test_an_argument_that_a_change_of_its_base_forbids_is_refused(halves, no_grad: bool) -> None:
    x = non_leaf(4)
    with torch.set_grad_enabled(not no_grad):
        part = x[:2] if no_grad else x.split(2)[0]
    before = x.detach().clone()
    with pytest.raises(AOTGradError, match="autograd forbids the use of"):
        aotgrad.aot_function(lambda x, part: (x.mul_(2), part)[1], halves)(x, part)
    assert torch.equal(x, before)
    assert part.grad_fn is not None or no_grad


def test_an_expanded_input_is_not_changed(halves) -> None:
    row = torch.ones(3)
    with pytest.raises(AOTGradError, match="is expanded or unfolded"):
        aotgrad.aot_function(part_of_an_expanded_input_changed, halves)(row.expand(2, 3))
    assert torch.equal(row, torch.ones(3))


REFUSED = [
    reshaped_under_no_grad,
    row_used_after_a_transposition,
    row_of_an_intermediate_used_after_a_transposition,
    row_returned_after_a_transposition,
    piece_of_what_was_changed,
    view_under_no_grad_of_what_was_changed,
]


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_refused(halves, function) -> None:
    """Inputs stay as they were, and the next call works."""
    x = non_leaf(4, 4)
    before, version = x.detach().clone(), x._version
    under_test = aotgrad.aot_function(lambda x, refused: function(x) if refused else x * 2, halves)
    with pytest.raises(AOTGradError):
        under_test(x, True)
    assert torch.equal(x, before)
    assert (x._version, x.shape) == (version, (4, 4))
    assert torch.equal(under_test(x, False), x * 2)
