"""The programs that part 1 compares: each builds a function with its inputs, and observes it.

program = PROGRAMS["layer norm"]
function, inputs = program.build()          on the default device, in float32
program.observe(function, inputs)           {"result 0": ..., "gradient of input 0": ..., ...}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from case import Need
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

Observations = Mapping[str, "Tensor | None"]
Built = tuple[Callable, Sequence[Any]]
Observe = Callable[[Callable, Sequence[Any]], Observations]


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        build: makes the function or module, and its inputs.
        observe: runs it and returns what a user would see.
        has_oracle: whether the same program in float64 computes the same, but for rounding.
        options: of aotgrad.
        needs: what the machine must have.
    """

    build: Callable[[], Built]
    observe: Observe
    has_oracle: bool = True
    options: Mapping[str, Any] | None = None
    needs: frozenset[Need] = frozenset()


PROGRAMS: dict[str, Program] = {}


def tensors_of(function: Callable, inputs: Sequence[Any]) -> dict[str, Tensor]:
    """The inputs, parameters and buffers of a call, by name."""
    named = {f"input {k}": value for k, value in enumerate(inputs) if isinstance(value, Tensor)}
    if isinstance(function, nn.Module):
        named |= {name.removeprefix("_orig_mod."): value for name, value in function.named_parameters()}
        named |= {name.removeprefix("_orig_mod."): value for name, value in function.named_buffers()}
    return named


def results_of(result: Any) -> list[Tensor]:
    """The tensors of a result."""
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def weighted_sum(values: Sequence[Tensor]) -> Tensor:
    """A number that depends on each element in another way."""
    terms = [value.double().flatten() for value in values if value.requires_grad]
    return sum(((term * torch.linspace(-1, 1, term.numel(), device=term.device)).sum() for term in terms), torch.zeros(()))


def forward_and_backward(function: Callable, inputs: Sequence[Any]) -> Observations:
    """Results, gradients, and values of all inputs afterwards, over two steps."""
    seen: dict[str, Tensor | None] = {}
    for step in range(2):
        torch.manual_seed(step)
        results = results_of(function(*inputs))
        total = weighted_sum(results)
        if total.requires_grad:
            total.backward()
        seen |= {f"step {step}, result {k}": value.detach().clone() for k, value in enumerate(results)}
        for name, value in tensors_of(function, inputs).items():
            seen[f"step {step}, {name}"] = value.detach().clone()
            if value.is_leaf and value.requires_grad:
                seen[f"step {step}, gradient of {name}"] = None if value.grad is None else value.grad.clone()
                value.grad = None
    return seen


def second_order(function: Callable, inputs: Sequence[Any]) -> Observations:
    """First and second derivatives with respect to the first input."""
    x = inputs[0]
    (first,) = torch.autograd.grad(weighted_sum(results_of(function(*inputs))), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sin().sum(), x)
    return {"first derivative": first.detach(), "second derivative": second}


def batched(function: Callable, inputs: Sequence[Any]) -> Observations:
    """A Jacobian by batched gradients, and by torch.func."""
    x = inputs[0]
    rows = torch.eye(4)
    (gradients,) = torch.autograd.grad(function(x), x, rows, is_grads_batched=True)
    return {"batched": gradients, "jacrev": torch.func.jacrev(function)(x).detach()}


def program(
    name: str, observe: Observe = forward_and_backward, *needs: Need, has_oracle: bool = True, **options: Any
) -> Callable:
    """Add a program: the decorated function builds it."""

    def add(build: Callable[[], Built]) -> Callable[[], Built]:
        PROGRAMS[name] = Program(build, observe, has_oracle, options, frozenset(needs))
        return build

    return add


def leaf(*size: int) -> Tensor:
    return torch.randn(*size).requires_grad_()


# --- Layers ----------------------------------------------------------------------------------------------------------


@program("linear layers")
def _() -> Built:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)), [leaf(32, 64)]


@program("convolution, batch norm, channels last")
def _() -> Built:
    layers = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1, stride=2))
    nn.Module.to(layers, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return layers, [leaf(4, 8, 16, 16)]


@program("layer norm and gelu")
def _() -> Built:
    return nn.Sequential(nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64)), [leaf(32, 64)]


@program("attention, causal")
def _() -> Built:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [leaf(2, 4, 64, 32) for _ in range(3)]


@program("attention, by torch's formula")
def _() -> Built:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v)

    return attend, [leaf(2, 4, 32, 16) for _ in range(3)]


@program("transformer layer")
def _() -> Built:
    return nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True), [leaf(2, 16, 64)]


@program("embedding and cross entropy")
def _() -> Built:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)

        def forward(self, tokens: Tensor) -> Tensor:
            return F.cross_entropy(self.head(self.tokens(tokens)).flatten(0, 1), tokens.flatten())

    return Model(), [torch.arange(32).reshape(4, 8)]


@program("recurrent layer", forward_and_backward, Need.GPU)
def _() -> Built:
    return nn.LSTM(16, 32, 2, batch_first=True), [leaf(4, 8, 16)]


@program("group norm, silu and interpolation")
def _() -> Built:
    layers = nn.Sequential(nn.GroupNorm(4, 8), nn.SiLU(), nn.Upsample(scale_factor=2.0), nn.Conv2d(8, 8, 3, padding=1))
    return layers, [leaf(2, 8, 8, 8)]


