"""Models that each exercise one feature that an ahead-of-time compiler easily gets wrong.

Same form as `plain_models`. Gradients that must stay `None`, parameters and buffers written inside the forward, custom
autograd functions, straight-through estimators, complex weights, autocast regions, indexed accumulation, a graph break,
sizes that change from step to step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from tests.device import TYPE

CLASSES = 5
FEATURES = 8


def feature_batch(step: int) -> dict[str, Tensor]:
    return {"x": torch.randn(6, FEATURES, requires_grad=True), "labels": torch.randint(CLASSES, (6,))}


class AutocastMLP(nn.Module):
    """The body runs in bfloat16 with an island of float32; the loss is float32."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.island, self.head = nn.Linear(FEATURES, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        with torch.autocast(TYPE, dtype=torch.bfloat16):
            hidden = F.gelu(self.inner(x))
            with torch.autocast(TYPE, enabled=False):
                hidden = hidden + self.island(hidden.float()).tanh()
            logits = self.head(hidden)
        return {"loss": F.cross_entropy(logits.float(), labels), "logits": logits}


class ClickModel(nn.Module):
    """Recommendation: bags of categorical features, and the products of all pairs of their embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20, 4, mode=mode) for mode in ("sum", "mean", "max"))
        self.dense = nn.Linear(FEATURES, 4)
        self.head = nn.Linear(4 + 6, 1)

    def forward(self, x: Tensor, categories: Tensor, clicks: Tensor) -> dict[str, Tensor]:
        dense = F.relu(self.dense(x))
        vectors = torch.stack([dense, *(bag(ids) for bag, ids in zip(self.bags, categories, strict=True))], dim=1)
        rows, columns = torch.triu_indices(4, 4, offset=1)
        pairs = torch.bmm(vectors, vectors.transpose(1, 2))[:, rows, columns]
        logits = self.head(torch.cat([dense, pairs], dim=1)).squeeze(1)
        return {"loss": F.binary_cross_entropy_with_logits(logits, clicks), "logits": logits}


def click_batch(step: int) -> dict[str, Tensor]:
    x = torch.randn(6, FEATURES, requires_grad=True)
    return {"x": x, "categories": torch.randint(20, (3, 6, 2)), "clicks": torch.rand(6).round()}


class ReverseGradient(torch.autograd.Function):
    """The identity; its backward flips and scales the gradient."""

    @staticmethod
    def forward(x: Tensor, strength: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.strength = inputs[1]

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradient, None


class DomainAdversarial(nn.Module):
    """Features that predict the labels and hide the domain; a custom autograd function connects both heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU())
        self.label_head, self.domain_head = nn.Linear(16, CLASSES), nn.Linear(16, 2)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        features = self.body(x)
        label_loss = F.cross_entropy(self.label_head(features), labels)
        domain_loss = F.cross_entropy(self.domain_head(ReverseGradient.apply(features, 0.5)), labels % 2)
        return {"loss": label_loss + domain_loss, "label_loss": label_loss, "domain_loss": domain_loss}


