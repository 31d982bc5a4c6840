"""`aot_export_module`: one graph and its signature, compared with torch's own."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch import nn
from torch._functorch.aot_autograd import aot_export_module as peer_export

import aotgrad
from aotgrad.errors import CaptureError, ExportError
from tests.numerics.against_eager import leaf, plain


class Trained(nn.Module):
    """Buffers and an argument change; the second output is not differentiated."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)

    def forward(self, x, y):
        y.mul_(2)
        hidden = self.norm(self.linear(x)).tanh()
        return hidden.square().mean(), (hidden * y).detach()


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        hidden = x @ self.weight
        return hidden.sum(), x.t(), x, hidden.detach()[0], [hidden.detach().exp()][0].view(-1)


class LossIsAView(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x):
        return ((x * self.weight).mean(0).exp().sum().view(1, 1),)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, batch, scale=2, bias=0):
        self.count.add_(1)
        return (batch["x"][0] * self.weight * scale + bias).sum(), self.count.detach() * 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return (self.layer(x).square().sum(),)


MODULES: dict[str, tuple[type[nn.Module], Any]] = {
    "attention": (Attention, lambda: ((plain(2, 3, 8),), {})),
    "loss_is_a_view": (LossIsAView, lambda: ((leaf(4, 3),), {})),
    "nested": (Nested, lambda: (({"x": [leaf(4)]}, 3, plain(4)), {})),
    "trained": (Trained, lambda: ((plain(4, 3), plain(4, 2)), {})),
    "views": (Views, lambda: ((plain(3, 3),), {})),
}
EXPORTS = pytest.mark.parametrize("joint", [False, True], ids=["forward", "joint"])
EVERY = pytest.mark.parametrize("name", MODULES)
BESIDE_THE_PEER = pytest.mark.parametrize(
    ("name", "joint"),
    [(name, joint) for name in MODULES for joint in (False, True) if (name, joint) != ("nested", True)],  # it fails there
)


def made(name: str) -> tuple[nn.Module, tuple, dict]:
    torch.manual_seed(0)
    kind, inputs = MODULES[name]
    return (kind(), *inputs())


def exported(export, module, args, kwargs, joint):
    return export(module, args, trace_joint=joint, output_loss_index=0 if joint else None, kwargs=kwargs)


def flat_inputs(module, args, kwargs):
    own = [*module.parameters(), *module.buffers()]
    return [copied(value) for value in (*own, *pytree.tree_leaves((args, kwargs)))]


