"""DTensors in one process that stands for two, against eager. Collectives of such a group do nothing."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.subclasses.programs import WAYS, compiled, outcome, plain


@pytest.fixture(scope="module", autouse=True)
def mesh():
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def placed(mesh, *shape, placement, requires_grad=True, seed=0):
    local = plain(*shape, seed=seed).detach()
    return DTensor.from_local(local, mesh, [placement]).requires_grad_(requires_grad)


def specs(tensors):
    return [tensor.grad._spec if isinstance(tensor.grad, DTensor) else type(tensor.grad) for tensor in tensors]


PROGRAMS = {
    "sharded": (lambda x: x.sin() * x, [((2, 3), Shard(0))]),
    "replicated_weight": (lambda x, w: torch.relu(x @ w), [((2, 4), Shard(0)), ((4, 3), Replicate())]),
    "partial_result": (lambda x, w: x @ w, [((2, 4), Shard(1)), ((4, 3), Shard(0))]),
    "partial_argument": (lambda x: x * 2, [((2, 3), Partial())]),
    "to_local": (lambda x: x.to_local() * 2, [((2, 3), Shard(0))]),
    "two_results": (lambda x: (x.sin(), x.cos().to_local()), [((2, 3), Shard(0))]),
    "gathered": (lambda x: x.redistribute(x.device_mesh, [Replicate()]).relu(), [((2, 3), Shard(0))]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name, way, mesh) -> None:
    function, shapes = PROGRAMS[name]

    def arguments():
        return [placed(mesh, *shape, placement=placement, seed=k) for k, (shape, placement) in enumerate(shapes)]

    ours = compiled(function, way)
    for _ in range(3):
        expected, found = arguments(), arguments()
        assert outcome(ours, found) == outcome(function, expected)
        assert specs(found) == specs(expected)


@pytest.mark.parametrize("way", WAYS)
def test_redistribution_inside(way, mesh) -> None:
    def function(x):
        return DTensor.from_local(x, mesh, [Shard(0)]).redistribute(mesh, [Replicate()]).to_local() * 2

    assert outcome(compiled(function, way), [plain(3)]) == outcome(function, [plain(3)])
