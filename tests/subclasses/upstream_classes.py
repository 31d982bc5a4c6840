"""Subclasses of the kinds that PyTorch's tests have: contexts with guards, absent parts, parts of other sizes, own rules."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import return_and_correct_aliasing

Origin = namedtuple("Origin", ["shape", "device", "inner"])


@dataclass(frozen=True)
class FrozenOrigin:
    shape: torch.Size
    device: torch.device
    inner: Any


class OnePart(torch.Tensor):
    """Its ops run on the part; what else it holds comes from the first argument."""

    @staticmethod
    def __new__(cls, part, *_):
        flags = {"dtype": part.dtype, "requires_grad": part.requires_grad}
        return torch.Tensor._make_wrapper_subclass(cls, part.shape, part.stride(), **flags)

    def __init__(self, part):
        self.part = part

    def __tensor_flatten__(self):
        return ["part"], ()

    @classmethod
    def __tensor_unflatten__(cls, parts, context, size, stride):
        return cls(parts["part"], *context)

    @classmethod
    def like(cls, part, leaves):
        return cls(part, *leaves[0].__tensor_flatten__()[1])

    @classmethod
    def changed(cls, op, result, leaves):
        return result

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs or {})) if isinstance(leaf, cls)]
        inner, named = pytree.tree_map_only(cls, lambda leaf: leaf.part, (args, kwargs or {}))
        result = cls.changed(op, op(*inner, **named), leaves)
        result = pytree.tree_map_only(torch.Tensor, lambda part: cls.like(part, leaves), result)
        return return_and_correct_aliasing(op, args, kwargs or {}, result)


class Constant(OnePart):
    """A number as context, the greatest of the arguments; products add it to their results."""

    def __init__(self, part, constant):
        self.part, self.constant = part, constant

    def __tensor_flatten__(self):
        return ["part"], (self.constant,)

    @classmethod
    def like(cls, part, leaves):
        return cls(part, max(leaf.constant for leaf in leaves))

    @classmethod
    def changed(cls, op, result, leaves):
        return result + max(leaf.constant for leaf in leaves) if op is torch.ops.aten.mul.Tensor else result


class WithOrigin(OnePart):
    """A context with a size and a device."""

    def __init__(self, part, origin):
        self.part, self.origin = part, origin

    def __tensor_flatten__(self):
        return ["part"], (self.origin,)

    @classmethod
    def like(cls, part, leaves):
        return cls(part, Origin(part.shape, part.device, None))


class Deferred(OnePart):
    """Calls `super().__init__` before it has its part."""

    def __init__(self, part, scale):
        super().__init__(part)
        self.scale = scale

    def __tensor_flatten__(self):
        return ["part"], (self.scale,)


class Halved(OnePart):
    """Has twice as many rows as its part; its ops ask how many."""

    @staticmethod
    def __new__(cls, part):
        size = (part.shape[0] * 2, *part.shape[1:])
        rest = (None, None, part.dtype, part.layout, part.device, False, part.requires_grad)
        return torch.Tensor._make_wrapper_subclass(cls, size, part.stride(), *rest)

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        inner = pytree.tree_map_only(Halved, lambda leaf: leaf.part, args)
        result = op(*inner, **(kwargs or {}))
        is_alias = op is torch.ops.aten.detach.default
        return Halved(result if is_alias or inner[0].shape[0] <= 3 else result + 2)


class OwnFunction(OnePart):
    """Has a `__torch_function__` that turns itself off."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


class MaybeScaled(torch.Tensor):
    """A part, and a scale that may be absent."""

    @staticmethod
    def __new__(cls, part, scale):
        return torch.Tensor._make_wrapper_subclass(cls, part.shape, part.stride(), dtype=part.dtype)

    def __init__(self, part, scale):
        self.part, self.scale = part, scale

    def __tensor_flatten__(self):
        return ["part"] if self.scale is None else ["part", "scale"], None

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return MaybeScaled(parts["part"], parts.get("scale"))

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        x = args[0]
        result = op(x.part, *args[1:], **(kwargs or {}))
        is_alias = x.scale is None or op is torch.ops.aten.detach.default
        return MaybeScaled(result if is_alias else result * x.scale, x.scale)


