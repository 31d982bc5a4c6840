"""`pyro`: stochastic variational inference of a variational autoencoder."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pyro.optim
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor, nn

from scripts.workflows.programs.common import STEPS, mlp, train
from scripts.workflows.run import Run


class Autoencoder(nn.Module):
    """Encoder and decoder are compiled; what handles effects is pyro's own Python."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.encoder, self.decoder = run.compile(mlp(16, 32, 8)), run.compile(mlp(4, 32, 16))

    def model(self, x: Tensor) -> None:
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(x.new_zeros(len(x), 4), 1.0).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(z)).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        pyro.module("encoder", self.encoder)
        mean, scale = self.encoder(x).chunk(2, dim=-1)
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(mean, scale.exp()).to_event(1))


def variational_inference(run: Run) -> None:
    """The gradient is that of a sampled lower bound, which pyro's traces make."""
    pyro.clear_param_store()
    autoencoder = Autoencoder(run)
    bound = Trace_ELBO().differentiable_loss
    data = torch.randint(2, (STEPS, 32, 16)).float()
    optimizer = torch.optim.Adam(autoencoder.parameters(), lr=1e-3)
    train(run, autoencoder, optimizer, lambda step: bound(autoencoder.model, autoencoder.guide, data[step]))


def svi(run: Run) -> None:
    """The same with pyro's own loop and optimizer."""
    pyro.clear_param_store()
    autoencoder = Autoencoder(run)
    data = torch.randint(2, (STEPS, 32, 16)).float()
    inference = SVI(autoencoder.model, autoencoder.guide, pyro.optim.ClippedAdam({"lr": 1e-3}), Trace_ELBO())
    for x in data:
        run.step(torch.tensor(inference.step(x)))
    for name, parameter in autoencoder.named_parameters():
        run.observe(f"in the end {name}", parameter)
