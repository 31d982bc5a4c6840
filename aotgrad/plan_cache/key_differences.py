"""What differs between the keys of two calls, for logs and warnings.

    [str(each) for each in key_differences(key, earlier)]          ["args[1] is 0.8, and was 0.7"]

A key consists of nested tuples, its form in a file (`shipping/key_form.py`) of nested lists. A text at the beginning of one
names what follows: a variable, an attribute, a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.utils._pytree as pytree

from aotgrad.guards.python_values import HashedOnce


@dataclass(frozen=True)
class Difference:
    """A part of a key, with the names on the way to it, what it is and what it was."""

    path: Sequence[str]
    now: Any
    before: Any

    def __str__(self) -> str:
        name = ".".join(self.path) or "the state of the function"
        if not (is_scalar_key(self.now) and is_scalar_key(self.before)):
            return f"{name} has changed"
        advice = " (as a tensor, it would share one plan)" if self.now[0] is self.before[0] is float else ""
        return f"{name} is {scalar_text(self.now)}, and was {scalar_text(self.before)}{advice}"


def key_differences(key: tuple, earlier: tuple) -> Iterator[Difference]:
    """What differs in two keys: the structure of the arguments, Python values among them, or the state of the function."""
    spec, constants, (state, generation) = key
    earlier_spec, earlier_constants, (earlier_state, earlier_generation) = earlier
    if spec != earlier_spec or len(constants) != len(earlier_constants):
        yield Difference(["the structure of the arguments"], spec, earlier_spec)
        return
    names = leaf_names(spec)
    for (position, now), (_, before) in zip(constants, earlier_constants, strict=True):
        yield from parts_that_differ(now, before, [names.get(position, f"argument {position}")])
    yield from parts_that_differ(state, earlier_state)
    yield from parts_that_differ(generation, earlier_generation, ["the list of registered passes"])


def parts_that_differ(now: Any, before: Any, path: Sequence[str] = ()) -> Iterator[Difference]:
    """The smallest parts of two keys that differ, or of the forms of keys."""
    now, before = (key.value if isinstance(key, HashedOnce) else key for key in (now, before))
    if now == before:
        return
    if not are_comparable(now, before):
        yield Difference(path, now, before)
        return
    for part, earlier in zip(now, before, strict=True):
        yield from parts_that_differ(part, earlier, [*path, *leading_name(now)])


def are_comparable(now: Any, before: Any) -> bool:
    """Whether two keys consist of as many parts, with the same name or class at the beginning."""
    are_nested = isinstance(now, (tuple, list)) and type(now) is type(before) and len(now) == len(before) > 0
    return (
        are_nested and not (is_scalar_key(now) or is_scalar_key(before)) and (now[0] == before[0] or not leading_name(now))
    )


def leading_name(parts: Sequence[Any]) -> list[str]:
    """The name at the beginning of a key, where it is a text, or of a form, where it is quoted."""
    first = parts[0]
    is_name = isinstance(first, str) and (isinstance(parts, tuple) or first.startswith("'"))
    return [first.strip("'")] if is_name and first.strip("'") else []


SCALARS: Mapping[Any, Any] = {kind: kind.__name__ for kind in (bool, int, float, str, type(None))}


def is_scalar_key(key: Any) -> bool:
    """Whether a key or form is that of a number, a text or `None`: its type, or the name of that, and its value."""
    kinds = SCALARS.values() if isinstance(key, list) else SCALARS
    return isinstance(key, (tuple, list)) and len(key) == 2 and isinstance(key[0], (type, str)) and key[0] in kinds


def scalar_text(key: Any) -> str:
    """The number or text as Python prints it; a form contains that, with a float as text in base 16."""
    kind, value = key
    if kind in (float, "float"):
        return repr(float.fromhex(value.strip("'")))
    return value if isinstance(key, list) else repr(value)


def leaf_names(spec: Any) -> Mapping[int, str]:
    """The names of the leaves among the arguments of a call, by position: `args[1]`, `kwargs['scale']`."""
    if not isinstance(spec, pytree.TreeSpec):
        return {}
    positions = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    leaves, _ = pytree.tree_flatten_with_path(positions)
    return {position: leaf_name(path) for path, position in leaves}


def leaf_name(path: Sequence[Any]) -> str:
    """The name of a leaf of `(args, kwargs)`."""
    return ("args", "kwargs")[path[0].idx] + pytree.keystr(tuple(path[1:]))
