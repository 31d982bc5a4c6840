"""What is compared in the tests of subclasses: functions, their arguments, and what a run of them leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import aotgrad

WAYS = ("eager halves", "inductor halves", "dynamo, eager halves", "dynamo, inductor halves")


def compiled(function: Callable, way: str) -> Callable:
    """The function or module compiled without or behind Dynamo, by a backend."""
    backend = "eager" if "eager" in way else "inductor"
    if not way.startswith("dynamo"):
        return (aotgrad.aot_module if isinstance(function, nn.Module) else aotgrad.aot_function)(function, backend)
    torch._dynamo.reset()
    name = "aotgrad_eager" if backend == "eager" else "aotgrad"
    return torch.compile(function, backend=name, options={"min_graph_ops": 0})


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


def described(value: Any) -> Any:
    """What a caller sees of a value: its class and parts, values, flags and version."""
    if not isinstance(value, torch.Tensor):
        return value
    flags = (type(value).__name__, value.requires_grad, value._version, value._is_view())
    if hasattr(value, "__tensor_flatten__"):
        names, _ = value.detach().__tensor_flatten__()
        return flags, [described(getattr(value.detach(), name)) for name in names]
    is_float = value.is_floating_point()  # Inductor may round the last bits differently
    return flags[:2], (value.detach().round(decimals=10) if is_float else value.detach()).tolist()


def outcome(function: Callable, arguments: Sequence[Any]) -> list[Any]:
    """What a call and a backward from all its results leave behind, or the type of the error."""
    try:
        results = pytree.tree_leaves(function(*arguments))
        for result in results:
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.sum().backward(retain_graph=True)
    except RuntimeError as error:
        return [type(error)]
    tensors = [leaf for leaf in pytree.tree_leaves(list(arguments)) if isinstance(leaf, torch.Tensor)]
    gradients = [described(tensor.grad) if tensor.is_leaf else None for tensor in tensors]
    return [list(map(described, results)), list(map(described, tensors)), gradients]
