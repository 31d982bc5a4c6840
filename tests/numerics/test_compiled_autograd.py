"""Backwards that compiled autograd (`torch._dynamo.compiled_autograd`) records as one graph and compiles."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad import torch_compat
from tests.fake_processes import fake_processes

from .against_eager import DYNAMO_BACKENDS

INLINES = torch_compat.can_inline()
"""Whether the graph of the backward needs no break: torch >= 2.13."""

BACKENDS = tuple(DYNAMO_BACKENDS.values())
MakeInputs = Callable[[], Sequence[Tensor]]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@dataclass(frozen=True)
class Way:
    """What compiles the function, and what compiles the graph of the backward."""

    function: Callable[[Callable], Callable]
    compile_backward: Callable

    def backward(self) -> contextlib.AbstractContextManager:
        return compiled_autograd._enable(self.compile_backward)


def through_dynamo(backend: str, **options) -> Way:
    settings = {"backend": backend, "options": {"min_graph_ops": 0}}
    return Way(torch.compile(**settings), torch.compile(**settings, **options))


WAYS = {
    "eager halves": lambda: through_dynamo("aotgrad_eager", fullgraph=INLINES),
    "inductor halves": lambda: through_dynamo("aotgrad", fullgraph=INLINES),
    "without dynamo in front": lambda: Way(
        lambda function: aotgrad.aot_function(function, aotgrad.nop),
        torch.compile(backend="aotgrad_eager", fullgraph=INLINES),
    ),
    "recorded only": lambda: Way(lambda function: aotgrad.aot_function(function, aotgrad.nop), lambda graph: graph),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]()


def captures() -> int:
    return torch._dynamo.utils.counters["compiled_autograd"]["captures"]


def rand(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64).requires_grad_()


def gradients(function: Callable, inputs: Sequence[Tensor], caller: Callable) -> list[Tensor | None]:
    outputs = function(*inputs)
    caller(*(outputs if isinstance(outputs, tuple) else (outputs,)))
    return [value.grad for value in inputs]


def assert_same(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    assert [each is None for each in actual] == [each is None for each in expected]
    for one, other in zip(actual, expected, strict=True):
        assert one is None or torch.allclose(one, other, rtol=1e-10)


def check(way: Way, function: Callable, make: MakeInputs, caller: Callable, calls: int = 2) -> None:
    """Compare the gradients of some calls with eager's."""
    under_test = way.function(function)
    for seed in range(calls):
        torch.manual_seed(seed)
        expected = gradients(function, make(), caller)
        torch.manual_seed(seed)
        with way.backward():
            actual = gradients(under_test, make(), caller)
        assert_same(actual, expected)


# --- Ways to turn it on ----------------------------------------------------------------------------------------------


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def step(model: nn.Module, x: Tensor) -> None:
    model(x).square().sum().backward()


def gradients_of_steps(step: Callable, model: nn.Module, batches: Sequence[int]) -> list[Tensor | None]:
    for batch in batches:
        step(model, torch.full((batch, 3), 1.0 / batch, dtype=torch.float64))
    return [parameter.grad for parameter in model.parameters()]


