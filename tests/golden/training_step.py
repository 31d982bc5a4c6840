"""Error messages for steps of training that cannot be compiled."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import aotgrad
from tests.fake_processes import fake_processes
from tests.golden.cases import error_case

MODEL = nn.Linear(4, 2)
OPTIMIZER = torch.optim.Adam(MODEL.parameters())


@error_case
def step_of_lbfgs():
    """An optimizer that evaluates the loss in a loop."""
    aotgrad.train_step(lambda: None, [torch.optim.LBFGS(MODEL.parameters())])


@error_case
def step_with_a_state_of_another_kind():
    """Something in the state that has none."""
    aotgrad.train_step(lambda: None, [nn.Linear])


@error_case
def step_of_an_unlisted_module():
    """A gradient of a module that is not listed."""
    model = nn.Linear(4, 2)
    aotgrad.train_step(lambda x: model(x).sum().backward(), [MODEL], backend="eager")(torch.ones(4))


@error_case
def step_of_an_unlisted_optimizer():
    """An optimizer that is not listed."""

    def step(x):
        MODEL(x).sum().backward()
        OPTIMIZER.step()

    aotgrad.train_step(step, [MODEL], backend="eager")(torch.ones(4))


@error_case
def step_that_changes_an_unlisted_tensor():
    """A tensor that is not listed."""
    count = torch.zeros(())
    aotgrad.train_step(lambda: count.add_(1), [MODEL], backend="eager")()


@error_case
def step_of_a_scheduler():
    """A scheduler inside, whose counter a plan would not change."""
    scheduler = torch.optim.lr_scheduler.StepLR(OPTIMIZER, 10)
    OPTIMIZER.step()
    aotgrad.train_step(lambda: scheduler.step(), [MODEL, OPTIMIZER], backend="eager")()


@error_case
def step_that_assigns_a_hyperparameter():
    """A hyperparameter that is assigned inside."""

    def step():
        OPTIMIZER.param_groups[0]["lr"] *= 0.5

    aotgrad.train_step(step, [MODEL, OPTIMIZER], backend="eager")()


@error_case
def step_that_removes_state():
    """State of an optimizer that is removed inside."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    aotgrad.train_step(lambda: optimizer.state[model.weight].clear(), [model, optimizer], backend="eager")()


@error_case
def step_that_registers_a_hook():
    """A hook that each step would register once more."""
    aotgrad.train_step(lambda: MODEL.weight.register_hook(print), [MODEL], backend="eager")()


@error_case
def step_with_a_gradient_of_an_argument():
    """A gradient that is accumulated in an argument."""
    x = torch.ones(4, requires_grad=True)
    aotgrad.train_step(lambda x: x.sum().backward(), [], backend="eager")(x)


@error_case
def step_with_a_sparse_gradient():
    """A gradient that is sparse."""
    model = nn.Embedding(3, 2, sparse=True)
    aotgrad.train_step(lambda x: model(x).sum().backward(), [model], backend="eager")(torch.tensor([0]))


@error_case
def step_with_a_fused_update_of_other_placements():
    """A fused update of a parameter that is whole on each process, by a gradient in shards."""
    with fake_processes(2):
        mesh, whole = init_device_mesh("cpu", (2,)), torch.ones(4)
        parameter = nn.Parameter(distribute_tensor(whole, mesh, [Replicate()]))
        parameter.grad = distribute_tensor(whole, mesh, [Shard(0)])
        optimizer = torch.optim.SGD([parameter], lr=0.1, fused=True)
        aotgrad.train_step(lambda x: optimizer.step(), [optimizer], backend="eager")(torch.ones(4))


@error_case
def step_of_an_unlisted_scaler():
    """A scaler that is not listed."""
    scaler = torch.amp.GradScaler("cpu")
    aotgrad.train_step(lambda x: scaler.scale(MODEL(x).sum()).backward(), [MODEL], backend="eager")(torch.ones(4))


@error_case
def step_that_assigns_a_history():
    """A buffer is bound to a tensor with a gradient."""
    model = nn.BatchNorm1d(2)
    step = aotgrad.train_step(lambda x: setattr(model, "running_mean", model(x).mean(0)), [model], backend="eager")
    step(torch.ones(4, 2))


@error_case
def step_that_keeps_a_tensor():
    """A tensor of the trace in a list of a module."""
    model = nn.Linear(4, 2)
    model.results = []
    aotgrad.train_step(lambda x: model.results.append(model(x)), [model], backend="eager")(torch.ones(4))
