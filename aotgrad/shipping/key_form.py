"""The key of a call as plain data: equal in two processes for calls that share plans.

In: `Call.current_key()`, hashable and of one process. Out: nested lists of text. Functions and classes count by their name,
other objects that a key compares by identity by their kind. Code is not compared, and neither is what a function captures: a
file has the plans for what it was when it was saved.

    key_form((("module", ""), (float, "0x1.0p+0")))      [["'module'", "''"], ["float", "'0x1.0p+0'"]]
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree

from aotgrad.guards.python_values import PLAIN, HashedOnce
from aotgrad.plan_cache.function_state import CapturedValues
from aotgrad.plan_cache.key_differences import is_scalar_key, parts_that_differ, scalar_text
from aotgrad.plan_cache.module_state import OfClasses


class NoForm(Exception):
    """A key that changes with each call."""


def call_form(key: tuple) -> dict[str, Any]:
    """The form of a call's key, in parts."""
    spec, constants, (state, _) = key
    return {"structure of the arguments": key_form(spec), "Python values": key_form(constants), "state": key_form(state)}


def key_form(key: Hashable) -> Any:
    """The form of a key.

    Raises:
        NoForm: a part of it has no content that can be read.
    """
    return FORMS[kind](key) if (kind := type(key)) in FORMS else form_of_object(key)


def forms_of_items(values: Any) -> list[Any]:
    """The forms of parts. A hash that an object keeps of itself is another number in each process."""
    match values:
        case ((_, str(name)), (kind, int())) if kind is int and name.endswith("hash"):
            return [name, "a hash"]
    return [key_form(value) for value in values]


def form_of_object(value: Any) -> Any:
    """The form of what a key compares by identity."""
    if type(value) is object:
        raise NoForm("the state of the function cannot be read, and may be another at each call")
    if type(value) in PLAIN:
        return repr(value)
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, fx.Graph):
        return str(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))


FORMS: Mapping[type, Callable[[Any], Any]] = {
    tuple: forms_of_items,
    frozenset: lambda key: sorted(forms_of_items(key), key=repr),
    HashedOnce: lambda key: key_form(key.value),
    OfClasses: lambda key: "classes",
    CapturedValues: lambda key: repr(None),
    pytree.TreeSpec: str,
    pytree.LeafSpec: str,
    types.ModuleType: lambda key: key.__name__,
    torch._ops.OpOverload: str,
}


def form_differences(now: Any, wanted: Any) -> Iterator[str]:
    """Where two forms differ, in words.

    >>> list(form_differences([["'p'", ["float", "'0x1.0p-1'"]]], [["'p'", ["float", "'0x1.0p-2'"]]]))
    ['p: 0.5, not 0.25']
    """
    for each in parts_that_differ(now, wanted):
        yield ": ".join([*each.path[-2:], f"{short(each.now)}, not {short(each.before)}"])


def short(form: Any) -> str:
    """The form, as far as fits a message; a float as such."""
    text = scalar_text(form) if is_scalar_key(form) else str(form)
    return text if len(text) <= 80 else f"{text[:77]}..."
