"""Outputs that alias inputs, each other, or a tensor that is not returned.

Compared are `_base`, `is_leaf`, `requires_grad`, storage, and the effects of a later mutation of an output, an input or
the base by the caller.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor
from torch._functorch import partitioners as peer

import aotgrad

from .against_eager import AOT, THREE_TERMS, Scenario, assert_like_eager, compiled, leaf, non_leaf, plain, random_cotangent
from .cases import Case, Cases

CASES = Cases()


# --- Outputs of one op ----------------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(4, 3),))
def one_result_of_an_op_and_a_view_of_another(x):
    variance, mean = torch.var_mean(x, 0)
    return variance, mean.unsqueeze(0)


@CASES.add(lambda: (leaf(4, 3),))
def both_results_of_an_op_and_a_view(x):
    variance, mean = torch.var_mean(x, 0)
    return mean.view(3, 1), variance, mean


# --- Outputs that are inputs -----------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(3),))
def the_input_itself(x):
    return x


@CASES.add(lambda: (plain(3), leaf(3)))
def one_of_the_inputs(x, y):
    return x * y, y, x


@CASES.add(lambda: (non_leaf(3),))
def the_changed_input(x):
    return x.mul_(2)


@CASES.add(lambda: (non_leaf(3),))
def the_changed_input_twice(x):
    return x.mul_(2), x


@CASES.add(lambda: (leaf(3),))
def the_input_and_its_detached_alias(x):
    return x, x.detach()


@CASES.add(lambda: (leaf(3),))
def only_the_detached_alias(x):
    return x.detach()


@CASES.add(lambda: (leaf(3),) * 2, gradients_close=THREE_TERMS)
def both_names_of_one_tensor(x, y):
    return x, y, x * y


# --- Views of inputs -------------------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(4, 3),))
def row_of_an_input(x):
    return x[1]


@CASES.add(lambda: (plain(4, 3),))
def view_of_a_constant(x):
    return x.view(-1), x + 1


@CASES.add(lambda: (leaf(4, 3),))
def several_views_of_an_input(x):
    return x[1], x.t(), x.view(12), x.unsqueeze(0)


@CASES.add(lambda: (leaf(4, 3),))
def chain_of_views_of_an_input(x):
    return x.t()[1:].unsqueeze(-1).transpose(0, 2)


@CASES.add(lambda: (leaf(4, 3),))
def expanded_input(x):
    return x.unsqueeze(1).expand(4, 5, 3)


@CASES.add(lambda: (leaf(4, 3),))
def diagonal_of_an_input(x):
    return x.diagonal(), x.narrow(0, 1, 2)


@CASES.add(lambda: (leaf(4, 3),))
def pieces_of_an_input(x):
    return x.split(2)


@CASES.add(lambda: (leaf(4, 3),))
def unbound_input(x):
    return x.unbind(0)


@CASES.add(lambda: (leaf(4, 6),))
def chunks_of_an_input(x):
    return x.chunk(3, dim=1)


@CASES.add(lambda: (leaf(4, 3),))
def one_piece_of_an_input(x):
    return x.split(2)[1]


@CASES.add(lambda: (leaf(4, 3),))
def strided_input(x):
    return x.as_strided((2, 2), (3, 1), 1)


@CASES.add(lambda: (non_leaf(4, 3),), gradients_close=THREE_TERMS)
def view_of_a_changed_input(x):
    x.mul_(2)
    return x[1], x * 2


@CASES.add(lambda: (non_leaf(4, 3),))
def view_taken_before_the_change(x):
    row = x[1]
    x.mul_(2)
    return row


@CASES.add(lambda: (non_leaf(4, 3),), gradients_close=THREE_TERMS)
def view_that_is_changed_itself(x):
    row = x[1]
    row.mul_(2)
    return row, x.exp()


@CASES.add(lambda: (non_leaf(4, 3),), without_dynamo="breaks the graph at metadata mutations")
def view_of_a_transposed_input(x):
    x.t_()
    return x[1]


@CASES.add(lambda: (plain(4, 3),), without_dynamo="breaks the graph at metadata mutations")
def views_taken_before_a_transposition(x):
    flat, row = x.view(-1), x[0]
    x.t_()
    return flat, row


@CASES.add(
    lambda: (non_leaf(4, 3),),
    without_dynamo="breaks the graph at metadata mutations",
)
def detached_aliases_of_a_transposed_input(x):
    before = x.detach()
    x.t_()
    return before, x.detach(), x[0].detach()


@CASES.add(lambda: (leaf(4, 3),))
def detached_view(x):
    return x[1].detach(), x.detach()[2]


@CASES.add(lambda: (leaf(4, 3),))
def view_taken_under_no_grad(x):
    with torch.no_grad():
        row = x[1]
    return row, x * 2


@CASES.add(lambda: (leaf(4, 3),), around=torch.no_grad)
def view_with_no_grad_around(x):
    return x[1], x * 2


@CASES.add(lambda: (leaf(4, 3),), around=torch.no_grad)
def view_taken_under_enable_grad(x):
    with torch.enable_grad():
        return x[1], x * 2


@CASES.add(lambda: (leaf(4, 3),))
def view_of_an_input_that_is_a_view(x):
    return x.view(12)


@CASES.add(lambda: (leaf(4, 3)[1:],))
def view_of_a_view(x):
    return x[1], x.view(9)


@CASES.add(lambda: held_view(leaf(4, 3)))
def inputs_that_share_memory_unchanged(x, row):
    return x * 2, row.view(3, 1), x[0]


def held_view(x):
    return x, x[1]


@CASES.add(lambda: (plain(3, dtype=torch.complex64),))
def real_view_of_a_complex_input(x):
    return torch.view_as_real(x), x.real


@CASES.add(lambda: (plain(4),))
def bytes_of_an_input(x):
    return x.view(torch.int32)


@CASES.add(lambda: (leaf(3),))
def reshape_that_changes_nothing(x):
    return x.reshape(3), x.view_as(x), x.contiguous(), x.to(torch.float32)


@CASES.add(lambda: (leaf(4, 3),))
def reshape_that_may_copy(x):
    return x.reshape(12), x.t().reshape(12)


# --- Aliases by `.data`, with their own version counters --------------------------------------------------------------


def change_first(outputs, args):
    """The caller mutates an output; all version counters are compared afterwards."""
    outputs[0].mul_(2)
    return [torch.tensor(float(value._version), requires_grad=True) for value in (*outputs, *args)]


@CASES.add(lambda: (leaf(3),), caller=change_first)
def data_of_a_saved_input(x):
    return x.data, x * x


@CASES.add(lambda: (leaf(3),), caller=change_first)
def data_of_a_saved_intermediate(x):
    y = x.exp()
    return y.data, y


@CASES.add(lambda: (leaf(3),), caller=change_first)
def data_beside_detached(x):
    y = x * 2
    return y.data, y.detach(), y.detach(), y.data


@CASES.add(lambda: (plain(4, 3),), caller=change_first)
def data_of_a_constant(x):
    return x.data, x[1].data, x.data[1], x


@CASES.add(lambda: (leaf(4, 3),), caller=change_first, without_dynamo="makes the view of another alias")
def data_and_its_view(x):
    alias = x.data
    return alias, alias[1], x.detach()


@CASES.add(lambda: (non_leaf(4, 3),), caller=change_first)
def data_of_a_changed_input(x):
    x.mul_(2)
    return x.data[1:], x.t()


@CASES.add(lambda: (leaf(4, 3),), caller=change_first)
def views_of_a_detached_intermediate(x):
    alias = (x * 2).detach()
    return alias[0], alias[1]


@CASES.add(lambda: (leaf(4, 3),), caller=change_first)
def views_of_the_data_of_an_intermediate(x):
    alias = (x * 2).data
    return alias[0], alias[1]


@CASES.add(lambda: (leaf(4, 3),), caller=change_first, raises=RuntimeError)
def pieces_of_a_detached_intermediate_that_is_saved(x):
    y = x.exp()
    return *y.detach().chunk(2), y * 1


@CASES.add(lambda: (leaf(4, 3),), known_difference="views of a detached input have a base each, in place of one")
def views_of_a_detached_input(x):
    alias = x.detach()
    return alias[0], alias[1]


# --- Everything at once ----------------------------------------------------------------------------------------------


def of_every_kind(x, y):
    """Outputs of every kind: inputs, their views, changed ones; results, their views; detached ones; constants."""
    base, rows, lone = x * 2, x.exp(), x.sin()
    transposed = x.t()
    y.mul_(3)
    inputs = (x, transposed, y, y[0], y.detach(), x.data)
    results = (base, base[0], base[0][1:], base.unbind()[1], base[1:].as_strided((2,), (1,)), rows[0], rows[1], lone[0])
    return {"inputs": inputs, "results": results, "detached": lone.detach(), "constants": (torch.ones(2), 3, None, "a")}


def change_of(name, index):
    def call(outputs, args):
        outputs[name][index].mul_(2)
        return [
            torch.tensor(float(value._version), requires_grad=True) for value in (*outputs["inputs"], *outputs["results"])
        ]

    call.__name__ = f"{name}_{index}"
    return call


EVERY_CHANGE = [change_of("inputs", k) for k in range(6)] + [change_of("results", k) for k in range(8)]


@pytest.mark.parametrize("make", [non_leaf, plain], ids=["gradient", "no_gradient"])
@pytest.mark.parametrize("change", EVERY_CHANGE, ids=lambda change: change.__name__)
def test_every_kind_of_output_in_one_function(change, make) -> None:
    """The caller mutates one of them: values, versions, gradients and errors are eager's."""
    make_args = lambda: (make(3, 3), make(3, 3))  # noqa: E731
    eager = Scenario(make_args, contextlib.nullcontext, change, random_cotangent).run(of_every_kind, seed=1, catch=True)
    assert_like_eager(of_every_kind, make_args, "nop", caller=change, raises=eager.facts.get("raised"))


