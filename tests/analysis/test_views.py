"""View chains extracted from a graph, and the result of replaying them."""

from __future__ import annotations

import pytest
import torch
import torch.fx as fx
from torch.fx.experimental.proxy_tensor import make_fx

from aotgrad.analysis.views import chain_from, detaches, replay_by_geometry, replay_of_chain
from aotgrad.graph.geometry import Geometry

aten = torch.ops.aten


def traced(function, x: torch.Tensor) -> tuple[fx.Node, fx.Node]:
    """The placeholder and the result node of a traced function."""
    graph = make_fx(function, tracing_mode="fake")(x).graph
    (placeholder,) = graph.find_nodes(op="placeholder")
    (output,) = graph.find_nodes(op="output")
    return placeholder, output.args[0]


def replayed(base: torch.Tensor, steps) -> torch.Tensor:
    for step in steps:
        base = step.op(base, *step.args, **dict(step.kwargs))
        base = base if step.item is None else base[step.item]
    return base


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t()[0],
        lambda x: x.view(3, 4)[:, 1:3].unsqueeze(0),
        lambda x: x.split(2, dim=1)[1],
        lambda x: x.unbind(0)[2].expand(5, 3),
        lambda x: x.diagonal().detach(),
        lambda x: torch.view_as_complex(x.view(6, 2)).real,
        lambda x: x.view(torch.int32),
        lambda x: x,
    ],
)
def test_a_replayed_chain_is_the_view(view):
    x = torch.randn(4, 3)
    root, result = traced(view, x)
    found, steps = chain_from(result)
    assert found is root
    expected, made = view(x), replayed(x, steps)
    assert torch.equal(made, expected)
    assert made.stride() == expected.stride()
    assert made.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_a_chain_stops_at_what_is_no_view():
    _, result = traced(lambda x: (x + 1).t()[0], torch.randn(4, 3))
    root, steps = chain_from(result)
    assert root.target is aten.add.Tensor
    assert [step.op for step in steps] == [aten.t.default, aten.select.int]


def test_a_chain_stops_where_it_is_told():
    _, result = traced(lambda x: x.t()[0], torch.randn(4, 3))
    stop = result.args[0]
    root, steps = chain_from(result, stops={stop})
    assert root is stop
    assert [step.op for step in steps] == [aten.select.int]


def test_detaches():
    graph = fx.Graph()
    detached = graph.call_function(aten.detach.default, (graph.placeholder("x"),))
    assert detaches(chain_from(graph.call_function(aten.t.default, (detached,)))[1])
    _, result = traced(lambda x: x.t(), torch.randn(2, 2))
    assert not detaches(chain_from(result)[1])


def test_replay_by_geometry_lays_out_the_same_memory():
    x = torch.arange(12.0)
    view = x.view(3, 4)[1:, ::2]
    replay = replay_by_geometry(Geometry.of(view), False, False, False, "of a test")
    assert torch.equal(replayed(x, replay.steps), view)
    assert (replay.grad_mode, replay.reason) == (False, "as_strided, because of a test")


def test_replay_of_chain_keeps_the_steps():
    steps = chain_from(traced(lambda x: x.t(), torch.randn(2, 2))[1])[1]
    assert replay_of_chain(steps, None).steps == steps
