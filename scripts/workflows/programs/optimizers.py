"""Optimizers, schedulers and averages of `torch.optim`, with only torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from scripts.workflows.programs.common import STEPS, Chain, batches, mlp, train
from scripts.workflows.run import Run


def adamw_one_cycle(run: Run) -> None:
    """The step of AdamW is compiled, and so is the network; the learning rate is a tensor, which the scheduler fills."""
    network = run.compile(mlp(16, 64, 64, 1))
    optimizer = torch.optim.AdamW(network.parameters(), lr=torch.tensor(1e-3), weight_decay=0.1)
    compiled_steps(run, network, optimizer, OneCycleLR(optimizer, max_lr=1e-2, total_steps=STEPS, cycle_momentum=False))


def sgd_cosine(run: Run) -> None:
    """The same with SGD, whose learning rate is a Python number: another one in each step."""
    network = run.compile(mlp(16, 64, 64, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-2, momentum=0.9, nesterov=True)
    compiled_steps(run, network, optimizer, CosineAnnealingLR(optimizer, T_max=STEPS))


def compiled_steps(run: Run, network: nn.Module, optimizer: torch.optim.Optimizer, scheduler: LRScheduler) -> None:
    step = run.compile(lambda: optimizer.step())

    def update() -> None:
        step()
        scheduler.step()

    train(run, network, optimizer, regression(network), update)


def regression(network: nn.Module) -> Regression:
    return Regression(network, batches(32, 16))


class Regression:
    """The loss of a step: inputs are mapped to the sine of their sum."""

    def __init__(self, network: nn.Module, inputs: list[Tensor]) -> None:
        self.network, self.inputs = network, inputs

    def __call__(self, step: int) -> Tensor:
        x = self.inputs[step]
        return (self.network(x) - x.sum(-1, keepdim=True).sin()).square().mean()


def stochastic_weight_averaging(run: Run) -> None:
    """Weights of the later steps are averaged; batch norms are updated from the data, then the average is evaluated."""
    network = run.compile(Chain(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-2)
    average, rate, loss_of = AveragedModel(network), SWALR(optimizer, swa_lr=5e-3, anneal_epochs=2), regression(network)

    def update() -> None:
        optimizer.step()
        if len(run.wall_s) > STEPS // 2:
            average.update_parameters(network)
            rate.step()

    train(run, network, optimizer, loss_of, update)
    update_bn(loss_of.inputs, average)
    run.observe("the average's output", average.eval()(loss_of.inputs[0]))


def exponential_moving_average(run: Run) -> None:
    """The average is updated after every step, with `torch._foreach` ops."""
    network = run.compile(mlp(16, 64, 64, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    update_average = run.compile(lambda: average.update_parameters(network))

    def update() -> None:
        optimizer.step()
        update_average()

    loss_of = regression(network)
    train(run, network, optimizer, loss_of, update)
    run.observe("the average's output", average(loss_of.inputs[0]))


def lbfgs(run: Run) -> None:
    """The closure of L-BFGS is called as often as its line search wants: losses without gradients and with them. In float64:
    the last bit of a loss decides in a line search, so that runs in float32 part soon."""
    network = run.compile(mlp(16, 32, 1, activation=nn.Tanh).double())
    optimizer = torch.optim.LBFGS(network.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    loss_of = Regression(network, [batch.double() for batch in batches(32, 16)])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(0)
        loss.backward()
        return loss

    for _ in range(STEPS):
        loss = optimizer.step(closure)
        run.step(torch.as_tensor(loss), network)
