"""Kept calls that change arguments, as a batch norm its running statistics: one node that returns their new values."""

from __future__ import annotations

import runpy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad.backends import CallArgument, FunctionalizedCall, FunctionBackend, KeptBackward
from aotgrad.backends.eager import compile_eager

from .test_keep import Keeping, both_frontends, results_and_gradients, tensors
from .test_keep_inside import trained

both_sizes = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])


def statistics(channels=4):
    return [torch.linspace(-1, 1, channels), torch.linspace(1, 2, channels)]


def outcome(function, args, state, order=1):
    """Results, gradients and the arguments that changed, with their versions."""
    state = [each.clone() for each in state]
    found = results_and_gradients(lambda *args: function(*args, *state), args, order)
    return [*found, *state], [each._version for each in state]


def compiled_by(backend, function, dynamo=False, dynamic=None):
    if not dynamo:
        return aotgrad.aot_function(function, backend, dynamic=dynamic)
    torch._dynamo.reset()
    return torch.compile(function, backend=aotgrad.DynamoBackend(backend), fullgraph=True, dynamic=dynamic)


def assert_changes_like_eager(function, backend, shapes, state=None, order=1, **options):
    args, state = tensors(*shapes), statistics() if state is None else state
    compiled = compiled_by(backend, function, **options)
    for _ in range(2):
        torch.testing.assert_close(outcome(compiled, args, state, order), outcome(function, args, state, order))
    return compiled


def normalized(x, w, b, mean, var):
    return F.batch_norm(x * 2, mean, var, w, b, training=True, momentum=0.25).sin()


NORMALIZED = [(3, 4, 5), (4,), (4,)]


@both_frontends
@both_sizes
def test_a_batch_norm_in_training_is_one_node(dynamo, dynamic):
    backend = Keeping()
    compiled = assert_changes_like_eager(normalized, backend, NORMALIZED, dynamo=dynamo, dynamic=dynamic)
    (forward,), (backward,) = backend.targets("forward"), backend.targets("backward")
    assert isinstance(forward, FunctionalizedCall) and forward.function is F.batch_norm and len(forward.changed) == 2
    assert isinstance(backward, KeptBackward) and len(backward.outputs) == 3
    assert not any("running" in each or "changed" in each for each in backward.inputs)
    args, state = tensors((5, 4, 5), (4,), (4,)), statistics()
    torch.testing.assert_close(outcome(compiled, args, state), outcome(normalized, args, state))


@both_frontends
@both_sizes
def test_gradients_of_gradients(dynamo, dynamic):
    assert_changes_like_eager(normalized, Keeping(), NORMALIZED, order=2, dynamo=dynamo, dynamic=dynamic)


def test_a_call_that_is_not_supported_runs_in_an_island():
    backend = Keeping(unsupported={F.batch_norm})
    assert_changes_like_eager(normalized, backend, NORMALIZED)
    assert backend.kept() == [] == backend.kept("backward") and len(backend.graphs) > 2


def test_no_gradient_of_some_arguments():
    x, w, b = tensors(*NORMALIZED)
    backend = Keeping()
    compiled, state = aotgrad.aot_function(normalized, backend), statistics()
    found = torch.autograd.grad(compiled(x, w, b, *state).sum(), b)
    torch.testing.assert_close(found, torch.autograd.grad(normalized(x, w, b, *statistics()).sum(), b))
    (narrow,) = backend.targets("backward")
    assert narrow.outputs == ("kwargs['bias']",)


def test_backwards_that_are_repeated():
    def twice(function):
        args, state = tensors(*NORMALIZED), statistics()
        loss = function(*args, *state).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
        return [each.grad for each in args], state

    torch.testing.assert_close(twice(aotgrad.aot_function(normalized, Keeping())), twice(normalized))


def test_eager_halves_run_the_node():
    backend = FunctionBackend("eager", compile_eager, fuses=False, keep=frozenset({F.batch_norm}))
    compiled = assert_changes_like_eager(normalized, backend, NORMALIZED)
    graph = compiled.plans()[0].executable.partition.forward.module.graph
    assert "batch_norm_functional" in [getattr(node.target, "__name__", None) for node in graph.nodes]


def chained(x, w, b, mean, var):
    """The second call reads what the first one has written."""
    first = F.batch_norm(x, mean, var, w, b, training=True)
    return F.batch_norm(first.relu(), mean, var, w, None, training=True, momentum=0.5) + mean[:, None]


def only_some(x, w, b, mean, var):
    return F.batch_norm(x.detach(), mean, var, w, training=True)


def read_before_and_after(x, w, b, mean, var):
    before = mean * x[0, :, 0]
    return F.batch_norm(x, mean, var, w, b, training=True) * var[:, None], before.sum() + (mean + 1).sum()


def alternating(x, w, b, mean, var):
    y = F.batch_norm(x, mean, var, w, b, training=True)
    return F.batch_norm(y, mean, var, w, b, training=False).tanh()


def without_gradients(x, w, b, mean, var):
    with torch.no_grad():
        y = F.batch_norm(x, mean, var, w, b, training=True)
    return y * x


def twice_recomputed(x, w, b, mean, var):
    return checkpoint(lambda x: F.batch_norm(x, mean, var, w, b, training=True).sin(), x, use_reentrant=False)


def of_other_dtypes(x, w, b, mean, var):
    return F.batch_norm(x.bfloat16(), mean, var, w.float(), b.float(), training=True).float()


VARIED = [chained, only_some, without_gradients, of_other_dtypes]


@both_frontends
@pytest.mark.parametrize("function", VARIED, ids=lambda each: each.__name__)
def test_calls_in_other_places(function, dynamo):
    backend = Keeping()
    assert_changes_like_eager(function, backend, NORMALIZED, dynamo=dynamo)
    assert "batch_norm_functional" in backend.kept() or "batch_norm_functional" in backend.kept("inference")


