"""Mutations in a backward by an `autograd.Function`, a custom op, or a hook: as in eager, when the node runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import aotgrad
from aotgrad.errors import AOTGradError, CaptureError
from tests.numerics.against_eager import COMPILERS, compiled

EVERY = ("nop", "eager", "dynamo", "inductor")
WITHOUT_DYNAMO = ("nop", "eager")
every_backend = pytest.mark.parametrize("backend", EVERY)
without_dynamo = pytest.mark.parametrize("backend", WITHOUT_DYNAMO)
Use = Callable[[Callable, Sequence[Tensor]], Any]


# --- Functions -------------------------------------------------------------------------------------------------------


class Doubles(Function):
    """Doubles a buffer in the backward, and reads it before and after."""

    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        before = ctx.buffer.sum()
        ctx.buffer.mul_(2)
        return gradient * x.cos() * ctx.buffer + before, None


class Adds(Function):
    """Adds the gradient to a buffer."""

    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.buffer.add_(gradient)
        return gradient * 2, None


class Takes(Function):
    """Saves a buffer with `save_for_backward`, and mutates it all the same."""

    @staticmethod
    def forward(ctx, x, buffer):
        ctx.save_for_backward(x, buffer)
        return x * buffer

    @staticmethod
    def backward(ctx, gradient):
        x, buffer = ctx.saved_tensors
        result = gradient * buffer * x
        buffer.add_(1)
        return result, None


class Rolls(Function):
    """As FP8 recipes do: updates the history of maxima, and derives the scale from it."""

    @staticmethod
    def forward(ctx, x, history, scale):
        ctx.history, ctx.scale = history, scale
        return x * scale

    @staticmethod
    def backward(ctx, gradient):
        result = gradient * ctx.scale
        ctx.history.copy_(torch.roll(ctx.history, -1, 0))
        ctx.history[0].copy_(gradient.abs().amax())
        ctx.scale.copy_(1 / (1 + ctx.history.amax()))
        return result, None, None


class ChangesPart(Function):
    """Mutates a view of a buffer."""

    @staticmethod
    def forward(ctx, x, buffer):
        ctx.part = buffer[1:]
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        ctx.part.t().mul_(5)
        return gradient * 3, None


class ChangesGradient(Function):
    """Mutates its incoming gradient."""

    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        gradient.mul_(2)
        return gradient * 3


class ChangesOutput(Function):
    """Mutates its own result, and keeps and mutates a value of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.kept = x * 1
        ctx.result = x.detach() * 2
        return x * 3, ctx.result

    @staticmethod
    def backward(ctx, gradient, _):
        ctx.kept.mul_(2)
        ctx.result.add_(gradient)
        return gradient * ctx.kept


class OnlyEffect(Function):
    """Has an effect, and no gradient."""

    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        ctx.buffer.add_(gradient)
        return None, None


class ChangesSaved(Function):
    """Mutates its own saved value to save memory, as a fused cross entropy does."""

    @staticmethod
    def forward(ctx, x):
        probabilities = x.softmax(-1)
        ctx.save_for_backward(probabilities)
        return probabilities.log().sum(-1)

    @staticmethod
    def backward(ctx, gradient):
        (probabilities,) = ctx.saved_tensors
        probabilities.mul_(-x_size(probabilities)).add_(1).mul_(gradient.unsqueeze(-1))
        return probabilities


def x_size(x: Tensor) -> int:
    return x.shape[-1]


def doubles(x, buffer):
    return Doubles.apply(x.cos(), buffer) * 3


def doubles_twice(x, buffer):
    return Doubles.apply(Adds.apply(x.cos(), buffer), buffer) * 3


def doubles_in_two_results(x, buffer):
    return Doubles.apply(x.cos(), buffer) * 3, Adds.apply(x.exp(), buffer).sum()


def doubles_what_others_read(x, buffer):
    return Doubles.apply(x.cos() * (buffer + 1), buffer).exp() * 3


def takes(x, buffer):
    return Takes.apply(x.cos(), buffer) * 3


def changes_part(x, buffer):
    return ChangesPart.apply(x.cos(), buffer) * 3


def writes_and_doubles(x, buffer):
    buffer.add_(1)
    return Doubles.apply(x.cos() * buffer, buffer) * 3


def only_effect(x, buffer):
    return OnlyEffect.apply(x.cos(), buffer) * 3 + x


