"""Programs with DTensors, in one process that stands for four. Collectives of such a group do nothing."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor, all_reduce, reduce_scatter_tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.fake_processes import fake_processes
from tests.subclasses.catalogue import Program, around, second_order, under_saved_tensor_hooks, with_gradient, with_pieces
from tests.subclasses.programs import plain, two

R, S0, S1, P = (Replicate(),), (Shard(0),), (Shard(1),), (Partial(),)


MESHES: dict[str, DeviceMesh] = {}


@contextlib.contextmanager
def four_processes() -> Iterator[None]:
    """While open, there are four processes and their meshes."""
    with fake_processes(4):
        MESHES["line"] = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        MESHES["square"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        yield
        MESHES.clear()


def line() -> DeviceMesh:
    return MESHES["line"]


def square() -> DeviceMesh:
    return MESHES["square"]


def placed(*shape: int, on: Any = S0, requires_grad: bool = True, seed: int = 0, leaf: bool = True) -> DTensor:
    local = plain(*shape, seed=seed).detach()
    mesh = line() if len(on) == 1 else square()
    if not leaf:
        return DTensor.from_local(local.requires_grad_(requires_grad), mesh, on, run_check=False)
    return DTensor.from_local(local, mesh, on, run_check=False).requires_grad_(requires_grad)


def redistributed(x, *placements):
    return x.redistribute(x.device_mesh, placements)


def noncontiguous_result(x, y, z):
    return nn.functional.linear(x.permute(0, 2, 1).contiguous(), y, z).permute(0, 2, 1)


def waited(x):
    gathered = DTensor.from_local(x, line(), S0, run_check=False).redistribute(line(), R, async_op=True).to_local()
    return gathered.wait() if hasattr(gathered, "wait") else gathered


def changed(x):
    x.mul_(2)
    return x.sin()


def own_mesh(x):
    mesh = init_device_mesh("cpu", (4,))
    return DTensor.from_local(x, mesh, S0, run_check=False).sin().to_local()


ONE: dict[str, tuple] = {
    "sharded": (lambda x: x * x + 2, lambda: [placed(2, 4)]),
    "no leaf": (lambda x: x * x + 2, lambda: [placed(2, 4, leaf=False)]),
    "replicated": (lambda x: x.sin(), lambda: [placed(2, 4, on=R)]),
    "partial": (lambda x: x * 2, lambda: [placed(2, 4, on=P)]),
    "sum of partial ones": (lambda x, y: x + y, lambda: [placed(2, 4, on=P), placed(2, 4, on=P, seed=2)]),
    "passed on": (lambda x: x, lambda: [placed(2, 4)]),
    "column product": (lambda x, w: torch.relu(x @ w), lambda: [placed(2, 4, on=R), placed(4, 3, on=S1, seed=2)]),
    "row product": (lambda x, w: x @ w, lambda: [placed(2, 4, on=S1), placed(4, 3, on=S0, seed=2)]),
    "shard to replicate": (lambda x: redistributed(x, *R).relu(), lambda: [placed(2, 4)]),
    "replicate to shard": (lambda x: redistributed(x, *S0).relu(), lambda: [placed(4, 4, on=R)]),
    "shard to another": (lambda x: redistributed(x, *S1).relu(), lambda: [placed(1, 4)]),
    "partial to shard": (lambda x: redistributed(x, *S0), lambda: [placed(4, 4, on=P)]),
    "partial to replicate": (lambda x: redistributed(x, *R), lambda: [placed(4, 4, on=P)]),
    "to local": (lambda x: x.to_local() * 2, lambda: [placed(2, 4)]),
    "to local alone": (lambda x: x.to_local(), lambda: [placed(2, 4)]),
    "to local of an intermediate": (lambda x: (x * 2).to_local(), lambda: [placed(2, 4)]),
    "to local with placements of the gradient": (
        lambda x: x.to_local(grad_placements=P) * 2,
        lambda: [placed(2, 4, on=R)],
    ),
    "full tensor": (lambda x: x.full_tensor() * 2, lambda: [placed(2, 4)]),
    "from local": (lambda x: DTensor.from_local(x, line(), R, run_check=False).to_local() + 2, lambda: [plain(2, 4)]),
    "from local, returned": (lambda x: DTensor.from_local(x, line(), S0, run_check=False), lambda: [plain(2, 4)]),
    "from local with a shape": (
        lambda x: DTensor.from_local(x, line(), S0, run_check=False, shape=(7, 4), stride=(4, 1)).sin(),
        lambda: [plain(2, 4)],
    ),
    "from local, gathered": (
        lambda x: redistributed(DTensor.from_local(x, line(), S0, run_check=False), *R).to_local() + 2,
        lambda: [plain(2, 4)],
    ),
    "gathered, then waited for": (waited, lambda: [plain(2, 4).detach()]),
    "local part of an intermediate": (lambda x: (x * 2)._local_tensor + 2, lambda: [placed(2, 4, requires_grad=False)]),
    "no contiguous result": (
        noncontiguous_result,
        lambda: [placed(4, 4, 4, on=S1), placed(4, 4, on=S1, seed=2), placed(4, on=R, seed=3)],
    ),
    "no contiguous local tensor": (
        lambda x: x.sin(),
        lambda: [DTensor.from_local(plain(4, 3).detach().t(), line(), S0, run_check=False).requires_grad_()],
    ),
    "changed in place": (changed, lambda: [placed(2, 4, requires_grad=False)]),
    "changed in place, with history": (changed, lambda: [placed(2, 4) * 1]),
    "view of an argument": (lambda x: x.view(8, 1, 4), lambda: [placed(2, 4)]),
    "transposition of an argument": (lambda x: x.t(), lambda: [placed(2, 4)]),
    "view of an intermediate": (lambda x: (x * 2).t(), lambda: [placed(2, 4)]),
    "intermediate and its view": (lambda x: (y := x * 2, y.t()), lambda: [placed(2, 4)]),
    "two views of an intermediate": (lambda x: (y := x * 2, y.t(), y.view(8, 1, 4))[1:], lambda: [placed(2, 4)]),
    "detached": (lambda x: (x.detach(), x * 2), lambda: [placed(2, 4)]),
    "loss": (lambda x: (x * x).mean(), lambda: [placed(2, 4)]),
    "layer norm": (
        lambda x, w, b: nn.functional.layer_norm(x, (4,), w, b),
        lambda: [placed(2, 4), placed(4, on=R, seed=2), placed(4, on=R, seed=3)],
    ),
    "softmax": (lambda x: x.softmax(-1), lambda: [placed(2, 4)]),
    "placements of sizes that do not divide": (lambda x: x * 2, lambda: [distribute_tensor(torch.ones(7, 3), line(), S0)]),
    "over TwoTensor": (
        lambda x: x.sin() * x,
        lambda: [DTensor.from_local(two(2, 4, requires_grad=False), line(), S0, run_check=False).requires_grad_()],
    ),
    "placement asked": (lambda x: x * 2 if x.placements[0].is_shard() else x * 3, lambda: [placed(2, 4)]),
    "mesh asked": (lambda x: x * x.device_mesh.size(), lambda: [placed(2, 4)]),
    "mesh made inside": (own_mesh, lambda: [plain(2, 4)]),
    "gathered functionally": (lambda x: all_gather_tensor(x, 0, (line(), 0)) * 2, lambda: [plain(2, 4).detach()]),
    "gathered functionally, returned": (lambda x: all_gather_tensor(x, 0, (line(), 0)), lambda: [plain(2, 4).detach()]),
    "reduced functionally, returned": (lambda x: all_reduce(x, "sum", (line(), 0)), lambda: [plain(2, 4).detach()]),
    "scattered functionally, returned": (
        lambda x: reduce_scatter_tensor(x * 2, "sum", 0, (line(), 0)),
        lambda: [plain(4, 4).detach()],
    ),
    "result that is gathered, asynchronously": (
        lambda x: x.redistribute(line(), R, async_op=True),
        lambda: [placed(2, 4, requires_grad=False)],
    ),
}

TWO_DIMENSIONS: dict[str, tuple] = {
    "sharded twice": (lambda x: x.sin() * x, lambda: [placed(2, 4, on=(Shard(0), Shard(1)))]),
    "sharded twice along one": (lambda x: x.sin() * x, lambda: [placed(2, 4, on=(Shard(0), Shard(0)))]),
    "mixed product": (
        lambda x, w: torch.relu(x @ w),
        lambda: [placed(2, 4, on=(*S0, *R)), placed(4, 3, on=(*R, *S1), seed=2)],
    ),
    "partial along one": (lambda x: x * 2, lambda: [placed(2, 4, on=(*S0, *P))]),
    "gathered along one": (lambda x: redistributed(x, *S0, *R), lambda: [placed(2, 4, on=(*S0, *S1))]),
    "gathered along both": (lambda x: redistributed(x, *R, *R).to_local(), lambda: [placed(2, 4, on=(*S0, *S1))]),
    "part of the mesh": (
        lambda x: DTensor.from_local(x, square()["tp"], S0, run_check=False).sin().to_local(),
        lambda: [plain(2, 4)],
    ),
    "part of the mesh, returned": (
        lambda x: DTensor.from_local(x, square()["tp"], S0, run_check=False).sin(),
        lambda: [plain(2, 4)],
    ),
    "fully sharded weight": (
        lambda x, w: x @ redistributed(w, *R, *R).to_local(),
        lambda: [plain(2, 4), placed(2, 3, on=(*S0, *R), seed=2)],
    ),
}


class Block(nn.Module):
    """Two layers to be split, with a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8, dtype=torch.float64)
        self.inward = nn.Linear(8, 16, dtype=torch.float64)
        self.outward = nn.Linear(16, 8, dtype=torch.float64)

    def forward(self, x):
        return self.outward(torch.relu(self.inward(self.norm(x))))