# --- Views of intermediates ------------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(4, 3),))
def lone_view_of_an_intermediate(x):
    return (x * 2)[1]


@CASES.add(lambda: (leaf(4, 3),))
def two_views_of_an_intermediate(x):
    y = x * 2
    return y[1], y.t()


@CASES.add(lambda: (plain(4, 3),))
def two_views_of_an_intermediate_without_gradient(x):
    y = x * 2
    return y[1], y.t()


@CASES.add(lambda: (leaf(4, 3),))
def an_intermediate_and_its_view(x):
    y = x * 2
    return y, y[1]


@CASES.add(lambda: (leaf(4, 3),))
def a_view_before_its_base(x):
    y = x * 2
    return y[1], x + 1, y


@CASES.add(lambda: (leaf(4, 3),))
def an_intermediate_twice(x):
    y = x * 2
    return y, y


@CASES.add(lambda: (leaf(4, 3),))
def a_view_twice(x):
    y = (x * 2)[1]
    return y, y


@CASES.add(lambda: (leaf(4, 3),))
def an_intermediate_and_its_detached_alias(x):
    y = x * 2
    return y, y.detach()


@CASES.add(lambda: (leaf(4, 3),))
def a_view_and_the_detached_base(x):
    y = x * 2
    return y[0], y.detach()