TWO_INPUTS = (
    doubles,
    doubles_twice,
    doubles_in_two_results,
    doubles_what_others_read,
    takes,
    changes_part,
    writes_and_doubles,
    only_effect,
)
named = pytest.mark.parametrize("function", TWO_INPUTS, ids=lambda f: f.__name__)


def x_and_buffer() -> list[Tensor]:
    return [torch.randn(3, 3).requires_grad_(), torch.rand(3, 3) + 1]


# --- Uses ------------------------------------------------------------------------------------------------------------


def total(outputs: Any) -> Tensor:
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return sum((out * torch.arange(1.0, out.numel() + 1).view_as(out)).sum() for out in outputs if out.requires_grad)


def once(function: Callable, args: Sequence[Tensor]) -> Any:
    outputs = function(*args)
    total(outputs).backward()
    return outputs


def retained(function: Callable, args: Sequence[Tensor]) -> Any:
    outputs = function(*args)
    loss = total(outputs)
    loss.backward(retain_graph=True)
    loss.backward()
    return outputs


def only_forward(function: Callable, args: Sequence[Tensor]) -> Any:
    with torch.no_grad():
        function(*args)
    return function(*args)


def in_turn(function: Callable, args: Sequence[Tensor]) -> Any:
    """Two calls, and their backwards in the order of the calls."""
    first, second = function(*args), function(*args)
    total(first).backward()
    total(second).backward()
    return first, second


def changed_between(function: Callable, args: Sequence[Tensor]) -> Any:
    """A tensor attribute is read when the backward runs."""
    outputs = function(*args)
    with torch.no_grad():
        args[1].add_(0.5)
    total(outputs).backward()
    return outputs


def each_result(function: Callable, args: Sequence[Tensor]) -> Any:
    outputs = function(*args)
    for out in outputs if isinstance(outputs, tuple) else (outputs,):
        total(out).backward(retain_graph=True)
    return outputs


def second_order(function: Callable, args: Sequence[Tensor]) -> Any:
    outputs = function(*args)
    (first,) = torch.autograd.grad(total(outputs), args[0], create_graph=True, allow_unused=True)
    if first is not None and first.requires_grad:
        (first * first).sum().backward()
    return outputs, first


def observed(function: Callable, use: Use, make_args: Callable[[], Sequence[Tensor]]) -> list[Any]:
    """The effects of a use of a function, or the type of its error."""
    torch.manual_seed(1)
    args = make_args()
    try:
        results: Any = use(function, args)
    except AOTGradError:
        raise
    except RuntimeError as error:
        results = [type(error) if "modified by an inplace" not in str(error) else "modified by an inplace operation"]
    found = [(k, arg.detach().clone(), arg._version, arg.grad if arg.is_leaf else None) for k, arg in enumerate(args)]
    return [*torch.utils._pytree.tree_leaves(results), *torch.utils._pytree.tree_leaves(found)]


def assert_alike(
    function: Callable, use: Use, make_args: Callable[[], Sequence[Tensor]], backend: str, **options: Any
) -> None:
    expected = observed(function, use, make_args)
    under_test = compiled(function, backend, **options)
    for _ in range(2):
        found = observed(under_test, use, make_args)
        assert len(found) == len(expected)
        for mine, eager in zip(found, expected, strict=True):
            if isinstance(eager, Tensor):
                torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-6)
                assert (mine.requires_grad, mine.is_leaf) == (eager.requires_grad, eager.is_leaf)
            else:
                assert mine == eager


USES = (once, only_forward, in_turn, each_result)


@every_backend
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@named
def test_a_buffer_is_changed_as_in_eager(function: Callable, use: Use, backend: str) -> None:
    assert_alike(function, use, x_and_buffer, backend)


@every_backend
@named
def test_it_is_changed_in_every_backward(function: Callable, backend: str) -> None:
    assert_alike(function, retained, x_and_buffer, backend)


# --- Ownership of gradients --------------------------------------------------------------------------------------------


def changes_gradient(x):
    return ChangesGradient.apply(x.cos() * 2)


def changes_gradient_inside(x):
    return ChangesGradient.apply(x.cos()).exp()


def given_gradient(function: Callable, args: Sequence[Tensor]) -> Any:
    """The gradient of the result is a tensor of the caller, who reads it afterwards."""
    y = function(*args)
    gradient = torch.ones_like(y).add_(0.5)
    y.backward(gradient, retain_graph=True)
    y.backward(gradient)
    return y, gradient, gradient._version


def x_alone() -> list[Tensor]:
    return [torch.randn(3, 3).requires_grad_()]


