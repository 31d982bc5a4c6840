"""Users' ops, lists of tensors, optimizers in a compiled step, and custom functions under transforms."""

from __future__ import annotations

from typing import Optional

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import aotgrad
from tests.numerics.against_eager import AOT, assert_like_eager, leaf, non_leaf, plain

# --- Ops -------------------------------------------------------------------------------------------------------------


def write_one_more(x: Tensor) -> None:
    """Mutates as a kernel does: without autograd, which counts one change for the op."""
    array = x.detach().numpy()
    array += 1


@torch.library.custom_op("aotgrad_tests::sine", mutates_args=())
def sine(x: Tensor) -> Tensor:
    return x.sin()


@torch.library.custom_op("aotgrad_tests::sine_without_gradient", mutates_args=())
def sine_without_gradient(x: Tensor) -> Tensor:
    return x.sin()


@torch.library.custom_op("aotgrad_tests::add_one_", mutates_args=("x",))
def add_one_(x: Tensor) -> None:
    write_one_more(x)


@torch.library.custom_op("aotgrad_tests::add_one_and_multiply", mutates_args=("x",))
def add_one_and_multiply(x: Tensor, y: Tensor) -> Tensor:
    write_one_more(x)
    return x * y


@torch.library.custom_op("aotgrad_tests::positives", mutates_args=())
def positives(x: Tensor) -> Tensor:
    return x[x > 0].clone()


sine.register_fake(torch.empty_like)
sine_without_gradient.register_fake(torch.empty_like)
add_one_and_multiply.register_fake(lambda x, y: torch.empty_like(x))
positives.register_fake(lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size()))
sine.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)

every_backend = pytest.mark.parametrize("backend", [*AOT, "dynamo", "inductor"])
exact_backends = pytest.mark.parametrize("backend", [*AOT, "dynamo"])


@every_backend
def test_an_op_with_a_gradient(backend):
    assert_like_eager(lambda x: sine(x * 2) * x, lambda: (leaf(4),), backend)


@exact_backends
def test_an_op_with_a_gradient_twice(backend):
    def differentiated(out, args):
        (first,) = torch.autograd.grad(out.sum(), args[0], create_graph=True)
        return first

    assert_like_eager(lambda x: sine(x * 2) * x, lambda: (leaf(4),), backend, caller=differentiated, compilations=None)


@exact_backends
def test_an_op_without_a_gradient(backend):
    assert_like_eager(lambda x: sine_without_gradient(x) * 2, lambda: (plain(4),), backend)


def test_an_op_without_a_gradient_is_refused_where_one_is_needed(halves):
    compiled = aotgrad.aot_function(lambda x: sine_without_gradient(x) + x, halves)
    with pytest.raises(aotgrad.errors.CaptureError, match="no autograd formula was registered"):
        compiled(leaf(4))


@every_backend
def test_an_op_that_changes_an_intermediate(backend):
    def function(x):
        y = x * 2
        add_one_(y)
        return y

    assert_like_eager(function, lambda: (plain(4),), backend)


@every_backend
def test_an_op_that_changes_an_input(backend):
    def function(x):
        add_one_(x)
        return x * 2

    assert_like_eager(function, lambda: (plain(4),), backend)


@exact_backends
def test_an_op_that_changes_a_view_of_an_input(backend):
    def function(x):
        add_one_(x[1:])
        return x * 2

    assert_like_eager(function, lambda: (plain(4),), backend)


@every_backend
def test_an_op_that_changes_one_argument_and_returns(backend):
    def function(x, y):
        z = x.clone()
        return add_one_and_multiply(z, y), z

    assert_like_eager(function, lambda: (plain(4), plain(4)), backend)


@torch.library.custom_op("aotgrad_tests::change_two", mutates_args=("a", "b"))
def change_two(x: Tensor, a: Tensor, b: Tensor, factor: Optional[Tensor] = None) -> Tensor:  # noqa: UP045  # torch reads it
    write_one_more(a)
    write_one_more(b)
    return x * 2 if factor is None else x * factor


@torch.library.custom_op("aotgrad_tests::change_list", mutates_args=("buffers",))
def change_list(x: Tensor, buffers: list[Tensor]) -> None:
    for buffer in buffers:
        write_one_more(buffer)