@CASES.add(lambda: (leaf(4, 3),))
def a_view_that_is_returned_and_used(x):
    y = (x * 2).view(12)
    return y, y.sin()


@CASES.add(lambda: (leaf(4, 3),))
def pieces_of_an_intermediate(x):
    return (x * 2).split(2)


@CASES.add(lambda: (leaf(4, 3),))
def one_piece_of_an_intermediate(x):
    return (x * 2).split(2)[0]


@CASES.add(lambda: (leaf(4, 6),))
def query_key_value(x):
    q, k, v = (x * 2).chunk(3, dim=-1)
    return q, k.t(), v


@CASES.add(lambda: (leaf(4, 3),))
def an_intermediate_changed_through_its_view(x):
    y = x * 2
    y[1].mul_(3)
    return y, y[1]


@CASES.add(lambda: (leaf(4, 3),))
def an_intermediate_unsqueezed_in_place(x):
    return (x * 2).unsqueeze_(0)


@CASES.add(lambda: (leaf(4, 3),))
def an_intermediate_transposed_in_place_and_its_view(x):
    y = (x * 2).t_()
    return y, y[1]


@CASES.add(lambda: (leaf(4, 3),))
def views_of_two_intermediates(x):
    y, z = x * 2, x.sin()
    return y[0], z[0], y[1], z[1]


