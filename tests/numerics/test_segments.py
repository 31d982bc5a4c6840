"""Separate backwards, heads on a trunk, returned intermediates, kept graphs and streamed gradients, against eager."""

from __future__ import annotations

import gc
import itertools
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import aotgrad
from aotgrad.backends.eager import compile_eager
from tests.device import new_generator
from tests.numerics.against_eager import THREE_TERMS, assert_like_eager, compiled

SECOND_TIME = "backward through the graph a second time"


def heads(x, w, v):
    h = (x @ w).tanh()
    return h @ v, (h * v).sin(), h


def independent(x, y, z):
    return x.exp(), (y * z).tanh()


def chained(x, y, z):
    a = x.exp()
    b = (a * y).sin()
    return a, b, (b @ z).tanh()


def split_in_pieces(x, y, z):
    first, second = (x * y).exp().chunk(2)
    return first.sin(), second * z[: second.size(0)]


def views_of_a_trunk(x, y, z):
    h = x * y
    return h.t(), h.view(-1), h.sin() @ z


def changed_input(x, y, z):
    x.mul_(y)
    return x.sin(), x * z


class TwoOutputs(torch.autograd.Function):
    """One autograd node with two outputs, which stay together."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx, product, total):
        x, y = ctx.saved_tensors
        return product * y + total, product * x + total


def custom_node(x, y, z):
    product, total = TwoOutputs.apply(x, y)
    return product.sin(), total * z


def checkpointed(x, y, z):
    def block(x, y):
        return (x @ y).tanh()

    h = torch.utils.checkpoint.checkpoint(block, x, y, use_reentrant=False)
    return h.sin(), h @ z


PROGRAMS = [
    chained,
    changed_input,
    checkpointed,
    custom_node,
    heads,
    independent,
    split_in_pieces,
    views_of_a_trunk,
]
every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


def inputs() -> list[Tensor]:
    generator = new_generator().manual_seed(0)
    return [torch.rand(4, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]


def squares(outputs: Sequence[Tensor], chosen: Sequence[int]) -> list[Tensor]:
    return [(outputs[k] ** 2).sum() for k in chosen]


Action = Callable[[Sequence[Tensor], Sequence[Tensor]], Any]


def history(function: Callable, actions: Sequence[Action], make: Callable = inputs) -> list[Any]:
    """The result or error of each action, and the gradients after it."""
    leaves = make()
    arguments = [leaves[0] * 1, *leaves[1:]]
    outputs = function(*arguments)
    seen: list[Any] = []
    for action in actions:
        try:
            seen.append(action(outputs, arguments))
        except RuntimeError as error:
            assert SECOND_TIME in str(error)
            seen.append(SECOND_TIME)
        seen.append([None if leaf.grad is None else leaf.grad.clone() for leaf in leaves])
    return seen


def assert_same(found: Any, expected: Any, exactly: bool = True) -> None:
    """Equal bit for bit, or nearly."""
    if isinstance(expected, Tensor):
        assert isinstance(found, Tensor)
        torch.testing.assert_close(found, expected, **(dict(rtol=0, atol=0) if exactly else {}))
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, exactly)
    else:
        assert found == expected


def backward(*chosen: int, **options: Any) -> Action:
    return lambda outputs, _: torch.autograd.backward(squares(outputs, chosen), **options)


def gradient(*chosen: int, of: Sequence[int], **options: Any) -> Action:
    """Indices of outputs, continued into the inputs."""

    def run(outputs, arguments):
        pool = [*outputs, *arguments]
        return torch.autograd.grad(squares(outputs, chosen), [pool[k] for k in of], allow_unused=True, **options)

    return run


@every_program
@pytest.mark.parametrize("segments", [1, 3])
def test_backwards_in_any_order_and_number(program, segments):
    under_test = aotgrad.aot_function(program, compile_eager, options={"grad_segments": segments, "verify": True})
    for first, second in itertools.product((0, 1), repeat=2):
        for keep, keep_too in itertools.product((True, False), repeat=2):
            runs = [((first,), keep), ((second,), keep_too), ((0, 1), True)]
            assert_right_or_refused(under_test, program, runs)


def assert_right_or_refused(
    under_test: Callable, program: Callable, runs: Sequence[tuple[Sequence[int], bool]], make: Callable = inputs
) -> None:
    """Backwards of results, whose graph is retained or not: right, up to the first one that raises, in eager, too."""
    found, eager = (history(f, [backward(*k, retain_graph=keep) for k, keep in runs], make) for f in (under_test, program))
    right = history(program, [backward(*chosen, retain_graph=True) for chosen, _ in runs], make)
    end = found.index(SECOND_TIME) if SECOND_TIME in found else len(found)
    assert_same(found[:end], right[:end])
    assert found[end : end + 1] == eager[end : end + 1]


@every_program
def test_gradients_of_outputs_and_inputs(program):
    under_test = aotgrad.aot_function(program, compile_eager)
    count = len(program(*(leaf * 1 for leaf in inputs())))
    for root, of in itertools.product(range(count), range(count + 3)):
        actions = [gradient(root, of=[of], retain_graph=True), gradient(root, of=range(count + 3))]
        assert_same(history(under_test, actions), history(program, actions))


@every_program
@pytest.mark.parametrize("backend", ["nop", "interpreter"])
@pytest.mark.parametrize("segments", [1, 2, 8])
def test_everything_else_is_like_eager(program, backend, segments):
    under_test = compiled(program, backend, options={"grad_segments": segments})
    order = THREE_TERMS if program is views_of_a_trunk else ""
    assert_like_eager(
        program, lambda: (inputs()[0] * 1, *inputs()[1:]), under_test, compilations=None, gradients_close=order
    )


@every_program
def test_second_derivatives_of_segments(program):
    def function(x, y, z):
        return program(x * 1, y, z)

    for segments in (1, 3):
        under_test = aotgrad.aot_function(function, compile_eager, options={"grad_segments": segments})
        assert torch.autograd.gradcheck(under_test, inputs())
        assert torch.autograd.gradgradcheck(under_test, inputs())


def layers(x, *weights):
    for weight in weights:
        x = (x @ weight).tanh()
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("segments", [1, 2, 3, 8])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_how_far_second_derivatives_are_from_eagers(depth, segments, dtype):
    """Gradients that reach a hidden value in several ways are summed at the inputs, with other last bits."""

    def second(function, of_weights, with_value):
        torch.manual_seed(depth)
        x, *weights = (torch.randn(5, 5, dtype=dtype, requires_grad=True) for _ in range(depth + 1))
        y = function(x, *weights)
        first = torch.autograd.grad(y.sum(), weights if of_weights else [x], create_graph=True)
        loss = sum(gradient.square().sum() for gradient in first) + (y.square().sum() if with_value else 0)
        return torch.autograd.grad(loss, [x, *weights])

    under_test = aotgrad.aot_function(layers, compile_eager, options={"grad_segments": segments})
    limit = 16 * torch.finfo(dtype).eps if depth > 1 else 0
    for options in itertools.product((False, True), repeat=2):
        for found, expected in zip(second(under_test, *options), second(layers, *options), strict=True):
            assert (found - expected).abs().max() <= limit * expected.abs().max()


@pytest.mark.parametrize("program", [chained, heads, independent], ids=lambda program: program.__name__)
def test_with_inductor(program):
    torch._dynamo.reset()
    under_test = torch.compile(program, backend="aotgrad", fullgraph=True)
    for actions in ([backward(0), backward(1)], [backward(1, retain_graph=True), backward(0)], [gradient(1, of=[0])]):
        assert_same(history(under_test, actions), history(program, actions), exactly=False)


@every_program
def test_symbolic_sizes(program):
    under_test = aotgrad.aot_function(program, compile_eager, dynamic=True)
    for size in (4, 6):

        def make(size=size):
            values = torch.linspace(0, 1, size * size, dtype=torch.float64).view(size, size)
            return [(values + k).requires_grad_() for k in range(3)]

        assert_right_or_refused(under_test, program, [((0,), False), ((1,), False)], make)
    (plan,) = under_test.plans()
    assert len(plan.executable.joint.segments) > 1


def test_a_gradient_that_nobody_needs_leaves_no_segment():
    """`cat` computes gradients of constants, too."""

    def function(x, w):
        constant = torch.zeros_like(x) * 2
        return torch.cat([constant, x * w]), w.sin()

    def run(function):
        x, w = (torch.full((2,), value, requires_grad=True) for value in (2.0, 3.0))
        return torch.autograd.grad([output.sum() for output in function(x, w)], [x, w])

    assert_same(run(aotgrad.aot_function(function, compile_eager)), run(function))


class Separate(TwoOutputs):
    """Each input's gradient comes from one output: eager gives zeros for the other."""

    @staticmethod
    def backward(ctx, product, total):
        return product * 2, total


