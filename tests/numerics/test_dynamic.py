"""Symbolic sizes: one plan for many shapes, and symbolic ints saved for the backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.errors import UnsupportedMutationError

from .against_eager import (
    ALL,
    AOT,
    COMPILERS,
    DYNAMO_BACKENDS,
    INDUCTOR,
    THREE_TERMS,
    THROUGH_INDUCTOR,
    assert_like_eager,
    closeness,
    compiled,
    leaf,
    non_leaf,
    plain,
)
from .cases import Case, Cases

CASES = Cases()


@CASES.add(lambda: (leaf(4, 3),))
def pointwise(x):
    return x.sin() * 2


@CASES.add(lambda: (leaf(1, 2, 4, 6),))
def size_that_is_rounded(x):
    return nn.functional.interpolate(x, scale_factor=1.7, mode="bilinear", antialias=True)


@CASES.add(lambda: (plain(4, 3, dtype=torch.complex64),))
def diagonal_of_complex_numbers(x):
    return x.clone().fill_diagonal_(2) * 3


@CASES.add(lambda: (leaf(4, 3), leaf(3, 5)))
def matrix_product(x, w):
    return (x @ w).relu().sum(0)


@CASES.add(lambda: (leaf(4, 3),))
def mean_needs_the_size_in_the_backward(x):
    return x.mean(), x.mean(0), x.sum(1)


@CASES.add(lambda: (leaf(4, 3),))
def view_needs_the_shape_in_the_backward(x):
    return x.exp().view(-1) * 2, (x * 2).reshape(x.size(1), x.size(0)).sin()


@CASES.add(lambda: (leaf(4, 3),))
def padding_and_slicing(x):
    return nn.functional.pad(x, (1, 2)).sin(), x[1:, : x.size(1) - 1] * 2


@CASES.add(lambda: (leaf(4, 3), leaf(2, 3)))
def concatenation(x, y):
    return torch.cat([x, y]).sin(), torch.stack([x, x * 2])


@CASES.add(lambda: (leaf(4, 3),))
def expansion_to_a_size(x):
    return x.sum(0).expand(x.size(0), x.size(1)) * x


@CASES.add(lambda: (leaf(4, 3),))
def sizes_as_numbers(x):
    return x * x.size(0), x / (x.numel() + 1), x * (x.size(0) / x.size(1))


@CASES.add(lambda: (leaf(4, 3),))
def sizes_as_outputs(x):
    return x.sin(), x.size(0), x.size(0) * x.size(1) + 1


@CASES.add(lambda: (leaf(4, 3),))
def views_with_symbolic_sizes(x):
    y = x * 2
    return y.view(-1), y.t(), x.view(x.size(1), -1), x[1:], x.unsqueeze(1).expand(-1, 5, -1)


@CASES.add(lambda: (leaf(6, 3),), gradients_close=THREE_TERMS)
def pieces_of_a_symbolic_size(x):
    return x.split(2), x.chunk(2), (x * 2).split(3)


@CASES.add(lambda: (non_leaf(4, 3),))
def mutation(x):
    x[1:].mul_(2)
    return x.sin()


@CASES.add(lambda: (non_leaf(4, 3),), without_dynamo="breaks the graph at metadata mutations")
def metadata_mutation(x):
    x.t_()
    return x * 2


@CASES.add(lambda: (leaf(4, 3),))
def ranges_and_masks(x):
    n = x.size(0)
    mask = torch.ones(n, n).tril()
    return mask @ x, torch.arange(n), x * torch.arange(n).unsqueeze(1)


@CASES.add(lambda: (leaf(2, 2, 5, 8),))
def causal_attention(x):
    return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


@CASES.add(lambda: (leaf(2, 3, 8, 8), leaf(4, 3, 3, 3)))
def convolution(x, w):
    return nn.functional.max_pool2d(nn.functional.conv2d(x, w, padding=1), 2)


@CASES.add(lambda: (leaf(4, 6),))
def layer_norm_and_softmax(x):
    return nn.functional.layer_norm(x, x.shape[1:]), x.softmax(-1)


@CASES.add(lambda: (leaf(4, 6),))
def dropout_of_a_symbolic_size(x):
    return nn.functional.dropout(x, 0.5)


@CASES.add(lambda: (leaf(3, 4).t(),))
def transposed_input(x):
    return x.sin(), x.t() @ x


@CASES.add(lambda: (leaf(4, 3),))
def same_size_twice(x):
    return x @ x.t(), torch.eye(x.size(0)) + x @ x.t()


@CASES.add(lambda: (leaf(4, 3),))
def strided_as_it_lies(x):
    y = x.clone()
    return y.as_strided(y.shape, y.stride()).clone()


@CASES.parametrize()
def test_symbolic_sizes(case: Case, backend: str) -> None:
    case.check(backend, dynamic=True)


SHAPES = [(4, 3), (7, 5), (5, 9), (33, 4)]
SEVERAL_SHAPES = [
    "pointwise",
    "mean_needs_the_size_in_the_backward",
    "view_needs_the_shape_in_the_backward",
    "sizes_as_numbers",
    "views_with_symbolic_sizes",
    "expansion_to_a_size",
    "sizes_as_outputs",
    "mutation",
    "padding_and_slicing",
    "ranges_and_masks",
]


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("name", SEVERAL_SHAPES)
def test_one_plan_for_several_shapes(name: str, backend: str) -> None:
    case = CASES[name]
    function = compiled(case.function, backend, dynamic=True)
    before = aotgrad.counters["compilations"]
    make = non_leaf if name == "mutation" else leaf
    for shape in SHAPES:
        arguments = lambda shape=shape: (make(*shape),)  # noqa: E731
        assert_like_eager(case.function, arguments, function, compilations=None, values_close=closeness(backend))
    # Inductor may guard on a size by itself, and then compiles a graph for each answer.
    assert aotgrad.counters["compilations"] - before in ((1, 2) if backend in THROUGH_INDUCTOR else (1,))


@pytest.mark.parametrize("backend", AOT)
def test_a_branch_on_a_size_makes_a_plan_for_each_side(backend: str) -> None:
    def function(x):
        return x.sin() if x.size(0) > 5 else x.cos()

    compiled_function = compiled(function, backend, dynamic=True)
    before = aotgrad.counters["compilations"]
    for size in (3, 9, 4, 12, 2):
        assert_like_eager(function, lambda size=size: (leaf(size),), compiled_function, compilations=None)
    assert aotgrad.counters["compilations"] - before == 2


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("backend", ALL)
def test_sizes_zero_and_one(size: int, backend: str) -> None:
    """Sizes 1 and 0 are never symbolic, but they work."""
    function = CASES["pointwise"].function
    compiled_function = compiled(function, backend, dynamic=True)
    for shape in ((4, 3), (size, 3), (4, size)):
        arguments = lambda shape=shape: (leaf(*shape),)  # noqa: E731
        assert_like_eager(function, arguments, compiled_function, compilations=None, values_close=closeness(backend))


def test_broadcasting_against_one_is_not_reused_for_equal_sizes() -> None:
    def function(x, y):
        return x * y

    compiled_function = compiled(function, "nop", dynamic=True)
    for left, right in (((4, 3), (4, 3)), ((4, 3), (1, 3)), ((4, 3), (4, 1)), ((5, 2), (5, 2))):
        make = lambda left=left, right=right: (leaf(*left), leaf(*right))  # noqa: E731
        assert_like_eager(function, make, compiled_function, compilations=None)


def test_equal_sizes_at_first_and_others_later() -> None:
    """Two sizes that are equal at the first call are not assumed equal later."""

    def function(x, y):
        return x.sum() * y

    compiled_function = compiled(function, "nop", dynamic=True)
    for left, right in ((4, 4), (4, 5), (6, 3)):
        make = lambda left=left, right=right: (leaf(left), leaf(right))  # noqa: E731
        assert_like_eager(function, make, compiled_function, compilations=None)


def test_without_dynamic_every_shape_is_a_plan() -> None:
    function = compiled(lambda x: x.sin(), "nop")
    before = aotgrad.counters["compilations"]
    for size in (3, 4, 3, 4):
        function(torch.ones(size))
    assert aotgrad.counters["compilations"] - before == 2


# --- Dynamo's own dynamic shapes -------------------------------------------------------------------------------------


def automatic(function, backend="dynamo"):
    """Static at first, symbolic from the second shape on: Dynamo's default."""
    torch._dynamo.reset()
    return torch.compile(function, backend=DYNAMO_BACKENDS[backend], fullgraph=True)


