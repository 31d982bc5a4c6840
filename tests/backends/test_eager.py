"""The eager backend: the graph's own code, with inputs freed as it runs."""

from __future__ import annotations

import weakref

import torch
import torch.fx as fx

from aotgrad.backends.eager import compile_eager, nop


def graph_of(build) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(build(graph))
    return fx.GraphModule({}, graph)


def test_inputs_are_freed_at_their_last_use():
    alive = []

    def watch(value):
        alive.append(reference() is not None)
        return value

    def build(graph):
        x = graph.placeholder("x")
        doubled = graph.call_function(torch.mul, (x, 2))
        return (graph.call_function(watch, (doubled,)),)

    args = [torch.ones(2)]
    reference = weakref.ref(args[0])
    results = compile_eager(graph_of(build), [])(args)
    assert torch.equal(results[0], torch.full((2,), 2.0))
    assert (alive, args) == ([False], [])


def test_a_graph_without_inputs():
    assert compile_eager(graph_of(lambda graph: (1, 2)), [])([]) == (1, 2)


def test_nop_runs_the_graph_as_it_is():
    module = graph_of(lambda graph: (graph.call_function(torch.neg, (graph.placeholder("x"),)),))
    assert nop(module, [])([torch.ones(1)])[0].item() == -1
