"""The programs, and the tolerance of each.

[row.name for row in ROWS]
row.program()(Run("aotgrad"))
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from scripts.workflows.run import Run

FLOAT32, BFLOAT16 = 1e-4, 3e-2
BACKENDS = ("inductor", "aotgrad", "aotgrad_eager")


@dataclass(frozen=True)
class Row:
    """A program: `at` is its file and function, `needs` the package that it is written for.

    `tolerance` is the largest relative difference (compare.py) that counts as close; `why` explains one that is not the
    default, and anything else that the document should say.
    """

    at: str
    what: str
    needs: str = "torch"
    tolerance: float = FLOAT32
    why: str = ""

    @property
    def name(self) -> str:
        return self.at.partition(":")[2]

    def program(self) -> Callable[[Run], None]:
        file, _, name = self.at.partition(":")
        return getattr(importlib.import_module(f"scripts.workflows.programs.{file}"), name)

    @property
    def about(self) -> str:
        """The first line of the program's docstring."""
        return (self.program().__doc__ or "").strip().splitlines()[0]


ROWS = (
    Row("derivatives:pinn", "PINN, second derivatives by `autograd.grad`"),
    Row("derivatives:pinn_of_transforms", "PINN, `vmap(hessian)`, all of the loss compiled"),
    Row("derivatives:wgan_gp", "WGAN with gradient penalty"),
    Row("derivatives:maml", "MAML, `functional_call` and `create_graph`"),
    Row("derivatives:maml_of_transforms", "MAML, `vmap` of `func.grad`, all of the loss compiled"),
    Row(
        "optimizers:adamw_one_cycle",
        "AdamW with OneCycleLR, compiled",
        why="Dynamo traces other step formulas than eager runs; eager halves equal its graph.",
    ),
    Row(
        "optimizers:sgd_cosine",
        "SGD with CosineAnnealingLR, compiled, the rate a float",
        why="the peer recompiles each step; in aotgrad one plan serves all learning rates from the second on.",
    ),
    Row(
        "optimizers:stochastic_weight_averaging",
        "SWA with batch norms updated",
        why="the gradient of a bias before a batch norm is zero; only the rounding of others remains.",
    ),
    Row("optimizers:exponential_moving_average", "moving average of weights, compiled"),
    Row(
        "optimizers:lbfgs",
        "L-BFGS with a line search",
        why="in float64: a line search depends on the last bit of a loss, so runs in float32 soon diverge.",
    ),
    Row("trainer:trainer_gpt2", "Trainer, GPT-2, bfloat16, accumulation", "transformers", BFLOAT16),
    Row("trainer:trainer_bert", "Trainer, BERT, gradient checkpointing", "transformers"),
    Row("trainer:trainer_llama", "Trainer, Llama, saved and resumed", "transformers"),
    Row("trainer:trainer_llama_bf16", "Trainer, Llama, bfloat16, checkpointing, accumulation", "transformers", BFLOAT16),
    Row("accelerated:accelerate_loop", "accelerate, accumulation and clipping", "accelerate"),
    Row("adapters:lora", "PEFT, LoRA in a Llama, merged", "peft"),
    Row(
        "lightning_module:lightning_trainer",
        "Lightning, accumulation, clipping, validation",
        "lightning",
        tolerance=1e-3,
        why="the gradient of a bias before a batch norm is zero; only the rounding of others remains.",
    ),
    Row(
        "images:timm_resnet",
        "ResNet-10t",
        "timm",
        why="in float64, since batch norms of few values amplify rounding: in float32, aotgrad is 3e-03 off.",
    ),
    Row("images:timm_vit", "ViT-tiny", "timm"),
    Row("images:timm_convnext", "ConvNeXt", "timm"),
    Row(
        "images:timm_mobilenet",
        "MobileNetV3",
        "timm",
        why="in float64, too (in float32, aotgrad is 3e-04 off); eager's backward of `hardsigmoid` rounds 1/6 to single "
        "precision.",
    ),
    Row("diffusion:diffusion_unet", "U-Net", "diffusers"),
    Row(
        "diffusion:diffusion_unet_conditioned",
        "U-Net with cross attention, bfloat16",
        "diffusers",
        tolerance=2e-1,
        why="eager's own gradients in bfloat16 are up to 0.19 off those in float32. The peer's are zero before an "
        "upsampling: Inductor reads its result before it is written; aotgrad prevents this (`backends/corrected.py`).",
    ),
    Row("graphs:gcn", "GCN", "torch_geometric"),
    Row("graphs:gat", "GAT", "torch_geometric"),
    Row("graphs:schnet", "SchNet, energies and forces", "torch_geometric"),
    Row("equivariant:e3nn_forces", "equivariant network, energies and forces", "e3nn"),
    Row("equations:ode_rk4", "neural ODE, Runge-Kutta", "torchdiffeq"),
    Row("equations:ode_whole_solver", "neural ODE, the solver compiled", "torchdiffeq"),
    Row(
        "equations:ode_adjoint",
        "neural ODE, adaptive, adjoint method",
        "torchdiffeq",
        why="in float64: the last bit decides which steps the solver retries; in float32, aotgrad is 4e-04 off.",
    ),
    Row(
        "processes:gaussian_process",
        "exact Gaussian process, likelihood compiled",
        "gpytorch",
        why="in float64, which its matrices need: in float32, aotgrad is 2e-04 off. Dynamo often breaks GPyTorch's graph.",
    ),
    Row("inference:variational_inference", "variational autoencoder, differentiable bound", "pyro-ppl"),
    Row("inference:svi", "variational autoencoder, SVI", "pyro-ppl"),
    Row("private:private_by_hooks", "DP-SGD by hooks", "opacus"),
    Row("private:private_by_vmap", "DP-SGD by `vmap`", "opacus"),
    Row("quantized:quantization_aware", "quantization-aware training, 8 and 4 bits", "torchao"),
    Row(
        "schedule_free:schedule_free",
        "AdamW without a schedule, compiled",
        "schedulefree",
        why="the peer recompiles the step for each sum of weights that the optimizer keeps; in aotgrad one plan serves the "
        "warm-up, and one the rest.",
    ),
)
BY_NAME = {row.name: row for row in ROWS}