@pytest.mark.parametrize("name", SEVERAL_SHAPES)
def test_automatic_dynamic_shapes(name: str) -> None:
    case = CASES[name]
    function = automatic(case.function)
    before = aotgrad.counters["compilations"]
    make = non_leaf if name == "mutation" else leaf
    for rows in (4, 7, 5, 32):
        assert_like_eager(case.function, lambda rows=rows: (make(rows, 3),), function, compilations=None)
    assert aotgrad.counters["compilations"] - before == 2, "one static plan and one symbolic"


def test_automatic_dynamic_numbers() -> None:
    """A Python int that changes becomes a symbolic input, which the backward needs."""

    def scaled(x, n):
        return x * n

    function = automatic(scaled)
    before = aotgrad.counters["compilations"]
    for n in (2, 3, 5, 7):
        assert_like_eager(scaled, lambda n=n: (leaf(3), n), function, compilations=None)
    assert aotgrad.counters["compilations"] - before == 2


def test_automatic_dynamic_batch_of_a_model() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
    function = automatic(model)
    before = aotgrad.counters["compilations"]
    for batch in (2, 3, 5):
        assert_like_eager(model, lambda batch=batch: (leaf(batch, 4),), function, compilations=None)
    assert aotgrad.counters["compilations"] - before == 2


