"""The global state of a trace, for what continues or repeats the trace later.

state = TraceState.now()
with state.active(): ...                    elsewhere, under other settings
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad.torch_compat import CompilerSettings, OpSettings

GLOBAL_FLAGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
)
"""Global state that decides what is traced, and may differ in a backward: getters and setters."""


@dataclass(frozen=True)
class TraceState:
    """The global state of a trace, as far as it may differ in a backward."""

    grad_mode: bool
    settings: OpSettings
    flags: tuple[Any, ...]
    compilers: CompilerSettings

    @classmethod
    def now(cls) -> TraceState:
        flags = tuple(read() for read, _ in GLOBAL_FLAGS)
        return cls(torch.is_grad_enabled(), OpSettings.now(), flags, CompilerSettings.now())

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for (read, write), value in zip(GLOBAL_FLAGS, self.flags, strict=True):
                if read() != value:
                    stack.callback(write, read())
                    write(value)
            stack.enter_context(torch.set_grad_enabled(self.grad_mode))
            stack.enter_context(self.settings.active())
            stack.enter_context(self.compilers.active())
            yield