class Sized(TwoTensor):
    """Halves that may have sizes of their own."""

    @staticmethod
    def __new__(cls, a, b, size=None, stride=None):
        size, stride = (a.size() if size is None else size), (a.stride() if stride is None else stride)
        return torch.Tensor._make_wrapper_subclass(cls, size, stride, dtype=a.dtype, requires_grad=a.requires_grad)

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return Sized(parts["a"], parts["b"], size, stride)


class MakesTensors(OnePart):
    """Its products add tensors that the op makes."""

    @classmethod
    def changed(cls, op, result, leaves):
        if op is not torch.ops.aten.mul.Tensor:
            return result
        return result + torch.arange(result.shape[-1], dtype=result.dtype) + torch.tensor(2.0, dtype=result.dtype)


class Turned(OnePart):
    """Its part is its transposition."""

    @staticmethod
    def __new__(cls, part):
        return torch.Tensor._make_wrapper_subclass(cls, part.t().shape, part.t().stride(), dtype=part.dtype)

    @classmethod
    def of(cls, value):
        return cls(value.t().contiguous()).requires_grad_()

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        inner, named = pytree.tree_map_only(cls, lambda leaf: leaf.part.t(), (args, kwargs or {}))
        result = op(*inner, **named)
        return Turned(result.t()) if result.dim() == 2 else result


class Nibbles(torch.Tensor):
    """Two numbers of 4 bits in each byte of its part."""

    @staticmethod
    def __new__(cls, packed, size):
        return torch.Tensor._make_wrapper_subclass(cls, size, dtype=torch.float64)

    def __init__(self, packed, size):
        self.packed, self.own_size = packed, size

    @classmethod
    def of(cls, rows, columns):
        return cls(torch.arange(rows * columns // 2, dtype=torch.uint8).view(rows, -1) * 17, torch.Size([rows, columns]))

    def __tensor_flatten__(self):
        return ["packed"], self.own_size

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return Nibbles(parts["packed"], context)

    def wide(self):
        return torch.stack([self.packed & 15, self.packed >> 4], -1).flatten(-2).double()

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        if op in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return Nibbles(op(args[0].packed), args[0].own_size)
        return op(*pytree.tree_map_only(Nibbles, Nibbles.wide, args), **(kwargs or {}))


class WithMask(torch.Tensor):
    """Values, and a mask of another dtype, which the results of ops share."""

    @staticmethod
    def __new__(cls, values, mask):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)

    def __init__(self, values, mask):
        self.held, self.mask = values, mask

    def __tensor_flatten__(self):
        return ["held", "mask"], None

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return WithMask(parts["held"], parts["mask"])

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        mask = next(arg.mask for arg in args if isinstance(arg, WithMask))
        result = op(*pytree.tree_map_only(WithMask, lambda each: each.held, args), **(kwargs or {}))
        return WithMask(result, mask) if result.shape == mask.shape else result


# -- no wrappers: rules of their own for torch functions


class Passing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(cls.replaced(function), types, args, kwargs or {})

    @classmethod
    def replaced(cls, function):
        return function


class SigmoidIsExp(Passing):
    @classmethod
    def replaced(cls, function):
        return torch.Tensor.exp if function is torch.Tensor.sigmoid else function


class AddsItself(torch.Tensor):
    """Doubles what any function returns, of the program or of a graph that gets one."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
            is_result = isinstance(function, torch._ops.OpOverload) or function in (torch.Tensor.sin, torch.Tensor.mul)
            return result + result if is_result else result


class ClonesTwice(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
            return result * 2 if function is torch.clone else result


class Quantized(nn.Parameter):
    """A parameter with an attribute that the results of its ops have, too."""

    def __new__(cls, data, requires_grad=False, kind=None):
        return torch.Tensor._make_subclass(cls, data, requires_grad)

    def __init__(self, *args, kind=None, **kwargs):
        self.kind = kind

    def as_tensor(self):
        return torch.Tensor._make_subclass(torch.Tensor, self, self.requires_grad)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        kind = next((arg.kind for arg in args if isinstance(arg, Quantized)), None)
        return cls(result, kind=kind) if isinstance(result, torch.Tensor) else result
