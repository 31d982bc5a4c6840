"""What a function does when it runs once more than in eager, and how it is undone.

with torch_compat.kept_random_states(), restored_tensors("f"), restored_assignments(), restored_values([f]):
    f(x)                    draws numbers, changes a tensor that it closes over, assigns a buffer of a module, and counts
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_buffer_registration_hook, register_module_parameter_registration_hook

from aotgrad import torch_compat
from aotgrad.eager_calls.memory import OutsideMemory
from aotgrad.errors import CaptureError
from aotgrad.guards.captured_values import Captured
from aotgrad.guards.module_attributes import CapturedState


@contextlib.contextmanager
def restored_tensors(name: str) -> Iterator[None]:
    """Inside, a function runs that may change tensors which it has not made. They get their values and versions back.

    Raises:
        CaptureError: one of them has a new history.
    """
    mode = OutsideTensors()
    try:
        with mode:
            yield
    finally:
        rebased = [change.undo() for change in mode.changed.values()]
    if any(rebased):
        raise CaptureError(
            f"{name}, which is not traced, changes a tensor that is no argument of it in a way that has a gradient; pass it "
            "as an argument"
        )


@contextlib.contextmanager
def restored_assignments() -> Iterator[None]:
    """Inside, a function runs that may assign buffers and parameters of modules. These have the old ones afterwards."""
    before: dict[tuple[int, str, str], tuple[nn.Module, Any]] = {}
    thread = threading.get_ident()

    def note(module: nn.Module, registry: str, name: str) -> None:
        if threading.get_ident() == thread and name in vars(module)[registry]:
            before.setdefault((id(module), registry, name), (module, vars(module)[registry][name]))

    handles = (
        register_module_buffer_registration_hook(lambda module, name, _: note(module, "_buffers", name)),
        register_module_parameter_registration_hook(lambda module, name, _: note(module, "_parameters", name)),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for (_, registry, name), (module, value) in before.items():
            vars(module)[registry][name] = value


@contextlib.contextmanager
def restored_values(functions: Iterable[Any]) -> Iterator[None]:
    """Inside, functions run that may change variables, globals, containers, and attributes of objects and modules."""
    state = CapturedState.of(Captured.of(functions))
    try:
        yield
    finally:
        state.undo()


@dataclass(frozen=True, eq=False)
class TensorBefore:
    """A tensor that was changed in place, as it was before."""

    tensor: torch.Tensor
    memory: torch.UntypedStorage
    version: int | None
    history: Any

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorBefore:
        memory, version = tensor.untyped_storage().clone(), torch_compat.version_of(tensor)
        return cls(tensor, memory, version, tensor.grad_fn)

    def undo(self) -> bool:
        """Set the tensor back. Returns whether it has a new history, which only goes if it had none before."""
        self.tensor.untyped_storage().copy_(self.memory)
        is_rebased = self.tensor.grad_fn is not self.history
        if is_rebased and self.history is None:
            self.tensor.detach_()
        torch_compat.raise_version(self.tensor, self.version, 0)
        return is_rebased


class OutsideTensors(torch_compat.TorchDispatchMode):
    """Notes the tensors that ops read, and those that they change in place, by storage, unless an op has made them.

    `own`: the arguments of the function that runs, which are not noted either.
    """

    supports_higher_order_operators = True

    def __init__(self, own: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.changed: dict[int, TensorBefore] = {}
        self._read: dict[int, StorageWeakRef] = {}
        self._made = set(map(torch_compat.storage_id, own))

    def used(self) -> OutsideMemory:
        """The memory that was read and changed until now."""
        changed = (torch_compat.memory_reference(change.tensor) for change in self.changed.values())
        return OutsideMemory(tuple(self._read.values()), tuple(changed))

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch_compat.dispatches_itself(types):
            return NotImplemented  # its parts come again
        kwargs = kwargs or {}
        self._note_reads((args, kwargs))
        if isinstance(op, torch._ops.OpOverload):
            self._note_writes(op, args, kwargs)
        results = op(*args, **kwargs)
        self._made.update(storages_in(results) - storages_in((args, kwargs)))
        return results

    def _note_reads(self, values: Any) -> None:
        for tensor in dense_tensors_in(values):
            storage = torch_compat.storage_id(tensor)
            if storage not in self._made and storage not in self._read:
                self._read[storage] = torch_compat.memory_reference(tensor)

    def _note_writes(self, op: torch._ops.OpOverload, args: Any, kwargs: Any) -> None:
        for tensor in dense_tensors_in(torch_compat.changed_arguments(op, args, kwargs)):
            storage = torch_compat.storage_id(tensor)
            if storage not in self._made and storage not in self.changed:
                self.changed[storage] = TensorBefore.of(tensor)


def storages_in(values: Any) -> set[int]:
    return set(map(torch_compat.storage_id, dense_tensors_in(values)))


def dense_tensors_in(values: Any) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(values) if torch_compat.has_storage(value)]