@torch.library.custom_op("aotgrad_tests::change_maybe", mutates_args=("a", "b"))
def change_maybe(x: Tensor, a: Tensor, b: Optional[Tensor] = None) -> Tensor:  # noqa: UP045  # torch reads it
    write_one_more(a)
    if b is not None:
        write_one_more(b)
    return x + 1


change_two.register_fake(lambda x, a, b, factor=None: torch.empty_like(x))
change_maybe.register_fake(lambda x, a, b=None: torch.empty_like(x))


def in_a_list(x, a, b):
    change_list(x.detach(), [a, b])
    return (x.sin() * a * b).exp()


def in_a_list_of_intermediates(x, a, b):
    c, d = a * 1, b * 1
    change_list(x.detach(), [c, d])
    return (x * c).sin() * d


def parts_in_a_list(x, a, b):
    change_list(x.detach(), [a[0], b[:, 1]])
    return (x * a).sin() * b


def rows(x, a, b):
    y = change_two(x.detach()[0], a[0], b[1], x.detach()[1])
    return (x * a).sin() * b * y


def two_at_once_in_a_checkpoint(x, a, b):
    def region(x):
        return (x.sin() * change_two(x.detach(), a.clone(), b.clone())).exp()

    return checkpoint(region, x, use_reentrant=False)


def changed_and_returned(x, a, b):
    c = a.clone()
    y = change_two(x.detach(), c, b) * x.sin()
    return y, c


def changed_twice(x, a, b):
    return change_two(x.detach(), a, b) * x.sin() * change_two(x.detach() * 2, b, a)


CHANGING = {
    "two at once": lambda x, a, b: (x.sin() * 2 + change_two(x.detach(), a, b) * x).cos(),
    "two at once, given another": lambda x, a, b: (change_two(x.detach(), a, b, x.detach().exp()) * x).cos() * a,
    "rows": rows,
    "in a list": in_a_list,
    "intermediates in a list": in_a_list_of_intermediates,
    "parts in a list": parts_in_a_list,
    "one is None": lambda x, a, b: (x.sin() * change_maybe(x.detach(), a)).exp() * a,
    "one might be None": lambda x, a, b: (x.sin() * change_maybe(x.detach(), a, b)).exp() * a,
    "in a checkpoint": two_at_once_in_a_checkpoint,
    "changed and returned": changed_and_returned,
    "changed twice": changed_twice,
}

WAYS = [
    *[(backend, None) for backend in ("nop", "dynamo", "aot_inductor", "inductor")],
    *[(backend, 0.0) for backend in ("nop", "dynamo", "aot_inductor")],
]


@pytest.mark.parametrize(("backend", "budget"), WAYS)
@pytest.mark.parametrize("name", CHANGING)
def test_ops_that_change_several_arguments(name, backend, budget):
    arguments = (leaf(2, 2), torch.ones(2, 2), torch.full((2, 2), 2.0))
    assert_like_eager(
        *(CHANGING[name], lambda: tuple(each.detach().clone().requires_grad_(each.requires_grad) for each in arguments)),
        backend,
        options={"memory_budget": budget},
    )


@torch.library.custom_op("aotgrad_tests::add_one_in_place", mutates_args=("x",))
def add_one_in_place(x: Tensor) -> None:
    x.add_(1)


@pytest.mark.xfail(
    torch.__version__ >= "2.13",
    reason="a trace does not run the body of an op, nor sees how many ops in it write",
    strict=True,
)
@every_backend
def test_writes_in_the_body_of_an_op_are_counted(backend):
    """From torch 2.13 on, the body raises version counters in addition to the op itself."""
    assert_like_eager(lambda x: add_one_in_place(x), lambda: (plain(4),), backend)


@exact_backends
@pytest.mark.parametrize("budget", [None, 0.0])
def test_an_op_within_a_budget(backend, budget):
    options = {"memory_budget": budget}
    assert_like_eager(lambda x: sine(x.exp()).cos().exp(), lambda: (leaf(4),), backend, options=options)


def test_an_op_whose_size_depends_on_data():
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert_like_eager(lambda x: positives(x) * 2, lambda: (plain(8),), "dynamo")