def separate(x, y, z):
    return Separate.apply(x, y)


def separate_inside(x, y, z):
    one, other = Separate.apply(x.sin(), y.cos())
    return one.exp(), (other * z).tanh(), one * z


@pytest.mark.parametrize("program", [separate, separate_inside], ids=lambda program: program.__name__)
def test_a_custom_function_gets_zeros_where_native_ones_get_nothing(program):
    under_test = aotgrad.aot_function(program, compile_eager, options={"verify": True})
    for root, other in itertools.product(range(2), repeat=2):
        for keep in (True, False):
            actions = [backward(root, retain_graph=keep), backward(other), gradient(root, of=range(5))]
            assert_same(history(under_test, actions), history(program, actions))


class CountProducts(torch.utils._python_dispatch.TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


def products_in_backward(function: Callable, root: int, wanted: Sequence[int]) -> int:
    arguments = inputs()
    outputs = function(*arguments)
    pool = [*outputs, *arguments]
    with CountProducts() as products:
        torch.autograd.grad(outputs[root].sum(), [pool[k] for k in wanted], allow_unused=True)
    return products.count


@pytest.mark.parametrize("program", [chained, checkpointed, heads], ids=lambda program: program.__name__)
def test_no_more_matrix_products_than_in_eager(program):
    under_test = aotgrad.aot_function(program, compile_eager)
    count = len(program(*inputs()))
    for root, first, second in itertools.product(range(count), range(count + 3), range(count + 3)):
        wanted = sorted({first, second})
        found = products_in_backward(under_test, root, wanted)
        assert found <= products_in_backward(program, root, wanted)


# --- freed memory ----------------------------------------------------------------------------------------------------


class Freed:
    """Records which tensors saved for a backward have been freed."""

    def __init__(self) -> None:
        self.alive: list[weakref.ref] = []

    def __enter__(self) -> Freed:
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda packed: packed[0])
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)

    def pack(self, tensor: Tensor) -> tuple[Tensor]:
        kept = tensor.clone()
        self.alive.append(weakref.ref(kept))
        return (kept,)

    def count(self) -> int:
        gc.collect()
        return sum(reference() is not None for reference in self.alive)


