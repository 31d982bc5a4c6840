"""What the `inductor` backend does to a graph before Inductor sees it."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._inductor import config
from torch._inductor.utils import fresh_cache

import aotgrad
from aotgrad import backends, torch_compat
from aotgrad.backends.inductor.backend import settings_for
from tests.fuzz.ways import by_inductor


@pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
def test_views_of_a_result_lie_as_in_eager() -> None:
    """The graph returns their base, whose layout Inductor would choose."""
    module = torch.nn.ConvTranspose2d(4, 5, 3)
    x = torch.randn(4, 3, 4)  # without a batch: the result is a view of one with a batch
    torch._dynamo.reset()
    with fresh_cache():
        compiled = torch.compile(module, backend="aotgrad", options={"min_graph_ops": 0, "cache": False})
        assert compiled(x).stride() == module(x).stride()


def two_convolutions(x, first, second):
    return torch.conv2d(torch.conv2d(x, first).relu(), second).sin()


@pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="Inductor lays out weights anew for oneDNN")
def test_a_weight_that_the_forward_lays_out_anew_is_saved_as_it_is() -> None:
    """The copy would take memory that eager does not need, and would not change with the weight."""

    def step(function, changes: bool) -> list[torch.Tensor] | str:
        torch.manual_seed(0)
        inputs = [torch.randn(*size, requires_grad=True) for size in ((2, 3, 8, 8), (4, 3, 3, 3), (5, 4, 3, 3))]
        result = function(*inputs)
        if changes:
            with torch.no_grad():
                inputs[2].mul_(2)
        try:
            return torch.autograd.grad(result.sum(), inputs)
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error)

    saved: list[torch.Tensor] = []
    torch._dynamo.reset()
    with fresh_cache():
        compiled = torch.compile(two_convolutions, backend="aotgrad", options={"cache": False})
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
            torch.testing.assert_close(step(compiled, False), step(two_convolutions, False), rtol=1e-5, atol=1e-5)
        assert step(two_convolutions, True) is step(compiled, True) is True
        torch.testing.assert_close(step(compiled, False), step(two_convolutions, False), rtol=1e-5, atol=1e-5)
    ours, eagers = ([t.stride() for t in some if t.size() == (5, 4, 3, 3)] for some in (saved[:-6], saved[-6:]))
    assert ours == eagers == [(36, 9, 3, 1)]


@pytest.mark.parametrize("with_gradient", [False, True])
def test_a_workspace_has_the_size_that_the_processor_needs(with_gradient: bool) -> None:
    """oneDNN's kernel of a recurrent layer saves more bytes than its fake result has."""
    torch.manual_seed(0)
    model, x = nn.LSTM(8, 16, batch_first=True), torch.randn(2, 5, 8, requires_grad=with_gradient)
    compiled = aotgrad.aot_module(model, "inductor")
    wanted = [*model.parameters(), *([x] if with_gradient else [])]
    for expected, found in zip(model(x)[1], compiled(x)[1], strict=True):
        torch.testing.assert_close(found, expected)
    expected, found = (torch.autograd.grad(run(x)[0].square().sum(), wanted) for run in (model, compiled))
    torch.testing.assert_close(found, expected)


def test_every_op_that_inductor_expects_taken_apart_is() -> None:
    """Or Inductor has a lowering: it raises for an op with only a decomposition."""
    from torch._inductor.lowering import lowerings

    ours = backends.get("inductor").decompositions()
    expected = torch_compat.inductor_decompositions()
    assert [op for op in expected if op not in ours and op not in lowerings] == []


MODES = {"bilinear": 4, "bicubic": 4, "trilinear": 5}


@pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("mode", MODES)
def test_inductor_takes_what_is_not_taken_apart_as_it_is(mode: str, dynamic: bool) -> None:
    """Eager's kernels do the resizing, because torch's decompositions round differently."""

    def resized(x):
        return F.interpolate(x, scale_factor=2.0, mode=mode) * 2

    x = torch.randn(2, 3, *(4,) * (MODES[mode] - 2), requires_grad=True)
    found = []
    with fresh_cache(), config.patch(implicit_fallbacks=False):
        compiled = by_inductor(resized, aotgrad.nop, dynamic=dynamic)
        for function in (compiled, resized):
            result = function(x)
            found.append((result, *torch.autograd.grad(result.sin().sum(), x)))
    torch.testing.assert_close(*found)


def test_a_setting_of_inductor_in_the_options_also_chooses_its_decompositions() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5).sin()

    compiled = aotgrad.aot_function(function, "inductor", options={"inductor": {"fallback_random": True}})
    x = torch.ones(64)
    torch.manual_seed(1)
    expected = function(x)
    torch.manual_seed(1)
    torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize(("draws", "settings"), [(1, {}), (2, {"reorder_for_peak_memory": False})])
def test_ops_that_draw_from_the_generator_keep_their_order(draws: int, settings: dict[str, bool]) -> None:
    """Inductor would move them to lower the peak, and then they draw each other's numbers."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output([graph.call_function(torch.ops.aten.bernoulli.default, (x,)) for _ in range(draws)])
    assert settings_for(graph) == settings


def test_a_backward_has_the_settings_of_its_forward(monkeypatch) -> None:
    """Also in a thread of its own: those of autograd's devices have Inductor's defaults."""
    compile, seen = torch_compat.inductor_compile, []

    def recorded(*args, **kwargs):
        seen.append((config.fallback_random, config.max_fusion_size))
        return compile(*args, **kwargs)

    monkeypatch.setattr(torch_compat, "inductor_compile", recorded)
    x = torch.rand(8, requires_grad=True)
    compiled = aotgrad.aot_function(lambda x: x.sin().exp(), "inductor", options={"early_backward": False})
    with config.patch(fallback_random=True, max_fusion_size=3):
        loss = compiled(x).sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    torch.testing.assert_close(x.grad, torch.autograd.grad(x.sin().exp().sum(), x)[0])
    assert seen == [(True, 3)] * 2
