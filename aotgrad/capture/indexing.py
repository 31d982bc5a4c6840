"""Notes which views an index with several items makes: eager makes none for an item that takes all.

    x[:, ::2]       eager: one view       a trace with symbolic sizes: slice(x, 0), slice(slice, 1, step=2)

The nodes have `meta["indexed"]`; replayed views leave the first one out. `x[:]` is a view of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aotgrad.capture.recorder import Recorder


class IndexMarks:
    """A handler of calls that tells `recorder` when such an index is made."""

    functions = (torch.Tensor.__getitem__,)

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def handle(self, _: Any, call: Callable[..., Any], /, tensor: torch.Tensor, index: Any) -> Any:
        self.recorder.is_indexing = isinstance(index, tuple)
        try:
            return call(tensor, index)
        finally:
            self.recorder.is_indexing = False
