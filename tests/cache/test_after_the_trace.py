"""Functions that are traced in every process: the cache stores their halves under the key of the joint graph."""

from __future__ import annotations

import functools
import gc
import weakref

import pytest
import torch
import torch.fx as fx
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import nn

import aotgrad
from aotgrad import torch_compat

from .programs import COMPILERS, outcome, run_in_another_process

MISS, HIT = {"cache_misses": 1, "compilations": 1}, {"cache_hits": 1, "compilations": 1}
BYPASS = {"cache_bypasses": 1, "compilations": 1}
RESTORED = {"cache_hits": 1}
FACTOR = 2.0


def values(function, compiler=aotgrad.nop, **options):
    """The result and the gradient of a function, compiled as in a new process."""
    compiled = aotgrad.aot_function(function, compiler, options={"cache": True, **options})
    x = torch.linspace(-1, 1, 8, requires_grad=True)
    result = compiled(x)
    result.sum().backward()
    return result.detach(), x.grad


def check(function, compiler=aotgrad.nop, **options):
    """Compare the compiled function with eager."""
    x = torch.linspace(-1, 1, 8, requires_grad=True)
    expected = function(x)
    expected.sum().backward()
    for found, wanted in zip(values(function, compiler, **options), (expected.detach(), x.grad), strict=True):
        torch.testing.assert_close(found, wanted)


def with_factor(factor):
    return lambda x: (x.sin() * factor).exp() * FACTOR


@pytest.mark.parametrize("name", ["writes", "overlapping", "dropout"])
def test_another_process_only_traces(name, tmp_path, counted):
    expected = outcome(name, COMPILERS["aot_function"])
    assert counted() == MISS
    found, counters = run_in_another_process(name, "aot_function", tmp_path)
    assert all(map(torch.equal, found, expected)) and len(found) == len(expected)
    assert counters["cache_hits"] == 1 and "cache_misses" not in counters


def test_what_the_function_depends_on_outside_of_its_arguments(counted, monkeypatch):
    check(with_factor(3.0))
    assert counted() == MISS
    check(with_factor(3.0))
    assert counted() == HIT
    check(with_factor(4.0))
    assert counted() == MISS
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    check(with_factor(3.0))
    assert counted() == MISS
    check(lambda x: (x.cos() * 3.0).exp() * FACTOR)
    assert counted() == MISS


def test_a_tensor_that_it_closes_over_is_the_one_of_this_process(counted):
    for shift, expected in ((torch.ones(8), MISS), (torch.full((8,), 2.0), HIT), (torch.ones(1), MISS)):
        check(lambda x, shift=shift: (x + shift).sin() * x)
        assert counted() == expected


def test_a_backward_that_python_computes(counted):
    """It is in the joint graph only, not in the forward."""

    def with_backward(factor):
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.sin()

            @staticmethod
            def backward(ctx, gradient):
                return gradient * factor

        return lambda x: Scaled.apply(x).exp()

    for factor, expected in ((2, MISS), (2, HIT), (3, MISS)):
        check(with_backward(factor))
        assert counted() == expected


@pytest.mark.parametrize(
    "options",
    [{"partitioner": "save_all"}, {"memory_budget": 0.5}, {"grad_segments": 2}, {"keep_input_mutations": True}],
    ids=lambda options: next(iter(options)),
)
def test_another_option(options, counted):
    check(with_factor(2.0))
    check(with_factor(2.0), **options)
    assert counted() == {"cache_misses": 2, "compilations": 2}


def test_a_budget_in_the_partition_function(counted):
    def train(budget):
        split = aotgrad.min_cut_rematerialization_partition
        partition = functools.partial(split, memory_budget=budget)
        f = aotgrad.aot_function(with_factor(2.0), aotgrad.nop, partition_fn=partition, options={"cache": True})
        f(torch.ones(8, requires_grad=True)).sum().backward()

    for budget, expected in ((0.5, MISS), (0.5, HIT), (0.0, MISS)):
        train(budget)
        assert counted() == expected


