"""The Python values that a function depends on besides its arguments: closure cells, globals, attributes of objects.

    captured = Captured.of([f])            f = lambda x: helper(x) * config.scale
    captured.places                         where helper, config and config.scale are
    captured.key()                         hashable; equal as long as a trace would find equal values
    captured.is_current()                  cheap: whether all of them are the objects that they were

What a function reads is known by the names in its code (`code_reads`), and in that of functions that it may call. Code of
installed packages is not followed, and their modules, functions and classes are constants. Islands are not followed, since
they run in each call. Of an object, only attributes whose names occur in the code count, but all if the code computes names
(`getattr(config, name)`). A container counts as a whole. Modules (`nn.Module`) are `parts`, for which the caller has guards,
but for what their hooks read.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import itertools
import operator
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from aotgrad import torch_compat
from aotgrad.guards.captured_places import (
    NOTHING,
    WITH_ITEMS,
    AllAttributes,
    CapturedPlace,
    CellPlace,
    ContextPlace,
    DictionaryPlace,
    are_same_items,
    attribute_place,
    captured_items,
    is_special,
    restore_items,
)
from aotgrad.guards.code_reads import IMPLIED, READS_GLOBALS, code_reads, is_installed
from aotgrad.guards.module_slots import HOOKS
from aotgrad.guards.python_values import Identity, hashable_key, is_fixed, is_plain_object

MAKING = ("__new__", "__init__", "__post_init__")
"""The methods by which Python makes an object."""

NOT_BY_OPERATORS = frozenset(
    {*MAKING, *itertools.chain(*(each.methods for each in IMPLIED))}
    | {"__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__copy__", "__deepcopy__"}
    | {"__del__", "__dir__", "__sizeof__", "__set_name__", "__init_subclass__", "__class_getitem__", "__subclasshook__"}
)
"""The special methods that `code_reads` finds where code calls them, and those that compute nothing."""

IMPLICIT = ("forward", "backward", "setup_context", "vmap", "jvp")
"""The methods that torch calls."""


@dataclass
class Captured:
    """Where the values are, and what was found there.

    Attributes:
        places: the places of values; a value in one may be a container or an object with further places.
        before: the value in each place.
        containers: with copies of what they hold.
        parts: modules.
        opaque: objects that are compared by content, with their keys.
    """

    places: list[CapturedPlace] = field(default_factory=list)
    before: list[Any] = field(default_factory=list)
    containers: list[tuple[Any, list[Any]]] = field(default_factory=list)
    parts: list[nn.Module] = field(default_factory=list)
    opaque: list[tuple[Any, Hashable]] = field(default_factory=list)

    @classmethod
    def of(cls, functions: Iterable[Any], known: Iterable[Any] = ()) -> Captured:
        """What functions depend on; `known` are objects that the caller guards."""
        return CaptureSearch(known).run(functions)

    @classmethod
    def of_module(cls, module: nn.Module, with_own_hooks: bool) -> Captured:
        """What the methods and hooks of a module tree depend on besides the modules.

        Args:
            with_own_hooks: whether the hooks of the module itself count, besides those of its parts.
        """
        parts = list(module.modules())
        search = CaptureSearch(parts)
        for part in parts:
            search.add_class(type(part))
            search.queue += hooks_of_module(part) if with_own_hooks or part is not module else []
        search.queue += itertools.chain(*(hooks.values() for hooks in torch_compat.global_module_hooks()))
        return search.run(())

    @functools.cached_property
    def is_empty(self) -> bool:
        return not (self.places or self.containers or self.parts or self.opaque)

    def is_current(self) -> bool:
        """Whether each place holds the same object, or an equal number or text."""
        found = [place.get() for place in self.places]
        return (
            (all(map(operator.is_, found, self.before)) or all(map(are_alike, found, self.before)))
            and all(are_same_items(container, items) for container, items in self.containers)
            and all(hashable_key(value) == key for value, key in self.opaque)
        )

    def key(self) -> Hashable:
        """Equal for values that a trace does not tell apart. Tensors count by identity: a plan reads them at each call."""
        naming = KeyNumbering()
        found = zip(self.places, self.before, strict=True)
        places = tuple((place.name, LIFTED if is_lifted(place, value) else naming.key_of(value)) for place, value in found)
        containers = tuple(naming.key_of(container) for container, _ in self.containers)
        return (places, containers, tuple(key for _, key in self.opaque))

    def changes(self) -> Iterator[CapturedChange]:
        """The places that hold other objects now."""
        for place, value in zip(self.places, self.before, strict=True):
            if (now := place.get()) is not value:
                yield CapturedChange(repr(place.name), now, value, functools.partial(place.put, value))
        yield from changed_containers(self.containers)


@dataclass(frozen=True)
class CapturedChange:
    """A place that holds another object than before; `undo` restores it."""

    name: str
    now: Any
    before: Any
    undo: Callable[[], None]


def changed_containers(containers: Iterable[tuple[Any, list[Any]]]) -> Iterator[CapturedChange]:
    """The containers that hold other objects now than those in the list beside them."""
    for container, items in containers:
        if not are_same_items(container, items):
            undo = functools.partial(restore_items, container, items)
            yield CapturedChange(f"a {type(container).__name__}", captured_items(container), items, undo)


LIFTED = "a tensor of a transform"


def is_lifted(place: CapturedPlace, value: Any) -> bool:
    """Whether a value is an argument of the plans of transforms of `torch.func`, which have variables with their tensors."""
    return isinstance(place, CellPlace) and isinstance(value, torch.Tensor) and torch_compat.is_differentiated(value)


def are_alike(now: Any, before: Any) -> bool:
    """Whether two values are one object, or equal numbers or texts of one type."""
    return now is before or (
        type(now) is type(before) and type(now) in (int, float, str) and hashable_key(now) == hashable_key(before)
    )


class CaptureSearch:
    """Follows functions and objects to the values that they lead to."""

    def __init__(self, known: Iterable[Any]) -> None:
        self.found = Captured()
        self.seen: dict[int, Any] = {id(value): value for value in known}  # the objects, so that ids stay theirs
        self.known_places: set[tuple[int, str]] = set()
        self.holders: list[Any] = []
        self.classes: dict[type, None] = {}
        self.attributes: dict[str, None] = dict.fromkeys(IMPLICIT)
        self.optional: set[str] = set()
        self.computes_names = False
        self.queue: list[Any] = []

    def run(self, functions: Iterable[Any]) -> Captured:
        for function in functions:
            self.visit(function, is_first=True)
        while True:
            while self.queue:
                self.visit(self.queue.pop())
            if not self.look_up_attributes():
                return self.found

    def look_up_attributes(self) -> bool:
        """Add the attributes of objects whose names occur in the code, or all. Returns whether there were new ones."""
        before = len(self.known_places)
        for holder in list(self.holders):
            if self.computes_names:
                self.add_all(holder)
            for name in list(self.attributes):
                self.look_up(holder, name)
        return len(self.known_places) > before or bool(self.queue)

    def look_up(self, holder: Any, name: str) -> None:
        """Add one attribute of an object, class, function or module, if it is there or may be."""
        is_class = isinstance(holder, type)
        may_be_added = name in self.optional and (id(holder) in self.seen or not is_class)
        if name in vars(holder) or may_be_added or is_value_of_class(type(holder), name):
            self.add(id(holder), attribute_place(holder, name))

    def add_all(self, holder: Any) -> None:
        """Add all attributes of an object, unless they are there. Objects of libraries lead to too much to be followed."""
        if (id(holder), "") in self.known_places:
            return
        self.known_places.add((id(holder), ""))
        if is_of_user(holder):
            self.add_container(AllAttributes(holder))
        else:
            items = captured_items(AllAttributes(holder))
            inside = [(each, captured_items(each)) for each in items if isinstance(each, WITH_ITEMS)]
            self.found.containers += [(AllAttributes(holder), items), *inside]

    def add_container(self, container: Any) -> None:
        items = captured_items(container)
        self.found.containers.append((container, items))
        self.queue += items

    def add(self, owner: int, place: CapturedPlace) -> None:
        """Add a place, unless it is there, and follow its value."""
        if (owner, place.name) in self.known_places:
            return
        self.known_places.add((owner, place.name))
        value = place.get()
        if not (is_import(place.name, value) or is_of_trace(value)):
            self.found.places.append(place)
            self.found.before.append(value)
            self.queue.append(value)

    def visit(self, value: Any, is_first: bool = False) -> None:
        """Follow one value to others. The first ones are followed wherever their code is."""
        if id(value) in self.seen:
            return
        self.seen[id(value)] = value
        if isinstance(value, types.FunctionType):
            self.follow(value, is_first)
        elif type(value) in PARTS_OF_CALLABLES:
            called, *others = PARTS_OF_CALLABLES[type(value)](value)
            self.visit(called, is_first)
            self.queue += others
        elif isinstance(value, nn.Module):
            self.visit_module(value)
        elif isinstance(value, type):
            self.add_class(value)
            self.queue += methods_of(value, MAKING)
        elif isinstance(value, types.ModuleType):
            self.holders += [] if is_installed_value(value) else [value]
        elif isinstance(value, weakref.ref):
            self.queue.append(value())
        elif isinstance(value, ContextVar):
            self.add(id(value), ContextPlace(value))
        elif isinstance(value, WITH_ITEMS) or is_mapping_of_library(value):
            self.add_container(value)
        elif not is_fixed(value):
            self.visit_object(value)

    def visit_module(self, module: nn.Module) -> None:
        """Follow a module; of one that is compiled, the original."""
        original = vars(type(module)).get("__wrapped__")
        if original is not None:
            self.queue.append(original)
        else:
            self.found.parts.append(module)
            self.add_class(type(module))
            self.queue += itertools.chain(*map(hooks_of_module, module.modules()))

    def visit_object(self, value: Any) -> None:
        """Follow the attributes of an object. One with other state is compared by content, if its class is the user's."""
        self.computes_names |= isinstance(value, (operator.attrgetter, operator.methodcaller))
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self.holders.append(value)
            self.queue += [attributes["__wrapped__"]] if "__wrapped__" in attributes else []  # of functools.lru_cache
        self.add_class(type(value))
        is_opaque = not (is_plain_object(value) or is_installed_value(type(value)))
        if is_opaque and (key := hashable_key(value)) == hashable_key(value):
            self.found.opaque.append((value, key))

    def add_class(self, kind: type) -> None:
        """Follow the methods of a class that Python calls. Others are attributes, whose names occur in the code."""
        bases = dict.fromkeys((*inspect.getmro(kind), *inspect.getmro(type(kind))))
        new = [base for base in bases if base not in self.classes and not is_installed_value(base)]
        self.classes.update(dict.fromkeys(new))
        self.holders += new
        self.queue += [value for base in new for name, value in vars(base).items() if is_called_by_python(name, value)]

    def follow(self, function: types.FunctionType, is_first: bool) -> None:
        """Add what a function reads. An island reads it in each call."""
        if vars(function).get("is_island", False):
            return
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self.visit(wrapped, is_first)
        is_of_library = is_installed(function.__code__.co_filename)
        if is_of_library and (wrapped is not None or not is_first):
            return
        self.holders.append(function)
        reads = code_reads(function.__code__)
        self.attributes |= dict.fromkeys(sorted(reads.attributes))
        self.optional |= reads.optional
        computed_of = (function.__globals__.get(name) for name in reads.computed_of)
        self.computes_names |= reads.computes_names or not all(map(is_installed_value, computed_of))
        if not (is_of_library or reads.globals.isdisjoint(READS_GLOBALS)):
            self.add_container(function.__globals__)
        for name in () if is_of_library else sorted(reads.globals):  # a trace replaces some of torch's for a while
            if name in function.__globals__ or not hasattr(builtins, name):
                self.add(id(function.__globals__), DictionaryPlace(function.__globals__, name))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.add(id(cell), CellPlace(cell, name))
        self.queue += [sys.modules[name] for name in sorted(reads.modules) if name in sys.modules]
        self.queue += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def hooks_of_module(module: nn.Module) -> list[Any]:
    """The hooks of one module."""
    return [hook for name in HOOKS for hook in vars(module)[name].values()]


