"""Collectives in the halves, merged collectives, and the simulated schedule before and after they overlap."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from aotgrad import passes, printing
from aotgrad.graph.link_schedule import Link, table
from tests.executables import executable_of
from tests.golden.test_segments import page
from tests.joint.collective_programs import two_equal_ranks

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def ranks():
    with two_equal_ranks():
        yield


def gathered_product(x, shard):
    full = functional.all_gather_tensor_autograd(shard, 0, dist.group.WORLD)
    return x.sin() @ full


def test_halves(golden):
    partition = executable_of(gathered_product, "f32[4, 4] requires_grad", "f32[2, 4] requires_grad").partition
    backward = passes.LateWaits().apply(partition.backward.copy())
    texts = [
        "--- forward ---",
        printing.graph_text("forward", partition.forward.module, partition.forward.signature),
        "--- backward ---",
        printing.graph_text("backward", backward.module, backward.signature),
    ]
    title = "A gathered parameter: each half waits right before it reads a result, or before it returns it."
    golden("partition/collectives", page(title, gathered_product, *texts))


def two_sums(x, y):
    first = functional.all_reduce(x, "sum", dist.group.WORLD)
    second = functional.all_reduce(y, "sum", dist.group.WORLD)
    return first * 2, second + 1


def test_buckets(golden):
    texts = []
    for name, options in (("before", {}), ("after", {"joint_passes": [passes.BucketCollectives()]})):
        joint = executable_of(two_sums, "f32[4]", "f32[2, 2]", options=options).joint
        texts += [f"--- {name} ---", printing.text(joint)]
    golden("passes/merged_collectives", page("Two collectives of one kind become one call.", two_sums, *texts))


def sharded_layers(x, *shards):
    for shard in shards:
        x = torch.relu(x @ functional.all_gather_tensor_autograd(shard, 0, dist.group.WORLD))
    return x


def test_overlap(golden):
    overlap = passes.OverlapCollectives(
        max_bytes=40_000, link=Link(bandwidth=1e9, latency=1e-6), bytes_per_second=1e10, flops_per_second=1e10
    )
    specs = ["f32[64, 32]", *["f32[16, 32] requires_grad"] * 4]
    partition = executable_of(sharded_layers, *specs).partition
    texts = []
    for name, half in (("forward", partition.forward), ("backward", partition.backward)):
        half = passes.LateWaits().apply(half.copy())
        texts += [f"--- {name}, before ---", table(overlap.timeline(half.module.graph)).rstrip()]
        after = overlap.apply(half).module.graph
        texts += [f"--- {name}, after ---", table(overlap.timeline(after)).rstrip()]
    title = (
        "Four layers with sharded parameters: gathers start earlier, and gradients are waited for at the end. Microseconds."
    )
    golden("passes/overlapped_collectives", page(title, sharded_layers, *texts))
