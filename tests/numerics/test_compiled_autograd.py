"""Backwards that compiled autograd (`torch._dynamo.compiled_autograd`) records as one graph and compiles."""

from __future__ import annotations

import contextlib
import gc
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