@every_backend
@pytest.mark.parametrize("function", [changes_gradient, changes_gradient_inside], ids=lambda f: f.__name__)
def test_a_gradient_is_changed(function: Callable, backend: str) -> None:
    assert_alike(function, given_gradient, x_alone, backend)


def changes_output(x):
    y, kept = ChangesOutput.apply(x.cos())
    return y * 2, kept


def changes_saved(x):
    return ChangesSaved.apply(x.cos())


@every_backend
@pytest.mark.parametrize("use", [once, retained, in_turn], ids=lambda use: use.__name__)
def test_a_result_and_a_value_inside_are_changed(use: Use, backend: str) -> None:
    assert_alike(changes_output, use, x_alone, backend)


@every_backend
def test_what_is_saved_may_be_used_up(backend: str) -> None:
    assert_alike(changes_saved, once, x_alone, backend)


class DoublesSaved(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].mul_(2)


USED_UP_BESIDE_A_CHANGE = {
    "before": lambda x, buffer: Adds.apply(DoublesSaved.apply(x + 1), buffer).exp(),
    "after": lambda x, buffer: DoublesSaved.apply(Adds.apply(x, buffer) + 1).exp(),
}


@every_backend
@pytest.mark.parametrize("name", USED_UP_BESIDE_A_CHANGE)
def test_what_is_saved_may_be_used_up_beside_a_change(name: str, backend: str) -> None:
    """The change makes a second trace of the backward."""
    assert_alike(USED_UP_BESIDE_A_CHANGE[name], once, x_and_buffer, backend)


# --- In higher orders ----------------------------------------------------------------------------------------------------


def doubles_without_reading(x, buffer):
    return Adds.apply(x.cos(), buffer).exp() * 3


# Dynamo's form of a custom function has another derivative than eager's, under any backend.
@without_dynamo
@pytest.mark.parametrize("function", [doubles, doubles_without_reading], ids=lambda f: f.__name__)
def test_create_graph(function: Callable, backend: str) -> None:
    assert_alike(function, second_order, x_and_buffer, backend)


# --- Other effects --------------------------------------------------------------------------------------------------------


@torch.library.custom_op("aotgrad_tests::note_maximum", mutates_args={"history"})
def note_maximum(history: Tensor, gradient: Tensor) -> None:
    history.data.copy_(torch.maximum(history, gradient.abs()))  # the op as a whole is one change


@torch.library.custom_op("aotgrad_tests::scaled", mutates_args=())
def scaled(x: Tensor, history: Tensor) -> Tensor:
    return x * 2


@scaled.register_fake
def _(x, history):
    return torch.empty_like(x)


def setup_scaled(ctx, inputs, output):
    ctx.history = inputs[1]


def backward_of_scaled(ctx, gradient):
    note_maximum(ctx.history, gradient)
    return gradient * 2 + ctx.history, None


scaled.register_autograd(backward_of_scaled, setup_context=setup_scaled)


def calls_a_custom_op(x, buffer):
    return scaled(x.cos(), buffer) * 3


def hooks_a_value(x, buffer):
    h = x.cos()
    h.register_hook(lambda gradient: buffer.add_(gradient) * 2)
    return h.exp() * 3


def hooks_two_values(x, buffer):
    h, k = x.cos(), x.sin()
    h.register_hook(lambda gradient: buffer.add_(gradient) * 2)
    k.register_hook(lambda gradient: buffer.mul_(2) * gradient)
    return (h * k).exp() * 3


class Draws(Function):
    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.buffer.add_(torch.rand_like(gradient))
        return gradient * torch.rand_like(ctx.buffer), None


class DrawsAlone(Draws):
    @staticmethod
    def backward(ctx, gradient):
        ctx.buffer.add_(torch.rand(3, 3))
        return gradient * torch.rand(3, 3), None


class OnlyDraws(Draws):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.rand(3, 3), None


def draws(x, buffer):
    return Draws.apply(x.cos(), buffer) * torch.rand_like(x)


def draws_alone(x, buffer):
    return DrawsAlone.apply(x.cos(), buffer) * torch.rand_like(x)


def only_draws(x, buffer):
    return OnlyDraws.apply(x.cos(), buffer) * torch.rand_like(x), OnlyDraws.apply(x.exp(), buffer).sum()


@every_backend
@pytest.mark.parametrize("use", [once, retained], ids=lambda use: use.__name__)
def test_a_custom_op_writes_in_the_backward(use: Use, backend: str) -> None:
    assert_alike(calls_a_custom_op, use, x_and_buffer, backend)


