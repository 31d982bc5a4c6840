"""`DistributedDataParallel`: gradients are those of eager, and are sent while the backward runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import aotgrad
from tests.distributed.programs import WIDTH, Model, assert_same, compiled, gradients, tokens, train

ONE_BLOCK = 4 * WIDTH * WIDTH * 4


def parallel(model: nn.Module, **settings) -> DistributedDataParallel:
    """The model with buckets of a block."""
    with small_first_bucket():
        return DistributedDataParallel(model, bucket_cap_mb=ONE_BLOCK / 2**20, **settings)


def small_first_bucket():
    """Torch's first bucket is of a megabyte, more than the models here."""
    return patch.object(dist, "_DEFAULT_FIRST_BUCKET_BYTES", ONE_BLOCK // 2)


def batches() -> list[Tensor]:
    return [tokens(10 * step + dist.get_rank()) for step in range(3)]


def new_model(**sizes) -> Model:
    torch.manual_seed(0)
    return Model(**sizes)


@contextmanager
def dynamo(**settings) -> Iterator[None]:
    with small_first_bucket(), torch._dynamo.config.patch(**settings):
        yield


WRAPPED: dict[str, Callable] = {
    "compiled, then wrapped": lambda model, backend: parallel(compiled(model, backend)),
    "wrapped, then compiled": lambda model, backend: compiled(parallel(model), backend),
    "static graph": lambda model, backend: compiled(parallel(model, static_graph=True), backend),
    "gradients as views": lambda model, backend: compiled(parallel(model, gradient_as_bucket_view=True), backend),
    "a search for unused parameters": lambda model, backend: compiled(parallel(model, find_unused_parameters=True), backend),
}


def steps(name: str, backend: str, optimize_ddp: bool, blocks: int = 2) -> None:
    expected = train(parallel(new_model(blocks=blocks)), batches())
    with dynamo(optimize_ddp=optimize_ddp):
        found = train(WRAPPED[name](new_model(blocks=blocks), backend), batches())
    assert_same(found, expected, backend)


@pytest.mark.parametrize("name", WRAPPED)
def test_steps_are_those_of_eager(two_ranks, name: str) -> None:
    two_ranks.run(steps, name, "aotgrad_eager", True)


@pytest.mark.parametrize("name", ["compiled, then wrapped", "wrapped, then compiled"])
def test_steps_in_one_graph(two_ranks, name: str) -> None:
    two_ranks.run(steps, name, "aotgrad_eager", False)


@pytest.mark.parametrize("optimize_ddp", [True, False])
def test_steps_through_inductor(two_ranks, optimize_ddp: bool) -> None:
    two_ranks.run(steps, "wrapped, then compiled", "aotgrad", optimize_ddp, 1)


# --- Order -----------------------------------------------------------------------------------------------------------


class Products(TorchDispatchMode):
    """The number of matrix products so far."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        return func(*args, **(kwargs or {}))


def products_before_buckets(model: DistributedDataParallel, call: Callable) -> tuple[list[int], int]:
    """How many products of a backward have run when each bucket is sent, and how many there are."""
    products, sent = Products(), []

    def hook(state, bucket):  # torch compares annotations with classes
        sent.append(products.count)
        return allreduce_hook(state, bucket)

    model.register_comm_hook(None, hook)
    for batch in batches():  # the reducer reorders its buckets after the first
        loss = call(batch)
        sent.clear()
        products.count = 0
        with products:
            loss.backward()
    return sent, products.count


def order(backend: str, optimize_ddp: bool) -> None:
    model = parallel(new_model(blocks=6))
    expected, total = products_before_buckets(model, model)
    ours = parallel(new_model(blocks=6))
    graphs = []

    def counted(module, inputs, **options):
        graphs.append(module)
        return aotgrad.DynamoBackend(backend)(module, inputs)

    with dynamo(optimize_ddp=optimize_ddp):
        found, our_total = products_before_buckets(ours, torch.compile(ours, backend=counted))
    assert our_total == total and len(found) == len(expected) > 5
    assert expected[0] <= 0.3 * total and found[0] <= 0.3 * total, (found, total)
    assert len(graphs) > 5 if optimize_ddp else len(graphs) == 1
    assert_same(gradients(ours), gradients(model), backend)


@pytest.mark.parametrize("optimize_ddp", [True, False])
def test_the_first_bucket_is_sent_early(two_ranks, optimize_ddp: bool) -> None:
    two_ranks.run(order, "eager", optimize_ddp)


def test_the_first_bucket_is_sent_early_through_inductor(two_ranks) -> None:
    two_ranks.run(order, "inductor", False)


# --- What else DDP does ----------------------------------------------------------------------------------------------


class Choosing(nn.Module):
    """Ranks use different parameters. The batch norm has buffers, which rank 0 sends to the others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor, is_first: bool) -> Tensor:
        return self.norm((self.first if is_first else self.second)(x)).square().sum()


def choices(backend: str, wrapped_first: bool) -> None:
    def run(wrap: Callable[[nn.Module], nn.Module]) -> list:
        torch.manual_seed(0)
        model = wrap(Choosing())
        outcomes = []
        for step in range(3):
            x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
            model(x, step == 2 or dist.get_rank() == 0).backward()
            outcomes.append(gradients(model))
            model.zero_grad()
        return [outcomes, dict(model.named_buffers())]

    def ours(model: nn.Module) -> nn.Module:
        if wrapped_first:
            return compiled(parallel(model, find_unused_parameters=True), backend)
        return parallel(compiled(model, backend), find_unused_parameters=True)

    expected = run(lambda model: parallel(model, find_unused_parameters=True))
    assert expected[0][0]["module.second.weight"] is not None and expected[0][2]["module.second.weight"] is None
    with dynamo():
        assert_same(run(ours), expected, backend)


@pytest.mark.parametrize("wrapped_first", [True, False])
def test_ranks_use_different_parameters(two_ranks, wrapped_first: bool) -> None:
    two_ranks.run(choices, "aotgrad_eager", wrapped_first)


def accumulation(backend: str) -> None:
    def run(model: nn.Module) -> dict[str, Tensor | None]:
        model.register_comm_hook(None, fp16_compress_hook)
        for k, batch in enumerate(batches()):
            with model.no_sync() if k < 2 else nullcontext():
                model(batch).backward()
        return gradients(model)

    with dynamo():
        assert_same(run(compiled(parallel(new_model()), backend)), run(parallel(new_model())), backend)


def test_accumulated_and_compressed_gradients(two_ranks) -> None:
    two_ranks.run(accumulation, "aotgrad_eager")
