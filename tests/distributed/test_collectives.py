"""Functions with collectives, forward and backward, and gradients that one rank alone asks for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor

import aotgrad
from aotgrad.errors import CaptureError
from tests.distributed.programs import assert_same


def world() -> str:
    return dist.group.WORLD.group_name


def uneven() -> list[int]:
    """The sizes of parts that each rank sends and receives."""
    return [1, 3] if dist.get_rank() == 0 else [3, 1]


def in_place(change: Callable[..., object], x: Tensor, *arguments: object) -> Tensor:
    y = x * 2
    change(y, *arguments)
    return y


def all_reduce_in_place(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y


def into_a_list(x: Tensor) -> Tensor:
    out = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(out, x.detach())
    return torch.cat(out)


def into_a_tensor(x: Tensor) -> Tensor:
    out = x.new_empty(2 * len(x), 4)
    dist.all_gather_into_tensor(out, x.detach().sin())
    return out.cos() * x.sum()


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "all_reduce": lambda x: collectives.all_reduce(x.sin(), "sum", world()).cos(),
    "all_reduce, no gradient": lambda x: x * collectives.all_reduce(x.detach().sin(), "avg", world()),
    "all_gather": lambda x: collectives.all_gather_tensor(x.sin(), 0, world()).cos(),
    "all_gather, differentiable": lambda x: collectives.all_gather_tensor_autograd(x.sin(), 0, world()).cos(),
    "reduce_scatter": lambda x: collectives.reduce_scatter_tensor_autograd(x.sin(), "sum", 1, world()).cos(),
    "all_to_all": lambda x: collectives.all_to_all_single_autograd(x.sin(), None, None, world()).cos(),
    "uneven all_to_all": lambda x: collectives.all_to_all_single_autograd(x.sin(), uneven(), uneven(), world()).cos(),
    "broadcast": lambda x: x * collectives.broadcast(x.detach().sin(), 0, world()),
    "permute": lambda x: x * collectives.permute_tensor(x.detach().flatten(), [1, 0], dist.group.WORLD).view(4, 4),
    "coalesced": lambda x: torch.cat(collectives.all_reduce_coalesced([x.sin(), x.cos()], "sum", world())),
    "in place": all_reduce_in_place,
    "into a tensor": into_a_tensor,
}
IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: PROGRAMS[name] for name in ("in place", "into a tensor")},
    "broadcast": lambda x: in_place(dist.broadcast, x, 0),
    "in the background": lambda x: in_place(lambda y: dist.all_reduce(y, async_op=True).wait(), x),
    "a list": into_a_list,
    "barrier": lambda x: in_place(lambda y: dist.barrier(), x),
    "to another rank": lambda x: in_place(lambda y: dist.send(y, 1) if dist.get_rank() == 0 else dist.recv(y, 0), x),
}
DIFFERENTIATED_BY_DYNAMO = ("in place",)
"""Dynamo replaces the op by a functional one, whose gradient is reduced, too."""


def argument() -> Tensor:
    generator = torch.Generator().manual_seed(dist.get_rank())
    return torch.randn(4, 4, generator=generator, requires_grad=True)


def outcome(function: Callable[[Tensor], Tensor]) -> list[Tensor | None]:
    x = argument()
    y = function(x)
    if y.requires_grad:
        (y * torch.arange(y.numel()).view(y.shape)).sum().backward()
    return [y.detach(), x.grad]


def compiled(function: Callable, way: str) -> Callable:
    if way.startswith("aotgrad"):
        return torch.compile(function, backend=way, fullgraph=True, options={"min_graph_ops": 0})
    return aotgrad.aot_function(function, way)


def program(name: str, way: str) -> None:
    function = PROGRAMS[name]
    ours = compiled(function, way)
    if name in DIFFERENTIATED_BY_DYNAMO and "aotgrad" in way:
        function = torch.compile(function, backend="eager")
    for _ in range(2):
        assert_same(outcome(ours), outcome(function), way)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_those_of_eager(two_ranks, name: str) -> None:
    two_ranks.run(program, name, "aotgrad_eager")


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in IN_PLACE])
def test_programs_without_dynamo(two_ranks, name: str) -> None:
    two_ranks.run(program, name, "eager")


def refused(name: str) -> None:
    with pytest.raises(CaptureError, match=r"an op of torch.distributed sends or fills a tensor in place"):
        compiled(IN_PLACE[name], "eager")(argument())


@pytest.mark.parametrize("name", IN_PLACE)
def test_collectives_in_place_without_dynamo_are_refused(two_ranks, name: str) -> None:
    two_ranks.run(refused, name)


@pytest.mark.parametrize("name", ["all_gather, differentiable", "reduce_scatter", "uneven all_to_all", "in place"])
def test_programs_through_inductor(two_ranks, name: str) -> None:
    two_ranks.run(program, name, "aotgrad")


# --- Gradients of one rank -------------------------------------------------------------------------------------------


def two_paths(w: Tensor, v: Tensor) -> Tensor:
    full = collectives.all_gather_tensor_autograd(w.sin(), 0, world())
    return (full.cos() @ v.sin()).sum() + v.cos().sum()


def two_results(w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return collectives.all_gather_tensor_autograd(w.sin(), 0, world()).cos(), (v.sin() * w.detach()).sum()


class ReducedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return collectives.all_reduce(gradient.contiguous(), "sum", world()).clone()


def reduced_gradient(w: Tensor, v: Tensor) -> Tensor:
    return (ReducedGradient.apply(w.sin()) @ v).sum()


def of_one_rank(function: Callable, way: str) -> list[Tensor]:
    """Rank 0 asks for a gradient with no collective on its path, then all for one with a collective."""
    w, v = argument(), argument()
    loss = function(w, v)
    found = []
    if dist.get_rank() == 0:
        last = loss if isinstance(loss, Tensor) else loss[-1]
        found += torch.autograd.grad(last, v, retain_graph=True)
    total = loss if isinstance(loss, Tensor) else loss[0].sum() + loss[1]
    found += torch.autograd.grad(total, [w, v] if dist.get_rank() == 0 else [w])
    return found


def one_rank(function: Callable, way: str) -> None:
    ours = compiled(function, way)
    for _ in range(2):
        assert_same(of_one_rank(ours, way), of_one_rank(function, way), way)


@pytest.mark.parametrize("way", ["aotgrad_eager", "eager", "aotgrad"])
@pytest.mark.parametrize("function", [two_paths, two_results, reduced_gradient])
def test_a_gradient_that_one_rank_asks_for(two_ranks, function: Callable, way: str) -> None:
    two_ranks.run(one_rank, function, way, seconds=60)