def test_each_head_frees_what_it_saved_itself():
    function = aotgrad.aot_function(independent, compile_eager)
    with Freed() as saved:
        first, second = function(*inputs())
    everything = saved.count()
    first.sum().backward()
    after_first = saved.count()
    second.sum().backward()
    assert everything > after_first > 0 == saved.count()


def test_a_retained_graph_frees_nothing_and_one_that_is_not_frees_all():
    function = aotgrad.aot_function(heads, compile_eager)
    with Freed() as saved:
        outputs = function(*inputs())
    everything = saved.count()
    sum(squares(outputs, (0, 1))).backward(retain_graph=True)
    assert saved.count() == everything
    sum(squares(outputs, (0, 1))).backward()
    assert saved.count() == 0


def test_intermediates_die_while_the_backward_runs():
    """Each saved value is freed at its last use, not when the segment ends."""
    alive_at_the_end: list[int] = []
    function = aotgrad.aot_function(lambda x, w: ((x.sin() @ w).sin() @ w).sin(), compile_eager)
    x, w, _ = inputs()
    with Freed() as saved:
        y = function(x, w)
    x.register_hook(lambda _: alive_at_the_end.append(saved.count()))
    y.sum().backward()
    assert alive_at_the_end == [0]


def test_outputs_and_inputs_die_with_the_graph():
    function = aotgrad.aot_function(heads, compile_eager)
    function(*inputs())
    arguments = inputs()
    outputs = function(*arguments)
    references = [weakref.ref(tensor) for tensor in (*outputs, *arguments)]
    del outputs, arguments
    gc.collect()
    assert [reference() for reference in references] == [None] * 6


