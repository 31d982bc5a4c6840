"""The tensors that functions have closed over, in a file: with the values that they have when they are saved.

    found = SavedTensors()
    form = found.form_of({"_tensor_constant0": table})               plain data, which refers to `found.members()`
    LoadedTensors(members).tensors(form)                             {"_tensor_constant0": an equal tensor}

Tensors that share memory share it in the other process, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.cache.serialize import DamagedEntry, dtype_named
from aotgrad.errors import ShippingError
from aotgrad.graph.closed_over import closed_over_nodes
from aotgrad.pipeline import Executable


def closed_over(made: Executable) -> dict[str, torch.Tensor]:
    """The tensors of this process that a function reads, by attribute; those made of numbers belong to the graph."""
    root = made.joint.module
    names = (str(node.target) for node in closed_over_nodes(made.capture.trace.graph, root))
    return {name: getattr(root, name) for name in names}


def kind_and_shape(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"


@dataclass(frozen=True)
class SavedTensors:
    """The memory of tensors, by the storage that they have; each is saved once."""

    flat: dict[int, torch.Tensor] = field(default_factory=dict)

    def form_of(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, list[Any]]:
        """The geometry and lazy bits of tensors, and the number of their memory.

        Raises:
            ShippingError: one is no plain tensor, or requires grad.
        """
        return {name: self.form(tensor) for name, tensor in tensors.items()}

    def form(self, tensor: torch.Tensor) -> list[Any]:
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.requires_grad:
            raise ShippingError(
                f"it reads a tensor that the function has closed over ({kind_and_shape(tensor)}), which is no plain tensor, "
                "or requires grad: pass it as an argument"
            )
        self.flat.setdefault(torch_compat.storage_id(tensor), memory_as_bytes(tensor))
        number = list(self.flat).index(torch_compat.storage_id(tensor))
        geometry = [list(tensor.size()), list(tensor.stride()), int(tensor.storage_offset())]
        return [str(tensor.dtype)[6:], *geometry, str(tensor.device), number, list(torch_compat.LazyBits.of(tensor))]

    def members(self) -> Iterator[tuple[str, bytes]]:
        """The members of an archive."""
        for number, flat in enumerate(self.flat.values()):
            yield f"tensors/{number}", torch_compat.bytes_of(flat)


def memory_as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All memory of the storage of a tensor."""
    with torch.no_grad():
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


@dataclass(frozen=True)
class LoadedTensors:
    """The tensors of a file. `members`: its bytes, by name; `flat`: the memory made of them so far, by number."""

    members: Mapping[str, bytes]
    flat: dict[int, torch.Tensor] = field(default_factory=dict)

    def tensors(self, form: Mapping[str, list[Any]]) -> dict[str, torch.Tensor]:
        """Tensors of `SavedTensors.form_of`. Raises ShippingError."""
        try:
            return {name: self.tensor(*each) for name, each in form.items()}
        except (DamagedEntry, RuntimeError, TypeError, ValueError) as error:
            raise ShippingError(f"the file is damaged: a closed-over tensor: {error}") from None

    def tensor(
        self, dtype: str, size: list, stride: list, offset: int, device: str, number: int, bits: list
    ) -> torch.Tensor:
        """A tensor of `SavedTensors.form`. Raises ShippingError."""
        if number not in self.flat:
            content = self.members.get(f"tensors/{number}")
            if content is None:
                raise ShippingError(f"the file is damaged: a closed-over tensor, tensors/{number}, is missing")
            made = torch_compat.tensor_of_bytes(content, torch.uint8, [len(content)], [1])
            self.flat[number] = made.to(device)
        memory = self.flat[number].untyped_storage()
        made = torch.empty(0, dtype=dtype_named(dtype), device=device).set_(memory, offset, size, stride)
        return torch_compat.LazyBits(*bits).on(made)