@both_frontends
@pytest.mark.parametrize("function", [read_before_and_after, alternating, twice_recomputed], ids=lambda each: each.__name__)
def test_new_statistics_that_the_function_reads_take_the_call_apart(function, dynamo):
    backend = Keeping()
    assert_changes_like_eager(function, backend, NORMALIZED, dynamo=dynamo)
    assert "batch_norm_functional" not in backend.kept()


@pytest.mark.parametrize("function", [chained, read_before_and_after, alternating], ids=lambda each: each.__name__)
@both_sizes
def test_gradients_of_gradients_in_other_places(function, dynamic):
    assert_changes_like_eager(function, Keeping(), NORMALIZED, order=2, dynamic=dynamic)


def test_statistics_that_are_views_take_the_call_apart():
    def function(x, both):
        return F.batch_norm(x, both[0], both[1], training=True).sin()

    backend = Keeping()
    assert_changes_like_eager(function, backend, [(3, 4)], state=[torch.stack(statistics())])
    assert "batch_norm_functional" not in backend.kept()


def test_a_module_in_training_and_in_evaluation():
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))

    plain, model, backend = make(), make(), Keeping()
    compiled, inputs = aotgrad.aot_module(model, backend), torch.randn(3, 2, 3, 6, 6)
    for x in inputs:
        for each in (plain, compiled):
            each(x).square().mean().backward()
    for each in (plain, compiled):
        each.eval()
    torch.testing.assert_close(compiled(inputs[0]), plain(inputs[0]))
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
    torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])
    assert backend.kept().count("batch_norm_functional") == 2 and backend.kept().count("batch_norm") == 2


def test_a_step():
    def make():
        return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(5), nn.Tanh())

    backend = Keeping()
    torch.testing.assert_close(trained(make, backend), trained(make))
    assert {"batch_norm_functional", "batch_norm_backward"} <= set(backend.kept("step"))


def test_a_kernel_of_ones_own_returns_the_new_statistics():
    class Kernel(Keeping):
        def compile(self, graph, inputs, role):
            for node in graph.graph.nodes:
                if isinstance(node.target, FunctionalizedCall):
                    assert node.target.changed == ("args[1]", "args[2]") and node.kwargs["momentum"] == 0.25
                    node.target = lambda x, mean, var, *args, **kwargs: (x * 3, mean + 1, var * 2)
                elif isinstance(node.target, KeptBackward):
                    assert node.target.args[1:3] == (CallArgument("args[1]"), CallArgument("args[2]"))
            return super().compile(graph, inputs, role)

    def function(x, mean, var):
        return F.batch_norm(x, mean, var, training=True, momentum=0.25).exp()

    state, (x,) = statistics(), tensors((3, 4))
    result = aotgrad.aot_function(function, Kernel())(x, *state)
    torch.testing.assert_close(result, (x * 3).exp())
    torch.testing.assert_close(state, [statistics()[0] + 1, statistics()[1] * 2])


def counting(x, state, *, scale=1.0):
    """A function of a program that changes an argument, and returns another tensor."""
    if has_torch_function((x, state["count"])):
        return handle_torch_function(counting, (x, state["count"]), x, state, scale=scale)
    state["count"].add_(1)
    return x.sin() * scale + state["count"]


def test_an_argument_in_a_container():
    backend = Keeping(frozenset({counting}))
    assert_changes_like_eager(
        lambda x, count: counting(counting(x, {"count": count}).sin(), {"count": count}, scale=2.0),
        backend,
        [(3,)],
        state=[torch.zeros(3)],
    )
    assert backend.kept() == ["counting_functional"]  # the second call reads what the first one changes


def test_an_argument_that_requires_grad_takes_the_call_apart():
    backend = Keeping(frozenset({counting}))
    assert_changes_like_eager(lambda x, y: counting(x, {"count": y * 2}).sin(), backend, [(3,), (3,)], state=[])
    assert backend.kept() == []


class Wrong(Keeping):
    def compile(self, graph, inputs, role):
        for node in graph.graph.nodes:
            if isinstance(target := node.target, FunctionalizedCall):
                node.target = lambda *args, target=target, **kwargs: tuple(2 * each for each in target(*args, **kwargs))
        return super().compile(graph, inputs, role)


wrong = Wrong()


def test_a_script_has_the_call(tmp_path):
    def function(x, mean, var):
        return F.batch_norm(x, mean, var, training=True).sin()

    path = tmp_path / "repro.py"
    repro = aotgrad.debug.minify(function, [*tensors((3, 4)), *statistics()], f"{__name__}:wrong", path=path)
    assert "FunctionalizedCall(torch.nn.functional.batch_norm" in repro.script
    with pytest.raises(AssertionError, match="differs: output"):
        runpy.run_path(str(path), run_name="__main__")


def test_a_file_has_the_call(tmp_path):
    args, state = tensors(*NORMALIZED), statistics()
    compiled = aotgrad.aot_function(normalized, Keeping())
    wanted = outcome(compiled, args, state)
    torch.testing.assert_close(wanted, outcome(normalized, args, state))
    aotgrad.save(compiled, tmp_path / "plan")
    backend = Keeping()
    loaded = aotgrad.load(tmp_path / "plan", backend=backend)
    torch.testing.assert_close(outcome(loaded, args, state), wanted)
    assert backend.kept() == ["batch_norm_functional"]
    with pytest.raises(aotgrad.errors.ShippingError, match="batch_norm"):
        aotgrad.load(tmp_path / "plan", backend=Keeping(frozenset()))
