"""A small GPT: token ids in, next-token logits (or the training loss) out.

    model = GPT(GPTConfig(layers=2))
    loss = model(tokens, targets)    # i64[B, T], i64[B, T] -> f32[]
    logits = model(tokens)           # i64[B, T] -> f32[B, T, vocab_size]

It is ordinary eager PyTorch; nothing in it is specific to compilation.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class GPTConfig:
    """The shape of the model; the defaults are what the demo trains."""

    vocab_size: int = 256
    context: int = 64
    layers: int = 6
    heads: int = 4
    width: int = 128
    dropout: float = 0.0
    tie_embedding: bool = True


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.project = _residual_branch_end(nn.Linear(config.width, config.width))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._split_heads(part) for part in self.query_key_value(x).chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        return self.project(mixed.transpose(1, 2).flatten(start_dim=2))

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            _residual_branch_end(nn.Linear(4 * config.width, config.width)),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class GPT(nn.Module):
    """Embeddings, `config.layers` blocks, a final norm and the language-model head."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        if config.tie_embedding:
            self.head.weight = self.token_embedding.weight
        for embedding in (self.token_embedding, self.position_embedding):
            nn.init.normal_(embedding.weight, std=0.1)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the logits, or the mean cross-entropy where `targets` are given."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(end_dim=1), targets.flatten())

    @torch.no_grad()
    def sample(self, prompt: Tensor, count: int, temperature: float = 0.8) -> Tensor:
        """Extend `prompt` (i64[T]) by `count` sampled tokens."""
        tokens = prompt
        for _ in range(count):
            logits = self(tokens[None, -self.config.context :])[0, -1]
            chosen = torch.multinomial(torch.softmax(logits / temperature, dim=-1), num_samples=1)
            tokens = torch.cat([tokens, chosen])
        return tokens


def _residual_branch_end(layer: nn.Linear) -> nn.Linear:
    """Let a residual branch start at zero: a short training run then learns much faster."""
    nn.init.zeros_(layer.weight)
    return layer
