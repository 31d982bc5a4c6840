"""The `eager` backend: the graph's own generated code, boxed.

Each input is freed at its last use, dead buffers of the graph are reused (`buffer_reuse.py`), inputs that the graph writes
to are updated in place (`in_place_updates.py`), and a tensor is taken apart by one op (`slices.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.fx as fx

from aotgrad.backends.base import make_boxed_func
from aotgrad.backends.boxed_code import boxed_code
from aotgrad.backends.buffer_reuse import reuse_buffers
from aotgrad.backends.in_place_updates import update_in_place
from aotgrad.backends.kit import FunctionBackend
from aotgrad.backends.slices import take_apart_at_once
from aotgrad.ir import BoxedCallable


def compile_eager(module: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
    """The graph's code with arguments in one list, so that dead ones are freed while it runs, and with buffers reused."""
    return boxed_code(take_apart_at_once(reuse_buffers(update_in_place(module))))


def nop(fx_g: fx.GraphModule, _: Sequence[Any]) -> BoxedCallable:
    """A compiler that returns the graph unchanged, for tests and for inspection."""
    return make_boxed_func(fx_g.forward)


EAGER = FunctionBackend("eager", compile_eager, fuses=False, key="", runs_torch=True)
