"""Marks the views that an index with several items makes: eager makes no view for an item that takes everything.

    x[:, ::2]       eager: one view       a trace with symbolic sizes: slice(x, 0), slice(slice, 1, step=2)

The nodes have `meta["indexed"]`; replayed views omit the first slice. `x[:]` alone is a view in eager, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aotgrad.capture.recorder import Recorder


class IndexMarks:
    """A handler of calls that tells `recorder` while such an index is made."""

    functions = (torch.Tensor.__getitem__,)

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def handle(self, _: Any, call: Callable[..., Any], /, tensor: torch.Tensor, index: Any) -> Any:
        self.recorder.is_indexing = isinstance(index, tuple)
        try:
            return call(tensor, index)
        finally:
            self.recorder.is_indexing = False