def copied(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def outputs_of(graph: fx.GraphModule) -> list[str]:
    (output,) = graph.graph.find_nodes(op="output")
    return [getattr(value, "name", value) for value in output.args[0]]


def values(graph, inputs):
    return dict(zip(outputs_of(graph), graph(*map(copied, inputs)), strict=True))


@BESIDE_THE_PEER
def test_the_graph_computes_what_the_peers_does(name, joint):
    module, args, kwargs = made(name)
    ours, theirs = (exported(export, module, args, kwargs, joint)[0] for export in (aotgrad.aot_export_module, peer_export))
    assert [node.name for node in ours.graph.find_nodes(op="placeholder")] == [
        node.name for node in theirs.graph.find_nodes(op="placeholder")
    ]
    inputs = flat_inputs(module, args, kwargs)
    for value, other in zip(ours(*map(copied, inputs)), theirs(*map(copied, inputs)), strict=True):
        torch.testing.assert_close(value, other)


@BESIDE_THE_PEER
def test_the_signature_is_the_peers(name, joint):
    module, args, kwargs = made(name)
    (ours, signature), (theirs, other) = (
        exported(export, module, args, kwargs, joint) for export in (aotgrad.aot_export_module, peer_export)
    )
    for field in (
        "parameters",
        "buffers",
        "user_inputs",
        "inputs_to_parameters",
        "inputs_to_buffers",
        "in_spec",
        "out_spec",
    ):
        assert getattr(signature, field) == getattr(other, field), field
    for field in ("buffers_to_mutate", "parameters_to_mutate", "user_inputs_to_mutate"):
        assert list(getattr(signature, field).values()) == list(getattr(other, field).values()), field
    assert positions(ours, signature.user_outputs) == positions(theirs, other.user_outputs)
    assert (list(signature.input_tokens), list(signature.output_tokens)) == ([], [])
    backward, theirs_backward = signature.backward_signature, other.backward_signature
    assert (backward is None) == (theirs_backward is None)
    if backward is not None:
        for field in ("gradients_to_parameters", "gradients_to_user_inputs"):
            found, wanted = getattr(backward, field), getattr(theirs_backward, field)
            assert list(found.values()) == list(wanted.values())
            assert positions(ours, found) == positions(theirs, wanted)
        assert backward.loss_output == signature.user_outputs[0]  # the peer names a mutated input, if there is one


def positions(graph, names):
    return [len(outputs_of(graph)) - 1 - outputs_of(graph)[::-1].index(name) for name in names]


@EVERY
def test_the_graph_and_its_signature_are_the_module(name):
    """The signature locates outputs, gradients and changed inputs."""
    module, args, kwargs = made(name)
    graph, signature = exported(aotgrad.aot_export_module, module, args, kwargs, True)
    found = values(graph, flat_inputs(module, args, kwargs))
    expected = copy.deepcopy(module)
    placeholders = dict(zip(signature.user_inputs, pytree.tree_leaves((args, kwargs)), strict=True))
    results = pytree.tree_leaves(expected(*args, **kwargs))
    results[0].backward()
    parameters, buffers = dict(expected.named_parameters()), dict(expected.named_buffers())
    for output, result in zip(signature.user_outputs, results, strict=True):
        torch.testing.assert_close(found[output], result.detach())
    for output, buffer in signature.buffers_to_mutate.items():
        torch.testing.assert_close(found[output], buffers[buffer])
    for output, placeholder in signature.user_inputs_to_mutate.items():
        torch.testing.assert_close(found[output], placeholders[placeholder])
    backward = signature.backward_signature
    assert set(backward.gradients_to_parameters.values()) == set(parameters)
    for output, parameter in backward.gradients_to_parameters.items():
        torch.testing.assert_close(found[output], parameters[parameter].grad)
    for output, placeholder in backward.gradients_to_user_inputs.items():
        torch.testing.assert_close(found[output], placeholders[placeholder].grad)
    torch.testing.assert_close(found[backward.loss_output], results[0].detach())


@EVERY
@EXPORTS
def test_nothing_of_the_users_changes(name, joint):
    module, args, kwargs = made(name)
    before = flat_inputs(module, args, kwargs)
    exported(aotgrad.aot_export_module, module, args, kwargs, joint)
    after = flat_inputs(module, args, kwargs)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True) if isinstance(a, torch.Tensor))
    assert all(parameter.grad is None for parameter in module.parameters())


# --- Alone -----------------------------------------------------------------------------------------------------------


@EVERY
@EXPORTS
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
def test_a_pickled_graph_runs(name, joint):
    module, args, kwargs = made(name)
    graph, signature = exported(aotgrad.aot_export_module, module, args, kwargs, joint)
    again, its_signature = pickle.loads(pickle.dumps((graph, signature)))
    assert its_signature == signature
    inputs = flat_inputs(module, args, kwargs)
    for value, other in zip(again(*map(copied, inputs)), graph(*map(copied, inputs)), strict=True):
        assert torch.equal(value, other)


