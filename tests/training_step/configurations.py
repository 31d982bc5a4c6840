"""The optimizers of torch in each configuration that torch's own tests use, and models that they train.

for configuration in CONFIGURATIONS:
    make = lambda: training_of(MODELS["vae"], configuration)
    assert_trains_like_eager(make, batches_of(MODELS["vae"], 20))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.testing._internal.common_optimizers import _get_optim_inputs_including_global_cliquey_kwargs, optim_db

from tests.models.zoo import CASES, ModelCase
from tests.training_step.comparing import Batches, Training

REFUSED = ("LBFGS", "SparseAdam")
NO_GRAPH = ("differentiable",)
"""Updates of leaves that autograd records raise in eager."""

_NAMES = ("bert", "denoiser", "fourier_operator", "gpt2", "lstm", "mamba", "resnet", "t5", "transformer_encoder", "unet")
MODELS = {case.name: case for case in CASES if case.name in (*_NAMES, "vae", "vit")}
"""Transformers, convolutions, recurrent nets, complex weights, buffers that change, dropout."""


@dataclass(frozen=True)
class Configuration:
    """A kind of optimizer and its arguments besides the parameters."""

    kind: type[torch.optim.Optimizer]
    settings: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.kind.__name__}-{','.join(f'{name}={value}' for name, value in self.settings.items())}"

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """An optimizer of a model, with settings that it may write to."""
        own = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in self.settings.items()}
        takes_matrices = self.kind.__name__ == "Muon"  # and refuses others
        return self.kind([each for each in model.parameters() if each.dim() == 2 or not takes_matrices], **own)


def _configurations() -> Iterator[Configuration]:
    for info in optim_db:
        if info.optim_cls.__name__ not in REFUSED:
            inputs = _get_optim_inputs_including_global_cliquey_kwargs("cpu", torch.float32, info, skip=NO_GRAPH)
            for settings in {str(each.kwargs): each.kwargs for each in inputs}.values():
                yield Configuration(info.optim_cls, settings)


CONFIGURATIONS = tuple(_configurations())


def models_for(configuration: Configuration) -> list[ModelCase]:
    """The models that eager trains so: some updates take no complex weights, Muon needs a matrix."""
    takes_complex = not configuration.settings.get("fused") and configuration.kind.__name__ != "Adafactor"
    trained = {"fourier_operator": takes_complex, "unet": configuration.kind.__name__ != "Muon"}
    return [case for name, case in MODELS.items() if trained.get(name, True)]


def training_of(case: ModelCase, configuration: Configuration) -> Training:
    """Trains a model with a learning rate that changes after each step."""
    model = case.build()
    optimizer = configuration.optimizer(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        return loss

    return Training(step, [model, optimizer], lambda k: scheduler.step())


def batches_of(case: ModelCase, count: int) -> Batches:
    """Random batches that need no gradient."""
    torch.manual_seed(1)
    return [(pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, dict(case.batch(k))),) for k in range(count)]
