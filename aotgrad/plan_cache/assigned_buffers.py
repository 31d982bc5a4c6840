"""Buffers that a forward assigns: the new tensors are further results of its plan, and every call assigns them.

    def forward(self, x):
        self.count = self.count + 1         a trace returns AssignedResult(x, {"count": count + 1})
        return x

A write in place is a write to an argument, and is no assignment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from aotgrad.errors import CaptureError

TABLES = ("_parameters", "_buffers")
"""The attributes of a module that hold its own tensors."""


@dataclass(frozen=True)
class AssignedResult:
    """What a forward returns, and the new value of each buffer that it has assigned, by the name of the buffer."""

    result: Any
    buffers: Mapping[str, Any]

    def assign(self, module: nn.Module) -> Any:
        """Assign the buffers. Returns what the forward returned."""
        for name, value in self.buffers.items():
            assign_buffer(module, name, value)
        return self.result


def assign_buffer(module: nn.Module, name: str, value: torch.Tensor | None) -> None:
    path, _, key = name.rpartition(".")
    vars(module.get_submodule(path))["_buffers"][key] = value


@dataclass(frozen=True)
class ResultKey:
    """Leads to a part of an `AssignedResult`, in texts."""

    text: str

    def __str__(self) -> str:
        return self.text


def parts_of_assigned(each: AssignedResult) -> tuple[list[Any], tuple[str, ...]]:
    return [each.result, *each.buffers.values()], tuple(each.buffers)


def named_parts_of_assigned(each: AssignedResult) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
    named = [(ResultKey(f" for buffer {name!r}"), value) for name, value in each.buffers.items()]
    return [(ResultKey(""), each.result), *named], tuple(each.buffers)


def assigned_of_parts(parts: Any, names: tuple[str, ...]) -> AssignedResult:
    result, *values = parts
    return AssignedResult(result, dict(zip(names, values, strict=True)))


pytree.register_pytree_node(
    AssignedResult,
    parts_of_assigned,
    assigned_of_parts,
    serialized_type_name="aotgrad.AssignedResult",
    flatten_with_keys_fn=named_parts_of_assigned,
)


@dataclass(frozen=True)
class ModuleTables:
    """The tables of a module tree, each by its module's path and its own name, and what they held when this was made."""

    tables: Mapping[tuple[str, str], dict[str, Any]]
    contents: Mapping[tuple[str, str], dict[str, Any]]

    @classmethod
    def of(cls, module: nn.Module) -> ModuleTables:
        tables = {(path, name): vars(part)[name] for path, part in module.named_modules() for name in TABLES}
        return cls(tables, {place: dict(table) for place, table in tables.items()})

    def clear(self) -> None:
        """Let every name have no tensor."""
        for table in self.tables.values():
            table.update(dict.fromkeys(table))

    def restore(self) -> None:
        """Let the tables hold what they held, in the same order. One that has these names is never shorter in between."""
        for place, table in self.tables.items():
            if list(table) != list(self.contents[place]):
                table.clear()
            table.update(self.contents[place])

    def assigned(self) -> dict[str, Any]:
        """The buffers that hold another tensor, or none any more.

        Raises:
            CaptureError: a parameter was assigned, or a name was added or removed.
        """
        found = {}
        for (path, table), key, value in self.changes():
            name = f"{path}.{key}" if path else key
            if table != "_buffers":
                raise CaptureError(
                    f"the forward assigns or removes the parameter {name!r}; a compiled module can only change it in place: "
                    f"{copy_to_assigned(name)}"
                )
            if key not in self.contents[path, table] or key not in self.tables[path, table]:
                raise CaptureError(
                    f"the forward registers or removes the buffer {name!r}; register it in __init__, as None as long as "
                    "there is no tensor"
                )
            found[name] = value
        return found

    def changes(self) -> Iterator[tuple[tuple[str, str], str, Any]]:
        """The place, name and present value of each entry that is another one, parameters first."""
        for place in sorted(self.tables, key=lambda place: TABLES.index(place[1])):
            now, before = self.tables[place], self.contents[place]
            for key in dict.fromkeys((*before, *now)):
                if key not in now or key not in before or now[key] is not before[key]:
                    yield place, key, now.get(key)


def reject_assigned_buffers(result: Any, where: str) -> Any:
    """The result of a forward that has assigned no buffer.

    Raises:
        CaptureError: names a buffer; `where` says what cannot assign one.
    """
    if isinstance(result, AssignedResult):
        name = next(iter(result.buffers))
        raise CaptureError(
            f"the forward assigns a new tensor to {name!r}; {where} can only change it in place: {copy_to_assigned(name)}"
        )
    return result


def copy_to_assigned(name: str) -> str:
    """What a forward does in place of an assignment to a parameter or buffer."""
    return f"self.{name.rpartition('.')[2]}.copy_(...)"
