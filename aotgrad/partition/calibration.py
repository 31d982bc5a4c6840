"""Measures how many floating point operations a device does in the time that it takes to move a byte.

In: a device and a dtype. Out: an int for `costs.time_alone`.

    >>> measured_flops_per_byte(torch.device("cpu"), torch.float32) > 0
    True

The figure is the speed of a large matrix product divided by that of a large copy, each the best of a few runs. Measuring
takes about a twentieth of a second, once for each device, dtype and number of threads. The processes of one user share the
results in a file, so that all of them choose the same plans.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.fx as fx
from torch.utils.benchmark import Timer

from aotgrad import torch_compat
from aotgrad.options import cache_folder
from aotgrad.partition import costs

RUNS = 5
ROWS = {"cpu": 512}  # of the square matrices to multiply
ROWS_ELSEWHERE = 4096
COPIED_BYTES = {"cpu": 1 << 25}  # larger than the caches
COPIED_BYTES_ELSEWHERE = 1 << 28
MOST = 1 << 16


def flops_per_byte_of(nodes: Sequence[fx.Node]) -> int | None:
    """The figure for the device and dtype of the largest contraction; `None` if there is none."""
    largest = max(nodes, key=_flops, default=None)
    if largest is None or not _flops(largest):
        return None
    tensor = costs.tensors_of(largest)[0]
    return measured_flops_per_byte(tensor.device, tensor.dtype)


def _flops(node: fx.Node) -> int:
    return costs.flops(node) if node.op == "call_function" else 0


@functools.cache
def measured_flops_per_byte(device: torch.device, dtype: torch.dtype) -> int:
    """The figure from the file, or else measured and written there. An unreadable or read-only file is ignored."""
    key = f"{_name(device)}, {dtype}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    known = _read()
    if key not in known:
        known[key] = measure(device, dtype)
        _write(known)
    return known[key]


def measure(device: torch.device, dtype: torch.dtype) -> int:
    """Floating point operations of a matrix product in the time that a copy takes to move a byte."""
    with torch_compat.bare_evaluation():
        rows = ROWS.get(device.type, ROWS_ELSEWHERE)
        matrix = torch.ones(rows, rows, device=device, dtype=dtype)
        memory = torch.ones(COPIED_BYTES.get(device.type, COPIED_BYTES_ELSEWHERE), device=device, dtype=torch.uint8)
        product = _seconds("torch.mm(matrix, matrix)", {"matrix": matrix})
        copy = _seconds("other.copy_(memory)", {"memory": memory, "other": memory.clone()})
    return min(MOST, max(1, round((2 * rows**3 / product) * (copy / (2 * memory.nbytes)))))


def _seconds(statement: str, names: dict[str, torch.Tensor]) -> float:
    timer = Timer(statement, globals={"torch": torch, **names}, num_threads=torch.get_num_threads())
    return min(timer.timeit(1).median for _ in range(RUNS))


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


# --- The file --------------------------------------------------------------------------------------------------------


def _file() -> Path:
    return cache_folder() / "calibration.json"


def _read() -> dict[str, int]:
    try:
        known = json.loads(_file().read_text())
    except (OSError, ValueError):
        return {}
    entries = known.items() if isinstance(known, dict) else ()
    return {key: value for key, value in entries if type(value) is int and 0 < value <= MOST}


def _write(known: dict[str, int]) -> None:
    """Write a new file and move it into place, so that no process reads half of it."""
    try:
        _file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=_file().parent, delete=False) as new:
            json.dump(known, new, indent=1)
        os.replace(new.name, _file())
    except OSError:
        return
