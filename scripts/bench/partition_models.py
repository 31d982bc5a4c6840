"""The joint graphs of the partitioner's benchmark: thirteen models at class size, traced with fake tensors.

    joint = joint_graph("gpt6")        an `fx.GraphModule` in the convention of partition functions, with their arguments

Nothing runs and nothing is downloaded: weights are uninitialized memory, and models of `transformers` are made from a
configuration.
Ops are decomposed as Inductor does, and equal ops of the forward and of the backward are merged, before any partitioner
sees the graph.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._inductor.lowering  # a decomposition of pooling needs it
import torch.fx as fx
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._functorch.compile_utils import fx_graph_cse
from torch._inductor.decomposition import select_decomp_table

import aotgrad

BATCH, LENGTH = 8, 512


@dataclass(frozen=True)
class Captured:
    """A joint graph, the number of its forward outputs, and the inputs that are parameters."""

    name: str
    module: fx.GraphModule
    num_fwd_outputs: int
    static: tuple[int, ...]

    def copy(self) -> fx.GraphModule:
        """A module with its own graph, since partition functions may change their input."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.module.graph, {}))
        for old, new in zip(self.module.graph.nodes, graph.nodes, strict=True):
            new.meta = dict(old.meta)
        return fx.GraphModule(self.module, graph)