def is_import(name: str, value: Any) -> bool:
    """Whether a value is a module, function or class of an installed package under its own name: it stays as it is."""
    return is_installed_value(value) and (isinstance(value, types.ModuleType) or value.__name__ == name)


def is_of_trace(value: Any) -> bool:
    """Whether a trace has put a value in the place of another one, which returns when the trace ends."""
    return vars(type(value)).get("is_of_trace", False)


def is_installed_value(value: Any) -> bool:
    """Whether a module, function or class is that of an installed package, or of Python."""
    if isinstance(value, types.ModuleType):
        return is_installed(getattr(value, "__file__", None))
    if isinstance(value, types.FunctionType):
        return is_installed(value.__code__.co_filename) and not hasattr(value, "__wrapped__")
    if isinstance(value, type):
        return is_installed(getattr(sys.modules.get(value.__module__), "__file__", None)) and value.__module__ != "__main__"
    return isinstance(value, types.BuiltinFunctionType)


def is_value_of_class(kind: type, name: str) -> bool:
    """Whether objects read a value from their class, as long as they have none of that name: one that is no method."""
    found = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), NOTHING)
    return found is not NOTHING and not hasattr(found, "__get__")


def is_called_by_python(name: str, value: Any) -> bool:
    """Whether an attribute of a class is a method that Python calls where its name does not occur in the code."""
    return is_special(name) and name not in NOT_BY_OPERATORS and type(value) in PARTS_OF_CALLABLES


