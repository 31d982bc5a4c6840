"""Losses made of derivatives: gradients of gradients, with only torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.func import functional_call, hessian, jacrev, vmap

from scripts.workflows.programs.common import batches, mlp, train
from scripts.workflows.run import Run

Weights = dict[str, Tensor]


def pinn(run: Run) -> None:
    """The heat equation: derivatives of the compiled network by its inputs are parts of the loss."""
    network = run.compile(mlp(2, 32, 32, 1, activation=nn.Tanh))
    points = batches(256, 2)

    def residual(step: int) -> Tensor:
        at = points[step].requires_grad_()
        value = network(at)
        (first,) = grad(value.sum(), at, create_graph=True)
        (second,) = grad(first[:, 1].sum(), at, create_graph=True)
        return heat_equation(value, first, second[:, 1])

    train(run, network, torch.optim.Adam(network.parameters(), lr=1e-3), residual)


def pinn_of_transforms(run: Run) -> None:
    """The same equation with `torch.func`, all of the loss compiled."""
    network = mlp(2, 32, 32, 1, activation=nn.Tanh)
    points = batches(256, 2)

    @run.compile
    def residual(at: Tensor) -> Tensor:
        def value(point: Tensor) -> Tensor:
            return network(point).squeeze(-1)

        second = vmap(hessian(value))(at)
        return heat_equation(network(at), vmap(jacrev(value))(at), second[:, 1, 1])

    train(run, network, torch.optim.Adam(network.parameters(), lr=1e-3), lambda step: residual(points[step]))


def heat_equation(value: Tensor, first: Tensor, second_in_space: Tensor) -> Tensor:
    return (first[:, 0] - 0.1 * second_in_space).square().mean() + (value.mean() - 1).square()


def wgan_gp(run: Run) -> None:
    """A critic's gradient by its input is held near length 1, in the loss of the critic."""
    generator, critic = run.compile(mlp(8, 64, 16)), run.compile(mlp(16, 64, 64, 1))
    both = nn.ModuleList([critic, generator])
    optimizers = [torch.optim.Adam(network.parameters(), lr=1e-3, betas=(0.5, 0.9)) for network in both]

    def loss_of_critic(real: Tensor, fake: Tensor) -> Tensor:
        return critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake)

    for real in batches(64, 16):
        both.zero_grad()
        fake = generator(torch.randn(64, 8))
        loss_of_critic(real, fake.detach()).backward()
        optimizers[0].step()
        loss = -critic(fake).mean()
        loss.backward()
        run.step(loss, both)
        optimizers[1].step()


def penalty(critic: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    between = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_()
    (slope,) = grad(critic(between).sum(), between, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean()


def maml(run: Run) -> None:
    """Two steps of training, for each of four tasks, are differentiated by the weights that they start from."""
    network = run.compile(mlp(1, 32, 32, 1, activation=nn.Tanh))
    inputs, phases = batches(4, 16, 1), batches(4, 1, 1)

    def adapted_loss(x: Tensor, y: Tensor) -> Tensor:
        weights = dict(network.named_parameters())
        for _ in range(2):
            loss = (functional_call(network, weights, x) - y).square().mean()
            slopes = grad(loss, list(weights.values()), create_graph=True)
            weights = descended(weights, dict(zip(weights, slopes, strict=True)))
        return (functional_call(network, weights, x + 0.5) - y).square().mean()

    def loss_of(step: int) -> Tensor:
        x, y = inputs[step], (inputs[step] + phases[step]).sin()
        return torch.stack([adapted_loss(x[k], y[k]) for k in range(len(x))]).mean()

    train(run, network, torch.optim.Adam(network.parameters(), lr=1e-3), loss_of)


def maml_of_transforms(run: Run) -> None:
    """The same with `torch.func`: tasks are a dimension of `vmap`, and the whole loss is compiled."""
    network = mlp(1, 32, 32, 1, activation=nn.Tanh)
    inputs, phases = batches(4, 16, 1), batches(4, 1, 1)

    def loss(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        return (functional_call(network, weights, x) - y).square().mean()

    def adapted_loss(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        for _ in range(2):
            weights = descended(weights, torch.func.grad(loss)(weights, x, y))
        return loss(weights, x + 0.5, y)

    @run.compile
    def loss_of(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        return vmap(adapted_loss, in_dims=(None, 0, 0))(weights, x, y).mean()

    def of_step(step: int) -> Tensor:
        return loss_of(dict(network.named_parameters()), inputs[step], (inputs[step] + phases[step]).sin())

    train(run, network, torch.optim.Adam(network.parameters(), lr=1e-3), of_step)


def descended(weights: Weights, slopes: Weights) -> Weights:
    return {name: weight - 0.05 * slopes[name] for name, weight in weights.items()}
