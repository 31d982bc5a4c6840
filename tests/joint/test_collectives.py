"""Collectives in a compiled function run if and only if eager runs them, in its order, and give its values."""

from __future__ import annotations

import pytest
import torch
import torch.distributed._functional_collectives as functional
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad import torch_compat
from tests.eager_calls.functions import Dropped
from tests.executables import executable_of
from tests.joint.collective_programs import (
    MASKS,
    PROGRAMS,
    Reduced,
    ReducedLater,
    all_reduce,
    observed,
    started,
    two_equal_ranks,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def ranks():
    with two_equal_ranks():
        yield


def compiled(f, compiler):
    return torch.compile(f, backend=compiler) if compiler.startswith("aotgrad") else aotgrad.aot_function(f, compiler)


def check(f, compiler, masks=MASKS):
    own = compiled(f, compiler)
    for wanted in masks:
        for roots in (slice(0, None), slice(0, 1), slice(-1, None)):
            try:
                expected = observed(f, wanted, roots)
            except RuntimeError as error:  # no gradient is wanted that the roots lead to
                assert "does not require grad" in str(error) or "One of the" in str(error)
                continue
            found = observed(own, wanted, roots)
            assert found[:2] == expected[:2], (wanted, roots)
            for ours, eagers in zip(found[2], expected[2], strict=True):
                torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize("name", PROGRAMS)
def test_they_run_if_and_only_if_eager_runs_them(name):
    check(PROGRAMS[name], "eager")


@pytest.mark.parametrize("name", ["gather, scatter", "for two gradients", "two results", "no gradient"])
def test_they_do_behind_dynamo(name):
    torch.compiler.reset()
    check(PROGRAMS[name], "aotgrad_eager")


def test_a_checkpoint_recomputes_them_behind_dynamo_where_eager_does():
    torch.compiler.reset()
    check(PROGRAMS["checkpoint"], "aotgrad_eager")


def region(f):
    return lambda *args: checkpoint(f, *args, use_reentrant=False)


def reduced(a, b):
    return Reduced.apply(a.sin() @ b)


REGIONS = {
    "awaited": lambda x, w, v: region(reduced)(x, w) @ v,
    "a view": lambda x, w, v: region(lambda a, b: reduced(a, b).cos().t())(x, w) @ v,
    "viewed outside": lambda x, w, v: region(lambda a, b: reduced(a, b).cos())(x, w).t() @ v,
    "cheap ops outside": lambda x, w, v: (region(reduced)(x, w) + 1).sin() @ v,
    "not saved outside": lambda x, w, v: region(lambda a, b: reduced(a, b).sigmoid())(x, w) + v,
    "two regions": lambda x, w, v: region(reduced)(region(reduced)(x, w), v).sin(),
}
"""Checkpointed regions, by what is at their end."""


@pytest.mark.parametrize("name", REGIONS)
def test_the_end_of_a_region_is_saved_where_eager_saves_it(name):
    torch.compiler.reset()
    check(REGIONS[name], "aotgrad_eager")
    assert saved_bytes(compiled(REGIONS[name], "aotgrad_eager")) == saved_bytes(REGIONS[name])


def saved_bytes(f):
    """The bytes that autograd saves, without those of the inputs."""
    saved = {}

    def pack(tensor):
        saved[torch_compat.storage_id(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    inputs = [torch.ones(4, 4, requires_grad=True) for _ in range(3)]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = f(*inputs)
    assert output.requires_grad
    return sum(saved[key] for key in saved.keys() - set(map(torch_compat.storage_id, inputs)))


@pytest.mark.parametrize("compiler", ["inductor", "aotgrad"])
def test_they_do_in_inductors_halves(compiler):
    torch.compiler.reset()
    check(PROGRAMS["for two gradients"], compiler, MASKS[-2:])


def test_a_returned_result_is_waited_for():
    f = aotgrad.aot_function(lambda x: (all_reduce(x), x.sin()), "eager")
    started.clear()
    f(torch.ones(2))
    assert started == ["all_reduce(2,)", "wait_tensor(2,)"]


def waits_early(x, y):
    return functional.wait_tensor(all_reduce(x)) + y.sin(), functional.wait_tensor(all_reduce(y))


def test_waits_run_late_and_starts_in_order():
    f = aotgrad.aot_function(waits_early, "eager")
    started.clear()
    f(torch.ones(2), torch.ones(3, 2))
    assert [name for name in started if "all_reduce" in name] == ["all_reduce(2,)", "all_reduce(3, 2)"]
    joint = executable_of(waits_early, "f32[2]", "f32[3, 2]").partition.forward.module.graph
    order = [node.name for node in joint.nodes]
    assert order.index("sin") < order.index("wait_tensor") < order.index("add")
    assert order[-2].startswith("wait_tensor")


def test_another_order_is_a_broken_contract():
    class Swap:
        name = "swap"

        def apply(self, graph):
            first, second = (node for node in graph.module.graph.nodes if "all_reduce" in str(node.target))
            second.append(first) if first not in second.all_input_nodes else None
            for user in list(first.users):
                first.append(user)
            return graph

    f = aotgrad.aot_function(lambda x, y: (all_reduce(x), all_reduce(y)), "eager", options={"forward_passes": [Swap()]})
    with pytest.raises(aotgrad.errors.ContractError, match="runs before all_reduce, and after it in the trace"):
        f(torch.ones(2), torch.ones(3))


def buckets(f, *specs):
    joint = executable_of(f, *specs, options={"joint_passes": [aotgrad.passes.BucketCollectives(100)]}).joint
    calls = [node for node in joint.module.graph.nodes if str(node.target).startswith("_c10d_functional.all_reduce")]
    return [len(node.args[0]) if isinstance(node.args[0], (list, tuple)) else 1 for node in calls]


def test_small_collectives_are_merged_within_the_limit():
    assert buckets(lambda x, y: (all_reduce(x), all_reduce(y)), "f32[4]", "f32[8]") == [2]
    assert buckets(lambda x, y: (all_reduce(x), all_reduce(y)), "f32[4]", "f32[99]") == [1, 1]
    assert buckets(lambda x, y: (all_reduce(x), all_reduce(y)), "f32[4]", "f64[4]") == [1, 1]
    assert buckets(lambda x: all_reduce(all_reduce(x)), "f32[4]") == [1, 1]


def test_merged_collectives_give_the_same_values():
    def f(x, y):
        return all_reduce(x * 2) + 1, all_reduce(y * 3) * 2

    x, y = torch.ones(4), torch.arange(4.0)
    found = aotgrad.aot_function(f, "eager", options={"joint_passes": [aotgrad.passes.BucketCollectives()]})(x, y)
    for ours, eagers in zip(found, f(x, y), strict=True):
        torch.testing.assert_close(ours, eagers + 0)


# --- Behind a gradient that is None ----------------------------------------------------------------------------------


class OnlyCommunicates(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        all_reduce(g * 3)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2 + 1


def behind_two_heads(trunk):
    def f(x, w, v):
        h = trunk.apply(x)
        return Dropped.apply(h, w), Dropped.apply(h, v)

    return f


def behind_one_of_two(x, w, v):
    h = ReducedLater.apply(x)
    return Dropped.apply(h, w), h * v


@pytest.mark.xfail(strict=True, reason="a segment that only undefined gradients enter does not run")
def test_it_does_where_another_result_passes_a_gradient():
    check(behind_one_of_two, "eager")


def behind_a_result(x, w, v):
    h = ReducedLater.apply(x * 2)
    y = Dropped.apply(h, w)
    return y, y.sin(), Dropped.apply(h, v)


def test_a_result_in_between_is_refused():
    with pytest.raises(aotgrad.errors.CaptureError, match="computes or communicates, and gets no gradient"):
        check(behind_a_result, "eager")


@pytest.mark.parametrize("trunk", [ReducedLater, OnlyCommunicates, Doubled])
@pytest.mark.parametrize("compiler", ["eager", "aotgrad_eager"])
def test_a_backward_that_gets_no_gradient_runs_on_zeros(trunk, compiler):
    torch.compiler.reset()
    check(behind_two_heads(trunk), compiler)


def test_it_does_in_inductors_halves():
    check(behind_two_heads(ReducedLater), "inductor", MASKS[:1])


def test_it_runs_once_for_each_backward():
    f = behind_two_heads(ReducedLater)
    counts = []
    for each in (f, aotgrad.aot_function(f, "eager")):
        x, w, v = (torch.ones(4, 4, requires_grad=True) for _ in range(3))
        outputs = each(x, w, v)
        started.clear()
        for y in outputs:
            y.sum().backward()
        counts.append((len(started), x.grad, w.grad, v.grad))
    assert counts[0][0] == counts[1][0] > 0
    torch.testing.assert_close(counts[1][1:], counts[0][1:])
