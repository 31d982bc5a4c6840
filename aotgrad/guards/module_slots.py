"""Where a module tree holds its own tensors.

slots_of(module)                            parameters, then buffers
tensor_attributes(module, {"hidden"})       plain attributes by name: `self.hidden = (h, c)` has two slots
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import nn

TABLES = ("_parameters", "_buffers")
"""The attributes of a module that hold its own tensors."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
HOOK_FLAGS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
FLAT_WEIGHTS = ("_flat_weights", "_flat_weight_refs")
"""What recurrent layers derive from their parameters."""
# Not part of the state: read above, irrelevant for the forward, or derived.
SKIPPED = frozenset({*HOOKS, *HOOK_FLAGS, *TABLES, *FLAT_WEIGHTS, "_modules", "_non_persistent_buffers_set", "meta"})
SKIPPED |= {"_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"}


class Slot(NamedTuple):
    """The place of a tensor of a module: the dictionary or list that holds it, and the key there."""

    name: str
    table: Any
    key: Any


def slots_of(module: nn.Module) -> list[Slot]:
    """The slots of a module tree: parameters, then buffers."""
    named = list(module.named_modules())
    return [slot for table in TABLES for name, part in named for slot in tensor_slots(name, part, table)]


def tensor_slots(name: str, module: nn.Module, table: str) -> Iterator[Slot]:
    for key, tensor in module.__dict__[table].items():
        if tensor is not None:
            yield Slot(dotted(name, key), module.__dict__[table], key)


def dotted(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


class TensorAttribute(NamedTuple):
    """An attribute that holds a tensor, or tensors in tuples, lists and dictionaries, and its value apart.

    Attributes:
        owner: the dictionary of its module.
        leaves: of the value; `slots` are the places of tensors among them.
    """

    owner: dict[str, Any]
    key: str
    leaves: list[Any]
    structure: pytree.TreeSpec
    slots: list[Slot]

    @classmethod
    def of(cls, name: str, owner: dict[str, Any], key: str) -> TensorAttribute:
        paths, structure = pytree.tree_flatten_with_path(owner[key])
        leaves = [leaf for _, leaf in paths]
        named = enumerate(name + pytree.keystr(path) for path, _ in paths)
        slots = [Slot(text, leaves, k) for k, text in named if isinstance(leaves[k], torch.Tensor)]
        return cls(owner, key, leaves, structure, slots)

    def put(self) -> None:
        """Let the attribute hold what the slots hold."""
        self.owner[self.key] = pytree.tree_unflatten(self.leaves, self.structure)


def tensor_attributes(module: nn.Module, names: Collection[str]) -> list[TensorAttribute]:
    """Those of a module tree that have one of the names, and hold tensors now."""
    found = []
    for path, part in module.named_modules() if names else ():
        places = ((key, dotted(path, key)) for key in vars(part) if key not in SKIPPED)
        found += [TensorAttribute.of(name, vars(part), key) for key, name in places if name in names]
    return [each for each in found if each.slots]


def attributes_that_are_tensors(module: nn.Module) -> Iterator[str]:
    """The names of the plain attributes of a module tree that are a tensor of the usual kind."""
    for path, part in module.named_modules():
        for key, value in vars(part).items():
            if type(value) is torch.Tensor and value.layout is torch.strided and key not in SKIPPED:
                yield dotted(path, key)