def test_a_damaged_file(folder, counted):
    check(with_factor(2.0))
    (entry,) = folder.iterdir()
    content = entry.read_bytes()
    for damaged in (content[:-9], content[:-9] + b"x" * 9, b""):
        entry.write_bytes(damaged)
        check(with_factor(2.0))
    assert counted() == {"cache_misses": 4, "cache_failures": 3, "compilations": 4}
    check(with_factor(2.0))
    assert counted() == HIT


def test_a_compiler_that_changes_the_graph(counted):
    """Every call gets the graph of the partition, unchanged."""

    def compiler(graph, _):
        for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
            node.target = torch.ops.aten.cos.default
        graph.recompile()
        return aotgrad.make_boxed_func(graph.forward)

    first = values(with_factor(2.0), compiler)
    assert all(map(torch.equal, values(with_factor(2.0), compiler), first))
    assert counted() == {"cache_misses": 1, "cache_hits": 1, "compilations": 2}
    check(with_factor(2.0))
    assert counted() == HIT


def test_symbolic_sizes(counted):
    def function(x):
        return (x[1:] * x.shape[0]).sin().cumsum(0)

    for expected in (MISS, HIT):
        compiled = aotgrad.aot_function(function, aotgrad.nop, dynamic=True, options={"cache": True})
        for count in (5, 8, 3):
            x = torch.linspace(-1, 1, count, requires_grad=True)
            wanted = torch.autograd.grad(function(x).sum(), x)
            torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x), wanted)
        assert counted() == expected and len(compiled.plans()) == 1


def own_partition(module, inputs, *, num_fwd_outputs):
    return aotgrad.default_partition(module, inputs, num_fwd_outputs=num_fwd_outputs)


@pytest.mark.parametrize(
    "settings",
    [{"partition_fn": own_partition}, {"decompositions": {torch.ops.aten.sin.default: lambda x: x.cos()}}],
    ids=["a partition function", "a decomposition"],
)
def test_code_of_the_users_own_that_is_not_traced(settings, counted):
    for _ in range(2):
        compiled = aotgrad.aot_function(with_factor(2.0), aotgrad.nop, options={"cache": True}, **settings)
        compiled(torch.ones(3, requires_grad=True)).sum().backward()
        assert counted() == BYPASS


def test_a_module_and_its_gradients_of_gradients(counted):
    def second_order(wrap):
        torch.manual_seed(0)
        model = wrap(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))
        x = torch.linspace(-1, 1, 4, requires_grad=True)
        (first,) = torch.autograd.grad(model(x).sum() ** 2, x, create_graph=True)
        first.square().sum().backward()
        return [x.grad, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]

    expected = second_order(lambda model: model)
    for _ in range(2):
        found = second_order(lambda model: aotgrad.aot_module(model, aotgrad.nop, options={"cache": True}))
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
    assert counted()["cache_hits"] >= 1


# --- Custom operators ------------------------------------------------------------------------------------------------


def operator(name, factor=2.0, changes=()):
    """`aotgrad_tests::name`, redefined: a product, or one in place."""
    kind = "(Tensor(a!) x) -> ()" if changes else "(Tensor x) -> Tensor"

    def change(x):
        x.mul_(factor)

    run = change if changes else lambda x: x * factor
    made = torch.library.custom_op(f"aotgrad_tests::{name}", run, mutates_args=changes, schema=kind)
    if not changes:
        made.register_fake(torch.empty_like)
        made.register_autograd(lambda ctx, gradient: gradient * factor)
    return made


def compile_with_dynamo(function, backend="aotgrad_eager"):
    torch._dynamo.reset()
    x = torch.linspace(-1, 1, 8, requires_grad=True)
    result = torch.compile(function, backend=backend)(x)
    result.sum().backward()
    return x.grad


def test_an_operator_of_the_users_own(counted):
    """Its derivative is in the joint graph; the operator itself runs when it is called."""
    x = torch.linspace(-1, 1, 8)
    for factor, expected in ((2.0, MISS), (2.0, HIT), (3.0, MISS)):
        twice = operator("factor", factor)
        torch.testing.assert_close(compile_with_dynamo(lambda x, twice=twice: twice(x).sin()), factor * (factor * x).cos())
        assert counted() == expected