class FourierOperator(nn.Module):
    """A convolution done in the frequency domain with complex weights (a Fourier neural operator)."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.local, self.head = nn.Linear(1, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.spectral = nn.Parameter(0.3 * torch.randn(3, 4, 4, dtype=torch.complex64))

    def forward(self, signal: Tensor, target: Tensor) -> dict[str, Tensor]:
        hidden = self.lift(signal)
        modes = torch.fft.rfft(hidden, dim=1)
        mixed = torch.einsum("bmi,mio->bmo", modes[:, :3], self.spectral)
        global_part = torch.fft.irfft(F.pad(mixed, (0, 0, 0, modes.shape[1] - 3)), n=signal.shape[1], dim=1)
        predicted = self.head(F.gelu(self.local(hidden) + global_part))
        return {"loss": F.mse_loss(predicted, target), "modes": modes}


def signal_batch(step: int) -> dict[str, Tensor]:
    return {"signal": torch.randn(2, 12, 1, requires_grad=True), "target": torch.randn(2, 12, 1)}


class GraphBreakMLP(nn.Module):
    """Two compiled graphs with plain Python between them: the gradient crosses from one to the other."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = F.relu(self.inner(x))
        torch._dynamo.graph_break()
        logits = self.head(hidden)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class GraphNetwork(nn.Module):
    """Message passing: gathers along edges, and in-place accumulation at their ends."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(2 * FEATURES, FEATURES), nn.GRUCell(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, edges: Tensor, labels: Tensor) -> dict[str, Tensor]:
        source, target = edges
        for _ in range(2):
            messages = F.relu(self.message(torch.cat([x[source], x[target]], dim=1)))
            total = torch.zeros_like(x).index_add_(0, target, messages)
            highest = torch.zeros_like(x).scatter_reduce_(0, target[:, None].expand_as(messages), messages, "amax")
            x = self.update(total + highest, x)
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def graph_batch(step: int) -> dict[str, Tensor]:
    return {**feature_batch(step), "edges": torch.randint(6, (2, 10))}


class GrowingAttention(nn.Module):
    """Attention over a sequence; its symbolic length is saved for the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(FEATURES, 3 * FEATURES), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        query, key, value = self.project(x).chunk(3, dim=-1)
        weights = torch.softmax(query @ key.transpose(1, 2), dim=-1)
        logits = self.head((weights @ value).mean(dim=1))
        return {"loss": F.cross_entropy(logits, labels), "weights": weights}


def growing_batch(step: int) -> dict[str, Tensor]:
    """One element more at each step, so that Dynamo makes the length symbolic at the second."""
    return {"x": torch.randn(2, 4 + step, FEATURES, requires_grad=True), "labels": torch.randint(CLASSES, (2,))}


class LowRankAdapter(nn.Module):
    """Fine-tuning: frozen weights, a trained low-rank correction, and two heads that must get no gradient at all.

    `unused` is never called; `probe` is called, but only its detached answer is returned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(FEATURES, 16).requires_grad_(False)
        self.down, self.up = nn.Linear(FEATURES, 2, bias=False), nn.Linear(2, 16, bias=False)
        self.head, self.probe, self.unused = nn.Linear(16, CLASSES), nn.Linear(16, 2), nn.Linear(16, 2)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = F.relu(self.frozen(x) + self.up(self.down(x)))
        logits = self.head(hidden)
        return {"loss": F.cross_entropy(logits, labels), "probe": self.probe(hidden).detach()}


class MeanTeacher(nn.Module):
    """A student follows a teacher; the forward moves the teacher's parameters towards the student's."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))
        self.teacher = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES)).requires_grad_(False)
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            self.updates += 1
            for target, source in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                target.lerp_(source, 0.1)
            goal = self.teacher(x).softmax(dim=-1)
        logits = self.student(x)
        return {"loss": F.cross_entropy(logits, labels) + F.cross_entropy(logits, goal), "goal": goal}


class SpectralDiscriminator(nn.Module):
    """A GAN's discriminator: each forward makes one power iteration and writes the singular vectors into buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = spectral_norm(nn.Linear(FEATURES, 16)), spectral_norm(nn.Linear(16, 1))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scores = self.head(F.leaky_relu(self.inner(x), 0.2)).squeeze(1)
        real = labels < 2
        return {"loss": torch.where(real, F.relu(1 - scores), F.relu(1 + scores)).mean(), "scores": scores}


class TwoHeads(nn.Module):
    """The losses of both heads are returned, but only one is trained: the other head's parameters have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, 16)
        self.head, self.other_head = nn.Linear(16, CLASSES), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = self.body(x).relu()
        loss, other_loss = (F.cross_entropy(head(hidden), labels) for head in (self.head, self.other_head))
        return {"loss": loss, "other_loss": other_loss}


class VectorQuantizer(nn.Module):
    """An autoencoder with a discrete code: `argmin`, a gather, and the straight-through estimator."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(FEATURES, 4), nn.Linear(4, FEATURES)
        self.codebook = nn.Parameter(torch.randn(10, 4))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        latent = self.encoder(x)
        codes = torch.cdist(latent, self.codebook).argmin(dim=1)
        quantized = self.codebook[codes]
        commitment = F.mse_loss(latent, quantized.detach()) + F.mse_loss(quantized, latent.detach())
        decoded = self.decoder(latent + (quantized - latent).detach())
        return {"loss": F.mse_loss(decoded, x) + commitment, "codes": codes}