# --- Ops -------------------------------------------------------------------------------------------------------------


@program("reductions and broadcasts")
def _() -> Built:
    return lambda x, y: ((x * y).softmax(-1).logsumexp(0), x.var(1), (x - y).amax(1)), [leaf(32, 48), leaf(48)]


@program("indexing, gather and scatter")
def _() -> Built:
    places = torch.tensor([3, 1, 1, 0])

    def f(x: Tensor) -> tuple[Tensor, ...]:
        return x[places], x.index_add(0, places, x[:4] * 2), x.gather(0, places[:, None].expand(4, 8))

    return f, [leaf(6, 8)]


@program("complex numbers")
def _() -> Built:
    return lambda x: torch.fft.rfft(x * 2).abs().square(), [leaf(8, 32)]


@program("products in half precision", has_oracle=False)
def _() -> Built:
    return lambda x, w: (x @ w).relu(), [torch.randn(32, 64).bfloat16().requires_grad_() for _ in range(1)] + [
        torch.randn(64, 32).bfloat16().requires_grad_()
    ]


@program("numbers on the CPU beside tensors on CUDA")
def _() -> Built:
    return lambda x, s: (x * s).sin() + s, [leaf(8, 8), torch.tensor(2.0, device="cpu", requires_grad=True)]


@program("to the CPU and back")
def _() -> Built:
    return lambda x: x.sin().cpu().cos().cuda() * x, [leaf(8, 8)]


@program("constants made of numbers")
def _() -> Built:
    return lambda x: x * torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype) + torch.arange(3), [leaf(4, 3)]


# --- Semantics -------------------------------------------------------------------------------------------------------


@program("argument changed in place")
def _() -> Built:
    def f(x: Tensor, total: Tensor) -> Tensor:
        total.add_(x.detach().sum(0))
        return x * total

    return f, [leaf(4, 8), torch.zeros(8)]


@program("overlapping arguments changed in place", has_oracle=False)
def _() -> Built:
    memory = torch.randn(16)

    def f(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(0.5)
        return b.sin() + a[:8]

    return f, [memory[:12], memory[4:12]]


@program("views of an argument and of an intermediate")
def _() -> Built:
    return lambda x: (x.t(), (y := x.exp())[1:], y.view(-1)), [leaf(4, 8)]


@program("detached branches and None gradients")
def _() -> Built:
    return lambda x, y, z: (x * y.detach(), z.detach() * 2), [leaf(8), leaf(8), leaf(8)]


@program("custom autograd function")
def _() -> Built:
    class Clamped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clamp(-1, 1)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * (ctx.saved_tensors[0] + 2)

    return lambda x: Clamped.apply(x.sin() * 2), [leaf(16)]


@program("custom function under autocast", has_oracle=False)
def _() -> Built:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda")
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
            x, w = ctx.saved_tensors
            return (gradient @ w.t()).to(x.dtype), (x.t() @ gradient).to(w.dtype)

    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return Product.apply(x, w).float().sin()

    return f, [leaf(16, 16), leaf(16, 16)]


@program("autocast", has_oracle=False)
def _() -> Built:
    layers = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 32))

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return self.layers(x)

    return Cast(), [leaf(16, 32)]


@program("dropout", has_oracle=False)
def _() -> Built:
    return lambda x, w: F.dropout(x @ w, 0.5).sin(), [leaf(32, 32), leaf(32, 32)]


@program("dropout that a memory budget recomputes", has_oracle=False, memory_budget=0.1)
def _() -> Built:
    return lambda x, w: F.dropout((x @ w).sin(), 0.5).cos().sin(), [leaf(256, 256), leaf(256, 256)]


@program("dropout with functionalized random numbers", has_oracle=False, memory_budget=0.1, functionalize_rng=True)
def _() -> Built:
    return lambda x, w: F.dropout((x @ w).sin(), 0.5).cos() + torch.rand_like(w), [leaf(256, 256), leaf(256, 256)]


@program("attention with dropout", has_oracle=False)
def _() -> Built:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.2), [leaf(2, 4, 32, 16) for _ in range(3)]


@program("checkpointed regions")
def _() -> Built:
    inner = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, checkpoint(self.inner, x, use_reentrant=False), use_reentrant=False)

    return Model(), [leaf(16, 32)]


@program("checkpoint with dropout", has_oracle=False)
def _() -> Built:
    return lambda x, w: checkpoint(lambda a: F.dropout((a @ w).sin(), 0.5).cos(), x, use_reentrant=False), [
        leaf(16, 16),
        leaf(16, 16),
    ]


@program("a budget of memory", memory_budget=0.5)
def _() -> Built:
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(4))), [leaf(32, 64)]


@program("second derivatives", second_order)
def _() -> Built:
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)), [leaf(16, 8)]


@program("second derivatives of a convolution", second_order)
def _() -> Built:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Softplus(), nn.Conv2d(4, 1, 3)), [leaf(2, 2, 8, 8)]


@program("batched gradients and torch.func", batched)
def _() -> Built:
    return lambda x: (x.sin() * x).sum(1), [leaf(4, 8)]
