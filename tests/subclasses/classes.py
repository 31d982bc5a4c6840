"""Wrapper subclasses of the kinds that exist: contexts that are dicts or objects, absent parts, parts of another size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree


class Wrapper(torch.Tensor):
    """Its ops run on the parts of one argument after the other, by name; what else it holds comes from the first wrapper."""

    def __tensor_flatten__(self):
        return self.names(), self.context()

    def names(self) -> list[str]:
        raise NotImplementedError

    def context(self) -> Any:
        return None

    def like(self, **parts: torch.Tensor) -> Wrapper:
        raise NotImplementedError

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs or {})) if isinstance(leaf, cls)]
        results = {}
        for name in leaves[0].names():
            inner = pytree.tree_map_only(cls, lambda leaf, name=name: getattr(leaf, name), (args, kwargs or {}))
            results[name] = op(*inner[0], **inner[1])
        if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(results)):
            return next(iter(results.values()))
        if op._schema.is_mutable:
            return args[0]
        flat = {name: pytree.tree_flatten(result) for name, result in results.items()}
        spec = next(iter(flat.values()))[1]
        rows = zip(*(values for values, _ in flat.values()), strict=True)
        built = [leaves[0].like(**dict(zip(flat, row, strict=True))) for row in rows]
        return pytree.tree_unflatten(built, spec)


@dataclass
class Recipe:
    """A context that cannot be hashed."""

    constant: float
    tags: list[str]


class Scaled(Wrapper):
    """Values, a scale of another size that ops leave alone, and a context: a dict, an object, a set."""

    @staticmethod
    def __new__(cls, values, scale, held):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, values.stride(), dtype=values.dtype)

    def __init__(self, values, scale, held):
        self.values_, self.scale, self.held = values, scale, held

    def __tensor_flatten__(self):
        return ["values_", "scale"], self.held

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return Scaled(parts["values_"], parts["scale"], context)

    def names(self) -> list[str]:
        return ["values_"]

    def like(self, values_):
        return Scaled(values_, self.scale, self.held)


class Padded(Wrapper):
    """A part in more memory than the wrapper shows, and one that may be absent."""

    @staticmethod
    def __new__(cls, stored, offset, size):
        return torch.Tensor._make_wrapper_subclass(cls, size, dtype=stored.dtype)

    def __init__(self, stored, offset, size):
        self.stored, self.offset = stored, offset

    def __tensor_flatten__(self):
        return ["stored"] if self.offset is None else ["stored", "offset"], None

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return Padded(parts["stored"], parts.get("offset"), size)

    def shown(self):
        values = self.stored[: self.shape[0]]
        return values if self.offset is None else values + self.offset

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        if op in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            offset = None if args[0].offset is None else op(args[0].offset)
            return Padded(op(args[0].stored), offset, args[0].shape)
        return op(*pytree.tree_map_only(Padded, Padded.shown, args), **(kwargs or {}))


class Pair(Wrapper):
    """Two parts of the same size, each with strides of its own; the wrapper has those of the first."""

    @staticmethod
    def __new__(cls, first, second):
        return torch.Tensor._make_wrapper_subclass(cls, first.shape, first.stride(), dtype=first.dtype)

    def __init__(self, first, second):
        self.first, self.second = first, second

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return Pair(parts["first"], parts["second"])

    def names(self) -> list[str]:
        return ["first", "second"]

    def like(self, first, second):
        return Pair(first, second)


class Doubling(torch.Tensor):
    """No wrapper: a `__torch_function__` that doubles sines."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs)
        return result * 2 if function is torch.Tensor.sin else result
