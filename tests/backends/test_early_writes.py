"""Inputs are written as soon as their early updates are computed."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from aotgrad.backends.early_writes import write_early_updates


def order_of(function, *early: str) -> list[str]:
    """The ops in order after the writes have moved; the values with the names `early` are early updates."""
    graph = make_fx(function, tracing_mode="fake")(*(torch.ones(2, 2) for _ in range(3))).graph
    for node in graph.nodes:
        if node.name in early:
            node.meta["early_update"] = True
    with write_early_updates(graph):
        pass
    graph.lint()
    return [node.name for node in graph.nodes if node.op == "call_function"]


def updates(p, q, g):
    new = p + g
    later = q.sin()
    other = q * later
    p.copy_(new), q.copy_(other)
    return (later,)


def test_a_write_follows_its_value():
    assert order_of(updates) == ["add", "sin", "mul", "copy_", "copy__1"]
    assert order_of(updates, "add", "mul") == ["add", "copy_", "sin", "mul", "copy__1"]


def passed(p, q, g):
    later = g.sin()
    q.copy_(p)
    return (later,)


def test_a_write_follows_the_inputs():
    """Also the one whose value is an input itself, as in a piece of a graph."""
    assert order_of(passed, "p_1") == ["copy_", "sin"]


def reads_later(p, q, g):
    new = p + g
    view = p.t()
    later = view @ q
    p.copy_(new)
    return (later,)


def test_a_write_follows_the_last_read_of_the_input():
    assert order_of(reads_later, "add") == ["add", "t", "mm", "copy_"]


def both(p, q, g):
    kept = p.clone()
    p.copy_(g * 2), q.copy_(kept)
    return (g,)


def test_a_write_that_reads_another_target_comes_first():
    assert order_of(both, "mul", "clone") == ["clone", "copy__1", "mul", "copy_"]


def exchanged(p, q, g):
    new = g * 2
    later = g.sin()
    q.copy_(p.t()), p.copy_(new)
    return (later,)


def test_a_write_that_reads_another_target_itself_comes_first():
    assert order_of(exchanged, "mul") == ["mul", "sin", "t", "copy_", "copy__1"]