def test_a_pickled_graph_runs_without_aotgrad(tmp_path):
    module, args, kwargs = made("trained")
    graph, _ = exported(aotgrad.aot_export_module, module, args, kwargs, True)
    torch.save((pickle.dumps(graph), flat_inputs(module, args, kwargs)), tmp_path / "graph.pt")
    program = """
import pickle, sys, torch
data, inputs = torch.load("graph.pt", weights_only=False)
outputs = pickle.loads(data)(*inputs)
assert "aotgrad" not in sys.modules
torch.save(list(outputs), "outputs.pt")
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    for value, other in zip(torch.load(tmp_path / "outputs.pt"), graph(*flat_inputs(module, args, kwargs)), strict=True):
        torch.testing.assert_close(value, other)


def test_the_code_of_a_graph_runs_alone():
    module, args, kwargs = made("trained")
    graph, _ = exported(aotgrad.aot_export_module, module, args, kwargs, True)
    namespace = {"torch": torch, "device": torch.device, "inf": float("inf"), "nan": float("nan")}
    exec(graph.code, namespace)
    inputs = flat_inputs(module, args, kwargs)
    for value, other in zip(namespace["forward"](None, *map(copied, inputs)), graph(*map(copied, inputs)), strict=True):
        assert torch.equal(value, other)


# --- Better than there -----------------------------------------------------------------------------------------------


def test_a_parameter_under_two_names():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return (self.second(self.first(x).tanh()).sum(),)

    module, x = Tied(), plain(3, 2)
    graph, signature = aotgrad.aot_export_module(module, (x,), trace_joint=True, output_loss_index=0)
    assert signature.parameters == ["first.weight", "second.weight"]
    assert list(signature.backward_signature.gradients_to_parameters.values()) == ["first.weight"]
    _, gradient = graph(module.first.weight, module.first.weight, x)
    module(x)[0].backward()
    torch.testing.assert_close(gradient, module.first.weight.grad)


def test_a_parameter_without_a_gradient_has_none():
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

        def forward(self, x):
            return ((x * self.used).sum(),)

    graph, signature = aotgrad.aot_export_module(Partly(), (plain(2),), trace_joint=True, output_loss_index=0)
    assert list(signature.backward_signature.gradients_to_parameters.values()) == ["used"]
    assert len(outputs_of(graph)) == 2


def test_keyword_arguments():
    class Scaled(nn.Module):
        def forward(self, x, *, scale):
            return x * scale["by"]

    graph, signature = aotgrad.aot_export_module(
        Scaled(), (plain(2),), trace_joint=False, kwargs={"scale": {"by": torch.tensor(3.0)}}
    )
    assert signature.user_inputs == ["arg0_1", "arg1_1"]
    assert torch.equal(graph(torch.ones(2), torch.tensor(2.0))[0], torch.full((2,), 2.0))


def test_symbolic_sizes():
    module = nn.Linear(3, 2)
    graph, _ = aotgrad.aot_export_module(module, (plain(4, 3),), trace_joint=False, dynamic_shapes=True)
    for rows in (4, 7):
        x = plain(rows, 3)
        torch.testing.assert_close(graph(module.weight, module.bias, x)[0], module(x))


class Checked(nn.Module):
    """Reads numbers, and checks a condition on which no result depends."""

    def forward(self, x, y):
        count = x.max().item()
        torch._check(count <= 5)
        torch._check(2 * count != y.size(0))
        torch._check(y.nonzero().size(0) > 1)
        torch._assert_async((x > 0).all(), "not positive")
        return torch.zeros(count), y[:count]


def test_checks_are_made_when_the_graph_runs():
    graph, _ = aotgrad.aot_export_module(
        Checked(), (torch.tensor([3, 2]), torch.ones(9)), trace_joint=False, dynamic_shapes=True
    )
    zeros, head = graph(torch.tensor([4, 2]), torch.ones(11))
    assert zeros.shape == head.shape == (4,)
    for x, y, message in (
        (torch.tensor([6, 2]), torch.ones(9), "u0 <= 5"),
        (torch.tensor([4, 2]), torch.ones(8), "Ne"),
        (torch.tensor([4, 2]), torch.zeros(9), "u1"),
        (torch.tensor([4, -2]), torch.ones(9), "not positive"),
    ):
        with pytest.raises(RuntimeError, match=message):
            graph(x, y)


def test_checks_of_a_module_for_one_set_of_inputs():
    compiled = aotgrad.aot_module_simplified(
        Checked(), (torch.tensor([3, 2]), torch.ones(9)), aotgrad.nop, options={"min_graph_ops": 0}
    )
    assert compiled(torch.tensor([4, 2]), torch.ones(9))[1].shape == (4,)
    with pytest.raises(RuntimeError, match="u0 <= 5"):
        compiled(torch.tensor([6, 2]), torch.ones(9))


def test_random_numbers_that_nobody_reads_are_drawn():
    """Later random numbers are then eager's."""

    class Noisy(nn.Module):
        def forward(self, x):
            torch.rand(3)
            return (x + torch.rand(3),)

    for made in (aotgrad.aot_export_module(Noisy(), (plain(3),), trace_joint=False)[0], simple_export(Noisy())):
        results = []
        for function in (Noisy(), made):
            torch.manual_seed(0)
            results.append(function(torch.ones(3))[0])
        assert torch.equal(*results)