def is_of_user(holder: Any) -> bool:
    """Whether the user has made the attributes of an object: those of a class, function or module, or by a class."""
    kinds = (type, types.FunctionType, types.ModuleType, types.SimpleNamespace)
    return isinstance(holder, kinds) or not is_installed_value(type(holder))


def is_mapping_of_library(value: Any) -> bool:
    """Whether the code of an installed package reads what an object holds, under keys."""
    is_weak = isinstance(value, (weakref.WeakKeyDictionary, weakref.WeakValueDictionary))  # keeps nothing alive
    return isinstance(value, Mapping) and not is_weak and is_installed_value(type(value))


def methods_of(kind: type, names: Iterable[str]) -> list[Any]:
    """The methods of a class with some of the names."""
    return [vars(kind)[name] for name in names if name in vars(kind)]


class KeyNumbering:
    """Keys of values, in which objects have numbers in the order in which they are found."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}

    def key_of(self, value: Any) -> Hashable:
        if value is NOTHING:
            return "missing"
        if is_fixed(value) and not isinstance(value, types.FunctionType):
            return hashable_key(value)
        if id(value) in self.numbers:
            return ("seen", self.numbers[id(value)])
        self.numbers[id(value)] = len(self.numbers)
        return (type(value), *self.keys_of_parts(value))

    def keys_of_parts(self, value: Any) -> Iterable[Hashable]:
        """The keys of what an object consists of. Attributes have places of their own."""
        if isinstance(value, (set, frozenset)):
            return [frozenset(map(hashable_key, value))]
        if isinstance(value, types.FunctionType) and is_installed_value(value):
            return [value]
        if (read_parts := PARTS_OF_CALLABLES.get(type(value))) is not None:
            return map(self.key_of, read_parts(value))
        if isinstance(value, (*WITH_ITEMS, AllAttributes)) or is_mapping_of_library(value):
            return map(self.key_of, captured_items(value))
        return [] if is_plain_object(value) else [Identity(value)]


PARTS_OF_CALLABLES: Mapping[type, Callable[[Any], Iterable[Any]]] = {
    types.FunctionType: lambda each: (each.__code__, *(each.__defaults__ or ()), *(each.__kwdefaults__ or {}).values()),
    types.MethodType: lambda each: (each.__func__, each.__self__),
    functools.partial: lambda each: (each.func, *each.args, *captured_items(each.keywords)),
    staticmethod: lambda each: (each.__func__,),
    classmethod: lambda each: (each.__func__,),
    property: lambda each: (each.fget, each.fset),
}
"""What the state of callables consists of."""