def test_automatic_dynamic_shapes_with_inductor() -> None:
    function = automatic(CASES["matrix_product"].function, "inductor")
    before = aotgrad.counters["compilations"]
    for rows in (4, 7, 11):
        make = lambda rows=rows: (leaf(rows, 3), leaf(3, 5))  # noqa: E731
        assert_like_eager(CASES["matrix_product"].function, make, function, compilations=None, values_close=INDUCTOR)
    assert aotgrad.counters["compilations"] - before == 2


def test_mark_dynamic() -> None:
    def function(x):
        return x.mean(0)

    compiled_function = automatic(function)
    before = aotgrad.counters["compilations"]
    for rows in (4, 7):
        x = plain(rows, 3)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled_function(x), function(x), rtol=0, atol=0)
    assert aotgrad.counters["compilations"] - before == 1


def test_symbolic_sizes_are_saved_for_the_backward() -> None:
    """The backward of a mean divides by a size, which it receives as an int, not as a tensor."""
    seen = []

    def compiler(module, inputs):
        seen.append(inputs)
        return COMPILERS["nop"](module, inputs)

    function = aotgrad.aot_function(lambda x: x.mean(), compiler, dynamic=True)
    function(leaf(4, 3)).backward()
    assert any(isinstance(value, torch.SymInt) for value in seen[1])


# --- Sizes and numbers that depend on values -------------------------------------------------------------------------


VALUE_DEPENDENT = {
    "number_from_a_tensor": lambda x: x * x.max().item(),
    "list_of_numbers": lambda x: x * x.tolist()[0],
    "elements_under_a_mask": lambda x: x[x > 0].exp(),
    "indices_of_what_is_not_zero": lambda x: (x * 2, torch.nonzero(x.relu())),
    "mask_and_sum": lambda x: x[x > 0].sum() + x.sum(),
    "unique_values": lambda x: (torch.unique(x.detach().round()), x * 2),
}


@pytest.mark.parametrize("backend", AOT)
@pytest.mark.parametrize("name", VALUE_DEPENDENT)
def test_sizes_that_depend_on_values(name: str, backend: str) -> None:
    """One plan, whatever the values."""
    function = VALUE_DEPENDENT[name]
    under_test = compiled(function, backend)
    before = aotgrad.counters["compilations"]
    for shift in (0.0, 1.0, -1.0):
        assert_like_eager(function, lambda shift=shift: (leaf(6) + shift,), under_test, compilations=None)
    assert aotgrad.counters["compilations"] - before == 1


# --- Inputs with overlapping elements --------------------------------------------------------------------------------


def test_a_change_of_an_unfolded_input_is_refused(halves) -> None:
    """A plan that mutates an input guards on the overlap of its elements: later strides may be smaller."""
    under_test = aotgrad.aot_function(lambda x: x.mul_(2), halves, dynamic=True)
    for rows, columns, step in ((4, 5, 6), (3, 5, 7), (6, 2, 9)):
        x = plain(60).as_strided((rows, columns), (step, 1))
        expected = x * 2
        assert torch.equal(under_test(x), expected)
    for step in (1, 3, 4):
        x = plain(60).as_strided((4, 5), (step, 1))
        before = x.clone()
        with pytest.raises(UnsupportedMutationError, match="is expanded or unfolded"):
            under_test(x)
        assert torch.equal(x, before)
    assert len(under_test.plans()) == 1


def volume(x, samples):
    return nn.functional.fractional_max_pool3d(x, 2, output_size=(2, 2, 2), _random_samples=samples)


def histogram(x):
    return torch.histogram(x.detach(), 4, range=(0.0, 1.0))


@pytest.mark.parametrize(
    ("function", "make"),
    [(histogram, lambda size: (plain(size),)), (volume, lambda size: (leaf(1, size, 5, 5, 5), plain(1, size, 3)))],
    ids=["in the forward", "in the backward"],
)
def test_sizes_are_static_where_an_op_has_no_shape_function(halves, function, make) -> None:
    compiled = aotgrad.aot_function(function, halves, dynamic=True)
    for size in (3, 4, 3):
        arguments = make(size)
        results = [f(*arguments) for f in (compiled, function)]
        torch.testing.assert_close(*results)
        if function is volume:
            torch.testing.assert_close(*[torch.autograd.grad(result.sum(), arguments[0]) for result in results])
    assert [plan.hits for plan in compiled.plans()] == [0, 1]


