"""Collectives that overlap with computations: the same values and starts, and no more bytes in flight than the limit."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import aotgrad
from aotgrad.graph.link_schedule import Link, exposed
from aotgrad.graph.message_order import Message, order_of_actions
from aotgrad.passes import OverlapCollectives
from tests.executables import executable_of
from tests.joint.collective_programs import started, two_equal_ranks

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SLOW = {"link": Link(bandwidth=1e9, latency=1e-6), "bytes_per_second": 1e9, "flops_per_second": 1e10}


@pytest.fixture(scope="module", autouse=True)
def ranks():
    with two_equal_ranks():
        yield


def sharded_mlp(x, *shards):
    """Parameters are gathered where they are read, and their gradients are scattered."""
    for shard in shards:
        x = torch.relu(x @ functional.all_gather_tensor_autograd(shard, 0, dist.group.WORLD))
    return x.sum()


SPECS = ["f32[64, 32]", *["f32[16, 32] requires_grad"] * 4]


def overlapped(**settings):
    each = [OverlapCollectives(**{**SLOW, **settings})]
    return {"forward_passes": each, "backward_passes": each}


def inputs():
    torch.manual_seed(0)
    return [torch.randn(64, 32), *(torch.randn(16, 32, requires_grad=True) for _ in range(4))]


def outcome(f):
    started.clear()
    args = inputs()
    y = f(*args)
    y.backward()
    return [y.detach(), *(x.grad for x in args[1:])], list(started)


def places(names, what):
    return [k for k, name in enumerate(names) if what in name]


@pytest.mark.parametrize("max_bytes", [1, 10_000, 2**30])
@pytest.mark.parametrize("compiler", ["eager", "inductor"])
def test_values_are_those_of_eager(compiler, max_bytes):
    expected, order = outcome(sharded_mlp)
    found, ours = outcome(aotgrad.aot_function(sharded_mlp, compiler, options=overlapped(max_bytes=max_bytes)))
    torch.testing.assert_close(found, expected)
    assert [name for name in ours if "wait" not in name] == [name for name in order if "wait" not in name]


@pytest.mark.parametrize("max_bytes", [5_000, 2**30])
def test_behind_dynamo(max_bytes):
    torch.compiler.reset()
    expected, _ = outcome(sharded_mlp)
    options = overlapped(max_bytes=max_bytes, link=Link(bandwidth=2e8, latency=1e-6))  # a message takes as long as a product
    found, ours = outcome(torch.compile(sharded_mlp, backend="aotgrad_eager", options=options))
    torch.testing.assert_close(found, expected)
    assert (places(ours, "all_gather")[1] < places(ours, "wait")[0]) is (max_bytes == 2**30)


def halves(max_bytes):
    """Both halves before and after the pass."""
    partition = executable_of(sharded_mlp, *SPECS).partition
    each = OverlapCollectives(**{**SLOW, "max_bytes": max_bytes})
    for half in (partition.forward, partition.backward):
        yield half.module.graph, each.apply(half.copy()).module.graph, each


def test_less_communication_is_exposed():
    for before, after, each in halves(2**30):
        assert exposed(each.timeline(after)) < 0.75 * exposed(each.timeline(before))


def test_less_memory_exposes_more():
    shown = [sum(exposed(each.timeline(after)) for _, after, each in halves(limit)) for limit in (1, 9_000, 2**30)]
    assert shown[0] > shown[1] >= shown[2]


def test_a_write_is_not_passed():
    def f(x, w):
        x.add_(1)
        return (w @ w).sum() + functional.all_gather_tensor(x, 0, dist.group.WORLD).sum()

    options = {**overlapped(), "keep_input_mutations": False}
    x, w = torch.ones(4, 4), torch.randn(64, 64)
    expected = f(x.clone(), w)
    torch.testing.assert_close(aotgrad.aot_function(f, "eager", options=options)(x, w), expected)
    assert torch.equal(x, torch.full((4, 4), 2.0))


def chained(x, w):
    """The result of one collective is sent on; another one has several results, and one is read by nobody."""
    first = functional.all_reduce(x, "sum", dist.group.WORLD)
    product = w @ w
    second = functional.all_reduce(first, "sum", dist.group.WORLD)
    several = functional.all_reduce_coalesced([w * 2, product], "sum", dist.group.WORLD)
    functional.all_reduce(w, "sum", dist.group.WORLD)
    return second.sum() + several[0] @ several[1], first


@pytest.mark.parametrize("max_bytes", [1, 2**30])
def test_collectives_of_collectives(max_bytes):
    x, w = torch.ones(4, 4), torch.randn(32, 32)
    started.clear()
    expected = [value + 0 for value in chained(x, w)]
    order = [name for name in started if "wait" not in name]
    started.clear()
    found = aotgrad.aot_function(chained, "eager", options=overlapped(max_bytes=max_bytes))(x, w)
    torch.testing.assert_close(list(found), expected)
    assert [name for name in started if "wait" not in name] == order


# --- The algorithm ---------------------------------------------------------------------------------------------------


def drawn(rng):
    count = rng.randint(0, 12)
    messages, last = [], 0
    for k in range(rng.randint(1, 8)):
        last = rng.randint(last, count)
        after = (k - 1,) if k and rng.random() < 0.2 else ()
        fields = {"held": rng.randint(1, 50), "ready": rng.randint(0, last), "read": rng.randint(last, count)}
        messages.append(Message(rng.random() * 3, place=last, after=after, **fields))
    return [rng.random() for _ in range(count)], messages, rng.randint(1, 120)


@pytest.mark.parametrize("seed", range(200))
def test_what_every_order_keeps(seed):
    seconds, messages, limit = drawn(random.Random(seed))
    actions = order_of_actions(seconds, messages, limit)
    at = {action: k for k, action in enumerate(actions)}
    assert len(at) == len(actions) == len(seconds) + 2 * len(messages)
    for kind, count in (("compute", len(seconds)), ("start", len(messages))):
        assert all(at[kind, k] < at[kind, k + 1] for k in range(count - 1))
    for k, message in enumerate(messages):
        assert at["start", k] < at["wait", k]
        assert all(at["compute", c] < at["start", k] for c in range(message.ready))
        assert all(at["start", k] < at["compute", c] for c in range(message.place, len(seconds)))
        assert all(at["wait", k] < at["compute", c] for c in range(message.read, len(seconds)))
        assert all(at["wait", earlier] < at["start", k] for earlier in message.after)
    steps = [{"start": 1, "wait": -1}.get(kind, 0) for kind, _ in actions]
    held = itertools.accumulate(step and step * messages[k].held for step, (_, k) in zip(steps, actions, strict=True))
    counts = itertools.accumulate(steps)
    assert all(total <= limit or count == 1 for total, count in zip(held, counts, strict=True))
