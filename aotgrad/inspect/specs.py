"""An argument as text -> an argument: for the command line, golden files and bug reports.

    f32[3, 4]                   a random tensor, contiguous
    f32[4, 3][1, 4]             with these strides
    i64[5]                      random zeros and ones: valid as an index
    f32[3] requires_grad        a leaf
    f32[3] nonleaf              requires grad, and has a history
    same 0                      the same object as argument 0
    view 0 [3][1] 2             a view of argument 0, with this size, stride and offset
    3, 'mean', None             a Python literal

Types have the format of `printing.type_text`, including devices (`f32[3]cuda:0`).
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad.printing.types import DTYPES

DTYPE_NAMES = {name: dtype for dtype, name in DTYPES.items()}
TENSOR_FLAGS = ("requires_grad", "nonleaf")
TENSOR = re.compile(
    r"(?P<dtype>\w+)\[(?P<size>[\d, ]*)\](\[(?P<stride>[\d, ]*)\])?(?P<device>[a-z]+(:\d+)?)?(?P<flags>( \w+)*)"
)

VIEW = re.compile(r"view (?P<base>\d+) \[(?P<size>[\d, ]*)\]\[(?P<stride>[\d, ]*)\] (?P<offset>\d+)")


class SpecError(ValueError):
    """The text describes no argument; the message shows valid texts."""


@dataclass(frozen=True)
class TensorSpec:
    """The description of a tensor."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...] | None
    device: str
    flags: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> TensorSpec | None:
        """The tensor that `text` describes; `None` if the text is not of this form.

        Raises:
            SpecError: unknown dtype or flag, or the numbers of strides and sizes differ.
        """
        found = TENSOR.fullmatch(text.strip())
        if found is None:
            return None
        spec = cls(
            dtype=legal_value(DTYPE_NAMES, found["dtype"], "dtype"),
            size=numbers(found["size"]),
            stride=None if found["stride"] is None else numbers(found["stride"]),
            device=found["device"] or "cpu",
            flags=tuple(legal_value({flag: flag for flag in TENSOR_FLAGS}, flag, "flag") for flag in found["flags"].split()),
        )
        if spec.stride is not None and len(spec.stride) != len(spec.size):
            raise SpecError(f"{text!r} has {len(spec.size)} sizes and {len(spec.stride)} strides")
        return spec

    def make(self) -> torch.Tensor:
        """A tensor of this description with random values."""
        values = torch.testing.make_tensor((self.extent(),), dtype=self.dtype, device=self.device, **self.range())
        values = (
            values.view(self.size).detach() if self.stride is None else values.as_strided(self.size, self.stride).detach()
        )
        if "nonleaf" in self.flags:
            return values.requires_grad_() * 1
        return values.requires_grad_("requires_grad" in self.flags)

    def extent(self) -> int:
        """The number of elements that it spans in memory."""
        if self.stride is None or 0 in self.size:
            return math.prod(self.size)
        return 1 + sum((size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True))

    def range(self) -> dict[str, Any]:
        is_number = self.dtype.is_floating_point or self.dtype.is_complex
        return {"low": -1, "high": 1} if is_number else {"low": 0, "high": 2}


def parse_arguments(specs: Sequence[str]) -> tuple[Any, ...]:
    """One argument per spec.

    Raises:
        SpecError: a text describes no argument.
    """
    arguments: list[Any] = []
    for spec in specs:
        arguments.append(parse_argument(spec, arguments))
    return tuple(arguments)


def parse_argument(text: str, earlier: Sequence[Any] = ()) -> Any:
    """The argument that `text` describes; `same` and `view` refer to `earlier` ones."""
    tensor = TensorSpec.parse(text)
    if tensor is not None:
        return tensor.make()
    if (same := re.fullmatch(r"same (\d+)", text)) and int(same[1]) < len(earlier):
        return earlier[int(same[1])]
    if (view := VIEW.fullmatch(text)) and int(view["base"]) < len(earlier):
        return earlier[int(view["base"])].as_strided(numbers(view["size"]), numbers(view["stride"]), int(view["offset"]))
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        legal = "'f32[3, 4]', 'f32[3, 4][1, 3] requires_grad', 'i64[5]', 'same 0', 'view 0 [3][1] 2', '2.5', \"'mean'\""
        raise SpecError(f"{text!r} describes no argument; these do: {legal}") from error


def legal_value(legal: dict[str, Any], name: str, kind: str) -> Any:
    if name not in legal:
        raise SpecError(f"unknown {kind} {name!r}; legal are {', '.join(legal)}")
    return legal[name]


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())