def simple_export(module):
    return aotgrad.aot_export_joint_simple(module, (plain(3),), trace_joint=False)


def test_views_of_symbolic_size():
    class Halves(nn.Module):
        def forward(self, x):
            rows, columns = x.shape
            return x[: rows // 2], x.view(columns, rows), x.expand(2, rows, columns)

    graph, _ = aotgrad.aot_export_module(Halves(), (plain(6, 4),), trace_joint=False, dynamic_shapes=True)
    for x in (plain(6, 4), plain(9, 5)):
        assert all(map(torch.equal, graph(x), Halves()(x)))


def test_a_custom_function_in_several_segments():
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, one, other):
            return one * 2 + other * 3

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x):
            first, second = Both.apply(x * self.weight)
            return ((first.sin() + second.cos()).sum(),)

    module, x = Net(), leaf(3)
    graph, signature = aotgrad.aot_export_module(module, (x,), trace_joint=True, output_loss_index=0)
    found = values(graph, [module.weight, x])
    module(x)[0].backward()
    backward = signature.backward_signature
    (gradient,), (of_x,) = backward.gradients_to_parameters, backward.gradients_to_user_inputs
    torch.testing.assert_close(found[gradient], module.weight.grad)
    torch.testing.assert_close(found[of_x], x.grad)


# --- What has no such form -------------------------------------------------------------------------------------------


class Body(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(3)), function

    def forward(self, x):
        return self.function(self, x)


def transposed(module, x):
    x.t_()
    return ((x.sum(0)[:3] * module.weight).sum(),)


LOSS = {"output_loss_index": 0}


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        (lambda m, x: (x.sum(),), LOSS, "output 0 is the loss, but it does not require grad"),
        (lambda m, x: (m.weight * 2,), LOSS, r"its size is \[3\]; it must have one element"),
        (lambda m, x: (m.weight.sum(), m.weight * 2), LOSS, "output 1 requires grad and is not the loss"),
        (lambda m, x: m.weight.sum(), {"output_loss_index": 1}, "output_loss_index is 1, but the module returns 1 values"),
        (lambda m, x: (m.weight.sum(),), {}, "say with output_loss_index which output is the loss"),
        (lambda m, x: (m.weight.sum(),), {"pre_dispatch": True}, "before autograd, which has no gradients"),
        (transposed, LOSS, "is transposed or resized in place"),
        (lambda m, x: (x.mul_(m.weight).sum().detach() + m.weight.sum(),), LOSS, "the new value requires grad"),
    ],
)
def test_what_has_no_loss_or_no_form(function, settings, message):
    with pytest.raises(ExportError, match=message):
        aotgrad.aot_export_module(Body(function), (plain(3, 3),), trace_joint=True, **settings)


def test_arguments_that_share_memory():
    class Shared(nn.Module):
        def forward(self, x, y):
            return x.mul_(2) + y

    x = plain(6)
    with pytest.raises(ExportError, match="pass tensors with memory of their own"):
        aotgrad.aot_export_module(Shared(), (x[:4], x[2:]), trace_joint=False)


def test_control_flow_is_the_traces_error():
    with pytest.raises(CaptureError, match="depends on the value of a tensor"):
        aotgrad.aot_export_module(Body(lambda m, x: x if x.sum() > 0 else -x), (plain(2),), trace_joint=False)
