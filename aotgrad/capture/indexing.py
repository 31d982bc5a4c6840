"""Notes which views an index with several items makes: eager makes none for an item that takes all.

    x[:, ::2]       eager: one view       a trace with symbolic sizes: slice(x, 0), slice(slice, 1, step=2)

The nodes have `meta["indexed"]`; replayed views leave the first one out. `x[:]` is a view of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from aotgrad.capture.recorder import Recorder


class NotedIndexing(TorchFunctionMode):
    """While it is open, `recorder` is told when such an index is made."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.Tensor.__getitem__ or not isinstance(args[1], tuple):
            return function(*args, **(kwargs or {}))
        self.recorder.is_indexing = True
        try:
            return function(*args)
        finally:
            self.recorder.is_indexing = False
