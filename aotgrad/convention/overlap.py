"""Inputs that share memory, one of which is mutated: the trace cannot see that a write to one changes the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.errors import UnsupportedAliasingError
from aotgrad.ir import ViewAndMutationMeta


def reject_mutated_overlap(args: Sequence[Any], meta: ViewAndMutationMeta) -> None:
    """Raise if the data of an input is mutated while another input shares its storage.

    Raises:
        UnsupportedAliasingError: names both arguments.
    """
    owners: dict[int, list[int]] = {}
    for index, arg in enumerate(args):
        if isinstance(arg, torch.Tensor) and arg.layout is torch.strided:
            owners.setdefault(torch_compat.storage_id(arg), []).append(index)
    for group in owners.values():
        mutated = [i for i in group if meta.inputs[i] is not None and meta.inputs[i].mutation.data]
        if mutated and len(group) > 1:
            other = next(i for i in group if i != mutated[0])
            raise UnsupportedAliasingError(
                f"input {mutated[0]} is mutated and shares its memory with input {other}; pass one of them and make the "
                "other inside the function, or pass a clone()"
            )
