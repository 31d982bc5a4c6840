"""`gpytorch`: an exact Gaussian process."""

from __future__ import annotations

import gpytorch
import torch
from torch import Tensor

from scripts.workflows.programs.common import train
from scripts.workflows.run import Run


class Process(gpytorch.models.ExactGP):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean = gpytorch.means.ConstantMean()
        self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=2))

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))


def gaussian_process(run: Run) -> None:
    """The marginal likelihood is compiled: kernel, Cholesky decomposition and all. In float64, as such matrices need it."""
    x = torch.rand(40, 2).double()
    y = (6 * x.sum(-1)).sin()
    model = Process(x, y).double()
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    loss_of = run.compile(lambda: -likelihood(model(x), y))
    train(run, model.train(), torch.optim.Adam(model.parameters(), lr=0.1), lambda step: loss_of())
