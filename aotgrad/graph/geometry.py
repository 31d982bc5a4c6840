"""Where a tensor lies in its storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Geometry:
    """Where a tensor lies in its storage, in elements."""

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any

    @property
    def numbers(self) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        """The arguments of `as_strided`."""
        return (self.size, self.stride, self.offset)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Geometry:
        """The geometry of a tensor; no strides for layouts that have none."""
        if tensor.layout is not torch.strided:
            return cls(tuple(tensor.size()), (), 0)
        return cls(tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset())
