"""The workspace of an op while it runs, against torch's memory profiler."""

from __future__ import annotations

import pytest
import torch

from aotgrad.partition.workspace import bytes_needed
from tests.allocations import most_allocated
from tests.partition.joints import grad, joint_of

aten = torch.ops.aten

in_blocks = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available(),
    reason="the blocks are those of oneDNN with AVX512",
)

SHAPES = {  # input, weight, stride, padding, transposed
    "of images": ((4, 3, 64, 64), (16, 3, 3, 3), 1, 1, False),
    "of features": ((4, 16, 64, 64), (16, 16, 3, 3), 1, 1, False),
    "more channels": ((4, 32, 32, 32), (64, 32, 3, 3), 1, 1, False),
    "with a stride": ((4, 64, 16, 16), (128, 64, 3, 3), 2, 1, False),
    "to few channels": ((4, 32, 32, 32), (3, 32, 3, 3), 1, 1, False),
    "transposed": ((4, 128, 8, 8), (128, 64, 2, 2), 2, 0, True),
    "a matrix product": ((4, 16, 64, 64), (3, 16, 1, 1), 1, 0, False),
}


def convolution(shapes):
    *_, stride, padding, transposed = shapes
    return lambda x, w: aten.convolution(x, w, None, [stride] * 2, [padding] * 2, [1, 1], transposed, [0, 0], 1)


@in_blocks
@pytest.mark.parametrize("name", SHAPES)
def test_what_a_convolution_allocates(name):
    shapes = SHAPES[name]
    x, w = grad(*shapes[0]), grad(*shapes[1])
    fn = convolution(shapes)
    graph = joint_of(lambda x, w: fn(x, w).sum(), x, w).module.graph
    (forward,) = graph.find_nodes(op="call_function", target=aten.convolution.default)
    (backward,) = graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    with torch.no_grad():
        y = fn(x, w)
        measured = most_allocated(lambda: fn(x, w))
        assert bytes_needed(forward) + y.nbytes == pytest.approx(measured, rel=0.1)
        measured = most_allocated(lambda: aten.convolution_backward(torch.ones_like(y), x, w, *backward.args[3:]))
    assert bytes_needed(backward) + y.nbytes == pytest.approx(measured, rel=0.1)


def test_the_items_of_a_tuple_are_alive_when_it_is_made():
    graph = joint_of(lambda x: x.topk(2).values.sum(), grad(8, 16)).module.graph
    (node,) = graph.find_nodes(op="call_function", target=aten.topk.default)
    assert bytes_needed(node) == 8 * 2 * (4 + 8)


LOSSES = {
    aten.mse_loss: aten.mse_loss,
    aten.smooth_l1_loss: aten.smooth_l1_loss,
    aten.huber_loss: aten.huber_loss,
    aten.soft_margin_loss: aten.soft_margin_loss,
    aten.binary_cross_entropy: lambda x, y, reduction: aten.binary_cross_entropy(x, y, None, reduction),
    aten.logsumexp: lambda x, y, reduction: aten.logsumexp(x, [1], reduction == 0),
}


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("op", LOSSES, ids=str)
def test_what_a_loss_allocates(op, reduction: int):
    x, y, loss = torch.rand(64, 32), torch.rand(64, 32), LOSSES[op]
    graph = joint_of(lambda x, y: loss(x, y, reduction).sum(), x.clone().requires_grad_(), y).module.graph
    (node,) = graph.find_nodes(op="call_function", target=op.default)
    result = loss(x, y, reduction)
    assert bytes_needed(node) + result.nbytes == pytest.approx(most_allocated(lambda: loss(x, y, reduction)), rel=0.05)
