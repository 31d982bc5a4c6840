"""Ops with several gradients compute only the wanted ones: the same ops with the same flags as in eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import aotgrad
from aotgrad.graph import op_table
from tests.numerics.against_eager import compiled, leaf, plain

CASES: dict[str, tuple[Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]]] = {
    "conv1d": (F.conv1d, lambda: (leaf(2, 3, 8), leaf(4, 3, 3), leaf(4))),
    "conv2d": (F.conv2d, lambda: (leaf(2, 4, 6, 6), leaf(4, 4, 3, 3), leaf(4))),
    "conv2d without bias": (F.conv2d, lambda: (leaf(2, 4, 6, 6), leaf(4, 4, 3, 3))),
    "grouped conv2d": (lambda x, w, b: F.conv2d(x, w, b, groups=2), lambda: (leaf(2, 4, 6, 6), leaf(4, 2, 3, 3), leaf(4))),
    "conv3d": (F.conv3d, lambda: (leaf(1, 2, 4, 4, 4), leaf(2, 2, 3, 3, 3), leaf(2))),
    "conv_transpose2d": (F.conv_transpose2d, lambda: (leaf(2, 4, 6, 6), leaf(4, 3, 3, 3), leaf(3))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), lambda: (leaf(4, 6), leaf(6), leaf(6))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), lambda: (leaf(3, 4, 5), leaf(4), leaf(4))),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        lambda: (leaf(3, 4, 5), leaf(4), leaf(4)),
    ),
    "batch_norm in evaluation": (
        lambda x, mean, var, w, b: F.batch_norm(x, mean, var, w, b),
        lambda: (leaf(3, 4, 5), plain(4), plain(4).square() + 1, leaf(4), leaf(4)),
    ),
    "rms_norm": (lambda x, w: F.rms_norm(x, (6,), w), lambda: (leaf(4, 6), leaf(6))),
    "grid_sample": (
        lambda x, grid: F.grid_sample(x, grid.tanh(), align_corners=False),
        lambda: (leaf(1, 2, 4, 4), leaf(1, 3, 3, 2)),
    ),
    "linear": (F.linear, lambda: (leaf(5, 4), leaf(3, 4), leaf(3))),
    "attention": (F.scaled_dot_product_attention, lambda: (leaf(1, 2, 4, 8), leaf(1, 2, 4, 8), leaf(1, 2, 4, 8))),
    "two convolutions": (
        lambda x, v, w: F.conv2d(F.conv2d(x, v).relu(), w),
        lambda: (leaf(1, 2, 8, 8), leaf(2, 2, 3, 3), leaf(2, 2, 3, 3)),
    ),
}

WAYS = ("nop", "dynamo", "inductor")


class MaskedOps(TorchDispatchMode):
    """The ops with gradient flags, and their flags."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[bool, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        position = op_table.position_of_mask(func)
        if position is not None:
            self.seen.append((str(func), tuple(map(bool, args[position]))))
        return func(*args, **(kwargs or {}))


def subsets(tensors: tuple[Tensor, ...]) -> Iterator[list[Tensor]]:
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    for count in range(1, len(wanted) + 1):
        yield from map(list, itertools.combinations(wanted, count))


def asked(y: Tensor, wanted: list[Tensor]) -> tuple[list[Tensor], list[Any], int]:
    """The gradients, the flags of ops, and the FLOPs."""
    cotangent = torch.linspace(0.5, 1.5, y.numel()).view_as(y)
    with MaskedOps() as masked:
        gradients = torch.autograd.grad(y, wanted, cotangent, retain_graph=True)
    with FlopCounterMode(display=False) as flops:
        torch.autograd.grad(y, wanted, cotangent, retain_graph=True)
    return list(gradients), masked.seen, flops.get_total_flops()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_only_what_is_asked_for_is_computed(case, way):
    function, make_args = CASES[case]
    torch.manual_seed(0)
    args = make_args()
    y, reference = compiled(function, way)(*args), function(*args)
    for wanted in subsets(args):
        found, told, flops = asked(y, wanted)
        expected, told_in_eager, flops_in_eager = asked(reference, wanted)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert flops <= flops_in_eager
        if way != "inductor":  # it decomposes norms, and sums a bias's gradient itself
            assert told == told_in_eager


@pytest.mark.parametrize("case", ["conv2d", "layer_norm", "group_norm"])
def test_what_is_computed_is_the_same_to_the_last_bit(case):
    function, make_args = CASES[case]
    args = make_args()
    y, reference = aotgrad.aot_function(function, aotgrad.nop)(*args), function(*args)
    for wanted in subsets(args):
        for found, expected in zip(asked(y, wanted)[0], asked(reference, wanted)[0], strict=True):
            assert torch.equal(found, expected)


def test_a_frozen_parameter_is_not_asked_for():
    function, make_args = CASES["conv2d"]
    x, w, b = make_args()
    under_test = aotgrad.aot_function(function, aotgrad.nop)
    for frozen in (w, b, x):
        under_test(x, w, b)
        frozen.requires_grad_(False)
        if not any(each.requires_grad for each in (x, w, b)):
            break
        with MaskedOps() as masked:
            under_test(x, w, b).sum().backward()
        assert masked.seen == [("aten.convolution_backward.default", tuple(each.requires_grad for each in (x, w, b)))]


class Products(TorchDispatchMode):
    """The number of matrix products that ran."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm)
        return func(*args, **(kwargs or {}))


class Heads(nn.Module):
    """Eight layers on one layer, or on pieces of its result."""

    def __init__(self, in_pieces: bool) -> None:
        super().__init__()
        self.in_pieces = in_pieces
        self.trunk = nn.Linear(16, 16)
        self.heads = nn.ModuleList(nn.Linear(2 if in_pieces else 16, 4) for _ in range(8))

    def forward(self, x: Tensor) -> list[Tensor]:
        h = self.trunk(x).tanh()
        pieces = h.chunk(8, dim=-1) if self.in_pieces else [h] * 8
        return [head(piece) for head, piece in zip(self.heads, pieces, strict=True)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_pieces", [False, True])
def test_one_of_eight_heads_costs_its_own_products(in_pieces, way):
    """Two in the head, two below it: in the first backward, which compiles, and later."""
    model, x = Heads(in_pieces), leaf(3, 16)
    run = aotgrad.aot_module(model, aotgrad.nop) if way == "nop" else compiled(model, way)
    for under_test in (model, run, run):
        heads = under_test(x)
        with Products() as products:
            heads[5].sum().backward()
        assert products.count == 4


def test_an_op_of_a_user_is_told_what_it_was_told():
    """The meaning of a flag is known only for torch's own ops."""
    with torch.library._scoped_library("masked_test", "FRAGMENT") as library:
        library.define("pair(Tensor x, bool[2] output_mask) -> (Tensor, Tensor)")
        library.impl("pair", lambda x, mask: (x * sum(mask), x * 3), "CompositeExplicitAutograd")
        assert op_table.position_of_mask(torch.ops.masked_test.pair.default) is None
