"""`torchdiffeq`: a neural differential equation, through its solver and by the adjoint method."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchdiffeq import odeint, odeint_adjoint

from scripts.workflows.programs.common import STEPS, Chain, mlp, train
from scripts.workflows.run import Run


class Slope(Chain):
    """dy/dt, from y alone."""

    def forward(self, t: Tensor, y: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(y**3)


def ode_rk4(run: Run) -> None:
    """Fixed steps; the solver's calls of the compiled slope are differentiated."""
    fit(run, odeint, run.compile(make_slope()), method="rk4", options={"step_size": 0.1})


def ode_whole_solver(run: Run) -> None:
    """Fixed steps; the whole solution is compiled, solver and all."""

    @run.compile
    def solve(slope: Slope, start: Tensor, times: Tensor, **settings: object) -> Tensor:
        return odeint(slope, start, times, **settings)

    fit(run, solve, make_slope(), method="euler")


def ode_adjoint(run: Run) -> None:
    """Steps of a size that the solver chooses; a second equation is solved for the gradient. In float64: the last bit of a
    float32 decides which steps are retried."""
    slope = run.compile(make_slope().double())
    fit(run, odeint_adjoint, slope, torch.float64, method="dopri5", rtol=1e-4, atol=1e-5)


def make_slope() -> Slope:
    return Slope(mlp(2, 32, 2, activation=torch.nn.Tanh))


def fit(
    run: Run, solve: Callable[..., Tensor], slope: Slope, dtype: torch.dtype = torch.float32, **settings: object
) -> None:
    """Arcs, from points on them."""
    times, starts = torch.linspace(0, 1, 6, dtype=dtype), torch.randn(STEPS, 16, 2, dtype=dtype)
    rotation = torch.stack([times.cos(), times.sin()], -1)

    def loss_of(step: int) -> Tensor:
        wanted = starts[step] * rotation[:, None]
        return (solve(slope, starts[step], times, **settings) - wanted).abs().mean()

    train(run, slope, torch.optim.Adam(slope.parameters(), lr=1e-3), loss_of)
