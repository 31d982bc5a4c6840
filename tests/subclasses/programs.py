"""What is compared in the tests of subclasses: functions, their arguments, and what a run of them leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.testing._internal.two_tensor import TwoTensor

import aotgrad

WAYS = ("eager halves", "inductor halves", "dynamo, eager halves", "dynamo, inductor halves")


def compiled(function: Callable, way: str, dynamic: bool | None = None) -> Callable:
    """The function or module compiled without or behind Dynamo, by a backend."""
    backend = "eager" if "eager" in way else "inductor"
    if not way.startswith("dynamo"):
        own = aotgrad.aot_module if isinstance(function, nn.Module) else aotgrad.aot_function
        return own(function, backend, dynamic=dynamic)
    torch._dynamo.reset()
    name = "aotgrad_eager" if backend == "eager" else "aotgrad"
    return torch.compile(function, backend=name, options={"min_graph_ops": 0}, dynamic=dynamic)


def two(*shape: int, requires_grad: bool = True, seed: int = 0) -> TwoTensor:
    generator = torch.Generator().manual_seed(seed)
    halves = [torch.randn(*shape, dtype=torch.float64, generator=generator) for _ in range(2)]
    return TwoTensor(*halves).requires_grad_(requires_grad)


def plain(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)


class Bytes(torch.Tensor):
    """A weight in 8 bits with a scale; its gradient is a plain tensor."""

    @staticmethod
    def __new__(cls, values, scale, dtype):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=dtype)

    def __init__(self, values, scale, dtype):
        self.values_, self.scale, self.wide = values, scale, dtype

    def __tensor_flatten__(self):
        return ["values_", "scale"], (self.wide,)

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return Bytes(parts["values_"], parts["scale"], *context)

    def wide_values(self):
        return self.values_.to(self.wide) * self.scale

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        if op in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return Bytes(op(args[0].values_), op(args[0].scale), args[0].wide)
        return op(*pytree.tree_map_only(Bytes, Bytes.wide_values, args), **(kwargs or {}))


def eight_bits(requires_grad: bool) -> Bytes:
    values = torch.tensor([[1, 2], [3, -4]], dtype=torch.int8)
    scale = torch.tensor(0.5, dtype=torch.float64)
    return Bytes(values, scale, torch.float64).requires_grad_(requires_grad)


@dataclass(frozen=True)
class Seen:
    """What a caller sees of a tensor: what it is, and what it holds: a text, or what is seen of its parts."""

    name: str
    flags: tuple
    shape: tuple
    values: Any

    @property
    def without_flags(self) -> Seen:
        values = self.values if isinstance(self.values, str) else [part.without_flags for part in self.values]
        return Seen(self.name, (), self.shape, values)


def described(value: Any) -> Any:
    """A tensor as `Seen`, with its flags, strides and version; any other value as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if isinstance(value, AsyncCollectiveTensor):  # a graph waits for its results
        return replace(described(value.trigger_wait()), flags=(value.requires_grad, value.stride()))
    flags, inner = (value.requires_grad, value.stride()), value.detach()
    if value.is_nested:
        return Seen("NestedTensor", flags[:1], (value.dim(),), [described(inner.values()), described(value.offsets())])
    if not hasattr(value, "__tensor_flatten__"):
        return Seen(type(value).__name__, flags, tuple(value.shape), shown(inner))
    flags = (*flags, 0 if value.is_inference() else value._version)
    parts = [described(getattr(inner, name)) for name in inner.__tensor_flatten__()[0]]
    name = f"{type(value).__name__} {getattr(value, 'placements', '')}"
    return Seen(name, flags, tuple(value.shape), [part for part in parts if isinstance(part, Seen)])


def shown(value: torch.Tensor) -> str:
    """The elements of a tensor; Inductor may round the last bits differently."""
    if not value.is_floating_point():
        return str(value.tolist())
    return str((value.round(decimals=10 if value.dtype == torch.float64 else 3) + 0.0).tolist())


@dataclass(frozen=True)
class Raised:
    """An error in place of an outcome: equal to others of its type."""

    kind: type
    message: str = field(compare=False)


def outcome(function: Callable, arguments: Sequence[Any]) -> list[Any]:
    """What a call and a backward from all its results leave behind, or the type of the error."""
    try:
        results = pytree.tree_leaves(function(*arguments))
        for result in results:
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.sum().backward(retain_graph=True)
    except RuntimeError as error:
        return [Raised(type(error), str(error))]
    modules = [function] if isinstance(function, nn.Module) else []
    own = [parameter for module in modules for parameter in module.parameters()]
    tensors = [*own, *(leaf for leaf in pytree.tree_leaves(list(arguments)) if isinstance(leaf, torch.Tensor))]
    grads = [tensor.grad if tensor.is_leaf else None for tensor in tensors]
    gradients = [None if grad is None else described(grad).without_flags for grad in grads]
    for parameter in own:
        parameter.grad = None
    return [list(map(described, results)), list(map(described, tensors)), gradients]
