"""Both halves with an offloaded value, as they run, their simulated schedule, and the trade of memory for time."""

from __future__ import annotations

import torch

import aotgrad
from aotgrad import passes, printing
from aotgrad.graph.link_schedule import table
from aotgrad.inspect.specs import parse_arguments
from tests.executables import executable_of
from tests.golden.test_segments import page

SPECS = ["f32[256, 256] requires_grad"] * 3


def similar_rows(x, w, v):
    y = torch.tanh(x @ w) @ v
    return (y @ y.t()).square().sum()


def test_halves(golden):
    partition = executable_of(similar_rows, *SPECS, options={"offload": True}).partition
    schedule = passes.OverlapCopies.of(partition)
    halves = {"forward": partition.forward, "backward": partition.backward}
    texts = [f"--- {name} ---\n\n{printing.graph_text(name, half.module, half.signature)}" for name, half in halves.items()]
    for name, half in halves.items():
        texts += [f"--- {name}, simulated, in microseconds ---", table(schedule.timeline(half.module.graph)).rstrip()]
    golden("partition/offloaded", page("A value that waits on the host, and its copies as they run.", similar_rows, *texts))


def deep(x, *weights):
    for w in weights:
        x = torch.tanh(x @ w) + x
    return x.sum()


def test_frontier(golden):
    """The three choices beside recomputing alone and a lower bound: traffic that the device waits for, within some bytes."""
    args = parse_arguments(["f32[256, 256] requires_grad"] * 9)
    text = str(aotgrad.memory_frontier(deep, *args, offload=True))
    golden("inspect/frontier", page("Eight layers: what is saved on the device, and what that costs.", deep, text))
