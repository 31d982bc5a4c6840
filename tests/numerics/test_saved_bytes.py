"""The exact bytes that whole models save, beside eager and the peer; without parameters, arguments and results."""

from __future__ import annotations

from collections.abc import Callable

import functorch.compile
import pytest
import torch
from torch import Tensor, nn
from torch._functorch.partitioners import min_cut_rematerialization_partition as peer_partition
from torch._inductor.decomposition import select_decomp_table
from torch.utils import _pytree as pytree

import aotgrad
from aotgrad.backends.eager import compile_eager
from tests.models import plain_models
from tests.numerics.against_eager import DYNAMO_BACKENDS, leaf


def saved_bytes(run: Callable, model: nn.Module, *args: Tensor) -> int:
    """The bytes that a call keeps alive only for its backward."""
    packed: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        packed[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        results = run(*args)
    others = [*model.parameters(), *model.buffers(), *args, *pytree.tree_leaves(results)]
    elsewhere = {tensor.untyped_storage().data_ptr() for tensor in others}
    return sum(size for address, size in packed.items() if address not in elsewhere)


# --- A normalization of an argument ----------------------------------------------------------------------------------

ROWS, WIDTH, INNER = 128, 64, 256
WAYS: dict[str, Callable[[nn.Module], Callable]] = {
    "aot": lambda model: aotgrad.aot_module(model, compile_eager),
    "aot, taken apart": lambda model: aotgrad.aot_module(model, aotgrad.nop, decompositions=select_decomp_table()),
    **{
        way: (lambda model, backend=backend: torch.compile(model, backend=backend, options={"cache": False}))
        for way, backend in DYNAMO_BACKENDS.items()
    },
}


def feed_forward() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_normalization_saves_its_input_as_eager_does(way, requires_grad):
    """Mean and variance of each row, the input, and the values around GELU; that behind is recomputed if ops fuse."""
    torch._dynamo.reset()
    model, x = feed_forward(), torch.randn(ROWS, WIDTH, requires_grad=requires_grad)
    in_eager = 4 * ROWS * (1 + 1 + WIDTH + 2 * INNER)
    assert saved_bytes(model, model, x) == in_eager == 295_936
    run = WAYS[way](model)
    run(x)
    assert saved_bytes(run, model, x) == in_eager - (4 * ROWS * INNER if way == "aot" else 0)


@pytest.mark.parametrize("way", WAYS)
def test_an_argument_that_is_saved_must_not_be_overwritten_as_in_eager(way):
    torch._dynamo.reset()
    model = feed_forward()
    for run in (model, WAYS[way](model)):
        x = torch.randn(ROWS, WIDTH)
        loss = run(x).sum()
        x.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


# --- Whole models beside the peer ------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Residual(nn.Module):
    """Residual blocks of a normalization and a gated feed-forward net."""

    def __init__(self, norm: Callable[[int], nn.Module], layers: int = 6, width: int = 32):
        super().__init__()
        self.norms = nn.ModuleList(norm(width) for _ in range(layers))
        self.gates = nn.ModuleList(nn.Linear(width, 2 * width, bias=False) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(width, 2 * width, bias=False) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(2 * width, width, bias=False) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for norm, gate, up, down in zip(self.norms, self.gates, self.ups, self.downs, strict=True):
            h = norm(x)
            x = x + down(nn.functional.silu(gate(h)) * up(h))
        return x.square().mean()


class Values(nn.Module):
    """Wraps a model that returns a dictionary into one that returns a tuple."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.model(*args).values())


MODELS: dict[str, tuple[Callable[[], tuple[nn.Module, tuple[Tensor, ...]]], float]] = {
    "feed-forward": (lambda: (feed_forward(), (torch.randn(ROWS, WIDTH),)), 1.0),
    "group norms and skips": (lambda: (Values(plain_models.UNet()), segmented()), 1.0),
    "RMS norms on a stream": (lambda: (Residual(RMSNorm), (leaf(64, 32),)), 1.0),
    "layer norms on a stream": (lambda: (Residual(nn.LayerNorm), (leaf(64, 32),)), 1.002),
    "batch norms": (lambda: (Values(plain_models.ResNet()), tuple(plain_models.image_batch(0).values())), 1.015),
}
"""Each with how much of the peer's it may save: two numbers a row more, or a mask that spares reading what made it."""


def segmented() -> tuple[Tensor, ...]:
    return tuple(plain_models.segmentation_batch(0).values())


@pytest.mark.parametrize("name", MODELS)
def test_models_save_no_more_than_with_the_peer(name):
    make, share = MODELS[name]
    model, args = make()
    table, nop = select_decomp_table(), functorch.compile.nop
    ours = aotgrad.aot_module(model, aotgrad.nop, decompositions=table)
    peer = functorch.compile.aot_module(model, nop, partition_fn=peer_partition, decompositions=table)
    found = saved_bytes(ours, model, *args)
    assert found <= share * saved_bytes(peer, model, *args)
    assert found <= saved_bytes(model, model, *args)
