"""Tensors that graphs with eager halves take apart by one op."""

from __future__ import annotations

import pytest
import torch
import torch.fx as fx
from torch.fx.experimental.proxy_tensor import make_fx

import aotgrad
from aotgrad.backends.slices import take_apart_at_once

aten = torch.ops.aten


def ops_of(module: fx.GraphModule) -> list[str]:
    return [
        str(node.target) for node in module.graph.nodes if node.op == "call_function" and "getitem" not in str(node.target)
    ]


def slices(x, sizes, dim=0):
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    return [aten.slice.Tensor(x, dim, start, start + size) * 2 for start, size in zip(starts, sizes, strict=True)]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: [x.select(0, k) * 2 for k in (2, 0, -1, 3, 4, 1)], "aten.unbind.int"),
        (lambda x: [x.select(1, k) for k in range(6)], "aten.unbind.int"),
        (lambda x: slices(x, [1, 2, 2, 1]), "aten.split_with_sizes.default"),
        (lambda x: slices(x, [3, 1, 1, 1], -1), "aten.split_with_sizes.default"),
        (lambda x: [x.select(0, k) for k in (0, 1, 2, 3, 4, 4)], None),
        (lambda x: [x.select(0, k) for k in range(5)], None),
        (lambda x: slices(x, [1, 2, 2]), None),
        (lambda x: [x[0:2:2], x[1:3], x[3:4], x[4:6]], None),
        (lambda x: [x[0:3], x[2:4], x[4:5], x[5:6]], None),
    ],
    ids=["rows", "columns", "ranges", "of the last dimension", "twice", "one missing", "few", "steps", "overlap"],
)
def test_what_is_taken_apart_at_once(function, expected):
    x = torch.arange(36.0).view(6, 6)
    module = make_fx(function)(x)
    rewritten = take_apart_at_once(module)
    if expected is None:
        assert rewritten is module
    else:
        assert [op for op in ops_of(rewritten) if op in ("aten.unbind.int", "aten.split_with_sizes.default")] == [expected]
        assert not {"aten.select.int", "aten.slice.Tensor"} & set(ops_of(rewritten))
    for found, result in zip(rewritten(x), function(x), strict=True):
        assert torch.equal(found, result) and found.stride() == result.stride()


def test_nested_slices():
    x = torch.arange(24.0).view(4, 6)
    module = make_fx(lambda x: [part for k in range(4) for part in slices(x.select(0, k), [1, 1, 1, 3])])(x)
    rewritten = take_apart_at_once(module)
    taken = [op for op in ops_of(rewritten) if not op.startswith("aten.mul")]
    assert taken == ["aten.unbind.int", *["aten.split_with_sizes.default"] * 4]
    assert all(map(torch.equal, rewritten(x), module(x)))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize(
    "join", [torch.stack, torch.cat, lambda tensors: torch.stack(tensors, -1)], ids=["stack", "cat", "last"]
)
def test_gradients_of_joined_tensors(join, backend):
    def function(*tensors):
        return join([tensor.sin() for tensor in tensors])

    tensors = [torch.randn(3, requires_grad=True) for _ in range(5)]
    result, expected = aotgrad.aot_function(function, backend)(*tensors), function(*tensors)
    weight = torch.randn_like(expected)
    found = torch.autograd.grad(result, tensors, weight)
    torch.testing.assert_close(found, torch.autograd.grad(expected, tensors, weight))


def test_symbolic_sizes_stay():
    def function(x, *others):
        return torch.cat([x, *others])

    tensors = [torch.randn(size, requires_grad=True) for size in (2, 3, 4, 5, 6)]
    compiled = aotgrad.aot_function(function, "eager", dynamic=True)
    for sizes in ((2, 3, 4, 5, 6), (5, 4, 3, 2, 7)):
        tensors = [torch.randn(size, requires_grad=True) for size in sizes]
        found = torch.autograd.grad(compiled(*tensors).square().sum(), tensors)
        torch.testing.assert_close(found, torch.autograd.grad(function(*tensors).square().sum(), tensors))
