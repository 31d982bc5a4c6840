"""What a forward assigns to its module: the new tensors are further results of its plan, and every call assigns them.

    def forward(self, x):
        self.count = self.count + 1         a trace returns AssignedResult(x, {"count": count + 1, "last": (x * 2, 3)})
        self.last = x * 2, 3
        return x

`count` is a buffer. `last` is a plain attribute: one that a trace was found to assign holds tensors of the module from then
on (`TensorAttribute`), as a buffer does. A write in place is a write to an argument, and is no assignment.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from aotgrad.errors import CaptureError
from aotgrad.guards.module_slots import SKIPPED, TABLES, dotted
from aotgrad.guards.python_values import is_plain_object


@dataclass(frozen=True)
class AssignedResult:
    """What a forward returns, and the new value of each buffer or attribute that it has assigned, by name."""

    result: Any
    state: Mapping[str, Any]

    def assign(self, module: nn.Module) -> Any:
        """Assign the buffers and attributes. Returns what the forward returned."""
        for name, value in self.state.items():
            assign_state(module, name, value)
        return self.result


def assign_state(module: nn.Module, name: str, value: Any) -> None:
    """Assign a buffer, or else an attribute, of a module or of one of its parts."""
    path, _, key = name.rpartition(".")
    attributes = vars(module.get_submodule(path))
    (attributes["_buffers"] if key in attributes["_buffers"] else attributes)[key] = value


@dataclass(frozen=True)
class ResultKey:
    """Leads to a part of an `AssignedResult`, in texts."""

    text: str

    def __str__(self) -> str:
        return self.text


def parts_of_assigned(each: AssignedResult) -> tuple[list[Any], tuple[str, ...]]:
    return [each.result, *each.state.values()], tuple(each.state)


def named_parts_of_assigned(each: AssignedResult) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
    named = [(ResultKey(f" assigned to {name!r}"), value) for name, value in each.state.items()]
    return [(ResultKey(""), each.result), *named], tuple(each.state)


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
class ModuleContents:
    """What a module tree held when this was made, and the dictionaries that held it.

    Attributes:
        tables: the tables of parameters and buffers, each by its module's path and its own name.
        attributes: the dictionary of each module, by its path.
        contents: copies of the tables, and of the dictionaries under the path and "".
        names: the attributes that calls are known to assign.
        containers: lists, dictionaries, and those of objects, in attributes, with a copy of each.
    """

    tables: Mapping[tuple[str, str], dict[str, Any]]
    attributes: Mapping[str, dict[str, Any]]
    contents: Mapping[tuple[str, str], dict[str, Any]]
    names: Collection[str]
    containers: Sequence[tuple[str, Any, Any]]

    @classmethod
    def of(cls, module: nn.Module, names: Collection[str] = ()) -> ModuleContents:
        named = list(module.named_modules())
        tables = {(path, name): vars(part)[name] for path, part in named for name in TABLES}
        attributes = {path: vars(part) for path, part in named}
        contents = {place: dict(table) for place, table in tables.items()}
        contents |= {(path, ""): dict(table) for path, table in attributes.items()}
        own = ((path, key) for path, table in attributes.items() for key in table if key not in SKIPPED)
        named_values = [(dotted(path, key), attributes[path][key]) for path, key in own]
        held = ((name, vars(value) if is_plain_object(value) else value) for name, value in named_values)
        containers = [(name, value, copy.copy(value)) for name, value in held if type(value) in (list, dict)]
        return cls(tables, attributes, contents, names, containers)

    def clear(self) -> None:
        """Let every parameter and buffer be no tensor."""
        for table in self.tables.values():
            table.update(dict.fromkeys(table))

    def restore(self) -> None:
        """Let the module hold what it held, in the same order. A table that has these names is never shorter in between."""
        for place, table in self.tables.items():
            if list(table) != list(self.contents[place]):
                table.clear()
            table.update(self.contents[place])
        for _, container, before in self.changed_containers():
            container.clear()
            (container.update if isinstance(container, dict) else container.extend)(before)
        for path, key, _ in list(self.changed_attributes()):
            before = self.contents[path, ""]
            if key in before:
                self.attributes[path][key] = before[key]
            else:
                del self.attributes[path][key]

    def assigned(self) -> dict[str, Any]:
        """The buffers and attributes that hold another tensor, or none any more.

        Raises:
            CaptureError: a parameter was assigned, a buffer was added or removed, or an attribute was removed.
        """
        found = {}
        for (path, table), key, value in self.changes():
            name = dotted(path, key)
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
        for path, key, value in self.changed_attributes():
            if key not in self.attributes[path]:
                raise CaptureError(f"the forward removes the attribute {dotted(path, key)!r}; assign None to it")
            found[dotted(path, key)] = value
        for name, _, _ in self.changed_containers():
            raise CaptureError(
                f"the forward puts a tensor into {name!r}; a compiled module can only assign a new object to an attribute: "
                "assign a copy with the tensor, or return the tensor"
            )
        return found

    def changes(self) -> Iterator[tuple[tuple[str, str], str, Any]]:
        """The place, name and present value of each parameter and buffer that is another one, parameters first."""
        for place in sorted(self.tables, key=lambda place: TABLES.index(place[1])):
            now, before = self.tables[place], self.contents[place]
            for key in dict.fromkeys((*before, *now)):
                if key not in now or key not in before or now[key] is not before[key]:
                    yield place, key, now.get(key)

    def changed_attributes(self) -> Iterator[tuple[str, str, Any]]:
        """The path, key and present value of each attribute that is another one, if it is known or holds tensors."""
        for path, now in self.attributes.items():
            before = self.contents[path, ""]
            for key in dict.fromkeys((*before, *now)):
                if key in SKIPPED or (key in now and key in before and now[key] is before[key]):
                    continue
                value = now.get(key)
                if dotted(path, key) in self.names or holds_tensors(value):
                    yield path, key, value

    def changed_containers(self) -> Iterator[tuple[str, Any, Any]]:
        """The containers with other tensors than before: the name of the attribute, the object, and its copy."""
        for name, container, before in self.containers:
            now = list(map(id, pytree.tree_leaves(container)))
            if now != list(map(id, pytree.tree_leaves(before))) and holds_tensors([container, before]):
                yield name, container, before


def holds_tensors(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def reject_assigned_state(result: Any, where: str) -> Any:
    """The result of a forward that has assigned no buffer or attribute.

    Raises:
        CaptureError: names one; `where` says what cannot assign one.
    """
    if isinstance(result, AssignedResult):
        name = next(iter(result.state))
        raise CaptureError(
            f"the forward assigns a new tensor to {name!r}; {where} can only change it in place: {copy_to_assigned(name)}"
        )
    return result


def copy_to_assigned(name: str) -> str:
    """What a forward does in place of an assignment to a parameter or buffer."""
    return f"self.{name.rpartition('.')[2]}.copy_(...)"