@without_dynamo
@pytest.mark.parametrize("use", [once, retained, only_forward], ids=lambda use: use.__name__)
@pytest.mark.parametrize("function", [hooks_a_value, hooks_two_values], ids=lambda f: f.__name__)
def test_a_hook_writes(function: Callable, use: Use, backend: str) -> None:
    assert_alike(function, use, x_and_buffer, backend)


def hooks_a_node(x, buffer):
    def after(gradients, arrived):
        buffer.add_(arrived[0] + gradients[0])
        return (gradients[0] * buffer,)

    h = x.cos()
    h.grad_fn.register_hook(after)
    return h.exp() * 3


def hooks_before_a_node(x, buffer):
    def before(gradients):
        buffer.mul_(2)
        return (gradients[0] * buffer,)

    h = x.cos()
    h.grad_fn.register_prehook(before)
    return h.exp() * 3


def hooks_nodes_of_two_results(x, buffer):
    def before(gradients):
        buffer.mul_(2)

    def after(_, gradients):
        buffer.add_(gradients[0])

    h, k = x.cos(), x.sin()
    h.grad_fn.register_prehook(before)
    h.grad_fn.register_hook(after)
    k.grad_fn.register_hook(after)
    return h.exp() * 3, (h * k).sum()


def hooks_the_last_node(x, buffer):
    def after(_, gradients):
        buffer.add_(gradients[0])

    h = x.cos().exp()
    h.grad_fn.register_hook(after)
    return h


def hooks_a_custom_node(x, buffer):
    def before(gradients):
        buffer.mul_(2)

    def after(_, gradients):
        buffer.add_(gradients[0])

    h = Adds.apply(x.cos(), buffer)
    h.grad_fn.register_prehook(before)
    h.grad_fn.register_hook(after)
    return h.exp()


def hooks_a_node_and_writes_nothing(x, buffer):
    h = x.cos()
    h.grad_fn.register_prehook(lambda gradients: (gradients[0] + buffer,))
    h.grad_fn.register_hook(lambda gradients, _: (gradients[0] * 2,))
    return h.exp() * 3


def removes_its_hook(x, buffer):
    h = x.cos()
    h.grad_fn.register_prehook(lambda gradients: (gradients[0] + buffer,)).remove()
    return h.exp() * 3


HOOKS_OF_NODES = (
    hooks_a_node,
    hooks_before_a_node,
    hooks_nodes_of_two_results,
    hooks_the_last_node,
    hooks_a_custom_node,
    hooks_a_node_and_writes_nothing,
    removes_its_hook,
)


@pytest.mark.parametrize("backend", [*WITHOUT_DYNAMO, "aot_inductor"])
@pytest.mark.parametrize("use", [once, retained, each_result, in_turn], ids=lambda use: use.__name__)
@pytest.mark.parametrize("function", HOOKS_OF_NODES, ids=lambda f: f.__name__)
def test_a_hook_of_a_node_writes(function: Callable, use: Use, backend: str) -> None:
    assert_alike(function, use, x_and_buffer, backend)


def counting(buffer: Tensor) -> Callable:
    def count(*_: Any) -> None:
        buffer.add_(1)

    return count


def hooks_what_accumulates(x, buffer):
    y = x.cos()
    y.grad_fn.next_functions[0][0].register_hook(counting(buffer))
    return y


def hooks_the_edge_of_an_argument(x, buffer):
    y = x.cos()
    torch.autograd.graph.get_gradient_edge(x).node.register_prehook(counting(buffer))
    return y


def hooks_a_view_of_an_argument(x, buffer):
    y = x[1:]
    y.grad_fn.register_hook(counting(buffer))
    return y


def hooks_what_an_argument_was_made_by(x, buffer):
    y = x[1:] if x.grad_fn is None else x
    y.grad_fn.register_hook(counting(buffer))
    return y.cos(), y


HOOKS_OUTSIDE = (
    hooks_what_accumulates,
    hooks_the_edge_of_an_argument,
    hooks_a_view_of_an_argument,
    hooks_what_an_argument_was_made_by,
)


@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("function", HOOKS_OUTSIDE, ids=lambda f: f.__name__)
def test_a_hook_of_a_node_outside_of_the_graph_is_refused(function: Callable, is_leaf: bool) -> None:
    x, buffer = x_and_buffer()
    with pytest.raises(CaptureError, match="hooks the autograd node of an argument, or of a view"):
        compiled(function, "nop")(x if is_leaf else x * 1, buffer)


