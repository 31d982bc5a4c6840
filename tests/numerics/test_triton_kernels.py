"""User Triton kernels: the traced operator around a kernel call; with the package, torch's form of real ones."""

from __future__ import annotations

import pytest
from torch._higher_order_ops import triton_kernel_wrap

import aotgrad
from aotgrad.errors import CaptureError
from tests.numerics.against_eager import AOT, assert_like_eager, leaf, non_leaf, plain
from tests.numerics.triton_kernels import Add, add, launch

every_backend = pytest.mark.parametrize("backend", AOT)


@pytest.fixture
def writes(monkeypatch):
    """Declares the written arguments of a kernel, which torch detects with a device: without one, it assumes all."""

    def to(*names):
        monkeypatch.setattr(triton_kernel_wrap, "get_mutated_tensors", lambda *_: list(names))

    to("out")
    return to


def graph_of(function, *args):
    """The forward graph."""
    graphs = []
    aotgrad.aot_function(function, lambda graph, _: graphs.append(graph) or aotgrad.make_boxed_func(graph.forward))(*args)
    return graphs[0].graph


@every_backend
def test_a_kernel(backend, writes):
    assert_like_eager(lambda x, y: add(x, y, 3.0).cos(), lambda: (plain(5), plain(5)), backend)


@every_backend
def test_a_kernel_of_which_nothing_is_known(backend):
    assert_like_eager(lambda x, y: add(x * 2, y).cos(), lambda: (leaf(5), plain(5)), backend)


@every_backend
def test_a_kernel_is_hidden_from_autograd(backend, writes):
    """Its results have no history: gradients flow around it."""
    assert_like_eager(lambda x, y: add(x, y) * x, lambda: (leaf(5), leaf(5)), backend)


@every_backend
@pytest.mark.parametrize("make", [plain, leaf, non_leaf])
def test_a_kernel_that_changes_an_input(backend, make, writes):
    """The version counter stays, as it does in eager."""

    def function(x, y):
        launch(x.detach(), y, x)
        return x * y

    assert_like_eager(function, lambda: (make(5), leaf(5)), backend)


@every_backend
def test_a_kernel_that_changes_a_part_of_an_input(backend, writes):
    def function(x, y):
        launch(x[:2], y[:2], x[2:4])
        return x.sin()

    assert_like_eager(function, lambda: (plain(5), leaf(5)), backend)


@every_backend
def test_kernels_in_both_directions(backend, writes):
    assert_like_eager(lambda x, y: Add.apply(x, y).cos(), lambda: (leaf(5), leaf(5)), backend)


@pytest.mark.parametrize("budget", [0.0, 0.5])
def test_kernels_within_a_budget(budget, writes):
    """A kernel runs once: only its results that are read are saved."""
    options = {"memory_budget": budget}
    assert_like_eager(lambda x, y: (Add.apply(x, y) * x).sin(), lambda: (leaf(5), leaf(5)), "nop", options=options)


@every_backend
def test_symbolic_sizes(backend, writes):
    assert_like_eager(lambda x, y: Add.apply(x, y).cos(), lambda: (leaf(5), leaf(5)), backend, dynamic=True)


def test_the_call_in_the_graph(writes):
    graph = graph_of(lambda x, y: Add.apply(x, y), leaf(5), leaf(5))
    (call,) = (node for node in graph.nodes if node.target is triton_kernel_wrap.triton_kernel_wrapper_functional)
    assert call.kwargs["tensors_to_clone"] == ["out"]
    assert [node.args[1] for node in call.users] == ["out"]
    assert "launch" in call.meta["stack_trace"]


def overlapping(x, y):
    launch(x[:4], y[:4], x[1:5])
    return x * 1


def two_results(x, y):
    launch(x, y, x)
    return x * 1


@pytest.mark.parametrize(
    ("function", "written"), [(overlapping, ["out"]), (two_results, ["x", "out"])], ids=["overlapping", "two results"]
)
def test_shared_memory_is_refused(function, written, writes):
    writes(*written)
    compiled = aotgrad.aot_function(function, aotgrad.nop)
    with pytest.raises(CaptureError, match="gets 'x' and 'out', which share memory"):
        compiled(plain(5), plain(5))


def test_shared_memory_of_symbolic_size_is_refused(writes):
    compiled = aotgrad.aot_function(overlapping, aotgrad.nop, dynamic=True)
    with pytest.raises(CaptureError, match="share memory"):
        compiled(plain(5), plain(5))


def test_a_kernel_that_works_in_place(writes):
    assert_like_eager(two_results, lambda: (plain(5), plain(5)), "nop")