# --- saved values of a segment ---------------------------------------------------------------------------------------


def saved_by(function: Callable, arguments: Sequence[Tensor]) -> list[Tensor]:
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(*arguments)
    return packed


def test_saved_tensor_hooks_see_each_tensor_of_a_segment_once():
    packed = saved_by(aotgrad.aot_function(lambda x, w, v: ((x @ w).tanh() @ v).tanh(), compile_eager), inputs())
    assert len({tensor.data_ptr() for tensor in packed}) == len(packed)


def test_a_segment_unpacks_when_it_runs():
    unpacked: list[int] = []

    def unpack(tensor: Tensor) -> Tensor:
        unpacked.append(1)
        return tensor

    function = aotgrad.aot_function(lambda x: x.exp().exp().exp().exp(), compile_eager, options={"grad_segments": 2})
    x, _, _ = inputs()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        y = function(x)
    assert not unpacked
    (segment,) = {fn for fn, _ in y.grad_fn.next_functions if fn is not None and fn.name().startswith("Segment")}
    at_start: list[int] = []
    segment.register_prehook(lambda _: at_start.append(len(unpacked)))
    y.sum().backward()
    assert 0 < at_start[0] < len(unpacked)


# --- streaming -------------------------------------------------------------------------------------------------------


class Layers(nn.Module):
    def __init__(self, count: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).tanh()
        return F.mse_loss(x, torch.ones_like(x))


def order_of_gradients(model: nn.Module, x: Tensor, **options: Any) -> tuple[list[str], list[int], list[Tensor]]:
    """The parameters in the order of their hooks, the number of matrix products until then, and the gradients."""
    compiled_model = aotgrad.aot_module(model, compile_eager, options=options)
    seen: list[str] = []
    counts: list[int] = []
    products = CountProducts()
    handles = []
    for name, parameter in model.named_parameters():

        def note(_, name=name):
            seen.append(name)
            counts.append(products.count)

        handles.append(parameter.register_post_accumulate_grad_hook(note))
    loss = compiled_model(x)
    with products:
        loss.backward()
    for handle in handles:
        handle.remove()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return seen, counts, gradients


def test_streamed_gradients_come_while_the_backward_goes_on():
    torch.manual_seed(0)
    model, x = Layers(8), torch.randn(3, 4)
    whole = order_of_gradients(model, x, grad_segments=1)
    parts = order_of_gradients(model, x, grad_segments=8)
    assert len(set(whole[1])) == 1
    assert parts[1][0] <= 4 and len(set(parts[1])) >= 6
    assert parts[1][-1] == whole[1][-1]
    assert parts[0] == whole[0]
    assert_same(parts[2], whole[2])