@CASES.add(lambda: (leaf(4, 3),))
def view_of_an_intermediate_under_no_grad(x):
    y = x * 2
    with torch.no_grad():
        row = y[0]
    return row, y[1]


@CASES.add(lambda: (leaf(4, 3),))
def lone_view_of_an_intermediate_under_no_grad(x):
    y = x * 2
    with torch.no_grad():
        return y[0]


@CASES.add(lambda: (leaf(4, 3),))
def intermediate_made_under_no_grad(x):
    with torch.no_grad():
        y = x * 2
    return y[0], y[1], y.exp() * x


@CASES.add(lambda: (leaf(4, 3),))
def real_and_imaginary_part(x):
    z = torch.complex(x, x * 2)
    return z.real, z.imag


@CASES.add(lambda: (leaf(4, 3),))
def overlapping_windows(x):
    y = x * 2
    return y.unfold(0, 2, 1), y


@CASES.parametrize()
def test_aliases(case: Case, backend: str) -> None:
    case.check(backend)


# --- The caller goes on ----------------------------------------------------------------------------------------------


def two_rows(x):
    y = x * 2
    return y[0], y[1]


def base_and_row(x):
    y = x * 2
    return y, y[0]


def row(x):
    return x[1]


def row_and_product(x):
    return x[1], x * 2


def input_and_detached(x):
    return x, x.detach()


def intermediate_and_detached(x):
    y = x.exp()
    return y, y.detach()


def changed(index, *, then=lambda outputs, args: None):
    """The caller mutates output `index`, then returns the tensors to differentiate."""

    def call(outputs, args):
        outputs[index].mul_(3)
        return then(outputs, args)

    return call


USES = {
    "output_changed": (lambda x: x * 2, lambda: (leaf(4, 3),), lambda outputs, args: outputs.mul_(3)),
    "lone_view_changed": (lambda x: (x * 2)[1], lambda: (leaf(4, 3),), lambda outputs, args: outputs.mul_(3)),
    "unsqueezed_view_changed": (lambda x: (x * 2).unsqueeze_(0), lambda: (leaf(4, 3),), lambda out, args: out.mul_(2)),
    "first_of_two_views_changed": (two_rows, lambda: (leaf(4, 3),), changed(0)),
    "second_of_two_views_changed": (two_rows, lambda: (leaf(4, 3),), changed(1)),
    "base_changed_under_its_view": (base_and_row, lambda: (leaf(4, 3),), changed(0)),
    "view_changed_above_its_base": (base_and_row, lambda: (leaf(4, 3),), changed(1)),
    "view_of_an_input_changed": (row_and_product, lambda: (non_leaf(4, 3),), changed(0)),
    "view_of_a_leaf_changed": (row_and_product, lambda: (leaf(4, 3),), changed(0)),
    "view_of_a_constant_changed": (row_and_product, lambda: (plain(4, 3),), changed(0)),
    "input_changed_under_its_view": (row, lambda: (non_leaf(4, 3),), lambda out, args: args[0].mul_(3)),
    "returned_input_changed": (input_and_detached, lambda: (non_leaf(4, 3),), changed(0)),
    "detached_input_changed": (input_and_detached, lambda: (non_leaf(4, 3),), changed(1)),
    "detached_intermediate_changed": (intermediate_and_detached, lambda: (leaf(4, 3),), changed(1)),
    "one_of_several_pieces_changed": (lambda x: (x * 2).split(2), lambda: (leaf(4, 3),), changed(0)),
    "one_of_several_pieces_of_an_input_changed": (lambda x: x.split(2), lambda: (non_leaf(4, 3),), changed(0)),
    "unbound_row_changed": (lambda x: (x * 2).unbind(), lambda: (leaf(4, 3),), changed(0)),
    "view_made_under_no_grad_changed": (
        CASES["view_taken_under_no_grad"].function,
        lambda: (non_leaf(4, 3),),
        changed(0),
    ),
    "lone_piece_changed": (lambda x: (x * 2).split(2)[0], lambda: (leaf(4, 3),), lambda outputs, args: outputs.mul_(3)),
    "expanded_view_changed": (
        lambda x: (x * 2).unsqueeze(1).expand(4, 5, 3),
        lambda: (leaf(4, 3),),
        lambda out, args: out.mul_(3),
    ),
}
"""name -> function, arguments, what the caller does."""

