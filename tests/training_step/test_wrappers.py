"""Parameters that are tensor subclasses: tensor parallelism, and a class whose tensors hold two."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.two_tensor import TwoTensor

from aotgrad.errors import CaptureError
from aotgrad.training_step.optimizer_calls import local_lists
from tests.fake_processes import fake_processes, skip_if_scattered_is_unwritten
from tests.training_step.comparing import Training, assert_trains_like_eager, batches, plain_step

OPTIMIZERS = (
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.AdamW, {"foreach": False}),
    (torch.optim.AdamW, {"foreach": True, "amsgrad": True}),
    (torch.optim.AdamW, {"fused": True}),
)

every_optimizer = pytest.mark.parametrize(("kind", "settings"), OPTIMIZERS, ids=["momentum", "loop", "foreach", "fused"])
both_backends = pytest.mark.parametrize("backend", ["eager", "inductor"])


@pytest.fixture
def two_processes():
    with fake_processes(2):
        skip_if_scattered_is_unwritten()  # parameters are
        yield


def parallel(kind, settings, max_norm=None):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = kind(model.parameters(), **settings)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    return Training(plain_step(model, optimizer, max_norm), [model, optimizer], lambda k: scheduler.step())


@both_backends
@every_optimizer
def test_tensor_parallel_steps(two_processes, kind, settings, backend):
    assert_trains_like_eager(lambda: parallel(kind, settings), batches(4), backend, plans=2)


@both_backends
def test_distributed_gradients_are_clipped(two_processes, backend):
    assert_trains_like_eager(lambda: parallel(*OPTIMIZERS[0], max_norm=0.01), batches(4), backend, plans=2)


@every_optimizer
def test_distributed_gradients_may_end_with_the_step(two_processes, kind, settings):
    assert_trains_like_eager(lambda: parallel(kind, settings), batches(4), keep_gradients=False)


def test_a_fused_update_needs_equal_placements(two_processes):
    mesh, whole = init_device_mesh("cpu", (2,)), torch.ones(4, 4)
    sharded, replicated = distribute_tensor(whole, mesh, [Shard(0)]), distribute_tensor(whole, mesh, [Replicate()])
    (parameters, gradients, nothing) = local_lists([[sharded], [sharded], []])
    assert [each.shape for each in (*parameters, *gradients)] == [(2, 4), (2, 4)] and nothing == []
    with pytest.raises(CaptureError, match="DTensor whose gradient or state has other placements"):
        local_lists([[sharded], [replicated]])


@both_backends
@every_optimizer
def test_parameters_that_hold_two_tensors(kind, settings, backend):
    def make():
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False))
        for layer in (model[0], model[2]):
            weight = layer.weight.detach()
            layer.weight = nn.Parameter(TwoTensor(weight.clone(), 2 * weight))
        optimizer = kind(model.parameters(), **settings)

        def step(x, y):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()

        return Training(step, [model, optimizer])

    assert_trains_like_eager(make, batches(3), backend, plans=2)