# --- Lists of tensors ------------------------------------------------------------------------------------------------


@every_backend
def test_foreach(backend):
    assert_like_eager(
        lambda x, y: torch._foreach_mul(torch._foreach_add([x * 1, y * 2], [y, x]), 2.0), lambda: (leaf(4), leaf(4)), backend
    )


@exact_backends
def test_foreach_in_place(backend):
    def function(x, y):
        several = [x * 1, y * 2]
        torch._foreach_mul_(several, 2.0)
        torch._foreach_add_(several, 1.0)
        return several

    assert_like_eager(function, lambda: (leaf(4), leaf(4)), backend)


@every_backend
def test_foreach_with_constants_without_dimensions(backend):
    def function(x, y):
        constants = [torch.tensor(0.25), torch.tensor(3.0)]
        return torch._foreach_addcmul([x, y], constants, [y, x], value=2.0), torch._foreach_lerp([x, y], [y, x], 0.75)

    assert_like_eager(function, lambda: (leaf(4), leaf(4)), backend)


# --- Optimizers ------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "Adam, fused": lambda parameters: torch.optim.Adam(parameters, fused=True),
    "Adam with amsgrad, fused": lambda parameters: torch.optim.Adam(parameters, fused=True, amsgrad=True),
    "SGD with momentum, fused": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, fused=True),
    "AdamW, foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, foreach=False),
}


@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_step(name, backend):
    torch._dynamo.reset()
    expected, actual = (stepped(OPTIMIZERS[name], how) for how in (None, backend))
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def stepped(make, backend):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(3, 3)) for _ in range(2)]
    for parameter in parameters:
        parameter.grad = torch.randn(3, 3)
    optimizer = make(parameters)
    step = optimizer.step if backend is None else torch.compile(optimizer.step, backend=backend)
    for _ in range(3):
        step()
    return [parameter.detach() for parameter in parameters]


# --- Custom functions under transforms -------------------------------------------------------------------------------


class Square(torch.autograd.Function):
    """With its own rule for `vmap`."""

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 * ctx.saved_tensors[0]

    @staticmethod
    def vmap(info, in_dims, x):
        return Square.apply(x), in_dims[0]


class SquareOfRows(Square):
    """With a generated rule."""

    generate_vmap_rule = True
    vmap = torch.autograd.Function.vmap


TRANSFORMS = {
    "called": lambda function: lambda x: function(x).sin(),
    "vmap": lambda function: torch.func.vmap(function),
    "grad": lambda function: torch.func.grad(lambda x: function(x).sum()),
    "vmap of grad": lambda function: torch.func.vmap(torch.func.grad(lambda x: function(x).sum())),
    "jacrev": lambda function: torch.func.jacrev(function),
}


@exact_backends
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("custom", [Square, SquareOfRows], ids=lambda function: function.__name__)
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_custom_functions(custom, name, backend):
    def function(x):
        return TRANSFORMS[name](lambda x: custom.apply(x))(x * 2)

    if backend == "dynamo" and not keeps_histories(function):
        compiled = torch.compile(function, backend="aotgrad_eager")
        assert_like_eager(function, lambda: (leaf(3, 2),), compiled, compilations=None)
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="does not differentiate the backward of a custom autograd"):
            torch.compile(function, backend="aotgrad_eager", fullgraph=True)(leaf(3, 2))
    else:
        assert_like_eager(function, lambda: (leaf(3, 2),), backend)


def keeps_histories(function) -> bool:
    """Whether the result of Dynamo alone requires grad as in eager. Dynamo may also fail by itself."""
    torch._dynamo.reset()
    try:
        return torch.compile(function, backend="eager", fullgraph=True)(leaf(3, 2)).requires_grad
    except torch._dynamo.exc.InternalTorchDynamoError as error:
        pytest.skip(f"Dynamo itself cannot trace it: {str(error).splitlines()[0]}")
    finally:
        torch._dynamo.reset()


@exact_backends
def test_a_custom_function_of_what_is_changed_in_place(backend):
    assert_like_eager(lambda x: Square.apply(x.mul_(2)), lambda: (non_leaf(3),), backend)
