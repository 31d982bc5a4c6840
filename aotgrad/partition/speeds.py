"""How many floating point operations a device does while it moves a byte, from data sheets.

In: the traced result of a contraction. Out: an int for `costs.time_alone`; `calibration` measures it instead.

    >>> flops_per_byte(torch.empty(2, 2))
    10

GPUs differ by a factor of 30 between dtypes: products in half precision and in TF32 run on tensor cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

CPU = 10
ELSEWHERE = 100


@dataclass(frozen=True)
class Speeds:
    """The figures of a GPU: in float64, in float32 without and with TF32, and in bfloat16 and float16."""

    double: int
    single: int
    tf32: int
    half: int


GPUS: Mapping[tuple[int, int], Speeds] = {
    (7, 0): Speeds(double=9, single=17, tf32=17, half=139),  # V100
    (7, 5): Speeds(double=1, single=25, tf32=25, half=203),  # T4
    (8, 0): Speeds(double=10, single=10, tf32=78, half=156),  # A100
    (8, 6): Speeds(double=1, single=38, tf32=38, half=76),  # RTX 3090
    (8, 9): Speeds(double=1, single=82, tf32=82, half=164),  # RTX 4090
    (9, 0): Speeds(double=20, single=20, tf32=148, half=295),  # H100
    (10, 0): Speeds(double=5, single=10, tf32=138, half=281),  # B200
}
"""By compute capability: dense operations per second over bytes per second of memory."""


def flops_per_byte(result: torch.Tensor, is_convolution: bool = False) -> int:
    """The figure for the device and dtype of a contraction's result."""
    device = result.device
    if device.type != "cuda":
        return CPU if device.type == "cpu" else ELSEWHERE
    speeds = GPUS.get(torch.cuda.get_device_capability(device)) if torch.cuda.is_available() else None
    if speeds is None:
        return ELSEWHERE
    if result.dtype in (torch.float64, torch.complex128):
        return speeds.double
    if result.dtype in (torch.bfloat16, torch.float16):
        return speeds.half
    return speeds.tf32 if uses_tf32(is_convolution) else speeds.single


def uses_tf32(is_convolution: bool) -> bool:
    """Whether products in float32 use TF32 now; convolutions have a setting of their own."""
    if is_convolution:
        return torch.backends.cudnn.conv.fp32_precision == "tf32"  # pyright: ignore[reportAttributeAccessIssue]
    return torch.backends.cuda.matmul.fp32_precision == "tf32"