BATCHES = (4, 4, 6, 9, 4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_flag(backend):
    expected = gradients_of_steps(step, mlp(), BATCHES)
    with torch._dynamo.config.patch(compiled_autograd=True):
        assert_same(gradients_of_steps(torch.compile(step, backend=backend), mlp(), BATCHES), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_call_of_backward(backend):
    def compiled_step(model, x):
        loss = model(x).square().sum()
        torch.compile(lambda: loss.backward(), backend=backend)()

    expected = gradients_of_steps(step, mlp(), BATCHES)
    with torch._dynamo.config.patch(compiled_autograd=True):
        model = mlp()
        assert_same(gradients_of_steps(compiled_step, torch.compile(model, backend=backend), BATCHES), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_of_one_structure_compile_once(backend):
    way, model = through_dynamo(backend, fullgraph=INLINES), mlp()
    compiled, x = way.function(model), torch.rand(4, 3, dtype=torch.float64)
    with way.backward():
        step(compiled, x)
        model.zero_grad()
        step(compiled, x)
        before = captures(), aotgrad.counters["compilations"], torch._dynamo.utils.counters["stats"]["unique_graphs"]
        for _ in range(1000):
            model.zero_grad()
            step(compiled, x)
    after = captures(), aotgrad.counters["compilations"], torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert after == before


@pytest.mark.parametrize("part", ["a region and the backward", "the backward"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_graphs_keep_no_tensor(backend: str, part: str) -> None:
    """Neither a leaf, nor its gradient, nor what was saved, of the backwards in which the graph was compiled."""
    way = through_dynamo(backend, fullgraph=INLINES)
    function = way.function(sine_of_product) if part == "a region and the backward" else sine_of_product
    for _ in range(3):
        x, w = rand(3), rand(3)
        saved = x * 2
        with way.backward():
            function(saved, w).sum().backward()
        assert x.grad is not None and w.grad is not None
        left = [weakref.ref(each) for each in (x, x.grad, saved, w.grad)]
        del x, w, saved
        gc.collect()
        assert [each() for each in left] == [None] * len(left)


def sine_of_product(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).sin()


def test_changing_sizes(way):
    under_test = way.function(lambda x, w: (x @ w).tanh())
    for size in range(2, 8):
        x, w = rand(size, 3), rand(3, 4)
        expected = torch.autograd.grad((x @ w).tanh().sum(), (x, w))
        with way.backward():
            under_test(x, w).sum().backward()
        assert_same((x.grad, w.grad), expected)


FACTORS = (2.0, 3.0, 0.1, -1.7, 1e-310, float("inf"))


def test_floats_that_change(way):
    def function(x, factor):
        return (x * factor).square() * factor + x / factor

    under_test, before = way.function(function), captures()
    for factor in FACTORS:
        x = rand(4)
        (expected,) = torch.autograd.grad(function(x, factor).sum(), x)
        with way.backward():
            under_test(x, factor).sum().backward()
        assert torch.allclose(x.grad, expected, equal_nan=True)
    assert captures() - before <= len(FACTORS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_floats_that_change_share_one_graph(backend):
    under_test, before = torch.compile(lambda x, factor: (x * factor).square(), backend=backend), captures()
    for factor in FACTORS:
        x = rand(4)
        with compiled_autograd._enable(torch.compile(backend=backend, fullgraph=INLINES)):
            under_test(x, factor).sum().backward()
        assert torch.allclose(x.grad, 2 * x * factor * factor)
    assert captures() - before <= 2  # the first value is a constant


def test_a_float_that_no_tensor_stands_for(breaking_way):
    under_test = breaking_way.function(nn.functional.leaky_relu)
    for slope in FACTORS[:4]:
        x = (rand(4) - 0.5).detach().requires_grad_()
        (expected,) = torch.autograd.grad(nn.functional.leaky_relu(x, slope).sum(), x)
        with breaking_way.backward():
            under_test(x, slope).sum().backward()
        assert torch.allclose(x.grad, expected)


def test_symbolic_sizes_that_the_backward_uses():
    under_test = aotgrad.aot_function(lambda x: (x.mean(0, keepdim=True) * x).t(), aotgrad.nop, dynamic=True)
    backward = torch.compile(backend="aotgrad_eager", fullgraph=INLINES)
    for size in (3, 4, 5, 6, 7):
        x = rand(size, size + 1)
        (expected,) = torch.autograd.grad((x.mean(0, keepdim=True) * x).t().sin().sum(), x)
        before = captures()
        with compiled_autograd._enable(backward):
            under_test(x).sin().sum().backward()
        assert torch.allclose(x.grad, expected) and captures() - before == (size == 3)


# --- Structures ------------------------------------------------------------------------------------------------------


class Both(torch.autograd.Function):
    """Zeros stand in for the gradient that does not arrive."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w, x + w

    @staticmethod
    def backward(ctx, first, second):
        x, w = ctx.saved_tensors
        return first * w + second, first * x + second


def heads(x, w):
    trunk = x.tanh()
    return trunk * w, trunk.exp()


STRUCTURES: dict[str, tuple[Callable, Callable]] = {
    "one result": (lambda x, w: (x * w).exp(), lambda y: y.sum().backward()),
    "heads": (heads, lambda a, b: (a.sum() + 2 * b.sum()).backward()),
    "one head": (heads, lambda a, b: b.sum().backward()),
    "heads one by one": (heads, lambda a, b: (a.sum().backward(retain_graph=True), b.sum().backward())),
    "a retained graph": (heads, lambda a, b: [a.sum().backward(retain_graph=True), a.sum().backward()]),
    "a hook of a result": (heads, lambda a, b: (a.register_hook(lambda g: g * 3), (a * b).sum().backward())),
    "a view": (lambda x, w: (x * w).t(), lambda y: y.square().sum().backward()),
    "an expanded gradient": (lambda x, w: (x @ w).sin(), lambda y: y.sum().backward()),
    "an undefined gradient": (lambda x, w: Both.apply(x.sin(), w), lambda a, b: a.sum().backward()),
    "a result of the user's ops": (lambda x, w: x * w, lambda y: (y.sin() * y).sum().backward()),
    "an input that is changed": (lambda x, w: (x * 1).mul_(w).sin(), lambda y: y.sum().backward()),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(way, name):
    function, caller = STRUCTURES[name]
    check(way, function, lambda: (rand(3, 3), rand(3, 3)), caller)


def test_two_regions(way):
    first, second = way.function(lambda x, w: (x * w).sin()), way.function(lambda y, w: (y @ w).tanh())
    x, w = rand(3, 3), rand(3, 3)
    expected = torch.autograd.grad(((x * w).sin().exp() @ w).tanh().sum(), (x, w))
    with way.backward():
        second(first(x, w).exp(), w).sum().backward()
    assert_same((x.grad, w.grad), expected)


def test_one_region_twice(way):
    under_test = way.function(lambda x, w: (x * w).sin())
    x, w = rand(3, 3), rand(3, 3)
    expected = torch.autograd.grad((((x * w).sin() * w).sin()).sum(), (x, w))
    with way.backward():
        under_test(under_test(x, w), w).sum().backward()
    assert_same((x.grad, w.grad), expected)


def test_some_gradients(way):
    under_test = way.function(lambda x, w: (x.exp() * w).sin())
    with way.backward():
        for wanted in (0, 1):
            inputs = rand(3), rand(3)
            expected = torch.autograd.grad((inputs[0].exp() * inputs[1]).sin().sum(), inputs[wanted])
            assert_same(torch.autograd.grad(under_test(*inputs).sum(), inputs[wanted]), expected)


def test_hooks_of_parameters(way):
    seen: list[str] = []

    def caller(y):
        y.sum().backward()

    def inputs():
        x, w = rand(3), rand(3)
        x.register_hook(lambda g: seen.append("x") or g * 2)
        w.register_post_accumulate_grad_hook(lambda w: seen.append("w"))
        return x, w

    check(way, lambda x, w: x * w, inputs, caller, calls=1)
    assert sorted(seen) == ["w", "w", "x", "x"]


def test_a_second_backward_raises(way):
    x = rand(3)
    with way.backward():
        y = way.function(lambda x: x.exp().sin())(x).sum()
        y.backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_a_second_backward_that_needs_nothing_saved_raises(way):
    """Of every node in Python, as here of a custom function."""
    for function in (Doubles.apply, way.function(lambda x: x * 2)):
        y = function(rand(3)).sum()
        with way.backward():
            y.backward()
            with pytest.raises(RuntimeError, match="second time"):
                y.backward()


def test_a_changed_input_raises(way):
    x = rand(3)
    with way.backward():
        y = way.function(lambda x: x.sin())(x).sum()
        with torch.no_grad():
            x.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


# --- Where the graph of the backward breaks --------------------------------------------------------------------------


class Counted(torch.autograd.Function):
    """The backward adds to memory that it has not saved."""

    @staticmethod
    def forward(ctx, x, count):
        ctx.count = count
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        ctx.count.add_(gradient.sum())
        return gradient * x.cos(), None


BROKEN = {
    "eager halves": lambda: through_dynamo("aotgrad_eager"),
    "inductor halves": lambda: through_dynamo("aotgrad"),
    "recorded only": WAYS["recorded only"],
}


@pytest.fixture(params=BROKEN)
def breaking_way(request: pytest.FixtureRequest) -> Way:
    return BROKEN[request.param]()


def test_a_backward_that_changes_memory(breaking_way):
    def run(function):
        torch.manual_seed(0)
        x, count = rand(3), torch.zeros((), dtype=torch.float64)
        for _ in range(3):
            function(x, count).sum().backward()
        return x.grad, count

    def function(x, count):
        return Counted.apply(x * 2, count)

    expected = run(function)
    with breaking_way.backward():
        assert_same(run(breaking_way.function(function)), expected)


def test_gradients_of_gradients(breaking_way):
    def run(function):
        torch.manual_seed(0)
        x, w = rand(3), rand(3)
        (gradient,) = torch.autograd.grad(function(x, w).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.sum(), (x, w))

    def function(x, w):
        return (x * w).exp()

    with breaking_way.backward():
        assert_same(run(breaking_way.function(function)), run(function))


def test_gradients_of_dual_numbers():
    def run(function):
        torch.manual_seed(0)
        x, w = rand(3), rand(3)
        with forward_ad.dual_level():
            (gradient,) = torch.autograd.grad(function(forward_ad.make_dual(x, x.detach() + 1), w).sum(), w)
            return forward_ad.unpack_dual(gradient)

    def function(x, w):
        return (x.exp() * w).sin()

    way = WAYS["recorded only"]()
    expected = run(function)
    with way.backward():
        assert_same(run(way.function(function)), expected)


@pytest.mark.parametrize("wanted", ["x", "w"])
def test_some_gradients_free_the_whole_segment(wanted):
    way = WAYS["recorded only"]()
    inputs = {"x": rand(3), "w": rand(3)}
    with way.backward():
        y = way.function(lambda x, w: (x.exp() * w).sin())(*inputs.values()).sum()
        torch.autograd.grad(y, inputs.pop(wanted))
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(y, *inputs.values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_of_an_intermediate_breaks_dynamos_graph(backend):
    def function(x, w):
        y = x * w
        y.register_hook(lambda gradient: gradient * 3)
        return y.sin()

    check(through_dynamo(backend), function, lambda: (rand(3), rand(3)), lambda y: y.sum().backward())


def test_batched_gradients_are_refused(way):
    x = rand(3)
    with way.backward(), pytest.raises(NotImplementedError, match="turn off compiled autograd"):
        y = way.function(lambda x: x.sin())(x)
        torch.autograd.grad(y, x, torch.eye(3, dtype=torch.float64), is_grads_batched=True)


# --- Kinds of ops ----------------------------------------------------------------------------------------------------


def checkpointed(x, w):
    return torch.utils.checkpoint.checkpoint(lambda x, w: (x * w).sin().exp(), x, w, use_reentrant=False)


def branches(x, w):
    return torch.cond(x.sum() > 1, lambda x, w: x * w, lambda x, w: x + w, (x, w))


PROGRAMS = {
    "checkpointed": checkpointed,
    "branches": branches,
    "attention": lambda x, w: nn.functional.scaled_dot_product_attention(x[None, None], w[None, None], w[None, None]),
    "convolution": lambda x, w: nn.functional.conv2d(x[None, None], w[None, None, :2, :2]).relu(),
    "batch norm": lambda x, w: nn.functional.batch_norm(x, None, None, w[0], None, True),
    "sorted": lambda x, w: torch.sort(x * w).values[:2],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(way, name):
    check(way, PROGRAMS[name], lambda: (rand(3, 3), rand(3, 3)), lambda y: y.square().sum().backward(), calls=1)


DROPOUTS = {
    "its mask saved": lambda x: nn.functional.dropout(x.sin(), 0.5),
    "its mask drawn again": lambda x: checkpoint(
        lambda x: nn.functional.dropout(x.sin(), 0.5).exp(), x, use_reentrant=False
    ),
}


@pytest.mark.usefixtures("eagers_numbers")
@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout(way, name):
    check(way, DROPOUTS[name], lambda: (rand(9),), lambda y: y.sum().backward())


# --- Wrapper subclasses ----------------------------------------------------------------------------------------------


class Undefined(torch.autograd.Function):
    """The gradient is undefined."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return None


UNDEFINED = {  # `region` is compiled
    "of an argument": lambda region, x, y: (region(x, y), Undefined.apply(x)),
    "of another order": lambda region, x, y: (Undefined.apply(x) + region(x, y),),
    "of an intermediate": lambda region, x, y: (region(z := x * 1, y), Undefined.apply(z)),
    "before a second region": lambda region, x, y: (region(z := x * 1, y), region(Undefined.apply(z), y)),
    "all": lambda region, x, y: (region(Undefined.apply(x), y), Undefined.apply(x)),
    "of a result": lambda region, x, y: (Undefined.apply(region(x, y)), x * 2),
    "of a result, and of an argument": lambda region, x, y: (region(z := Undefined.apply(region(x, y)), y), z),
}


@pytest.mark.parametrize("kind", ["plain", "wrapper"])
@pytest.mark.parametrize("name", UNDEFINED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_undefined_gradients_are_added(backend: str, name: str, kind: str) -> None:
    def region(x, y):
        return x.sin() * y

    def gradients_of(function: Callable, caller: Callable) -> list[str]:
        torch.manual_seed(0)
        make = rand if kind == "plain" else wrapped
        inputs = [make(3), make(3)]
        with caller():
            sum(each.sum() for each in UNDEFINED[name](function, *inputs)).backward()
        return [str(each.grad) for each in inputs]

    expected = gradients_of(region, contextlib.nullcontext)
    ours = torch.compile(region, backend=backend, options={"min_graph_ops": 0})
    assert gradients_of(ours, lambda: compiled_autograd._enable(torch.compile(backend=backend))) == expected


def wrapped(*shape: int) -> TwoTensor:
    return TwoTensor(rand(*shape).detach(), rand(*shape).detach()).requires_grad_()


def parts_of(gradient: TwoTensor | None) -> list[Tensor | None]:
    return [None, None] if gradient is None else [gradient.a, gradient.b]


WRAPPED = {
    "one result": (lambda x, w: x.sin() * x * w, lambda y: y.sum().backward()),
    "heads of different inputs": (lambda x, w: (x.sin(), w.exp()), lambda a, b: a.sum().backward()),
    "a hook": (lambda x, w: x * w, lambda y: (y.register_hook(lambda g: g * 3), y.sum().backward())),
    "ops outside": (lambda x, w: x * w, lambda y: (y.sin() * y).sum().backward()),
    "one gradient for both": (lambda x, w: x + w, lambda y: y.sum().backward()),
    "a gradient that is expanded": (lambda x, w: (x * w).sum(0), lambda y: y.backward(torch.ones_like(y[:1]).expand(3))),
}


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("part", ["a region and the backward", "the backward", "without dynamo in front"])
def test_wrapper_subclasses(name: str, part: str) -> None:
    """The graph of the backward has no break. A second call adds to the gradients."""
    (function, caller), way = WRAPPED[name], through_dynamo("aotgrad_eager", fullgraph=INLINES)
    compilers = {"a region and the backward": way.function, "the backward": lambda function: function}
    compiled = compilers.get(part, lambda function: aotgrad.aot_function(function, "eager"))(function)

    def run(function: Callable) -> list[Tensor | None]:
        torch.manual_seed(0)
        x, w = wrapped(3, 3), wrapped(3, 3)
        for _ in range(2):
            gradients(function, (x, w), caller)
        return [*parts_of(x.grad), *parts_of(w.grad)]

    expected = run(function)
    with way.backward():
        assert_same(run(compiled), expected)


def test_wrapper_subclasses_through_inductor() -> None:
    (function, caller), way = WRAPPED["one result"], through_dynamo("aotgrad", fullgraph=INLINES)

    def run(function: Callable) -> list[Tensor | None]:
        torch.manual_seed(0)
        x, w = wrapped(3), wrapped(3)
        gradients(function, (x, w), caller)
        return [*parts_of(x.grad), *parts_of(w.grad)]

    expected = run(function)
    with way.backward():
        assert_same(run(way.function(function)), expected)


def test_one_graph_serves_the_calls_of_a_plan() -> None:
    """The functions in the graph belong to forms, not to calls."""
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable:
        graphs.append(graph)
        return graph.forward

    ours = aotgrad.aot_function(lambda x, w: x.sin() * w, "eager")
    for _ in range(3):
        x, w = wrapped(3), wrapped(3)
        with compiled_autograd._enable(torch.compile(backend=count, fullgraph=INLINES)):
            ours(x, w).sum().backward()
        assert torch.allclose(w.grad.a, x.a.sin())
    assert len(graphs) == 1 or not INLINES


@pytest.mark.parametrize("is_traced_twice", [False, True])  # Inductor compiles more where sizes are symbolic
def test_a_gradient_of_some_results_is_undefined(is_traced_twice: bool) -> None:
    """The recorded graph takes it. The gradient of another result arrives, and some of the arguments' have no other term."""

    def run(function: Callable) -> list[Tensor | None]:
        torch.manual_seed(0)
        x, y = rand(3), rand(3)
        for _ in range(2):
            a, b = function(x, y)
            (Undefined.apply(a) + b).sum().backward()
        return [x.grad, y.grad]

    def region(x, y):
        return x.sin() * y, x.exp()

    ours = aotgrad.aot_function(region, "eager", dynamic=is_traced_twice)
    with compiled_autograd._enable(torch.compile(backend="aotgrad_eager")):
        found = run(ours)
    assert_same(found, run(region))


OTHER_FORMS = {
    "a plain tensor": (lambda: wrapped(3), lambda: torch.full((3,), 2.0, dtype=torch.float64)),
    "other placements": (lambda: placed(Shard(0)), lambda: placed(Replicate()).detach()),
}


def placed(placement: Placement) -> DTensor:
    mesh = init_device_mesh("cpu", (1,))
    return DTensor.from_local(rand(3).detach(), mesh, [placement], run_check=False).requires_grad_()


@pytest.mark.parametrize("name", OTHER_FORMS)
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("kind", [*BROKEN, "without dynamo in front"])
def test_a_gradient_of_another_form_breaks_the_graph(kind: str, is_known: bool, name: str) -> None:
    make, tangent = OTHER_FORMS[name]
    without_dynamo = replace(BROKEN["recorded only"](), compile_backward=torch.compile(backend="aotgrad_eager"))
    way = BROKEN[kind]() if kind in BROKEN else without_dynamo

    def run(function: Callable) -> list[Tensor | None]:
        torch.manual_seed(0)
        x = make()
        for _ in range(2):
            function(x).backward(tangent())
        return x.grad

    def function(x):
        return x.sin() * x

    with fake_processes(1):
        ours = way.function(function)
        if is_known:
            ours(make()).backward(tangent())
        with way.backward():
            found = run(ours)
        assert str(found) == str(run(function))


def test_parallel_layers() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(self.up(x).tanh())

    def run(function: Callable) -> list[Tensor | None]:
        torch.manual_seed(0)
        model = Layers().double()
        parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        found = gradients_of_steps(step, function(model), (4, 6))
        return [gradient.to_local() for gradient in found]

    with fake_processes(1):
        mesh = init_device_mesh("cpu", (1,))
        expected, way = run(lambda model: model), through_dynamo("aotgrad_eager", fullgraph=INLINES)
        with way.backward():
            assert_same(run(way.function), expected)


# --- Programs of several steps ---------------------------------------------------------------------------------------


def run_steps(program: Callable, compile: Callable, backward: Callable) -> list[Any]:
    """What a program yields. It compiles its regions with `compile` and calls its backwards by `backward`."""
    torch.manual_seed(0)
    return list(itertools.chain.from_iterable(program(compile, backward)))


def assert_same_steps(found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert [type(each) for each in found] == [type(each) for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-10) if isinstance(one, Tensor) else one == other


def node_of_leaf(leaf: Tensor) -> Any:
    return leaf.view_as(leaf).grad_fn.next_functions[0][0]


def hooks_of_every_kind(compile, backward):
    model, order = mlp(), []
    weight = model[0].weight
    node = node_of_leaf(weight)

    def after_node(*_):
        order.append("node after")
        weight.grad.mul_(0.5)

    def after_accumulation(weight):
        order.append("accumulated")
        weight.grad.add_(3)

    node.register_prehook(lambda gradients: order.append("node before") or (gradients[0] / 5,))
    node.register_hook(after_node)
    weight.register_hook(lambda gradient: order.append("tensor") or gradient - 2)
    weight.register_post_accumulate_grad_hook(after_accumulation)
    compiled = compile(model)
    for _ in range(2):
        backward(compiled(torch.rand(2, 3).double()).sum().backward)
        yield [each.grad.clone() for each in model.parameters()] + order


def hooks_of_the_segment_itself(compile, backward):
    model = mlp()
    compiled = compile(model)
    for _ in range(2):
        result = compiled(torch.rand(2, 3).double())
        result.grad_fn.register_prehook(lambda gradients: (gradients[0] * 3 + 1,))
        result.grad_fn.register_hook(lambda results, _: tuple(each if each is None else each * 3 for each in results))
        backward(result.sum().backward)
        yield [each.grad.clone() for each in model.parameters()]


def hooks_that_read_state(compile, backward):
    scale, factor, x = torch.tensor(3.0, dtype=torch.float64), [1], rand(4)
    x.register_hook(lambda gradient: gradient * scale * factor[0])
    compiled = compile(torch.sin)
    for step in (1, 2, 3):
        scale.fill_(step + 0.5)
        factor[0] = step
        backward(compiled(x).sum().backward)
        yield x.grad.clone(), step


def a_hook_that_is_removed(compile, backward):
    x, compiled = rand(4), compile(torch.sin)
    handle = x.register_hook(lambda gradient: gradient * 2)
    for step in range(3):
        x.grad = None
        if step == 1:
            handle.remove()
        backward(compiled(x).sum().backward)
        yield (x.grad,)


def hooks_of_several_gradients(compile, backward):
    seen = []
    for mode in ("all", "any"):
        x, w = rand(4), rand(4)
        torch.autograd.graph.register_multi_grad_hook((x, w), lambda found: seen.append(len(found)), mode=mode)
        backward(compile(torch.mul)(x, w).sum().backward)
        yield x.grad, w.grad, *seen


def retained_gradients(compile, backward):
    first, second = compile(heads), compile(torch.mul)
    for _ in range(2):
        x, w = rand(4), rand(4)
        a, b = first(x, w)
        product = second(a, b)
        for each in (a, b, product):
            each.retain_grad()
        backward(product.sum().backward)
        yield [each.grad for each in (x, w, a, b, product)]


def an_optimizer_in_hooks(compile, backward):
    model = mlp()

    def descend(parameter):
        with torch.no_grad():
            parameter.add_(parameter.grad * -0.1)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(descend)
    compiled = compile(model)
    for _ in range(3):
        backward(compiled(torch.rand(4, 3).double()).square().mean().backward)
        yield [each.detach().clone() for each in model.parameters()] + [each.grad for each in model.parameters()]


def training(compile, backward):
    model = mlp()
    compiled, optimizer = compile(model), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for batch in (4, 4, 6, 8):
        optimizer.zero_grad(set_to_none=batch == 6)
        backward(compiled(torch.rand(batch, 3).double()).square().mean().backward)
        yield [nn.utils.clip_grad_norm_(model.parameters(), 0.1)]
        optimizer.step()
        yield [each.detach().clone() for each in model.parameters()]


def gradients_that_exist(compile, backward):
    """They are added to in place."""
    model = mlp()
    compiled = compile(model)
    for _ in range(3):
        own = [torch.rand_like(each) for each in model.parameters()]
        for parameter, gradient in zip(model.parameters(), own, strict=True):
            parameter.grad = gradient
        backward(compiled(torch.rand(4, 3).double()).sum().backward)
        yield [parameter.grad is gradient for parameter, gradient in zip(model.parameters(), own, strict=True)] + own


def one_gradient_for_two(compile, backward):
    """Each of two leaves has a tensor of its own."""
    x, w = rand(4), rand(4)
    result, gradient = compile(torch.add)(x, w), torch.rand(4).double()
    backward(lambda: result.backward(gradient))
    x.grad.mul_(7)
    yield x.grad, w.grad


def leaves_with_gaps(compile, backward):
    memory, compiled = torch.rand(4, 6, dtype=torch.float64), compile(lambda x: x * 3)
    for view in (memory[::2, ::2], memory.t(), memory[:, 1]):
        x = view.detach().requires_grad_()
        for _ in range(2):
            backward(compiled(x).sum().backward)
            yield x.grad.clone(), x.grad.stride()


def some_leaves(compile, backward):
    """Of the ones that are not asked for, `NeverRun` is not run."""
    leaves = x, y, z = rand(4), rand(4), rand(4)
    compiled = compile(lambda x, y, z: (x * y * z).sigmoid())
    for wanted in ((x, y), (y,), (x,), (x, y)):
        result = compiled(x, y, NeverRun.apply(z)).sum()
        backward(functools.partial(result.backward, inputs=wanted))
        yield [each.grad if each.grad is None else each.grad.clone() for each in leaves]
        result = compiled(x, y, NeverRun.apply(z)).sum()
        yield backward(functools.partial(torch.autograd.grad, result, wanted))


class NeverRun(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError


def gradients_that_no_result_has(compile, backward):
    x, y = rand(4), rand(4)
    result = compile(lambda x, y: x.sin())(x, y).sum()
    yield backward(lambda: torch.autograd.grad(result, (x, y), allow_unused=True, retain_graph=True))
    yield backward(lambda: torch.autograd.grad(result, (x, y), materialize_grads=True))


def several_roots(compile, backward):
    compiled = compile(heads)
    for _ in range(2):
        x, w = rand(4), rand(4)
        roots, tangents = compiled(x, w), [torch.rand(4).double() for _ in range(2)]
        backward(functools.partial(torch.autograd.backward, roots, tangents))
        yield x.grad, w.grad


def a_graph_kept_for_eager(compile, backward):
    """Backwards with and without compiled autograd take turns."""
    x = rand(3)
    result = compile(lambda x: x**2)(x).sum()
    for call in (lambda step: step(), backward, lambda step: step(), backward):
        call(lambda: result.backward(retain_graph=True))
        yield (x.grad.clone(),)


def structures_that_change(compile, backward):
    first, second = compile(torch.sin), compile(lambda x: x.exp() * x)
    for step in (0, 1, 2, 0, 1, 2):
        x = rand(4)
        result = (first, second, lambda x: second(first(x)))[step](x)
        backward(result.sum().backward)
        yield (x.grad,)


def sizes_that_change(compile, backward):
    """Those of two calls, and of views that eager makes of the results."""
    compiled = compile(torch.sin)
    for one, other in ((10, 10), (20, 10), (30, 20), (40, 30)):
        x, y = rand(one), rand(other)
        backward((compiled(x).view(5, -1).sum() + compiled(y).view(-1, 2).exp().sum()).backward)
        yield x.grad, y.grad


def numbers_that_change(compile, backward):
    compiled = compile(lambda x, number: (x * number).sin())
    for number in (1.0, 2.0, 3.0, 4, 5, 6):
        x = rand(4)
        backward(compiled(x, number).sum().backward)
        yield (x.grad,)


def custom_functions(compile, backward):
    """They save an attribute, a tensor twice, their result, and `None`; they have sizes, and arguments without gradients."""
    functions = [Saves.apply, lambda x: SavesResult.apply(x, 3.0), lambda x: SavesResult.apply(Saves.apply(x), 2.0)]
    for function in functions:
        inside, outer = compile(function), compile(torch.cos)
        for size in (4, 5, 6):
            x, y = rand(size), rand(size)
            backward(inside(x).sum().backward)
            backward(outer(function(outer(y))).sum().backward)
            yield x.grad, y.grad


class Saves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x)
        ctx.shape = x.shape
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        first, second = ctx.saved_tensors
        return gradient * first.cos() * second * ctx.shape[0]


class SavesResult(torch.autograd.Function):
    @staticmethod
    def forward(x, number):
        return x.exp() * number

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output, None)

    @staticmethod
    def backward(ctx, gradient):
        result, nothing = ctx.saved_tensors
        return (gradient * result if nothing is None else None), None


def packed_values(compile, backward):
    """Saved-tensor hooks around the calls, and around the ops between them."""
    compiled = compile(lambda x, w: (x * w).sin())
    for size in (4, 5):
        x, w = rand(size), rand(size)
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.detach() * 2, lambda saved: saved / 2):
            result = compiled(x, w).exp()
        with torch.autograd.graph.save_on_cpu():
            result = compiled(result, w)
        backward(result.sum().backward)
        yield x.grad, w.grad


def checkpoints_around(compile, backward):
    for use_reentrant in (False, True):
        compiled = compile(lambda x: x.sin() * x.cos())
        for _ in range(2):
            x = rand(4, 4)
            backward(checkpoint(compiled, x, use_reentrant=use_reentrant).sum().backward)
            yield (x.grad,)


def a_compiled_call_in_a_backward(compile, backward):
    compiled = compile(lambda x: x.sin())

    class CallsIt(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                inner = x.detach().requires_grad_()
                compiled(inner).sum().backward()
            return gradient * inner.grad

    for _ in range(2):
        x = rand(4)
        backward(compiled(CallsIt.apply(x)).sum().backward)
        yield (x.grad,)


def writes_between_regions(compile, backward):
    compiled = compile(lambda x: x * 2)
    for _ in range(2):
        x, row = rand(4, 3), rand(3)
        y = compiled(x)
        y[1] = row
        y[0].mul_(3)
        z = compiled(y.t())
        z.mul_(2)
        backward(z.sin().sum().backward)
        yield x.grad, row.grad


def writes_to_views_in_a_region(compile, backward):
    compiled = compile(lambda x, w: x.mul_(w))
    for _ in range(2):
        x, w = rand(4, 4), rand(4)
        y = x * 1
        compiled(y[0], w)
        backward((y * y).sum().backward)
        yield x.grad, w.grad


def leaves_that_come_to_require_grad(compile, backward):
    model = mlp()
    compiled = compile(model)
    for wanted in (False, True, False):
        model[0].weight.requires_grad_(wanted)
        model.zero_grad()
        backward(compiled(torch.rand(4, 3).double()).sum().backward)
        yield [each.grad for each in model.parameters()]


def gradients_that_are_penalized(compile, backward):
    model = mlp()
    compiled = compile(model)
    for _ in range(2):
        x = rand(3, 3)
        result = compiled(x).sum()
        (gradient,) = backward(functools.partial(torch.autograd.grad, result, x, create_graph=True))
        backward((gradient.norm(dim=1) - 1).square().mean().backward)
        yield [each.grad if each.grad is None else each.grad.clone() for each in model.parameters()]


def a_backward_that_raises(compile, backward):
    """The next one is right."""
    x, compiled, steps = rand(4), compile(torch.sin), iter((True, False, False))

    def hook(gradient):
        if next(steps):
            raise ValueError("from a hook")

    x.register_hook(hook)
    for _ in range(3):
        result = compiled(x * 2).sum()
        try:
            backward(result.backward)
        except ValueError as error:
            yield (str(error),)
        yield (x.grad if x.grad is None else x.grad.clone(),)


def another_thread(compile, backward):
    compiled = compile(lambda x: x.sin() * x)
    for _ in range(2):
        x = rand(4)
        thread = threading.Thread(target=lambda x=x: backward(compiled(x).sum().backward))
        thread.start()
        thread.join()
        yield (x.grad,)


STEPS = (
    hooks_of_every_kind,
    hooks_of_the_segment_itself,
    hooks_that_read_state,
    a_hook_that_is_removed,
    hooks_of_several_gradients,
    retained_gradients,
    an_optimizer_in_hooks,
    training,
    gradients_that_exist,
    one_gradient_for_two,
    leaves_with_gaps,
    some_leaves,
    gradients_that_no_result_has,
    several_roots,
    a_graph_kept_for_eager,
    structures_that_change,
    sizes_that_change,
    numbers_that_change,
    custom_functions,
    packed_values,
    checkpoints_around,
    a_compiled_call_in_a_backward,
    writes_between_regions,
    writes_to_views_in_a_region,
    leaves_that_come_to_require_grad,
    gradients_that_are_penalized,
    a_backward_that_raises,
    another_thread,
)


def inside(way: Way) -> Callable[[Callable], Any]:
    def backward(call: Callable) -> Any:
        with way.backward():
            return call()

    return backward


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin:UserWarning")  # of retain_grad
@pytest.mark.parametrize("program", STEPS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("kind", ["eager halves", "recorded only"])
def test_steps(kind: str, program: Callable) -> None:
    way, expected = BROKEN[kind](), run_steps(program, lambda region: region, lambda call: call())
    assert_same_steps(run_steps(program, way.function, inside(way)), expected)


@pytest.mark.parametrize(
    "program",
    [hooks_of_every_kind, an_optimizer_in_hooks, gradients_that_exist, writes_between_regions],
    ids=lambda program: program.__name__,
)
def test_steps_through_inductor(program: Callable) -> None:
    way, expected = through_dynamo("aotgrad"), run_steps(program, lambda region: region, lambda call: call())
    assert_same_steps(run_steps(program, way.function, inside(way)), expected)


@pytest.mark.parametrize("program", [training, some_leaves, several_roots], ids=lambda program: program.__name__)
def test_steps_by_the_flag(program: Callable) -> None:
    """Dynamo compiles the callers and the graphs that are recorded, and no function of ours."""
    way, frames = through_dynamo("aotgrad_eager"), []

    def backward(call: Callable) -> Any:
        with torch._dynamo.config.patch(compiled_autograd=True):
            return way.function(lambda: call())()

    expected = run_steps(program, lambda region: region, lambda call: call())
    handle = torch._dynamo.convert_frame.register_bytecode_hook(lambda code, _: frames.append(code.co_filename))
    with contextlib.ExitStack() as stack:
        stack.callback(handle.remove)
        found = run_steps(program, way.function, backward)
    assert_same_steps(found, expected)
    assert frames and not [each for each in frames if each.startswith(os.path.dirname(aotgrad.__file__))]


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
def test_anomalies_are_found(way: Way) -> None:
    x = torch.zeros(3, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True), way.backward():
        result = way.function(lambda x: x.sqrt() * 0)(x).sum()
        with pytest.raises(RuntimeError, match="NaN gradients"):
            result.backward()
