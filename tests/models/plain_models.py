"""Small models made of `torch.nn` parts: the usual architectures, each at the smallest size that has all its parts.

In: only the global random state, which the harness seeds. Out: for each architecture a module and a function that makes
the batch of step 0, 1 or 2. `forward` takes the batch as keyword arguments and returns a dictionary with the entry
`"loss"`. A batch's floating-point tensors require grad where a gradient of the input makes sense.

    model = ResNet()
    model(**image_batch(step=0))["loss"].backward()
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 5
VOCABULARY = 32
DIFFUSION_STEPS = 20


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm, and a strided shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """A residual image classifier; its batch norms update their running statistics in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(ResidualBlock(4, 4, stride=1), ResidualBlock(4, 8, stride=2))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        features = F.adaptive_avg_pool2d(self.blocks(self.stem(images)), 1).flatten(1)
        logits = self.head(features)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def image_batch(step: int) -> dict[str, Tensor]:
    return {"images": torch.randn(4, 3, 8, 8, requires_grad=True), "labels": torch.randint(CLASSES, (4,))}


def conv_group_norm(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 3, padding=1), nn.GroupNorm(2, out_channels), nn.SiLU())


class UNet(nn.Module):
    """Two levels down, two levels up, skips joined by `cat`: the segmentation shape."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = conv_group_norm(3, 4), conv_group_norm(4, 8)
        self.middle = conv_group_norm(8, 8)
        self.up2, self.up1 = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.merge2, self.merge1 = conv_group_norm(16, 8), conv_group_norm(8, 4)
        self.head = nn.Conv2d(4, 1, 1)

    def forward(self, images: Tensor, mask: Tensor) -> dict[str, Tensor]:
        skip1 = self.down1(images)
        skip2 = self.down2(F.max_pool2d(skip1, 2))
        middle = self.middle(F.avg_pool2d(skip2, 2))
        level2 = self.merge2(torch.cat([self.up2(middle), skip2], dim=1))
        level1 = self.merge1(torch.cat([self.up1(level2), skip1], dim=1))
        logits = self.head(level1)
        return {"loss": F.binary_cross_entropy_with_logits(logits, mask), "logits": logits}


def segmentation_batch(step: int) -> dict[str, Tensor]:
    return {"images": torch.randn(2, 3, 8, 8, requires_grad=True), "mask": torch.rand(2, 1, 8, 8).round()}


class LSTMLanguageModel(nn.Module):
    """Two stacked `nn.LSTM` layers that predict the next token, and return their last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.lstm = nn.LSTM(8, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        hidden, (last_hidden, last_cell) = self.lstm(self.embedding(tokens[:, :-1]))
        loss = F.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())
        return {"loss": loss, "last_hidden": last_hidden, "last_cell": last_cell}


class LSTMCellLanguageModel(nn.Module):
    """An `nn.LSTMCell` stepped by a Python loop, which the trace unrolls."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.cell = nn.LSTMCell(8, 8)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        embedded = self.embedding(tokens[:, :-1])
        hidden = cell = embedded.new_zeros(tokens.shape[0], 8)
        logits = []
        for token in embedded.unbind(1):
            hidden, cell = self.cell(token, (hidden, cell))
            logits.append(self.head(hidden))
        return {"loss": F.cross_entropy(torch.stack(logits, dim=2), tokens[:, 1:]), "last_hidden": hidden}


class TransformerClassifier(nn.Module):
    """`nn.TransformerEncoder` with dropout in attention and feed-forward, under a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, norm=nn.LayerNorm(8), enable_nested_tensor=False)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        length = tokens.shape[1] - 1
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.encoder(self.embedding(tokens[:, :-1]), mask=mask, is_causal=True)
        logits = self.head(hidden)
        return {"loss": F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:]), "logits": logits}


def token_batch(step: int) -> dict[str, Tensor]:
    return {"tokens": torch.randint(VOCABULARY, (2, 7))}


def growing_token_batch(step: int) -> dict[str, Tensor]:
    """One token more at each step, so that Dynamo makes the length symbolic at the second."""
    return {"tokens": torch.randint(VOCABULARY, (2, 7 + step))}


class VAE(nn.Module):
    """A variational autoencoder: the latent is drawn inside the compiled forward."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 12))

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        mean, log_variance = self.encoder(pixels).chunk(2, dim=-1)
        latent = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        reconstruction = F.binary_cross_entropy_with_logits(self.decoder(latent), pixels)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
        return {"loss": reconstruction + divergence, "reconstruction": reconstruction, "divergence": divergence}


def pixel_batch(step: int) -> dict[str, Tensor]:
    return {"pixels": torch.rand(4, 12, requires_grad=True)}


def timestep_embedding(timesteps: Tensor, width: int) -> Tensor:
    """Sines and cosines of the timestep at geometrically spaced frequencies, `f32[batch, width]`."""
    half = width // 2
    frequencies = torch.exp(-math.log(10_000) * torch.arange(half) / half)
    angles = timesteps[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class ConditionedBlock(nn.Module):
    """A convolution block with scale and shift from the timestep embedding."""

    def __init__(self, channels: int, condition_width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.modulation = nn.Linear(condition_width, 2 * channels)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.modulation(condition)[:, :, None, None].chunk(2, dim=1)
        return x + self.conv(F.silu(self.norm(x) * (1 + scale) + shift))


class Denoiser(nn.Module):
    """Predicts the noise that it mixes into clean images at random timesteps (DDPM training)."""

    signal_level: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("signal_level", torch.cumprod(1 - torch.linspace(1e-2, 0.2, DIFFUSION_STEPS), dim=0))
        self.condition = nn.Sequential(nn.Linear(8, 8), nn.SiLU())
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.blocks = nn.ModuleList(ConditionedBlock(4, condition_width=8) for _ in range(2))
        self.head = nn.Conv2d(4, 1, 3, padding=1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        timesteps = torch.randint(DIFFUSION_STEPS, (images.shape[0],))
        noise = torch.randn_like(images)
        level = self.signal_level[timesteps][:, None, None, None]
        hidden = self.stem(level.sqrt() * images + (1 - level).sqrt() * noise)
        condition = self.condition(timestep_embedding(timesteps, width=8))
        for block in self.blocks:
            hidden = block(hidden, condition)
        predicted = self.head(hidden)
        return {"loss": F.mse_loss(predicted, noise), "predicted": predicted}


def grey_image_batch(step: int) -> dict[str, Tensor]:
    return {"images": torch.randn(3, 1, 6, 6, requires_grad=True)}