def test_a_view_of_what_was_transposed_since_is_refused_for_every_size(halves):
    """Shape functions raise `ValueError` where kernels raise `RuntimeError`; the previous call left the input unchanged."""

    def f(x):
        view = x.reshape(-1)
        with torch.no_grad():
            x.swapdims_(0, -1)
        return view

    x = torch.ones(3, 4, requires_grad=True)
    for dynamic in (False, True):
        with pytest.raises(aotgrad.errors.UnsupportedAliasingError, match="had its size or stride changed"):
            aotgrad.aot_function(f, halves, dynamic=dynamic)(x)
    assert x.shape == (3, 4) and x._version == 0


@pytest.mark.parametrize("backend", ["aotgrad", "aotgrad_eager"])
def test_second_gradients_of_symbolic_sizes_behind_dynamo(backend: str) -> None:
    """Dynamo passes sizes as numbers, which a derivative takes in addition to the tensors."""

    def function(x, w):
        return (x @ w).sin() * x.shape[0]

    def second_gradient(f, x, w):
        (first,) = torch.autograd.grad(f(x, w).sum(), x, create_graph=True)
        return torch.autograd.grad((first**2).sum(), w)[0]

    torch._dynamo.reset()
    fast, w = torch.compile(function, backend=backend, dynamic=True), leaf(3, 3, dtype=torch.float64)
    for size in (4, 7):
        x = leaf(size, 3, dtype=torch.float64)
        torch.testing.assert_close(second_gradient(fast, x, w), second_gradient(function, x, w))


@pytest.mark.parametrize("name", ["padding_and_slicing", "sizes_as_numbers"])
def test_a_second_compilation_takes_what_inductor_has_cached(name: str) -> None:
    """Inductor looks for the symbols of its guards among the inputs, also in a graph for a part of the backward."""
    for _ in range(2):
        assert_like_eager(CASES[name].function, lambda: (leaf(4, 3),), "inductor", dynamic=True)


@pytest.mark.parametrize("backend", THROUGH_INDUCTOR)
def test_symbols_that_only_a_saved_value_mentions(backend: str) -> None:
    """No number of the graph is the size that the saved cosine is three longer than."""
    function = lambda x: nn.functional.pad(x, (1, 2)).sin()  # noqa: E731
    assert_like_eager(function, lambda: (leaf(4, 3),), backend, dynamic=True)


VIEWS = {
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2)),
    "broadcast_to": lambda x: x.broadcast_to(2, *x.shape),
    "chain": lambda x: x.t()[1:].unsqueeze(0),
    "chunk": lambda x: x.chunk(2)[1],
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.view(x.shape[0], -1, 2))),
    "diagonal": lambda x: x.diagonal(),
    "expand": lambda x: x[:1].expand(x.shape[0] * 2, -1),
    "expand_as": lambda x: x[:1].expand_as(x),
    "flatten": lambda x: x.flatten(),
    "movedim": lambda x: x.movedim(0, 1),
    "narrow": lambda x: x.narrow(0, 0, x.shape[0] - 1),
    "permute": lambda x: x.permute(1, 0),
    "reshape": lambda x: x.reshape(x.shape[1], x.shape[0]),
    "select": lambda x: x.select(0, x.shape[0] // 2),
    "slice": lambda x: x[1 : x.shape[0] - 1],
    "split": lambda x: x.split(2)[0],
    "squeeze": lambda x: x.unsqueeze(0).squeeze(),
    "t": lambda x: x.t(),
    "tensor_split": lambda x: x.tensor_split(2)[1],
    "transpose": lambda x: x.transpose(0, 1),
    "unbind": lambda x: x.unbind(1)[0],
    "unflatten": lambda x: x.unflatten(1, (2, -1)),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "view": lambda x: x.view(x.shape[0] * 2, -1),
    "view_as": lambda x: x.view_as(x),
}


def history_of(view: torch.Tensor, base: torch.Tensor) -> tuple:
    """The geometry of a view, its base, and the autograd nodes between the two."""
    node, names = view.grad_fn, []
    while node is not None and node is not base.grad_fn:
        names.append(node.name())
        node = node.next_functions[0][0] if node.next_functions else None
    return view.size(), view.stride(), view.storage_offset(), view._base is base, names


@pytest.mark.parametrize("backend", ["nop", "dynamo"])
@pytest.mark.parametrize("function", VIEWS.values(), ids=VIEWS)
def test_views_of_inputs_of_symbolic_size_are_made_by_their_own_ops(function, backend: str) -> None:
    """Their autograd nodes equal eager's, as do those of the caller's views of them."""
    under_test = compiled(function, backend, dynamic=True)
    for rows in (4, 6):
        x = torch.randn(rows, 8, requires_grad=True)
        (found, wanted) = (history_of(each(x), x) for each in (under_test, function))
        assert found == wanted
