"""`diffusers`: U-Nets learn the noise that was added."""

from __future__ import annotations

import torch
from diffusers import DDPMScheduler, UNet2DConditionModel, UNet2DModel
from torch import Tensor, nn

from scripts.workflows.programs.common import STEPS, train
from scripts.workflows.run import Run

SIZES = dict(sample_size=16, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=8)


def diffusion_unet(run: Run) -> None:
    """A U-Net with attention in its inner blocks; in the end an image is drawn in three steps."""
    blocks = dict(down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"))
    denoise(run, UNet2DModel(in_channels=1, out_channels=1, attention_head_dim=8, **blocks, **SIZES), (1, 16, 16))


def diffusion_unet_conditioned(run: Run) -> None:
    """A U-Net with attention to a text, in bfloat16."""
    blocks = dict(
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")
    )
    model = UNet2DConditionModel(
        in_channels=4, out_channels=4, cross_attention_dim=32, attention_head_dim=8, **blocks, **SIZES
    )
    denoise(run, model, (4, 16, 16), autocast=True, encoder_hidden_states=torch.randn(2, 6, 32))


def denoise(run: Run, model: nn.Module, shape: tuple[int, ...], autocast: bool = False, **condition: Tensor) -> None:
    scheduler = DDPMScheduler(num_train_timesteps=50)
    run.compile(model)
    images = torch.randn(STEPS, 2, *shape)

    def loss_of(step: int) -> Tensor:
        noise, times = torch.randn(2, *shape), torch.randint(50, (2,))
        noisy = scheduler.add_noise(images[step], noise, times)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return torch.nn.functional.mse_loss(model(noisy, times, **condition).sample.float(), noise)

    train(run, model, torch.optim.AdamW(model.parameters(), lr=1e-4), loss_of)
    run.observe("drawn", drawn(model, scheduler, torch.randn(2, *shape), condition))


@torch.no_grad()
def drawn(model: nn.Module, scheduler: DDPMScheduler, image: Tensor, condition: dict[str, Tensor]) -> Tensor:
    scheduler.set_timesteps(3)
    for time in scheduler.timesteps:
        image = scheduler.step(model(image, time, **condition).sample, time, image).prev_sample
    return image