# Eager refuses these, in the in-place op or in the backward.
REFUSED = {
    "detached_intermediate_changed",
    "lone_piece_changed",
    "expanded_view_changed",
    "one_of_several_pieces_changed",
    "one_of_several_pieces_of_an_input_changed",
    "unbound_row_changed",
    "view_made_under_no_grad_changed",
    "view_of_a_leaf_changed",
}


@pytest.mark.parametrize("backend", AOT)
@pytest.mark.parametrize("use", USES)
def test_caller_uses_an_alias(use: str, backend: str) -> None:
    function, make_args, caller = USES[use]
    raises = RuntimeError if use in REFUSED else None
    assert_like_eager(function, make_args, backend, caller=caller, raises=raises)


# --- The caller mutates a value that the backward needs --------------------------------------------------------------


def whole_saved_value(x):
    return x.exp()


def row_of_a_saved_value(x):
    return x.exp()[1]


def flat_view_of_a_saved_value(x):
    return x.exp().view(-1)


def transposed_view_beside_its_use(x):
    y = x * 2
    return y.t(), y.sin()


def value_beside_a_use_of_its_view(x):
    y = x * 2
    return y, y.t().sin()


def detached_view_of_a_saved_value(x):
    y = x.exp()
    return y.detach().view(-1), y * 2


def changed_input(x):
    x.mul_(2)
    return x, x.sin()


def input_changed_under_no_grad(x):
    with torch.no_grad():
        x.mul_(2)
    return x, x.sin()


SAVED = [
    whole_saved_value,
    row_of_a_saved_value,
    flat_view_of_a_saved_value,
    transposed_view_beside_its_use,
    value_beside_a_use_of_its_view,
    detached_view_of_a_saved_value,
    changed_input,
    input_changed_under_no_grad,
]


@pytest.mark.parametrize("backend", AOT)
@pytest.mark.parametrize(
    "partition_fn",
    [aotgrad.default_partition, aotgrad.min_cut_rematerialization_partition],
    ids=["save_all", "min_cut"],
)
@pytest.mark.parametrize("function", SAVED, ids=lambda function: function.__name__)
def test_a_saved_value_that_the_caller_changes_is_noticed(function, partition_fn, backend: str) -> None:
    """Without an error the backward would read the new numbers."""

    def change(outputs, args):
        first = outputs[0] if isinstance(outputs, tuple) else outputs
        first.mul_(5)

    make_args = lambda: (non_leaf(4, 3),)  # noqa: E731
    assert_like_eager(function, make_args, backend, caller=change, raises=RuntimeError, partition_fn=partition_fn)


SAVED_VIEWS = {
    "row": (lambda x, w: x * w[0], torch.float32),
    "two_rows": (lambda x, w: x * w[0] * w[1].sin(), torch.float32),
    "real_part": (lambda x, w: x * torch.view_as_real(w)[0, :, 0], torch.complex64),
}


@pytest.mark.parametrize("partition_fn", [peer.default_partition, peer.min_cut_rematerialization_partition])
@pytest.mark.parametrize("name", SAVED_VIEWS)
def test_a_saved_view_of_an_input_that_the_caller_changes_is_noticed(name: str, partition_fn) -> None:
    """Our partition functions save the input itself, a user's may save a view of it."""
    function, dtype = SAVED_VIEWS[name]

    def change(outputs, args):
        with torch.no_grad():
            args[1].mul_(5)

    make_args = lambda: (leaf(3), torch.rand(3, 3, dtype=dtype).requires_grad_())  # noqa: E731
    assert_like_eager(function, make_args, "nop", caller=change, raises=RuntimeError, partition_fn=partition_fn)


def test_memory_that_an_input_got_and_the_caller_changes() -> None:
    """The backward reads the memory of `y`; a change of it through `x` raises the version of `x` only."""

    def function(w, x, y):
        x.data = y
        return w * x

    under_test = aotgrad.aot_function(function, aotgrad.nop)
    for changes in (False, True, False, True):
        w, x, y = leaf(3), plain(3), plain(3)
        expected, output = y.clone(), under_test(w, x, y)
        if changes:
            x.mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                output.sum().backward()
        else:
            output.sum().backward()
            assert torch.equal(w.grad, expected)


