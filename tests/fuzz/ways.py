"""Ways to compile a program. A standalone script contains the source of its compile function.

WAYS["eager"](f, aotgrad.nop, dynamic=True)         `aot_function`, whose graphs run as they are
WAYS["inductor"](f, aotgrad.nop, dynamic=True)      the same, but Inductor compiles the graphs
WAYS["pieces"](f, aotgrad.nop, dynamic=True)        the same, but it compiles a few ops at a time
WAYS["islands"](f, aotgrad.nop, dynamic=True)       `aot_function`, with a third of the ops in eager between compiled graphs
WAYS["dynamo"](f, aotgrad.nop, dynamic=True)        `torch.compile`, and Inductor
"""

from __future__ import annotations

from unittest import mock

import torch
import torch._dynamo.utils

import aotgrad


def by_aot_function(f, *args, options=None, **keywords):
    return aotgrad.aot_function(f, *args, **keywords, options={"verify": True, **(options or {})})


def by_inductor(f, *args, options=None, **keywords):
    options = {"verify": True, "min_graph_ops": 0, **(options or {})}
    with mock.patch("aotgrad.api.users_backend", lambda *given: aotgrad.backends.get("inductor")):
        return aotgrad.aot_function(f, *args, **keywords, options=options)


def by_pieces(f, *args, options=None, **keywords):
    from tests.in_pieces import IN_PIECES

    options = {"verify": True, "min_graph_ops": 0, **(options or {})}
    with mock.patch("aotgrad.api.users_backend", lambda *given: IN_PIECES):
        return aotgrad.aot_function(f, *args, **keywords, options=options)


def by_islands(f, *args, options=None, **keywords):
    from tests.islands import ISLANDS

    with mock.patch("aotgrad.api.users_backend", lambda *given: ISLANDS):
        return aotgrad.aot_function(f, *args, **keywords, options={"verify": True, **(options or {})})


def by_dynamo(f, fw_compiler, partition_fn=aotgrad.default_partition, dynamic=False, options=None):
    partitioner = "save_all" if partition_fn is aotgrad.default_partition else "min_cut"
    ours = {"verify": True, "min_graph_ops": 0, "cache": False, "partitioner": partitioner}
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch.compile(f, backend="aotgrad", dynamic=dynamic, options={**ours, **(options or {})})


def by_dynamo_alone(f, fw_compiler, partition_fn=None, dynamic=False, options=None):
    """Dynamo without aotgrad, to tell whose a difference is."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch.compile(f, backend="eager", dynamic=dynamic)


def has_graph_breaks(compiled) -> bool:
    """Whether Dynamo split the last compiled program into several parts."""
    is_dynamos = hasattr(compiled, "_torchdynamo_orig_callable")
    return is_dynamos and bool(torch._dynamo.utils.counters["graph_break"])


WAYS = {
    "eager": by_aot_function,
    "inductor": by_inductor,
    "pieces": by_pieces,
    "islands": by_islands,
    "dynamo": by_dynamo,
}
THROUGH_INDUCTOR = ("inductor", "pieces", "dynamo")
