"""Traced values in place of the real state: every reference to a parameter sees its traced value, then the real one again.

    with swapped(parameters, traced):
        model(x)                    computes with the traced values
        optimizer.step()            changes them

Whatever happens inside, the real state is unchanged afterwards: an optimizer's dictionaries, gradients, and hooks as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.plan_cache.assigned_state import ModuleContents
from aotgrad.training_step.scaler_state import pending_updates


@contextlib.contextmanager
def swapped(real: Sequence[torch.Tensor], traced: Sequence[torch.Tensor]) -> Iterator[None]:
    """Inside, each real tensor object has the contents of its traced tensor.

    Raises:
        CaptureError: something outside of Python refers to a real tensor, so that its contents cannot be exchanged.
    """
    with contextlib.ExitStack() as stack:
        for tensor, value in zip(real, traced, strict=True):
            vars(value).update({**vars(tensor), **vars(value)})  # what a wrapper consists of is its own
            if isinstance(tensor, torch.nn.Parameter):
                torch_compat.mark_parameter(value)
            exchange(tensor, value)
            stack.callback(exchange, tensor, value)
        for tensor in real:
            torch_compat.install_hooks_of_leaf(tensor)
        yield


def exchange(tensor: torch.Tensor, value: torch.Tensor) -> None:
    try:
        torch_compat.swap_tensors(tensor, value)
    except RuntimeError as error:
        raise CaptureError(
            f"a tensor of shape {list(tensor.shape)} in `state` cannot be traced, because something outside of Python "
            "refers to it (a live autograd graph, for instance): drop that, or run the first step before it"
        ) from error


@contextlib.contextmanager
def restored_objects(
    optimizers: Sequence[torch.optim.Optimizer],
    scalers: Sequence[torch.amp.GradScaler],
    modules: Sequence[ModuleContents],
) -> Iterator[None]:
    """Inside, the attributes and dictionaries of optimizers and scalers may change, and the buffers of modules."""
    groups = [(each.param_groups, list(each.param_groups)) for each in optimizers]
    tables: list[dict] = [vars(each) for each in (*optimizers, *scalers)]
    tables += map(pending_updates, scalers)
    tables += [table for each in optimizers for table in (each.state, *each.param_groups, *each.state.values())]
    before = [(table, dict(table)) for table in tables]
    try:
        yield
    finally:
        for table, content in before:
            table.clear()
            table.update(content)
        for several, content in groups:
            several[:] = content
        for each in modules:
            each.restore()
