"""Tests of the suites that fail on the emulated device, each with the reason. A row that passes fails.

`GAPS` are of the emulator: docs/emulated_cuda.md has the list. `DEFECTS` are aotgrad's own on GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

ORDER = "tests/numerics/test_batched_backward.py::"
DEVICE_THREADS = "the nesting level of vmap is read on the thread of the device, where it is zero"

GAPS: Mapping[str, str] = {}

DEFECTS: Mapping[str, str] = {}


def reasons(node: str) -> Iterator[str]:
    """The reasons why the test with this id fails; of a row that names a test or a file, all of its tests."""
    for row, reason in (*GAPS.items(), *DEFECTS.items()):
        if node == row or node.startswith((f"{row}[", f"{row}::")):
            yield reason
