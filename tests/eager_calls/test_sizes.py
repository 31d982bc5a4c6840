"""Islands between graphs with symbolic sizes: one plan serves many sizes."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import aotgrad
from aotgrad.backends.kit import Backend
from aotgrad.errors import CaptureError, EagerCallError
from tests.eager_calls.functions import ISLANDS, Branching, NumpyBackward, NumpySin, exponential, leaf

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

SIZES = (5, 7, 1, 0, 4, 9)
PLANS = {True: 3, None: 4}
"""`dynamic` -> the plans for these sizes: 0 and 1 have their own, and the first size if it is static at first."""

like_numpy = aotgrad.island(fake=torch.empty_like)(NumpySin.apply)


@aotgrad.island(fake=lambda x, *, end: (torch.cat([x, x]), {"end": x[: x.shape[0] // 2].sum(1), "none": None}))
def joined(x, *, end):
    """Results of other sizes than those of its argument, in a pytree."""
    return torch.cat([x.exp(), x * x.detach().numpy().ndim]), {"end": x[: len(x) // 2].sum(1) * end, "none": None}


@aotgrad.island(fake=lambda x, y: (y, torch.empty_like(x)))
def changing(x, y):
    """Changes both arguments, and returns one of them."""
    x.mul_(y.clone())
    y.add_(x.detach().numpy().size)
    return y, x.sin()


class Scaling(torch.nn.Module):
    """A method of a module is an island, whose fake reads the sizes of a parameter."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))

    def fake(self, x):
        return x.new_empty(x.shape[0], self.weight.shape[1])

    @aotgrad.island(fake=fake)
    def scale(self, x):
        assert type(x) is torch.Tensor
        return x @ self.weight

    def forward(self, x):
        return self.scale(x.cos()).sin()


def joins(x):
    both, rest = joined(x.cos(), end=2.0)
    return both.sin().mean() + rest["end"].tanh().sum() + x


def changes(x):
    first, second = x.cos(), x.sin()
    result, third = changing(first, second)
    return (result * first + third * second) / 50


FUNCTIONS = {
    "in NumPy": lambda x: like_numpy(x.cos()).exp() * x,
    "results of other sizes": joins,
    "changed arguments": changes,
    "a chain": lambda x: exponential_like(like_numpy(x.cos()).sin()).reshape(-1).cos(),
    "a transposed argument": lambda x: exponential_like(x.cos().t()).t() * x,
    "a row": lambda x: exponential_like(x.sum(0, keepdim=True) / 9).sin() * x,
    "a backward in NumPy": lambda x: NumpyBackward.apply(x.cos()).exp() * x,
    "a backward that branches": lambda x: -Branching.apply(x.cos()),
    "a module": Scaling(),
}
TWICE = ("results of other sizes", "changed arguments", "a backward that branches", "a module")

exponential_like = aotgrad.island(fake=torch.empty_like)(torch.exp)


def derivatives(function, x, order):
    """The result, then derivatives by the argument."""
    found = [function(x * 1)]
    for k in range(order):
        if found[-1].requires_grad:
            found += torch.autograd.grad(found[-1].sum(), x, create_graph=k + 1 < order)
    return found


def assert_like_eager(run, function, sizes=SIZES, order=1):
    for size in sizes:
        expected = derivatives(function, leaf(size, 3), order)
        torch.testing.assert_close(derivatives(run, leaf(size, 3), order), expected)


