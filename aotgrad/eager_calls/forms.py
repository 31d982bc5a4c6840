"""What a graph knows of the tensors of an eager call, and in which pytree a function returns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.graph.geometry import contiguous_strides, may_overlap_itself


@dataclass(frozen=True)
class SizeNumber:
    """A size or stride that differs between calls: its position among the numbers that a call is given."""

    position: int

    def __str__(self) -> str:
        return f"n{self.position}"

    __repr__ = __str__


class SizeNumbers:
    """The symbolic sizes and strides of the tensors of a call in a trace, each expression once."""

    def __init__(self) -> None:
        self.values: list[torch.SymInt] = []
        self._places: dict[Any, SizeNumber] = {}

    def place(self, number: Any) -> Any:
        """What a form has for a number of a trace."""
        expression = torch_compat.expression_of(number)
        if isinstance(number, int) or expression.is_number:
            return int(number)
        if expression not in self._places:
            self._places[expression] = SizeNumber(len(self.values))
            self.values.append(number)
        return self._places[expression]


@dataclass(frozen=True)
class DenseForm:
    """What a graph knows of a tensor. A form with a `SizeNumber` stands for those that `filled` makes of it."""

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> DenseForm:
        return cls(tuple(map(int, tensor.size())), tuple(map(int, tensor.stride())), tensor.dtype, tensor.device)

    @classmethod
    def of_traced(cls, tensor: torch.Tensor, numbers: SizeNumbers) -> DenseForm:
        """The form of a traced tensor, whose symbolic sizes and strides become numbers."""
        size, stride = (tuple(map(numbers.place, given)) for given in (tensor.size(), tensor.stride()))
        return cls(size, stride, tensor.dtype, tensor.device)

    def filled(self, numbers: Sequence[Any]) -> DenseForm:
        """The form in a call with these numbers; in a trace, they are symbolic."""
        if not numbers:
            return self
        size, stride = (
            tuple(numbers[each.position] if isinstance(each, SizeNumber) else each for each in given)
            for given in (self.size, self.stride)
        )
        return replace(self, size=size, stride=stride)

    def empty(self) -> torch.Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)

    def admits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has this form, strides aside."""
        return (tuple(tensor.size()), tensor.dtype, tensor.device) == (self.size, self.dtype, self.device)

    def laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a tensor with the strides of this form."""
        return tensor if tuple(tensor.stride()) == self.stride else self.copy_of(tensor)

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a tensor in new memory, with the strides of this form. Expanded elements stay one element."""
        if not self.is_expanded:
            return self.empty().copy_(tensor)
        once = tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in self.stride)]
        return replace(self, size=tuple(once.size())).empty().copy_(once).expand(self.size)

    @property
    def is_expanded(self) -> bool:
        """Whether several elements are the same memory."""
        return any(step == 0 and count > 1 for step, count in zip(self.stride, self.size, strict=True))

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.size)}".removeprefix("torch.")


@dataclass(frozen=True)
class FormOfGradient(DenseForm):
    """The form of the gradient of a tensor. Elements that share memory have gradients of their own."""

    @classmethod
    def of_form(cls, form: DenseForm) -> FormOfGradient:
        return cls(form.size, form.stride, form.dtype, form.device)

    def filled(self, numbers: Sequence[Any]) -> DenseForm:
        form = super().filled(numbers)
        overlaps = may_overlap_itself(form.size, form.stride)
        stride = tuple(contiguous_strides(form.size)) if overlaps else form.stride
        return DenseForm(form.size, stride, form.dtype, form.device)


@dataclass(frozen=True)
class Structure:
    """The structure of the results of a function: a pytree whose leaves are tensors and `None`."""

    spec: Any
    is_tensor: tuple[bool, ...]

    @classmethod
    def of(cls, results: Any) -> tuple[Structure, list[Any]]:
        """The structure of some results, and the leaves that are not `None`."""
        leaves, spec = pytree.tree_flatten(results)
        given = [leaf for leaf in leaves if leaf is not None]
        return cls(spec, tuple(leaf is not None for leaf in leaves)), given

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> Any:
        rest = iter(tensors)
        return pytree.tree_unflatten([next(rest) if given else None for given in self.is_tensor], self.spec)
