"""`aot_export_module(..., pre_dispatch=True)`: graphs of ops before autograd, compared with torch's own and with eager."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx as fx
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import nn
from torch._functorch.aot_autograd import aot_export_module as peer_export

import aotgrad
from aotgrad.errors import CaptureError, ExportError
from tests.numerics.against_eager import leaf, plain

aten = torch.ops.aten


class Body(nn.Module):
    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("count", torch.zeros(3))
        self.linear, self.norm, self.function = nn.Linear(3, 3), nn.BatchNorm1d(3), function

    def forward(self, x):
        return self.function(self, x)


def without_gradients(m, x):
    hidden = m.linear(x)
    with torch.no_grad():
        scale = hidden.abs().max()
    return hidden / scale, scale


def autocast(m, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (m.linear(x).float().tanh(),)


def mutations(m, x):
    with torch.no_grad():
        m.count.add_(x.detach().sum(0))
    y = x.sin()
    y.t().mul_(2)
    return y @ m.weight, m.count + 1


def written_argument(m, x):
    x.mul_(2).t().add_(1)
    return x @ m.weight, x.t()


def views(m, x):
    first, second = x.chunk(2)
    return first, second * 2, m.weight.view(-1), x


def rematerialized(m, x):
    return (torch.utils.checkpoint.checkpoint(lambda y: m.linear(y).sin(), x, use_reentrant=False),)


FUNCTIONS: dict[str, Callable] = {
    "autocast": autocast,
    "batch_norm": lambda m, x: (m.norm(m.linear(x)),),
    "checkpoint": rematerialized,
    "dropout": lambda m, x: (F.dropout(m.linear(x)),),
    "einsum": lambda m, x: (torch.einsum("ij,jk->ik", x, m.weight).softmax(-1),),
    "loss": lambda m, x: (F.cross_entropy(m.linear(x), torch.tensor([0, 2, 1, 1])),),
    "mutations": mutations,
    "no_grad": without_gradients,
    "sdpa": lambda m, x: (F.scaled_dot_product_attention(x[None, None], m.linear(x)[None, None], x[None, None]),),
    "views": views,
    "written_argument": written_argument,
}
EVERY = pytest.mark.parametrize("name", FUNCTIONS)


def module_of(name: str) -> Body:
    torch.manual_seed(0)
    return Body(FUNCTIONS[name])


def before_autograd(module: nn.Module, args: tuple, **settings: Any) -> tuple[fx.GraphModule, aotgrad.GraphSignature]:
    return aotgrad.aot_export_module(module, args, trace_joint=False, pre_dispatch=True, **settings)


@EVERY
def test_the_graph_and_its_signature_are_the_peers(name):
    module, x = module_of(name), plain(4, 3)
    (ours, signature), (theirs, other) = (
        export(module, (x,), trace_joint=False, pre_dispatch=True) for export in (aotgrad.aot_export_module, peer_export)
    )
    calls = [[(node.name, str(node.target)) for node in graph.graph.nodes] for graph in (ours, theirs)]
    assert calls[0] == calls[1]
    for field in ("parameters", "buffers", "user_inputs", "user_outputs", "in_spec", "out_spec"):
        assert getattr(signature, field) == getattr(other, field), field
    for field in ("buffers_to_mutate", "parameters_to_mutate", "user_inputs_to_mutate"):
        assert getattr(signature, field) == getattr(other, field), field
    assert signature.backward_signature is None


@EVERY
def test_the_graph_computes_what_eager_does_and_has_its_gradients(name):
    module, x = module_of(name), leaf(4, 3) if name != "written_argument" else plain(4, 3)
    graph, signature = before_autograd(module, (x,))
    expected = copy.deepcopy(module)
    given = [*module.parameters(), *module.buffers(), x.detach().clone().requires_grad_(x.requires_grad)]
    torch.manual_seed(1)
    found = dict(zip((node.name for node in graph.graph.find_nodes(op="output")[0].args[0]), graph(*given), strict=True))
    torch.manual_seed(1)
    results = expected(x)
    outputs = [found[name] for name in signature.user_outputs]
    torch.testing.assert_close(outputs, list(results), atol=0, rtol=0)
    buffers = dict(expected.named_buffers())
    for output, buffer in signature.buffers_to_mutate.items():
        torch.testing.assert_close(found[output], buffers[buffer], atol=0, rtol=0)
    for output in signature.user_inputs_to_mutate:
        torch.testing.assert_close(found[output], x, atol=0, rtol=0)
    assert [value.requires_grad for value in outputs] == [value.requires_grad for value in results]
    torch.autograd.backward(*gradients_into(outputs))
    torch.autograd.backward(*gradients_into(results))
    for tensor, other in zip([*given[:5], given[-1]], [*expected.parameters(), x], strict=True):
        assert (tensor.grad is None) == (other.grad is None)
        if tensor.grad is not None:
            torch.testing.assert_close(tensor.grad, other.grad, atol=0, rtol=0)


def gradients_into(outputs):
    wanted = [value for value in outputs if value.requires_grad]
    return wanted, [torch.cos(value.detach()) for value in wanted]


def test_composite_ops_stay():
    graph, _ = before_autograd(module_of("dropout"), (plain(4, 3),))
    assert graph.graph.find_nodes(op="call_function", target=aten.linear.default)
    assert graph.graph.find_nodes(op="call_function", target=aten.dropout.default)


def test_decompositions():
    table = {aten.linear.default: lambda x, w, b: x @ w.t() + b}
    module, x = module_of("dropout"), plain(4, 3)
    graph, _ = before_autograd(module, (x,), decompositions=table)
    assert not graph.graph.find_nodes(op="call_function", target=aten.linear.default)
    given = [*module.parameters(), *module.buffers(), x]
    results = []
    for function in (lambda: graph(*given), lambda: module(x)):
        torch.manual_seed(0)
        results.append(function()[0])
    torch.testing.assert_close(*results)


def test_symbolic_sizes():
    module = Body(lambda m, x: m.linear(x.view(-1)[: 3 * (x.numel() // 6)].view(-1, 3)))
    graph, _ = before_autograd(module, (plain(4, 3),), dynamic_shapes=True)
    for rows in (4, 7):
        x = plain(rows, 3)
        assert torch.equal(graph(*module.parameters(), *module.buffers(), x)[0], module(x))


def test_a_parameter_under_two_names_that_is_changed():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("first", torch.zeros(2))
            self.register_buffer("second", self.first)

        def forward(self, x, *, by):
            self.first.add_(x["x"][0])
            return {"y": self.second * by}

    graph, signature = before_autograd(Tied(), ({"x": [torch.ones(2)]},), kwargs={"by": 3})
    assert list(signature.buffers_to_mutate.values()) == ["first"]
    updated, result = graph(torch.ones(2), torch.ones(2), torch.ones(2), 3)
    assert updated.tolist() == [2, 2] and result.tolist() == [6, 6]
    assert pytree.tree_unflatten([result], signature.out_spec) == {"y": result}


def test_random_numbers_that_nobody_reads_are_drawn():
    def noisy(m, x):
        torch.rand(3)
        return x + torch.rand(3)

    module, results = Body(noisy), []
    graph, _ = before_autograd(module, (plain(4, 3),))
    for function in (module, lambda x: graph(*module.parameters(), *module.buffers(), x)[0]):
        torch.manual_seed(0)
        results.append(function(torch.ones(4, 3)))
    assert torch.equal(*results)


# --- Where the peer is silently wrong, or fails ----------------------------------------------------------------------


class Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 100


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.weight * 2 if (m.weight * 2).requires_grad else m.weight * 3,
        lambda m, x: m.weight * 2 if (m.weight * 2).grad_fn is not None else m.weight * 3,
        lambda m, x: x * (m.weight if (x * m.weight).requires_grad else m.weight.detach()),
    ],
)
def test_what_such_a_graph_would_get_wrong(function):
    module, x = Body(function), plain(3, 3)
    with pytest.raises(ExportError, match="would not compute what the module does, or have other gradients"):
        before_autograd(module, (x,))


def test_an_autograd_function():
    with pytest.raises(ExportError, match="the backward of Steep, an autograd function, would be lost"):
        before_autograd(Body(lambda m, x: Steep.apply(x * m.weight[0])), (plain(4, 3),))
    assert Steep.apply(leaf(2)).requires_grad


def test_a_reentrant_checkpoint():
    """Its ops run without gradients."""
    function = lambda m, x: torch.utils.checkpoint.checkpoint(m.linear, x, use_reentrant=True)  # noqa: E731
    with pytest.raises(ExportError, match="would not compute what the module does, or have other gradients"):
        before_autograd(Body(function), (leaf(4, 3),))


def test_data_is_cut_off_from_autograd():
    module, x = Body(lambda m, x: m.weight.data * x * m.weight), plain(3, 3)
    graph, _ = before_autograd(module, (x,))
    (gradient,) = torch.autograd.grad(graph(*module.parameters(), *module.buffers(), x)[0].sum(), module.weight)
    torch.testing.assert_close(gradient, module.weight.detach() * x)


def test_a_pickled_graph_runs():
    module, x = module_of("no_grad"), plain(4, 3)
    graph, _ = before_autograd(module, (x,))
    given = [*module.parameters(), *module.buffers(), x]
    for value, other in zip(pickle.loads(pickle.dumps(graph))(*given), graph(*given), strict=True):
        assert torch.equal(value, other)


def test_what_torch_cannot_trace_there():
    with pytest.raises(
        ExportError, match=r"torch cannot trace this module before autograd .*; export with pre_dispatch=False"
    ):
        before_autograd(Body(lambda m, x: torch.vmap(lambda row: row * 2)(x)), (plain(4, 3),))
    with pytest.raises(CaptureError, match="depends on the value of a tensor"):
        before_autograd(Body(lambda m, x: x if x.sum() > 0 else -x), (plain(4, 3),))
    with pytest.raises(ExportError, match="pre_dispatch=True exports a graph before autograd, which has no gradients"):
        aotgrad.aot_export_module(Body(FUNCTIONS["loss"]), (), trace_joint=True, output_loss_index=0, pre_dispatch=True)
