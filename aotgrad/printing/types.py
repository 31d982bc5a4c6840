"""Types and numbers of traced values as text, as FX writes them.

    f32[3, 4]            contiguous, on the CPU
    f32[4, 5][1, 4]      with these strides
    bf16[2]cuda:0        on another device
    Sym(s0)              a symbolic number, by its name in the shape environment

Reading a type adds no guard and records no node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from aotgrad.graph.geometry import contiguous_strides
from aotgrad.graph.symbols import SYMBOLIC_NUMBERS

DTYPES = {
    torch.bfloat16: "bf16",
    torch.bool: "b8",
    torch.complex32: "c32",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.float16: "f16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
}


def type_text(value: Any) -> str:
    """The type of a traced value: `f32[3, 4]`, `Sym(s0)`, `(f32[2], i64[2])`."""
    if isinstance(value, torch.Tensor):
        return tensor_type(value)
    if isinstance(value, SYMBOLIC_NUMBERS):
        return f"Sym({value!s})"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(type_text, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {type_text(item)}' for key, item in value.items())}}}"
    return "None" if value is None else type(value).__name__


def tensor_type(tensor: torch.Tensor) -> str:
    dtype = DTYPES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")
    device = "" if tensor.device.type == "cpu" else str(tensor.device)
    return f"{dtype}{number_list(tensor.size())}{layout_text(tensor)}{device}"


def layout_text(tensor: torch.Tensor) -> str:
    """The strides of a tensor; nothing if it is contiguous."""
    if tensor.layout is not torch.strided:
        return f"[{str(tensor.layout).removeprefix('torch.')}]"
    sizes = tensor.size()
    pairs = zip(sizes, tensor.stride(), contiguous_strides(sizes), strict=True)
    plain = all(equals(size, 1) or str(actual) == str(expected) for size, actual, expected in pairs)
    return "" if plain or any(equals(size, 0) for size in sizes) else number_list(tensor.stride())


def equals(size: Any, number: int) -> bool:
    """Whether a size is this number; False for a symbolic size, since a comparison adds a guard."""
    return isinstance(size, int) and size == number


def number_list(values: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, values))}]"