@pytest.mark.parametrize("dynamic", PLANS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_plan_serves_sizes_above_one(name, dynamic):
    run = aotgrad.aot_function(FUNCTIONS[name], "eager", dynamic=dynamic, options=ISLANDS)
    assert_like_eager(run, FUNCTIONS[name])
    assert len(run.plans()) == PLANS[dynamic]


@pytest.mark.parametrize("name", TWICE)
def test_gradients_of_gradients(name):
    run = aotgrad.aot_function(FUNCTIONS[name], "eager", dynamic=None, options=ISLANDS)
    assert_like_eager(run, FUNCTIONS[name], order=2)
    assert len(run.plans()) == PLANS[None]


def test_a_gradient_of_a_gradient_at_another_size_than_the_first_one():
    function = FUNCTIONS["results of other sizes"]
    run = aotgrad.aot_function(function, "eager", dynamic=True, options=ISLANDS)
    for size, order in ((5, 1), (7, 1), (9, 2), (4, 2), (6, 1)):
        assert_like_eager(run, function, [size], order)
    assert len(run.plans()) == 1


@pytest.mark.parametrize("name", ["in NumPy", "results of other sizes", "changed arguments"])
def test_inductor_compiles_what_is_between(name):
    run = aotgrad.aot_function(FUNCTIONS[name], "inductor", dynamic=None, options=ISLANDS)
    assert_like_eager(run, FUNCTIONS[name])
    assert len(run.plans()) == PLANS[None]


def test_the_interpreter_checks_the_forms():
    run = aotgrad.aot_function(FUNCTIONS["a chain"], "interpreter", dynamic=True, options=ISLANDS)
    assert_like_eager(run, FUNCTIONS["a chain"])


def test_parameters_of_a_module_get_their_gradients():
    model = Scaling()
    run = aotgrad.aot_module(model, "eager", dynamic=True, options=ISLANDS)
    for size in (5, 7):
        found = [torch.autograd.grad(call(leaf(size, 3)).sum(), [*model.parameters()]) for call in (model, run)]
        torch.testing.assert_close(*found)
    assert len(run.plans()) == 1


@pytest.mark.parametrize("size", [(4, 3), (0, 3)])
def test_a_gradient_whose_graph_is_kept(size):
    function = FUNCTIONS["in NumPy"]
    run = aotgrad.aot_function(function, "eager", dynamic=True, options=ISLANDS)
    x, y = leaf(*size), leaf(*size)
    ours, theirs = run(x).sum(), function(y).sum()
    for retain in (True, False):
        ours.backward(retain_graph=retain)
        theirs.backward(retain_graph=retain)
        torch.testing.assert_close(x.grad, y.grad)
    with pytest.raises(RuntimeError, match="a second time"):
        ours.backward()


def test_a_function_runs_once_a_call_and_its_fake_once_a_trace():
    calls, fakes = [], []

    def fake(x):
        fakes.append(type(x).__name__)
        return torch.empty_like(x)

    @aotgrad.island(fake=fake)
    def noted(x):
        calls.append(len(x))
        return x * 2

    run = aotgrad.aot_function(lambda x: noted(x.cos()).sin(), "eager", dynamic=True, options=ISLANDS)
    run(leaf(5, 3))
    traced = len(fakes)
    calls.clear()
    for size in (5, 7, 9):
        run(leaf(size, 3))
    assert calls == [5, 7, 9] and len(fakes) == traced and set(fakes) == {"FakeTensor"}


def test_outside_of_a_trace_a_function_with_a_fake_is_the_function_itself():
    assert exponential_like(torch.zeros(2)).tolist() == [1, 1]
    assert joined.__doc__ == "Results of other sizes than those of its argument, in a pytree."


def halves(x):
    """A result that is a tensor subclass."""
    return TwoTensor(x.detach() * 1, x.detach() * 2)


def test_a_known_call_is_not_exported():
    def function(x):
        return exponential_like(x.cos())

    run = aotgrad.aot_function(function, "eager", dynamic=True, options=ISLANDS)
    run(leaf(5, 3))
    with pytest.raises(CaptureError, match="a graph that is exported cannot"):
        aotgrad.export_joint(function, (leaf(5, 3),), options={"dynamic": True})


def test_an_argument_whose_size_depends_on_values():
    def function(x):
        return exponential_like(x[x > 0].cos()).sin()

    run = aotgrad.aot_function(function, "eager", dynamic=True, options=ISLANDS)
    assert_like_eager(run, function, (5, 7, 1, 0, 7))


SPECIALIZED = {
    "no fake": lambda x: exponential(x.cos()).sin(),
    "a forward in NumPy": lambda x: NumpySin.apply(x.cos()).exp(),
    "other strides": lambda x: aotgrad.island(fake=torch.empty_like)(torch.Tensor.contiguous)(x.cos().t()).exp(),
    "a view": lambda x: aotgrad.island(fake=lambda x: x[1:])(lambda x: x[1:])(x.cos()).exp(),
    "a subclass as an argument": lambda x: exponential_like(TwoTensor(x.cos(), x.sin())).b,
    "a subclass as a result": lambda x: aotgrad.island(fake=halves)(halves)(x.cos()).b + x,
    "a number": lambda x: aotgrad.island(fake=lambda x, n: x * n)(lambda x, n: x * n)(x.cos(), x.shape[0]),
}


@pytest.mark.parametrize("name", SPECIALIZED)
def test_otherwise_sizes_are_constants(name):
    run = aotgrad.aot_function(SPECIALIZED[name], "eager", dynamic=True, options=ISLANDS)
    assert_like_eager(run, SPECIALIZED[name], sizes=(5, 7, 5))
    assert len(run.plans()) == 2


WRONG = {
    "raises ZeroDivisionError": lambda x: 1 / 0,
    r"returns float32\[5\], but the function float32\[5, 3\]": lambda x: x.sum(1),
    r"returns float64\[5, 3\], but the function float32\[5, 3\]": lambda x: x.double(),
    "returns another number or pytree of tensors than it": lambda x: (x, x * 1),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_fake_that_returns_something_else_is_an_error(message):
    marked = aotgrad.island(fake=WRONG[message])(torch.exp)
    run = aotgrad.aot_function(lambda x: marked(x.cos()), "eager", dynamic=True, options=ISLANDS)
    with pytest.raises(CaptureError, match="the fake of .*exp " + message):
        run(leaf(5, 3))


def test_a_fake_that_is_wrong_for_a_later_size_is_an_error_of_the_call():
    marked = aotgrad.island(fake=torch.empty_like)(lambda x: x[:6] * 2)
    run = aotgrad.aot_function(lambda x: marked(x.cos()), "eager", dynamic=True, options=ISLANDS)
    assert_like_eager(run, lambda x: x.cos() * 2, sizes=(5, 6))
    with pytest.raises(EagerCallError, match=r"returns float32\[6, 3\], but its fake float32\[7, 3\]"):
        run(leaf(7, 3))


class Supporting(Backend):
    def __init__(self, *unsupported):
        self.unsupported = unsupported

    def supports(self, node):
        return node.target not in self.unsupported

    def compile(self, graph, inputs, role):
        return graph.forward


ATEN = torch.ops.aten
UNSUPPORTED = {
    "exp": (lambda x: x.cos().exp().sin() * x, [ATEN.exp.default]),
    "cat": (lambda x: torch.cat([x.cos(), x]).exp().sum(0) + x, [ATEN.cat.default, ATEN.exp.default]),
    "view": (lambda x: x.sin().reshape(-1).exp().view(x.shape[0], 3), [ATEN.view.default, ATEN.exp.default]),
    "mm": (lambda x: (x @ x.t()).tanh().sum(0), [ATEN.mm.default]),
    "nonzero": (lambda x: x[(x > 0).nonzero()[:, 0]].sin() * 2, [ATEN.nonzero.default]),
    "boolean mask": (lambda x: x[x > 0].exp() * 2, [ATEN.nonzero.default, ATEN.exp.default]),
    "unique": (lambda x: x.cos()[torch.unique((x[:, 0] * 9).long() % max(x.shape[0], 1))].exp(), [ATEN._unique2.default]),
}


@pytest.mark.parametrize("dynamic", PLANS)
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_a_backend_does_not_support_keeps_symbolic_sizes(name, dynamic):
    function, ops = UNSUPPORTED[name]
    run = aotgrad.aot_function(function, Supporting(*ops), dynamic=dynamic)
    assert_like_eager(run, function, order=2)
    assert len(run.plans()) == PLANS[dynamic]


@pytest.mark.parametrize("name", ["nonzero", "boolean mask"])
def test_a_size_that_depends_on_values_makes_no_plan_for_each_number(name):
    function, ops = UNSUPPORTED[name]
    run = aotgrad.aot_function(function, Supporting(*ops), dynamic=True)
    for seed in range(8):
        x = leaf(6, 3, seed=seed)
        torch.testing.assert_close(derivatives(run, x, 1), derivatives(function, x, 1))
    assert len({int((leaf(6, 3, seed=seed) > 0).sum()) for seed in range(8)}) > 3 and len(run.plans()) == 1


def test_explain_shows_the_islands():
    function, ops = UNSUPPORTED["nonzero"]
    report = aotgrad.explain(function, backend=Supporting(*ops), options={"dynamic": True})(leaf(5, 3))
    assert [(row.name, row.reason) for row in report.islands] == [("nonzero", "user does not support it")]
    report = aotgrad.explain(FUNCTIONS["in NumPy"], backend="eager", options={**ISLANDS, "dynamic": True})(leaf(5, 3))
    assert [(row.graph, row.name) for row in report.islands] == [
        ("forward", "eager_call"),
        ("backward", "eager_call_backward"),
    ]