def split(plan: dict[str, Any], mesh: Callable[[], DeviceMesh]) -> nn.Module:
    torch.manual_seed(0)
    return parallelize_module(Block(), mesh(), plan)


def by_layers() -> nn.Module:
    return split({"inward": ColwiseParallel(), "outward": RowwiseParallel()}, line)


def by_layers_in_two_dimensions() -> nn.Module:
    return split({"inward": ColwiseParallel(), "outward": RowwiseParallel()}, lambda: square()["tp"])


def by_sequence() -> nn.Module:
    plan = {
        "norm": SequenceParallel(sequence_dim=0),
        "inward": ColwiseParallel(input_layouts=Shard(0)),
        "outward": RowwiseParallel(output_layouts=Shard(0)),
    }
    return split({"": PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Shard(0)), **plan}, line)


WITHOUT_GRADIENT = ("some of them", "pieces of a piece")
"""The pieces of a DTensor whose backward eager does not have, because some pieces get no gradient."""


def dtensor_programs() -> Iterator[Program]:
    """All programs of this file, inside of `four_processes`."""
    for group, found in (("DTensor", ONE), ("DTensor, two dimensions", TWO_DIMENSIONS)):
        for name, (function, arguments) in found.items():
            yield Program(group, name, function, arguments)
    yield from with_pieces("DTensor, pieces", lambda: [placed(2, 4)], WITHOUT_GRADIENT)
    make = functools.partial(Program, "DTensor")
    for name, module in (
        ("module split by layers", by_layers),
        ("module split by layers, two dimensions", by_layers_in_two_dimensions),
        ("module split by sequence", by_sequence),
    ):
        yield make(name, module(), lambda: [plain(4, 8)])
    one = (lambda x: x.sin() * x, lambda: [placed(2, 4)])
    yield make("gradient with another placement", *one, with_gradient(lambda y: redistributed(torch.ones_like(y), *R)))
    yield make("gradient of a gradient", *one, second_order)
    yield make("no_grad around", *one, around(torch.no_grad))
    yield make("hooks of saved tensors", *one, around(under_saved_tensor_hooks))
    yield make(
        "autocast around",
        lambda x, w: x @ w,
        lambda: [placed(2, 4), placed(4, 3, on=R, seed=2)],
        around(lambda: torch.autocast("cpu", torch.bfloat16)),
    )
    yield make("symbolic sizes", lambda x: redistributed(x * x, *R).to_local()[0], lambda: [placed(2, 4)], dynamic=True)
    yield make("symbolic sizes, returned", lambda x: x * x, lambda: [placed(2, 4)], dynamic=True)
    yield make(
        "symbolic sizes, from local",
        lambda x: DTensor.from_local(x, line(), R, run_check=False, shape=x.shape, stride=x.stride()).to_local() + 2,
        lambda: [plain(4, 6)],
        dynamic=True,
    )