def test_an_operator_that_changes_its_argument(counted):
    bump = operator("changes", changes=("x",))

    def function(x):
        y = x.exp()
        bump(y)
        return y * x

    x = torch.linspace(-1, 1, 8)
    for expected in (MISS, HIT):
        with torch.no_grad():
            torch._dynamo.reset()
            torch.testing.assert_close(torch.compile(function, backend="aotgrad_eager")(x), x * x.exp() * 2)
        assert counted() == expected


def test_an_operator_with_another_signature(counted):
    """Operators that differ in their tags."""
    for tags, expected in (((), MISS), ((torch.Tag.needs_fixed_stride_order,), MISS), ((), HIT)):
        with torch.library._scoped_library("aotgrad_scoped", "FRAGMENT") as library:
            library.define("same(Tensor x) -> Tensor", tags=tags)
            library.impl("same", lambda x: x.clone(), "CompositeExplicitAutograd")
            check(lambda x: torch.ops.aotgrad_scoped.same(x.detach()) * x)
        assert counted() == expected


# --- Graph modules: the graph is the key -----------------------------------------------------------------------------


def network(x, w):
    return (F.layer_norm((x @ w).sin(), (4,)), x * 2)


def check_simplified(module, options=None):
    x, w = torch.ones(3, 4), torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
    compiled = aotgrad.aot_module_simplified(module, (x, w), aotgrad.nop, options={"cache": True, **(options or {})})
    weights = (compiled(x, w), module(x, w))
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other)
    gradients = [torch.autograd.grad(results[0].square().sum(), w)[0] for results in weights]
    torch.testing.assert_close(*gradients)


def test_a_graph_module_is_not_traced_again(counted):
    for expected in (MISS, RESTORED):
        check_simplified(fx.symbolic_trace(network))
        assert counted() == expected
    check_simplified(fx.symbolic_trace(lambda x, w: (F.layer_norm((x @ w).cos(), (4,)), x * 2)))
    assert counted() == MISS


def test_a_function_from_the_cache_keeps_no_example(counted):
    module = fx.symbolic_trace(network)
    for expected in (MISS, RESTORED):
        example, w = torch.ones(3, 4), torch.ones(4, 4, requires_grad=True)
        compiled = aotgrad.aot_module_simplified(module, (example, w), aotgrad.nop, options={"cache": True})
        assert counted() == expected
        kept = weakref.ref(example)
        del example
        gc.collect()
        assert kept() is None
        torch.testing.assert_close(list(compiled(torch.ones(3, 4), w)), list(network(torch.ones(3, 4), w)))


def test_a_graph_module_that_takes_its_arguments_apart(counted):
    """Its code does more than the nodes of the graph."""
    module = fx.symbolic_trace(network)
    spec = pytree.tree_flatten(([0, 0], {}))[1]
    torch_compat.returns_pytree(module.graph, ("x", "w"), spec, pytree.tree_flatten((0, 0))[1])
    module.recompile()
    x, w = torch.ones(3, 4), torch.ones(4, 4, requires_grad=True)
    for expected in (MISS, HIT):
        compiled = aotgrad.aot_module_simplified(module, (x, w), aotgrad.nop, options={"cache": True})
        torch.testing.assert_close(list(compiled(x, w)), list(network(x, w)))
        assert counted() == expected


def test_other_modules_are_traced(counted):
    class Module(nn.Module):
        def forward(self, x, w):
            return network(x, w)

    for expected in (MISS, HIT):
        check_simplified(Module())
        assert counted() == expected


def test_nothing_is_kept_unless_it_is_asked_for(folder, counted):
    aotgrad.aot_function(with_factor(2.0), aotgrad.nop)(torch.ones(3, requires_grad=True))
    assert not folder.exists() and counted() == {"compilations": 1}
    with aotgrad.config.patch(cache=True):
        aotgrad.aot_function(with_factor(2.0), aotgrad.nop)(torch.ones(3, requires_grad=True))
    assert folder.exists() and counted() == MISS
