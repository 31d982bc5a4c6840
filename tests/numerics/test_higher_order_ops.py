"""Ops with function arguments: branches, loops, scans, regions, and the transforms of `torch.func`, as in eager."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops import while_loop
from torch._higher_order_ops._invoke_quant import InvokeQuant
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch.compiler import nested_compile_region
from torch.nn.attention.flex_attention import flex_attention

import aotgrad
from tests.device import TYPE
from tests.numerics.against_eager import INDUCTOR, assert_like_eager, leaf, plain
from tests.numerics.conftest import TORCH_WARNS

# These ops call Dynamo themselves.
pytestmark = [pytest.mark.filterwarnings(warning) for warning in TORCH_WARNS]

EAGER_HALVES = ("eager", "dynamo")
ROUNDING = "the backward of the op adds up in another order"

every_frontend = pytest.mark.parametrize("backend", EAGER_HALVES)
every_backend = pytest.mark.parametrize("backend", [*EAGER_HALVES, "inductor"])


def made(function, backend):
    if backend == "eager":
        return aotgrad.aot_function(function, aotgrad.nop)
    return torch.compile(function, backend="aotgrad_eager", fullgraph=True)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Called outside of a compiled function, these ops compile themselves."""
    torch._dynamo.reset()


def branch(x, y):
    return torch.cond(x.sum() > 0, lambda a, b: a.sin() * b, lambda a, b: (a + b).cos(), (x, y))


@every_backend
@pytest.mark.parametrize("sign", [1, -1])
def test_cond(backend, sign):
    assert_like_eager(branch, lambda: ((sign * torch.ones(4)).requires_grad_(), leaf(4)), backend)


@every_frontend
def test_one_plan_serves_both_branches(backend):
    for sign in (1, -1):
        x = (sign * torch.ones(3)).requires_grad_()
        compiled = made(branch, backend)
        for args in ((x, leaf(3)), ((-x).detach().requires_grad_(), leaf(3))):
            expected, actual = branch(*args), compiled(*args)
            assert torch.equal(actual, expected)
            ours, theirs = (torch.autograd.grad(out.sum(), args) for out in (actual, expected))
            assert all(map(torch.equal, ours, theirs))


@every_frontend
def test_a_branch_that_closes_over_tensors(backend):
    def function(x, y):
        return torch.cond(x.sum() > 0, lambda a: a * y, lambda a: a - y, (x,)) * y

    assert_like_eager(function, lambda: (leaf(4), leaf(4)), backend)


@every_frontend
def test_while_loop(backend):
    def function(x):
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 1.5), (torch.tensor(0), x))

    assert_like_eager(function, lambda: (plain(4),), backend)


def powers(x, w):
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, (x * w).sin()), (torch.tensor(0), x))[1].cos()


def halved_until_small(x):
    return while_loop(lambda x: x.sum() > 0.3, lambda x: (x * 0.5,), (x,))[0]


def no_pass(x):
    return while_loop(lambda i, x: i < 0, lambda i, x: (i + 1, x.sin()), (torch.tensor(0), x))[1]


def two_states(x, y):
    return while_loop(lambda i, x, y: i < 4, lambda i, x, y: (i + 1, x * y, y.sin()), (torch.tensor(0), x, y))[1:]


DIFFERENTIATED_LOOPS = {
    "closes over a tensor": (powers, lambda: (leaf(4), leaf(4))),
    "ends by its values": (halved_until_small, lambda: (torch.full((3,), 2.0).requires_grad_(),)),
    "makes no pass": (no_pass, lambda: (leaf(4),)),
    "two states": (two_states, lambda: (leaf(4), leaf(4))),
}


@every_backend
@pytest.mark.parametrize("loop", DIFFERENTIATED_LOOPS)
def test_a_loop_is_differentiated(loop, backend):
    assert_like_eager(*DIFFERENTIATED_LOOPS[loop], backend)


@every_frontend
def test_one_plan_serves_every_number_of_passes(backend):
    before = aotgrad.counters["compilations"]
    compiled = made(halved_until_small, backend)
    for start in (0.01, 1.0, 40.0):
        x = torch.full((3,), start, requires_grad=True)
        expected, actual = halved_until_small(x), compiled(x)
        assert torch.equal(actual, expected)
        assert torch.equal(*(torch.autograd.grad(out.sum(), x)[0] for out in (actual, expected)))
    assert aotgrad.counters["compilations"] - before == 1


def test_no_call_asks_how_many_passes_a_loop_makes():
    """Torch checks that it kept at least one, which always holds: a condition on it would run the loop twice."""
    compiled = aotgrad.aot_function(powers, aotgrad.nop)
    compiled(leaf(4), leaf(4)).sum().backward()
    assert "values:" not in str(compiled.debug_state())


def running_sum(x, start):
    return scan(lambda carry, x: (carry + x, (carry * x).sin()), start, x)


def running_sum_backwards(x, start):
    return scan(lambda carry, x: (carry + x, (carry * x).sin()), start, x, reverse=True)


def running_sum_of_trees(x, start):
    return scan(lambda carry, x: ({"sum": carry["sum"] + x[0]}, carry["sum"] * x[1]), {"sum": start}, (x, x.sin()))


def scaled_sum(x, start, w):
    return scan(lambda carry, x: (carry * w + x, (carry * w).sin()), start, x.exp())[1].cos()


def step_that_saves_its_results(x, start):
    def step(carry, x):
        new = (carry * x).exp() * 0.1
        return new, (new * carry).view(3, 1).sin()

    return scan(step, start, x)


