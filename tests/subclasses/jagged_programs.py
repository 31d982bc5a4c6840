"""Programs with jagged nested tensors: rows of several lengths in one tensor of values, with their offsets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from tests.subclasses.catalogue import Program, around, second_order, with_pieces
from tests.subclasses.programs import described, outcome, plain


def jagged(
    lengths: Sequence[int] = (2, 3, 4), width: Sequence[int] = (4,), requires_grad: bool = True, seed: int = 0
) -> Any:
    """A nested tensor of rows of these lengths."""
    values = plain(sum(lengths), *width, seed=seed).detach()
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(values, offsets).detach().requires_grad_(requires_grad)


def beside(x: torch.Tensor, seed: int, requires_grad: bool = True) -> torch.Tensor:
    """Another nested tensor with the offsets of `x`."""
    values = plain(*x.values().shape, seed=seed).detach()
    return torch.nested.nested_tensor_from_jagged(values, x.offsets()).detach().requires_grad_(requires_grad)


def attention(q, k, v, **settings):
    heads = (some.unflatten(-1, (2, -1)).transpose(1, 2) for some in (q, k, v))
    return nn.functional.scaled_dot_product_attention(*heads, **settings).transpose(1, 2).flatten(-2)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inward = nn.ModuleList(nn.Linear(4, 4, dtype=torch.float64) for _ in range(3))
        self.outward = nn.Linear(4, 4, dtype=torch.float64)
        self.norm = nn.LayerNorm(4, dtype=torch.float64)

    def forward(self, x):
        normed = self.norm(x)
        return self.outward(attention(*(layer(normed) for layer in self.inward))) + x


def with_one_backward(function: Callable, arguments: list[Any]) -> Any:
    """The results, detached, after one backward from their sum: eager cannot add two gradients that are nested tensors."""
    results: list[Any] = []

    def total(*some: Any) -> torch.Tensor:
        results.extend(pytree.tree_leaves(function(*some)))
        return sum(result.sum() for result in results if result.requires_grad)

    found = outcome(total if any(leaf.requires_grad for leaf in arguments) else function, arguments)
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    grads = [described(parameter.grad) for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return [found, [described(result) for result in results], grads]


def batches(function: Callable, arguments: list[Any]) -> Any:
    return [outcome(function, [jagged(lengths)]) for lengths in ((2, 3, 4), (1, 5), (3, 3, 3, 2))]


def three() -> list[Any]:
    q = jagged()
    return [q, beside(q, 1), beside(q, 2)]


def to_others() -> list[Any]:
    """Queries, and keys and values with other rows."""
    k = jagged((3, 1, 2), seed=1)
    return [jagged(), k, beside(k, 2)]


def in_single_precision() -> list[Any]:
    return [each.detach().float().requires_grad_() for each in three()]


def from_a_seed(function: Callable, arguments: list[Any]) -> Any:
    torch.manual_seed(0)
    return [with_one_backward(function, arguments), torch.rand(1).tolist()]


def under_autocast(function: Callable, arguments: list[Any]) -> Any:
    def called(*some: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return function(*some)

    return with_one_backward(called, arguments)


def with_given_maximum() -> Any:
    values, offsets = plain(9, 4).detach(), torch.tensor([0, 2, 5, 9])
    return torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=2, max_seqlen=4).requires_grad_()


JAGGED: dict[str, tuple] = {
    "pointwise": (lambda x: x.sin() * x, lambda: [jagged()]),
    "no gradient": (lambda x: x.sin() * 2, lambda: [jagged(requires_grad=False)]),
    "two with the same offsets": (lambda x, y: x * y, lambda: [(x := jagged()), beside(x, 1)]),
    "linear": (lambda x, w, b: nn.functional.linear(x, w, b), lambda: [jagged(), plain(3, 4), plain(3, seed=2)]),
    "layer norm": (lambda x: nn.functional.layer_norm(x, (4,)), lambda: [jagged()]),
    "softmax of the last": (lambda x: x.softmax(-1), lambda: [jagged()]),
    "attention": (attention, three),
    "attention to other rows": (attention, to_others),
    "attention, scaled": (lambda q, k, v: attention(q, k.detach(), v, scale=0.3) * 2, three),
    "attention to an empty row": (lambda x: attention(x, x, x), lambda: [jagged((2, 0, 3))]),
    "values and offsets": (lambda x: (x.values() * 2, x.offsets() + 1), lambda: [jagged()]),
    "padded": (lambda x: torch.nested.to_padded_tensor(x.sin(), 0.0), lambda: [jagged()]),
    "sum along rows": (lambda x: x.sum(dim=1), lambda: [jagged(requires_grad=False)]),
    "mean along the last": (lambda x: x.mean(dim=-1), lambda: [jagged()]),
    "unbound": (lambda x: [row * 2 for row in x.sin().unbind()], lambda: [jagged()]),
    "transposed": (lambda x: x.transpose(1, 2).sin(), lambda: [jagged()]),
    "made inside": (
        lambda values, offsets: torch.nested.nested_tensor_from_jagged(values * 2, offsets).sin(),
        lambda: [plain(9, 4), torch.tensor([0, 2, 5, 9])],
    ),
    "made inside, values returned": (
        lambda values, offsets: torch.nested.nested_tensor_from_jagged(values * 2, offsets).sin().values(),
        lambda: [plain(9, 4), torch.tensor([0, 2, 5, 9])],
    ),
    "made inside of a list": (
        lambda *rows: torch.nested.as_nested_tensor(list(rows), layout=torch.jagged).sin().values(),
        lambda: [plain(2, 4), plain(3, 4, seed=2)],
    ),
    "lengths known": (lambda x: x.sin() * x, lambda: [with_given_maximum()]),
    "loss": (lambda x: (x * x).values().mean(), lambda: [jagged()]),
    "with a dense tensor": (lambda x, y: x + y, lambda: [jagged(), plain(1, 1, 4)]),
    "sum of all": (lambda x: x.sin().sum(), lambda: [jagged()]),
    "product of matrices": (lambda x, w: x @ w, lambda: [jagged(), plain(4, 3)]),
    "several results": (lambda x: (x.sin(), x.cos()), lambda: [jagged()]),
    "view as heads": (lambda x: x.unflatten(-1, (2, 2)).transpose(1, 2).sin(), lambda: [jagged()]),
    "passed on": (lambda x: (x, x * 2), lambda: [jagged()]),
    "detached": (lambda x: x.detach().sin(), lambda: [jagged()]),
    "dropout of zero": (lambda x: nn.functional.dropout(x, 0.0), lambda: [jagged()]),
    "changed in place": (lambda x: x.mul_(2), lambda: [jagged(requires_grad=False)]),
    "concatenated along the last": (lambda x: torch.cat([x, x * 2], -1), lambda: [jagged()]),
}


WITHOUT_GRADIENT = ("unevenly split", "some of them", "pieces of a piece")
"""The pieces of a nested tensor whose backward eager does not have: it crashes, or some pieces get no gradient."""


def jagged_programs() -> Iterator[Program]:
    """All programs of this file."""
    make = functools.partial(Program, "jagged")
    for name, (function, arguments) in JAGGED.items():
        yield make(name, function, arguments, with_one_backward)
    yield from with_pieces("jagged pieces", lambda: [jagged()], WITHOUT_GRADIENT)
    yield make("batches of several structures", lambda x: x.sin() * x, lambda: [], batches)
    yield make("batches, attention", lambda x: attention(x, x, x), lambda: [], batches)
    yield make("gradient of a gradient", lambda x: x.sin() * x, lambda: [jagged()], second_order)
    yield make("no_grad around", lambda x: x.sin() * x, lambda: [jagged()], around(torch.no_grad))
    yield make("attention with dropout", lambda q, k, v: attention(q, k, v, dropout_p=0.5), three, from_a_seed)
    yield make("attention under autocast", attention, in_single_precision, under_autocast)
    yield make("attention module", Attention(), lambda: [jagged()], with_one_backward)
