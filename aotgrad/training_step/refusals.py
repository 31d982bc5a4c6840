"""What a step does and its plan would not repeat: each is an error that says what to do.

with refused_calls(optimizers, function):
    function(x, y)                          raises if it steps an unlisted optimizer, or a scheduler
reject_gradients(closed_over, (x, y), ...)  raises if an unlisted leaf has got a gradient
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NoReturn
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from aotgrad import torch_compat
from aotgrad.capture.recorder import printed_line, user_stack_trace
from aotgrad.capture.trace import user_line_of
from aotgrad.errors import CaptureError
from aotgrad.training_step.scaler_state import pending_updates

WRITES = "mutating a non-functional tensor"


def refuse_here(what: str, advice: str) -> NoReturn:
    """Raise a CaptureError that names the line which the user's function has reached."""
    refuse_step(f"{what}, at {printed_line(user_stack_trace())}", advice)


def refuse_step(what: str, advice: str) -> NoReturn:
    raise CaptureError(f"train_step: {what}; {advice}")


REGISTERS_HOOKS = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)


class RefusedHooks(TorchFunctionMode):
    """Inside, no hooks of certain tensors may be registered. Raises CaptureError."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.tensors = set(map(id, tensors))

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in REGISTERS_HOOKS and id(args[0]) in self.tensors:
            refuse_here("a hook of a tensor of `state` is registered inside", "register it once, before the step")
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def refused_calls(
    optimizers: Sequence[torch.optim.Optimizer], scalers: Sequence[torch.amp.GradScaler], function: Callable
) -> Iterator[None]:
    """Inside, the function must not step schedulers, use unlisted optimizers and scalers, nor change unlisted tensors.

    Raises:
        CaptureError
    """

    def check_listed(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if all(optimizer is not each for each in optimizers):
            refuse_here(f"{name_of(optimizer, function)} takes a step and is not listed in `state`", "list it there")

    def step(scheduler: LRScheduler, *_: Any, **__: Any) -> None:
        refuse_here(f"a {type(scheduler).__name__} takes a step inside", "call scheduler.step() after the step")

    handle = register_optimizer_step_pre_hook(check_listed)
    with contextlib.ExitStack() as stack:
        stack.callback(handle.remove)
        for name in ("scale", "unscale_", "step", "update"):
            stack.enter_context(mock.patch.object(torch.amp.GradScaler, name, of_listed(scalers, name)))
        for kind in subclasses_of(LRScheduler):
            if "step" in vars(kind):
                stack.enter_context(mock.patch.object(kind, "step", step))
        try:
            yield
        except RuntimeError as error:
            if WRITES not in str(error):
                raise
            raise CaptureError(
                f"train_step: a tensor that is not listed in `state` is changed in place, at {user_line_of(error)}; list "
                "it, or the module that has it"
            ) from error


def of_listed(scalers: Sequence[torch.amp.GradScaler], name: str) -> Callable:
    """A method of a `GradScaler`, refused if the scaler scales anything and is not listed."""
    method = getattr(torch.amp.GradScaler, name)

    def call(scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> Any:
        if scaler.is_enabled() and all(scaler is not each for each in scalers):
            refuse_here(f"a GradScaler is used by {name}() and is not listed in `state`", "list it there")
        return method(scaler, *args, **kwargs)

    return call


def subclasses_of(kind: type) -> list[type]:
    """A class with all its subclasses."""
    return [kind, *(each for direct in kind.__subclasses__() for each in subclasses_of(direct))]


def name_of(value: Any, function: Callable) -> str:
    """How the function calls an object that it closes over; else what it is."""
    names = visible_names(function)
    for name, found in names.items():
        if found is value:
            return f"{name!r}"
        if isinstance(found, nn.Module) and isinstance(value, torch.Tensor):
            parts = (f"{name}.{path}" for path, parameter in found.named_parameters() if parameter is value)
            if (path := next(parts, None)) is not None:
                return f"{path!r}"
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def visible_names(function: Callable) -> dict[str, Any]:
    """The names that a function, and the functions among them, close over, and their globals."""
    outer = closure_of(function)
    inner = (closure_of(value) for value in outer.values() if isinstance(value, FunctionType))
    return {**{name: value for names in inner for name, value in names.items()}, **outer}


def closure_of(function: Callable) -> dict[str, Any]:
    try:
        found = inspect.getclosurevars(inspect.unwrap(function))
    except TypeError:  # no Python function
        return {}
    return {**found.globals, **found.nonlocals}


def reject_gradients(closed_over: Iterable[torch.Tensor], given: Any, function: Callable) -> None:
    """Raise if unlisted leaves or arguments have got a gradient. Those of the former are removed.

    Raises:
        CaptureError: names the tensor.
    """
    leaves = [tensor for tensor in closed_over if tensor.is_leaf and torch_compat.is_traced(tensor.grad)]
    for tensor in leaves:
        tensor.grad = None
    arguments = [value for value in pytree.tree_leaves(given) if isinstance(value, torch.Tensor) and value.is_leaf]
    if leaves:
        name = name_of(leaves[0], function)
        refuse_step(
            f"backward() gives {name} a gradient, which is not listed in `state`", "list it, or the module that has it"
        )
    if any(value.grad is not None for value in arguments):
        refuse_step("backward() gives an argument a gradient", "list the tensor in `state`, or use torch.autograd.grad")


def reject_sparse(gradients: Iterable[torch.Tensor | None]) -> None:
    """Raise if a gradient is sparse.

    Raises:
        CaptureError
    """
    if any(gradient is not None and gradient.layout is not torch.strided for gradient in gradients):
        refuse_step(
            "a gradient is sparse, as with nn.Embedding(sparse=True)",
            "use dense gradients, or train that parameter outside of the step",
        )


def reject_history(assigned: Mapping[tuple[int, str], Any], state: Iterable[torch.Tensor]) -> None:
    """Raise if a module was assigned a tensor that requires grad, and is none of the state: a step returns no history.

    Raises:
        CaptureError: names the buffer or attribute.
    """
    known = set(map(id, state))
    for (_, name), value in assigned.items():
        tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        if any(tensor.requires_grad and id(tensor) not in known for tensor in tensors):
            refuse_step(f"{name!r} is assigned a tensor that requires grad", "assign its detach()")


def reject_assigned(hyperparameters: Mapping[tuple[int, int, str], Any]) -> None:
    """Raise if entries of parameter groups were assigned, or groups were added.

    Raises:
        CaptureError: names the entry.
    """
    for _, group, name in hyperparameters:
        refuse_step(f"{name!r} of parameter group {group} is assigned inside", "assign hyperparameters between steps")


def reject_pending(scalers: Iterable[torch.amp.GradScaler]) -> None:
    """Raise if a scaler has unscaled gradients or taken a step since its last update: it keeps that by object.

    Raises:
        CaptureError
    """
    if any(map(pending_updates, scalers)):
        refuse_step(
            "a GradScaler has unscaled gradients or taken a step, and its update() is not in the same step",
            "call unscale_(), step() and update() in one step",
        )


def reject_removed(entries: Collection[Any]) -> None:
    """Raise if entries of an optimizer's state were removed.

    Raises:
        CaptureError
    """
    if entries:
        refuse_step("entries of an optimizer's state are removed inside", "remove them between steps")