# --- The caller changes an input between the forward and the backward ------------------------------------------------


SAVING = {
    "product": lambda x, _: x * x.detach(),
    "sum": lambda x, _: x + x.detach(),
    "scaled": lambda x, _: x * 2,
    "sine": lambda x, _: x.sin(),
    "exponential": lambda x, _: x.exp() * 2,
    "sine_of_a_view": lambda x, _: x.view(-1).sin(),
    "sine_of_a_slice": lambda x, _: x[1:].sin(),
    "sine_of_a_result": lambda x, _: (x * 2).sin(),
    "matrix_product": lambda x, _: x.t() @ x.detach(),
    "relu": lambda x, _: x.relu(),
    "gelu": lambda x, _: torch.nn.functional.gelu(x),
    "maximum": lambda x, _: x.maximum(torch.zeros_like(x)),
    "softmax": lambda x, _: x.softmax(-1),
    "layer_norm": lambda x, _: torch.nn.functional.layer_norm(x, (3,)),
    "where": lambda x, _: torch.where(x > 0, x, -x),
}
"""Of the first argument; the second one is what the caller changes."""


def base_changed(outputs, args):
    """A saved first argument is checked through the version counter that it shares with its base."""
    with torch.no_grad():
        args[1].mul_(2)


@pytest.mark.parametrize("backend", ["nop", "dynamo"])
@pytest.mark.parametrize("make", [leaf, non_leaf], ids=["leaf", "non_leaf"])
@pytest.mark.parametrize("part", [slice(None), slice(1, None)], ids=["itself", "view"])
@pytest.mark.parametrize("function", SAVING)
def test_an_input_that_is_changed_before_the_backward(function: str, part: slice, make, backend: str) -> None:
    """It raises only where eager raises, or else gives the gradients of the values in the call."""

    def make_args():
        base = make(4, 3)
        return (base if part == slice(None) else base[part]), base

    def gradient(function, caller) -> Tensor | str:
        torch.manual_seed(1)
        args = make_args()
        outputs = function(*args)
        caller(outputs, args)
        try:
            return torch.autograd.grad(outputs.sum(), args[1])[0]
        except RuntimeError as error:
            return str(error).partition(":")[0]

    eager = Scenario(make_args, contextlib.nullcontext, base_changed, random_cotangent)
    if eager.run(SAVING[function], seed=1, catch=True).facts.get("raised") is None:
        assert_like_eager(SAVING[function], make_args, backend, caller=base_changed, compilations=None)
    else:
        found = gradient(compiled(SAVING[function], backend), base_changed)
        right = gradient(SAVING[function], lambda *_: None)
        raised = gradient(SAVING[function], base_changed)
        assert found == raised if isinstance(found, str) else torch.equal(found, right)


@pytest.mark.parametrize("make", [non_leaf, plain], ids=["gradient", "no_gradient"])
def test_the_same_piece_taken_twice_is_two_tensors(halves, make) -> None:
    def f(x):
        (last,) = x.chunk(2, -1)[1:]
        first, again = x.chunk(2, -1)
        return again, last, first

    again, last, first = aotgrad.aot_function(f, halves)(make(4))
    assert again is not last and again.data_ptr() == last.data_ptr() != first.data_ptr()


@pytest.mark.parametrize("way", ["aot", "dynamo"])
@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
def test_a_detached_alias_of_a_changed_argument_has_no_history(backend, way):
    """The new data of both is one buffer, which Inductor returns as one tensor."""

    def function(x, alias):
        x.add_(1)
        return alias * 2

    options = {"min_graph_ops": 0}
    by_dynamo = torch.compile(function, backend=backend, options=options)
    halves = "eager" if backend == "aotgrad_eager" else "inductor"
    compiled = by_dynamo if way == "dynamo" else aotgrad.aot_function(function, halves, options=options)
    leaf = torch.ones(8, requires_grad=True)
    x = leaf.clone()
    alias = x.detach()
    result = compiled(x, alias)
    assert not alias.requires_grad and not result.requires_grad and alias._base is None
    assert torch.equal(result, torch.full((8,), 4.0)) and torch.equal(alias, x) and alias._version == x._version
    x.sum().backward()
    assert torch.equal(leaf.grad, torch.ones(8))
