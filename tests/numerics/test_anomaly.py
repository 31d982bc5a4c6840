"""Anomaly mode: a NaN in a compiled backward is reported with its op and line, and nodes record their creation."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import aotgrad

from .against_eager import ALL, compiled, leaf

# Anomaly mode warns that it is on, and prints the traceback of the forward as a warning.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:Error detected in:UserWarning"),
]


def infinite_slope(x):
    y = x * 2
    root = torch.sqrt(y - y)
    return root * x


def finite(x):
    return (x.exp() + 1).log()


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("backend", ALL)
def test_a_nan_is_located(backend: str, create_graph: bool) -> None:
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.detect_anomaly():
        with pytest.raises(RuntimeError, match="returned nan values"):
            torch.autograd.grad(infinite_slope(x).sum(), x, create_graph=create_graph)
        y = compiled(infinite_slope, backend)(x).sum()
        with pytest.raises(RuntimeError, match="returned nan values") as raised:
            torch.autograd.grad(y, x, create_graph=create_graph)
    message = str(raised.value)
    assert "aten.add.Tensor" in message and "for aten.sub.Tensor" in message, "the sum of two infinite terms"
    assert "root = torch.sqrt(y - y)" in message and __file__ in message


def test_the_forward_line_is_told_as_a_warning_as_in_eager(halves) -> None:
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.detect_anomaly():
        y = aotgrad.aot_function(infinite_slope, halves)(x)
        with pytest.raises(RuntimeError), pytest.warns(UserWarning, match="return root \\* x"):
            y.sum().backward()


@pytest.mark.parametrize("backend", ALL)
def test_without_a_nan_the_gradients_are_the_same(backend: str) -> None:
    x = leaf(3)
    (expected,) = torch.autograd.grad(finite(x).sum(), x)
    with torch.autograd.detect_anomaly():
        (actual,) = torch.autograd.grad(compiled(finite, backend)(x).sum(), x)
    assert torch.equal(actual, expected)


def test_a_nan_that_no_gradient_depends_on_is_no_anomaly(halves) -> None:
    """The output that causes a NaN is unused: its part of the backward does not run."""
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    with torch.autograd.detect_anomaly():
        a, _ = aotgrad.aot_function(lambda x, y: (finite(x), infinite_slope(y)), halves)(x, y)
        a.sum().backward()
    assert x.grad is not None and y.grad is None


def test_nothing_is_looked_for_without_check_nan(halves) -> None:
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=False):
        (gradient,) = torch.autograd.grad(aotgrad.aot_function(infinite_slope, halves)(x).sum(), x)
    assert gradient.isnan().all()


class WhoRuns(TorchDispatchMode):
    """The autograd node that each op runs in."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.nodes[func] = torch._C._current_autograd_node()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("backend", ["nop", "dynamo"])
def test_the_running_node_is_the_regions_and_knows_where_it_was_made(backend: str) -> None:
    def function(x):
        return x.sin()

    x, under_test = leaf(3), compiled(function, backend)
    with torch.autograd.detect_anomaly(check_nan=False):
        y = under_test(x)
        with WhoRuns() as ran:
            y.sum().backward()
    node = ran.nodes[torch.ops.aten.cos.default]
    assert node is y.grad_fn
    frames = "".join(node.metadata["traceback_"])
    assert "y = under_test(x)" in frames
    assert "return x.sin()" in frames.rpartition("File")[2], "the line of the op that made the output comes last"
    assert "aotgrad/aotgrad" not in frames and "aotgrad plan" not in frames