def test_an_optimizer_in_the_backward_trains_as_one_after_it():
    def train(segments: int, in_backward: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model, x = Layers(4), torch.randn(3, 4)
        step = aotgrad.aot_module(model, compile_eager, options={"grad_segments": segments})
        optimizers = {parameter: torch.optim.AdamW([parameter], lr=0.1) for parameter in model.parameters()}

        def update(parameter):
            optimizers[parameter].step()
            parameter.grad = None

        if in_backward:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(update)
        for _ in range(3):
            step(x).backward()
            if not in_backward:
                for parameter in model.parameters():
                    update(parameter)
        return [parameter.detach().clone() for parameter in model.parameters()]

    assert_same(train(4, in_backward=True), train(1, in_backward=False))


def test_an_optimizer_gets_none_for_a_head_that_is_not_used():
    """AdamW decays parameters with a zero gradient, and skips those without a gradient."""

    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk, self.one, self.other = (nn.Linear(4, 4, dtype=torch.float64) for _ in range(3))

        def forward(self, x):
            h = self.trunk(x).tanh()
            return self.one(h), self.other(h)

    def train(compile_model: Callable) -> list[Tensor]:
        torch.manual_seed(0)
        model = TwoHeads()
        step = compile_model(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        for _ in range(3):
            used, _ = step(torch.ones(2, 4, dtype=torch.float64))
            optimizer.zero_grad()
            (used**2).sum().backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    assert_same(train(lambda model: aotgrad.aot_module(model, compile_eager)), train(lambda model: model))


# --- Gradients with respect to a returned view -----------------------------------------------------------------------

RETURNED_VIEWS = {
    "the only one": lambda x: (lambda view: (view, view * 2))(x.sin().view(-1)),
    "of several uses": lambda x: (lambda view: (view, view.exp() * view))(x.sin().t()),
    "of the end": lambda x: (lambda y: (y, y.cos().view(-1)))(x.sin()),
    "beside its base": lambda x: (lambda y, view: (view, view * 2, y))(*(lambda y: (y, y.view(-1)))(x.sin())),
    "of the input": lambda x: (lambda view: (view, view * 2))(x.view(-1)),
    "of a part of the input": lambda x: (lambda view: (view, view.exp() * x))(x[0]),
    "beside another view": lambda x: (lambda y: (lambda one, other: (one, one @ other, other))(y[0], y[1]))(x.sin()),
    "beside a view of it": lambda x: (lambda one, other: (one, one.exp() * other, other))(*(lambda v: (v, v.t()))(x.t())),
    "all pieces": lambda x: (lambda one, other: (one, one * other, other))(*x.unbind()),
    "beside a piece that is not returned": lambda x: (lambda one, other: (one, one * other))(*x.sin().unbind()),
    "twice": lambda x: (lambda view: (view, view.exp(), view))(x.view(-1)),
    "beside a view of a detached alias": lambda x: (lambda view: (view, view.exp(), x.detach().t()))(x.t()),
    "beside what follows from it": lambda x: (lambda view: (view, (view.exp().sum() + view).tanh(), view.cos()))(x.view(4)),
}


def gradients_of_second(function, x) -> list:
    """The gradient of the second result, and its gradient, with respect to the first result and the input."""
    first, second, *_ = function(x)
    found = torch.autograd.grad(second.sum(), [first, x], create_graph=True)
    return [*found, *torch.autograd.grad([g.pow(2).sum() for g in found if g.requires_grad], [first, x], allow_unused=True)]


def same_or_none(found: Tensor | None, expected: Tensor | None) -> bool:
    return found is expected is None or torch.equal(found, expected)


@pytest.mark.parametrize("name", RETURNED_VIEWS)
def test_gradient_with_respect_to_a_returned_view(name: str) -> None:
    x = torch.arange(4.0).view(2, 2).requires_grad_()
    found = gradients_of_second(aotgrad.aot_function(RETURNED_VIEWS[name], aotgrad.nop), x)
    assert all(map(same_or_none, found, gradients_of_second(RETURNED_VIEWS[name], x)))


@pytest.mark.parametrize("chosen", [(0,), (1,), (0, 1)])
def test_a_check_in_the_backward_is_part_of_its_own_segment_only(chosen):
    """The backward of `eig` solves a system and checks its success: the check is no dead code."""

    def function(x):
        values, vectors = torch.linalg.eig(x)
        return values.abs(), vectors.abs()

    gradients = []
    for under_test in (function, aotgrad.aot_function(function, aotgrad.nop)):
        x = inputs()[0]
        outputs = under_test(x)
        gradients.append(torch.autograd.grad(squares(outputs, chosen), x))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_of_results_that_no_input_is_behind(create_graph):
    """A view of a leaf made under `no_grad` requires grad and leads nowhere; values computed from it get gradients."""

    def f(x):
        with torch.no_grad():
            row = x[0]
        w = row.clone()
        z = w.sin()
        return w, torch.where(x > 0, x, w) + z, w.view(3, 1), z * 2

    def gradients(function):
        x = (torch.arange(9.0).view(3, 3) - 4).requires_grad_()
        _, y, _, z = results = function(x)
        for result in results:
            result.retain_grad()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using backward", UserWarning)
            torch.autograd.backward([y, z], [torch.ones_like(y), z.detach()], create_graph=create_graph)
        again = function(x)
        asked = torch.autograd.grad(again[1].sum(), [again[0]], create_graph=create_graph)
        return [result.grad for result in (*results, x)], asked

    found, expected = gradients(aotgrad.aot_function(f, aotgrad.nop)), gradients(f)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert [each is None for each in found[0]] == [False, False, True, False, False]