SCANS = {
    "sum": (running_sum, lambda: (leaf(5, 3), leaf(3))),
    "of the last first": (running_sum_backwards, lambda: (leaf(5, 3), leaf(3))),
    "of trees": (running_sum_of_trees, lambda: (leaf(5, 3), leaf(3))),
    "closes over a tensor": (scaled_sum, lambda: (leaf(5, 3), leaf(3), leaf(3))),
    "without gradients": (running_sum, lambda: (plain(5, 3), plain(3))),
    "saves its results": (step_that_saves_its_results, lambda: (leaf(5, 3), leaf(3))),
}


@every_backend
@pytest.mark.parametrize("function", SCANS)
def test_scan(function, backend):
    assert_like_eager(*SCANS[function], backend, values_close=INDUCTOR if backend == "inductor" else None)


@every_frontend
def test_associative_scan(backend):
    def function(x):
        return associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")

    assert_like_eager(function, lambda: (leaf(5, 3),), backend, values_close=ROUNDING)


def test_quantized_regions():
    """Its settings are an object, which a forward cannot pass on as a value."""

    def function(x, w):
        return InvokeQuant()(lambda x, w: ((x * 2 + w).sin(),), x, w, scheme="nf4")[0] * w

    assert_like_eager(function, lambda: (leaf(3), leaf(3)), "dynamo")


@every_backend
def test_map(backend):
    def function(x, y):
        return map_over(lambda row, y: row * y.sin(), x, y)

    close = INDUCTOR if backend == "inductor" else None
    assert_like_eager(function, lambda: (leaf(5, 3), leaf(3)), backend, values_close=close)


def relative_attention(q, k, v):
    return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + 0.1 * (i - j))


@every_frontend
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention(backend):
    """Without gradients, which it does not have on a CPU."""
    assert_like_eager(relative_attention, lambda: tuple(plain(1, 2, 16, 8) for _ in range(3)), backend)


def test_flex_attention_on_a_cpu_refuses_gradients_as_in_eager():
    for function in (relative_attention, aotgrad.aot_function(relative_attention, aotgrad.nop)):
        with pytest.raises(NotImplementedError, match="FlexAttention does not support backward on CPU"):
            function(*(leaf(1, 2, 16, 8) for _ in range(3)))


@nested_compile_region
def region(x, w):
    return (x @ w).sin()


@every_backend
def test_nested_regions(backend):
    assert_like_eager(lambda x, w: region(region(x, w), w), lambda: (leaf(3, 3), leaf(3, 3)), backend)


def test_a_nested_region_is_captured_once():
    graphs = []

    def keep(graph, _inputs):
        graphs.append(graph)
        return aotgrad.make_boxed_func(graph.forward)

    @torch.compile(backend=lambda module, inputs: aotgrad.aot_module_simplified(module, inputs, keep), fullgraph=True)
    def function(x, w):
        for _ in range(5):
            x = region(x, w)
        return x

    with torch.no_grad():
        function(plain(3, 3), plain(3, 3))
    (graph,) = graphs
    calls = [node for node in graph.graph.nodes if node.target is torch.ops.higher_order.invoke_subgraph]
    assert len(calls) == 5 and len({call.args[0].target for call in calls}) == 1


# --- Surroundings ----------------------------------------------------------------------------------------------------


@every_frontend
def test_a_branch_has_no_second_derivative(backend):
    """Its first one is no function of the input for eager."""

    compiled = made(branch, backend)
    for function in (branch, compiled):
        x, y = leaf(4), leaf(4)
        (first,) = torch.autograd.grad(function(x, y).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="does not require grad"):
            first.sum().backward()


def test_a_branch_within_a_budget():
    def function(x, y):
        return branch(x.exp().sin(), y).cos()

    assert_like_eager(function, lambda: (leaf(4), leaf(4)), "dynamo", options={"memory_budget": 0.0})


@every_frontend
def test_sizes_that_are_symbolic(backend):
    assert_like_eager(branch, lambda: (leaf(7), leaf(7)), backend, dynamic=True)


@every_frontend
def test_an_error_in_a_branch_is_eagers(backend):
    def function(x):
        return torch.cond(x.sum() > 0, lambda a: a.view(7), lambda a: a.view(7), (x,))

    compiled = made(function, backend)
    with pytest.raises(Exception, match=r"shape '\[7\]' is invalid"):
        compiled(torch.ones(4))


class WithModes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            weight = y.sin() * 2
        with torch.autocast(TYPE, dtype=torch.bfloat16):
            low = self.linear(x)
        return y * weight + low.float()


@every_frontend
def test_modes_as_ops(backend):
    """`torch.export` represents changes of grad mode and autocast as ops around regions."""
    torch.manual_seed(0)
    module, x = WithModes(), leaf(3, 4)
    exported = torch.export.export(module, (x,)).module()
    targets = {str(node.target) for node in exported.graph.nodes}
    assert {"wrap_with_set_grad_enabled", "wrap_with_autocast"} <= targets
    compiled = (
        aotgrad.aot_module(exported, aotgrad.nop) if backend == "eager" else torch.compile(exported, backend="aotgrad_eager")
    )
    out, expected = compiled(x), module(x)
    assert torch.equal(out, expected)
    ours = torch.autograd.grad(out.sum(), [x, *exported.parameters()])
    theirs = torch.autograd.grad(expected.sum(), [x, *module.parameters()])
    assert all(map(torch.equal, ours, theirs))
