"""Feature tests of `aotgrad/torch_compat/compiled_autograd.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
import torch.fx as fx
from torch._dynamo import compiled_autograd
from torch.testing._internal.two_tensor import TwoTensor

from aotgrad import torch_compat as compat
from aotgrad.frontends.list_inputs import taking_lists, with_items


def recorded() -> int:
    return torch._dynamo.utils.counters["compiled_autograd"]["captures"]


def test_no_compiled_autograd():
    x = torch.ones(2, requires_grad=True)
    before = recorded()
    with compiled_autograd._enable(lambda graph: graph):
        with compat.no_compiled_autograd():
            x.sin().sum().backward()
        assert recorded() == before
        x.sin().sum().backward()
    assert recorded() == before + 1


@dataclass
class Doubled:
    """A node that computes `a * sizes[0] * first`, where `a` was saved. Implements `InlinedNode`."""

    defined: list = field(default_factory=list)

    def graph(self, defined) -> fx.GraphModule:
        self.defined.append(list(defined))
        graph = fx.Graph()
        size, a, gradient = map(graph.placeholder, ("size", "a", "gradient"))
        product = graph.call_function(torch.ops.aten.mul.Tensor, (gradient, a))
        graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (product, size)), None))
        return fx.GraphModule({}, graph)

    def inputs(self, saved, sizes, unused, tangents) -> list:
        return [*sizes, *saved, *(tangent for tangent in tangents if tangent is not None)]

    def results(self, gradients) -> tuple:
        return tuple(gradients)


class Outside(torch.autograd.Function):
    """The function of the nodes under test."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(a)
        ctx.sizes = (a.size(0),)
        return a * 1, b * 1

    @staticmethod
    def backward(ctx, *gradients):
        node = compat.recorded_node(ctx)
        assert node is not None and node.sizes == ctx.sizes and len(compat.next_nodes(node)) == 2
        (a,) = ctx.saved_tensors
        return gradients[0] * a * ctx.sizes[0], None


@pytest.fixture
def chosen() -> Iterator[list]:
    """What nodes of `Outside` become: the last item."""
    chosen: list = []
    compat.compile_nodes_of(Outside, lambda ctx: chosen[-1], lambda ctx: ctx.sizes)
    yield chosen
    torch._dynamo.reset()


@pytest.mark.skipif(not compat.can_inline(), reason="torch < 2.13 asks no function how its graph is called")
def test_the_graph_of_a_node_is_copied(chosen):
    node: compat.InlinedNode = Doubled()
    chosen.append(compat.inlined(Outside, node))
    before = recorded()
    with compiled_autograd._enable(lambda graph: graph):
        for size in (3, 4, 5):
            a, b = torch.rand(size, requires_grad=True), torch.rand(size, requires_grad=True)
            Outside.apply(a, b)[0].sum().backward()
            assert torch.equal(a.grad, a.detach() * size) and b.grad is None
    assert recorded() <= before + 2
    assert {tuple(each) for each in node.defined} == {(True, False)}


def test_a_node_may_run_outside_of_the_graph(chosen):
    chosen.append(Outside)
    a, b = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
    with compiled_autograd._enable(lambda graph: graph):
        Outside.apply(a, b)[0].sum().backward()
    assert torch.equal(a.grad, a.detach() * 3)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
def test_gradients_of_wrappers_are_accumulated_for_leaves():
    seen = []

    def backend(module, inputs):
        flat, values = with_items(module, inputs)
        compat.accumulate_into_leaves(flat, values)
        calls = [node for node in flat.graph.nodes if str(node.target).endswith("AccumulateGrad")]
        seen.extend(node.args[1].op for node in calls)
        return taking_lists(flat.forward)

    x = TwoTensor(torch.ones(3), torch.ones(3)).requires_grad_()
    with (
        compat.reset_dynamo(),
        compiled_autograd._enable(torch.compile(backend=backend)),
    ):
        (x.sin() * x).sum().backward()
    assert seen == ["call_function"]
    assert torch.allclose(x.grad.a, torch.ones(3).sin() + torch.ones(3).cos())


class WithoutGradient(Outside):
    """Its nodes return no gradients."""

    @staticmethod
    def forward(ctx, a, b):
        return a * b

    @staticmethod
    def backward(ctx, gradient):
        return None, None


def test_gradients_are_added_if_they_are_defined():
    """With nodes of ours; torch adds `None`, and raises."""
    compat.compile_nodes_of(WithoutGradient, lambda ctx: WithoutGradient, lambda ctx: ())
    a = torch.ones(2, requires_grad=True)
    with compiled_autograd._enable(lambda graph: graph):
        (WithoutGradient.apply(a, a) + a.sin()).sum().backward()
    assert torch.equal(a.grad, a.detach().cos())


def test_a_call_in_a_graph_is_not_traced_and_may_break_it():
    seen = []

    def double(x):
        seen.append(type(x))
        if x.dim() == 2 and compat.FakeTensor in seen[-1:]:
            raise compat.graph_break("two dimensions")
        return x * 2

    call = compat.called_in_graph(double)
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: call(x + 1) + 1, backend=keep)
    assert compiled(torch.ones(2)).tolist() == [5, 5] and len(graphs) == 1
    assert any(node.target is call for node in graphs[0].graph.nodes) and compat.FakeTensor in seen
    assert compiled(torch.ones(1, 1)).tolist() == [[5]] and len(graphs) > 2  # those before and after the call
