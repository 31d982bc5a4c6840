"""Tensor subclasses that wrap others: the graph has their parts, and the function gets and returns the wrappers.

WrapperParts.within((wrapper, 3))       (WrapperParts(end, parts), 3), a pytree of plain tensors
WrapperParts.assembled(...)             (wrapper, 3)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotgrad.subclasses.bridge import End, assemble_wrapper, take_apart
from aotgrad.subclasses.forms import TensorForm, form_of, is_wrapper


@dataclass(frozen=True, eq=False)
class WrapperParts:
    """A wrapper in parts. As a node of a pytree, it is equal to others of the same form."""

    form: FormOfWrapper
    parts: Sequence[torch.Tensor]

    @classmethod
    def of(cls, wrapper: torch.Tensor) -> WrapperParts:
        form = FormOfWrapper(form_of(wrapper))
        return cls(form, take_apart(form.end(), wrapper))

    @staticmethod
    def within(values: Any) -> Any:
        """A pytree with the parts of its wrappers."""
        return pytree.tree_map(lambda value: WrapperParts.of(value) if is_wrapper(value) else value, values)

    @staticmethod
    def assembled(values: Any) -> Any:
        """A pytree with the wrappers of its parts."""
        return pytree.tree_map(
            lambda value: assemble_wrapper(value.form.end(), value.parts) if isinstance(value, WrapperParts) else value,
            values,
            is_leaf=lambda value: isinstance(value, WrapperParts),
        )


def tensors_in_parts(values: Any) -> list[torch.Tensor]:
    """The parts of all wrappers in a pytree."""
    leaves = pytree.tree_leaves(values, is_leaf=lambda value: isinstance(value, WrapperParts))
    return [part for value in leaves if isinstance(value, WrapperParts) for part in value.parts]


@dataclass(frozen=True, eq=False)
class FormOfWrapper:
    """The form of a wrapper, with sizes of one call."""

    form: TensorForm

    def end(self) -> End:
        return End("a tensor of an island", 0, self.form)

    @property
    def key(self) -> Hashable:
        return self.form.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FormOfWrapper) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


pytree.register_pytree_node(
    WrapperParts,
    lambda wrapper: (list(wrapper.parts), wrapper.form),
    lambda parts, form: WrapperParts(form, list(parts)),
    serialized_type_name="aotgrad.WrapperParts",
)
