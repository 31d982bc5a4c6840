"""Calls that `torch.utils.checkpoint` repeats in a backward, to get what they save.

Once it has the last saved tensor, a hook ends the call by an error. Eager has then done all that comes before this tensor in
the function, also writes whose gradient passes through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.autograd.graph import saved_tensors_hooks

from aotgrad import torch_compat
from aotgrad.errors import UnsupportedMutationError


def attach_and_wait(partly_written: Sequence[int], attach: Callable[..., Sequence[Any]], *arguments: Any) -> tuple[Any, ...]:
    """The error that ends the call, or `None`, and what `attach` returns.

    Raises:
        UnsupportedMutationError: the call ends between two writes to one of the inputs `partly_written`.
    """
    try:
        return None, *attach(*arguments)
    except torch_compat.RecomputationStop as end:
        if partly_written:
            raise UnsupportedMutationError(
                "torch.utils.checkpoint repeats a compiled function in the backward and stops it between two writes to its "
                f"input {partly_written[0]}, of which only the first one would happen; run it within "
                "set_checkpoint_early_stop(False), or change the input once"
            ) from None
        with saved_tensors_hooks(as_it_is, as_it_is):  # the checkpoint wants nothing more
            return end, *attach(*arguments)


def as_it_is(tensor: Any) -> Any:
    return tensor