@pytest.mark.parametrize("backend", ["nop", "eager", "dynamo"])
@pytest.mark.parametrize("use", [once, retained, each_result], ids=lambda use: use.__name__)
@pytest.mark.parametrize("function", [draws, draws_alone, only_draws], ids=lambda f: f.__name__)
def test_random_numbers_in_it(function: Callable, use: Use, backend: str) -> None:
    assert_alike(function, use, x_and_buffer, backend)


@every_backend
def test_sizes_that_change(backend: str) -> None:
    assert_alike(doubles, retained, x_and_buffer, backend, dynamic=True)


class Scaled(torch.nn.Module):
    """A layer with an FP8 recipe."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("history", torch.ones(4))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        return Rolls.apply(self.linear(x), self.history, self.scale).relu()


def trained(compile: Callable) -> list[Tensor]:
    torch.manual_seed(3)
    layers = torch.nn.Sequential(Scaled(), Scaled())
    step = compile(layers)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for k in range(4):
        loss = (step(torch.randn(5, 3)) ** 2).sum()
        if k != 2:
            loss.backward()
        optimizer.step()
    return [loss, *layers.state_dict().values()]


@every_backend
def test_an_fp8_recipe(backend: str) -> None:
    def compile(module: torch.nn.Module) -> Callable:
        if backend in WITHOUT_DYNAMO:
            return aotgrad.aot_module(module, COMPILERS[backend])
        return compiled(module, backend)

    for mine, eager in zip(trained(compile), trained(lambda module: module), strict=True):
        torch.testing.assert_close(mine, eager)


@pytest.mark.parametrize("backend", ["dynamo", "inductor"])
def test_a_closed_over_tensor(backend: str) -> None:
    """Dynamo makes it an argument; without Dynamo, it is refused: see `expect/errors`."""

    def make() -> tuple[Tensor, Callable]:
        torch.manual_seed(2)
        history = torch.ones(3)
        return history, lambda x: Doubles.apply(x.cos(), history) * 3

    (eager_history, eager), (history, function) = make(), make()
    x, other = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    under_test = compiled(function, backend)
    for _ in range(2):
        eager(x).sum().backward()
        under_test(other).sum().backward()
    torch.testing.assert_close(history, eager_history)
    assert history._version == eager_history._version
    torch.testing.assert_close(x.grad, other.grad)


@without_dynamo
def test_only_if_eager_runs_the_node(backend: str) -> None:
    """The set of wanted gradients decides."""

    def function(x, w, buffer):
        return Doubles.apply(x, buffer) * w

    def some(function: Callable, args: Sequence[Tensor]) -> Any:
        y = function(*args)
        first = torch.autograd.grad(y.sum(), args[1], retain_graph=True)
        version = args[2]._version
        second = torch.autograd.grad(y.sum(), args[0])
        return first, version, second

    def make_args() -> list[Tensor]:
        return [torch.randn(3).requires_grad_(), torch.randn(3).requires_grad_(), torch.ones(3)]

    assert_alike(function, some, make_args, backend)


class Doubled(torch.autograd.Function):
    """Doubles `history` in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, history: Tensor) -> Tensor:
        ctx.history = history
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.history.mul_(2)
        return gradient * 2, None


class SavesFactor(torch.autograd.Function):
    """A product that saves one factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.saved_tensors[0], None


@pytest.mark.parametrize("product", [torch.mul, SavesFactor.apply])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("caller_adds", [False, True])
def test_saved_memory_that_a_backward_changes_may_not_be_changed_before(product, adds: bool, caller_adds: bool) -> None:
    """The backward reads it as it is then."""

    def function(x: Tensor, history: Tensor) -> Tensor:
        if adds:
            history.add_(1)
        return product(Doubled.apply(x, history), history)

    def run(function: Any) -> list[Any]:
        x, history = torch.ones(3, requires_grad=True), torch.full((3,), 3.0)
        y = function(x, history)
        if caller_adds:
            history.add_(1)
        found: list[Any] = []
        for _ in range(2):
            try:
                found += torch.autograd.grad(y.sum(), x, retain_graph=True)[0].tolist()
            except RuntimeError as error:
                found.append(str(error).partition(":")[0])
        return [*found, history.tolist(), history._version]

    assert run(aotgrad.aot_function(function, aotgrad.nop)) == run(function)