class Attention(nn.Module):
    """Causal self-attention: from its parts, or with the fused op."""

    def __init__(self, width: int, heads: int, fused: bool, dropout: float = 0.0, causal: bool = True):
        super().__init__()
        self.heads, self.fused, self.dropout, self.causal = heads, fused, dropout, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5)
            if self.causal:
                hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(hidden, float("-inf"))
            mixed = F.dropout(torch.softmax(scores, dim=-1), self.dropout) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class GatedMLP(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        inner = 8 * width // 3 // 64 * 64
        self.gate, self.up, self.down = nn.Linear(width, inner), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A transformer block, normalized before (GPT, Llama) or after (BERT) its parts."""

    def __init__(self, width: int, attention: Attention, norm: type, mlp: nn.Module, after: bool, dropout: float):
        super().__init__()
        self.attention, self.mlp, self.after, self.dropout = attention, mlp, after, dropout
        self.first, self.second = norm(width), norm(width)

    def forward(self, x: Tensor) -> Tensor:
        if self.after:
            x = self.first(x + F.dropout(self.attention(x), self.dropout))
            return self.second(x + F.dropout(self.mlp(x), self.dropout))
        x = x + F.dropout(self.attention(self.first(x)), self.dropout)
        return x + F.dropout(self.mlp(self.second(x)), self.dropout)


class Transformer(nn.Module):
    """A language model; returns its loss."""

    def __init__(self, kind: str, layers: int, fused: bool = False, width: int = 768, vocabulary: int = 32000):
        super().__init__()
        dropout = 0.1 if kind == "bert" else 0.0
        norm = RMSNorm if kind == "llama" else nn.LayerNorm
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(LENGTH, width))
        self.blocks = nn.ModuleList(
            Block(
                width,
                Attention(width, 12, fused, dropout, causal=kind != "bert"),
                norm,
                GatedMLP(width) if kind == "llama" else mlp(width),
                kind == "bert",
                dropout,
            )
            for _ in range(layers)
        )
        self.norm, self.head = norm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Bottleneck(nn.Module):
    """ResNet-50's block."""

    def __init__(self, before: int, inner: int, stride: int):
        super().__init__()
        after = 4 * inner
        self.body = nn.Sequential(
            *conv_norm(before, inner, 1, 1), nn.ReLU(),
            *conv_norm(inner, inner, 3, stride), nn.ReLU(),
            *conv_norm(inner, after, 1, 1),
        )  # fmt: skip
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv_norm(before, after, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def conv_norm(before: int, after: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(after)


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        before = 64
        for count, inner, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
            for index in range(count):
                blocks.append(Bottleneck(before, inner, stride if index == 0 else 1))
                before = 4 * inner
        stem = (*conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.body = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(before, 1000)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.body(images)), targets)


class UNet(nn.Module):
    """Four resolutions with skip connections; group norm and SiLU, as in diffusion models."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)):
        super().__init__()
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down = nn.ModuleList(self.stage(a, b) for a, b in zip((widths[0], *widths), widths, strict=False))
        self.up = nn.ModuleList(self.stage(a + b, a) for a, b in zip(widths[-2::-1], widths[:0:-1], strict=True))
        self.last = nn.Conv2d(widths[0], 3, 3, padding=1)

    @staticmethod
    def stage(before: int, after: int) -> nn.Module:
        def layer(a: int) -> list[nn.Module]:
            return [nn.Conv2d(a, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU()]

        return nn.Sequential(*layer(before), *layer(after))

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        x, skips = self.first(images), []
        for stage in self.down:
            x = stage(x)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        for stage, skip in zip(self.up, skips[-2::-1], strict=True):
            x = stage(torch.cat([F.interpolate(x, scale_factor=2.0, mode="nearest"), skip], dim=1))
        return F.mse_loss(self.last(x), targets)


class ResidualMLP(nn.Module):
    def __init__(self, layers: int = 32, width: int = 1024):
        super().__init__()
        norms = [nn.LayerNorm(width) for _ in range(layers)]
        self.blocks = nn.ModuleList(nn.Sequential(norm, nn.Linear(width, width), nn.GELU()) for norm in norms)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return F.cross_entropy(self.head(x), targets)


class FromTransformers(nn.Module):
    """A model of the `transformers` library; returns its loss."""

    def __init__(self, make: Callable[[Any], nn.Module], **inputs: str):
        super().__init__()
        import transformers

        self.model, self.inputs = make(transformers), inputs

    def forward(self, *args: Tensor) -> Tensor:
        return self.model(**dict(zip(self.inputs, args, strict=True))).loss


def gpt2(library: Any) -> nn.Module:
    model = library.GPT2LMHeadModel(library.GPT2Config(n_positions=LENGTH, use_cache=False))
    model.loss_type = "ForCausalLM"  # otherwise it writes to a logger, which Dynamo does not trace
    return model


def bert(library: Any) -> nn.Module:
    config = library.BertConfig(num_hidden_layers=12, use_cache=False)
    return library.BertForMaskedLM(config)


def llama(library: Any) -> nn.Module:
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 12, "num_attention_heads": 8}
    return library.LlamaForCausalLM(library.LlamaConfig(**sizes, use_cache=False))


def vit(library: Any) -> nn.Module:
    return library.ViTForImageClassification(library.ViTConfig(num_labels=1000))


def t5(library: Any) -> nn.Module:
    config = library.T5Config(d_model=512, num_layers=6, num_decoder_layers=6, use_cache=False, decoder_start_token_id=0)
    return library.T5ForConditionalGeneration(config)


def tokens() -> Tensor:
    return torch.zeros(BATCH, LENGTH, dtype=torch.long)


def labels(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.long)


Maker = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]

MODELS: dict[str, Maker] = {
    "gpt6": lambda: (Transformer("gpt", 6), (tokens(), tokens())),
    "gpt6_sdpa": lambda: (Transformer("gpt", 6, fused=True), (tokens(), tokens())),
    "llama6": lambda: (Transformer("llama", 6), (tokens(), tokens())),
    "llama6_sdpa": lambda: (Transformer("llama", 6, fused=True), (tokens(), tokens())),
    "bert6": lambda: (Transformer("bert", 6), (tokens(), tokens())),
    "resnet50": lambda: (ResNet50(), (torch.zeros(32, 3, 224, 224), labels(32))),
    "unet": lambda: (UNet(), (torch.zeros(8, 3, 128, 128), torch.zeros(8, 3, 128, 128))),
    "mlp32": lambda: (ResidualMLP(), (torch.zeros(4096, 1024), labels(4096))),
    "hf_gpt2": lambda: (FromTransformers(gpt2, input_ids="", labels=""), (tokens(), tokens())),
    "hf_bert": lambda: (FromTransformers(bert, input_ids="", labels=""), (tokens(), tokens())),
    "hf_llama": lambda: (FromTransformers(llama, input_ids="", labels=""), (tokens(), tokens())),
    "hf_vit": lambda: (
        FromTransformers(vit, pixel_values="", labels=""),
        (torch.zeros(32, 3, 224, 224), labels(32)),
    ),
    "hf_t5": lambda: (FromTransformers(t5, input_ids="", labels=""), (tokens(), tokens())),
}

EXTRA: dict[str, Maker] = {
    f"gpt{layers}": (lambda layers=layers: (Transformer("gpt", layers), (tokens(), tokens())))
    for layers in (24, 48, 96, 120)
}
"""Deep models, for the time that partitioning takes."""


class Stop(Exception):
    """Raised once the joint graph exists, to end the compilation."""


def model_and_inputs(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Our own models get memory that is never written, and so takes no space."""
    make = (MODELS | EXTRA)[name]
    if name.startswith("hf_"):
        return make()
    with torch.device("meta"):
        model, inputs = make()
    return model.to_empty(device="cpu"), tuple(torch.empty_like(x, device="cpu") for x in inputs)


def joint_graph(name: str) -> Captured:
    """Trace a model with Inductor's decompositions, up to its joint graph; those of `transformers` need Dynamo."""
    found: list[Captured] = []

    def keep(module: fx.GraphModule, _inputs: Any, *, num_fwd_outputs: int, static_lifetime_input_indices: Any) -> Any:
        merged = fx.GraphModule(module, fx_graph_cse(module.graph))
        found.append(Captured(name, merged, num_fwd_outputs, tuple(static_lifetime_input_indices)))
        raise Stop

    def backend(module: fx.GraphModule, given: Any) -> Any:
        return aotgrad.aot_module_simplified(module, given, aotgrad.nop, partition_fn=keep, decompositions=table)

    table = {op: f for op, f in select_decomp_table().items() if op is not torch.ops.aten.detach.default}
    model, inputs = model_and_inputs(name)
    model.train()
    if name.startswith("hf_"):
        compiled = torch.compile(model, backend=backend, fullgraph=True)
    else:
        compiled = aotgrad.aot_module(model, aotgrad.nop, partition_fn=keep, decompositions=table)
    with contextlib.suppress(Stop, BackendCompilerFailed):
        compiled(*inputs)
    (captured,) = found
    return captured


def parser_of(description: str | None, models: Iterable[str] = MODELS) -> argparse.ArgumentParser:
    """The common command line of the partitioner's benchmarks; `models` are the default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*MODELS, *EXTRA], default=list(models), help="which models")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    return parser


def report(text: str, markdown: Path | None) -> None:
    """Print tables, and write them to a file if there is one."""
    if markdown:
        markdown.write_text(text)
    print(text)
