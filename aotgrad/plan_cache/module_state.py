"""A module's parameters and buffers as arguments of its forward, and its other state as part of the key of a plan.

    lifted = LiftedModule(model)
    tensors, state = lifted.read()              parameters, then buffers; all other state that a trace may read
    lifted.forward(*tensors, x)                 model(x) with those tensors
    lifted.finish(result)                       assigns the buffers and attributes that a plan of it has computed

A read is cheap while no attribute of the module was assigned, which `guards/dictionaries.py` notices.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch import nn

from aotgrad import torch_compat
from aotgrad.capture import regions
from aotgrad.errors import CaptureError
from aotgrad.guards.captured_places import WITH_ITEMS, is_special
from aotgrad.guards.captured_values import Captured
from aotgrad.guards.dictionaries import Watch, watch
from aotgrad.guards.module_slots import (
    FLAT_WEIGHTS,
    HOOK_FLAGS,
    HOOKS,
    SKIPPED,
    TABLES,
    Slot,
    TensorAttribute,
    attributes_that_are_tensors,
    dotted,
    slots_of,
    tensor_attributes,
)
from aotgrad.guards.python_values import HashedOnce, Identity, KnownKeys, hashable_key, is_fixed, is_plain_object
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.plan_cache.assigned_state import AssignedResult, ModuleContents, copy_to_assigned
from aotgrad.plan_cache.lock import COMPILING
from aotgrad.torch_compat import fx_traceback


@dataclass(frozen=True)
class ModuleArguments(Arguments):
    """The arguments of a module's forward, after `count` of its own tensors."""

    count: int

    @classmethod
    def after(cls, tensors: Sequence[torch.Tensor], args: tuple, kwargs: dict[str, Any]) -> ModuleArguments:
        inner = Arguments.of(args, kwargs)
        return cls(args, kwargs, (*tensors, *inner.tensors), inner.constants, inner.spec, len(tensors))

    def rebuild(self, tensors: Sequence[Any]) -> tuple[tuple, dict[str, Any]]:
        args, kwargs = super().rebuild(tensors[self.count :])
        return (*tensors[: self.count], *args), kwargs


class Watched:
    """The objects to check for an assigned or changed attribute: those of a module tree, and what was added.

    Attributes:
        objects: their classes and dictionaries are compared.
        tables: other dictionaries, including those of the classes.
        empty: dictionaries that must stay empty.
        volatile: compared by content: lists, sets, and objects with state outside of a dictionary.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.objects: list[Any] = list(modules)
        self.tables: list[dict] = []
        self.empty: list[dict] = []
        self.volatile: list[Any] = []
        self.classes: dict[type, None] = {}
        self.seen = {id(module) for module in modules}
        for module in modules:
            self.add_class(type(module))
            for name in (*HOOKS, "_modules"):
                self.add_dict(module.__dict__[name])
            self.empty += (module.__dict__[name] for name in TABLES if not module.__dict__[name])  # others: `OwnTensors`
            for name, value in module.__dict__.items():
                if name not in SKIPPED:
                    self.add(value)

    @classmethod
    def of(cls, value: Any, attributes: Iterable[Any]) -> Watched:
        """One object, with some of its attributes."""
        watched = cls(())
        watched.objects.append(value)
        watched.add_all(attributes)
        return watched

    def add_dict(self, table: dict) -> None:
        (self.tables if table else self.empty).append(table)

    def add(self, value: Any) -> None:
        if is_fixed(value) or id(value) in self.seen:
            return
        self.seen.add(id(value))
        if type(value) in (dict, OrderedDict):
            self.add_dict(value)
            self.add_all(value.values())
        elif type(value) in (tuple, frozenset):
            self.add_all(value)
        elif is_plain_object(value):
            self.objects.append(value)
            self.add_class(type(value))
            self.add_all(value.__dict__.values())
        else:
            self.volatile.append(value)

    def add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)

    def add_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if base not in self.classes and is_assignable(base):
                self.classes[base] = None
                self.tables.append(namespace_of(base))
                self.add_all(value for _, value in class_attributes(base) if is_readable(value))


def is_assignable(kind: type) -> bool:
    """Whether attributes of a class can be assigned; those of static C types cannot."""
    return bool(kind.__flags__ & HEAP_TYPE)


HEAP_TYPE = 1 << 9
"""The flag of classes that are created at run time."""


def namespace_of(kind: type) -> dict:
    """The dictionary of a class, which Python exposes only through a proxy."""
    (namespace,) = gc.get_referents(kind.__dict__)
    return namespace


def class_attributes(kind: type) -> list[tuple[str, Any]]:
    """The attributes that an instance may read from its class, without Python's own."""
    return [(name, value) for name, value in vars(kind).items() if is_fixed(value) or not is_special(name)]


def is_readable(value: Any) -> bool:
    """Whether a class attribute is compared by content; properties, locks and opaque objects are compared by identity."""
    has_parts = isinstance(value, WITH_ITEMS) or is_plain_object(value)
    return is_fixed(value) or (has_parts and not hasattr(value, "__get__") and hashable_key(value) == hashable_key(value))


class Unchanged:
    """Whether what was watched is as it was: `holds()` is cheap while nothing was assigned."""

    def __init__(self, watched: Watched, content: Callable[[Any], Hashable]) -> None:
        self.objects, self.empty, self.content = watched.objects, watched.empty, content
        self.classes = list(map(type, self.objects))
        self.tables = watch(self.objects, watched.tables)
        self.volatile = [(value, content(value)) for value in watched.volatile]

    def holds(self) -> bool:
        return (
            self.tables.hold()
            and not any(self.empty)
            and list(map(type, self.objects)) == self.classes
            and all(self.content(value) == before for value, before in self.volatile)
        )


def content_of(modules: KnownKeys, value: Any) -> Hashable:
    """A key of a value that may refer to modules. No method: a state in a cycle would keep tensors until a collection."""
    return hashable_key(value, dict(modules))


class OfClasses(tuple):
    """The part of a state that consists of code: two processes with the same code agree on it."""


class ModuleState:
    """All state of a module tree that a trace may read, except values of tensors: attributes, hooks, structure, classes, and
    what the methods of these capture.

    `value` is hashable, and equal for equal state; `is_current()` checks cheaply whether it still holds. Of the attributes
    whose `names` are given, tensors are the module's own, and not part of the state. `is_part`: see `LiftedModule`.
    """

    def __init__(self, module: nn.Module, names: Collection[str] = (), is_part: bool = False) -> None:
        named = dict(module.named_modules())
        self.names = names
        content = functools.partial(content_of, {id(part): (part, ("module", name)) for name, part in named.items()})
        watched = Watched(list(named.values()))
        watched.add_all(torch_compat.global_module_hooks())
        everywhere = tuple(tuple(map(Identity, hooks.values())) for hooks in torch_compat.global_module_hooks())
        self.captured = Captured.of_module(module, with_own_hooks=is_part)
        classes = OfClasses((self.captured.key(), *(class_state(kind, content) for kind in watched.classes)))
        parts = ((path, own_state(part, without_tensors(path, part, names), content)) for path, part in named.items())
        self.value = HashedOnce((everywhere, classes, *parts))
        self.attributes = [slot.table[slot.key] for each in tensor_attributes(module, names) for slot in each.slots]
        self.unchanged = Unchanged(watched, content)
        tables = (part.__dict__[table] for table in TABLES for part in named.values())
        self.own = OwnTensors.of([table for table in tables if table])

    def is_current(self) -> bool:
        """Whether the state is as it was; `tensors` are those of now. Others in the same places are no other state."""
        if not (self.unchanged.holds() and (self.captured.is_empty or self.captured.is_current())):
            return False
        if not self.own.watched.hold():
            own = OwnTensors.of(self.own.tables)
            if own.places != self.own.places:
                return False
            self.own = own
        return True

    def tensors(self) -> list[torch.Tensor]:
        """The tensors in the order of `LiftedModule.places`; one with several names occurs several times.

        They were read with the state: a new lookup would take longer than `is_current`.
        """
        return [*self.own.tensors, *self.attributes]


def code_of_state(value: Any) -> Sequence[Hashable]:
    """The part of the value of a `ModuleState` that consists of code, and of what the code captures."""
    return [part for part in value.value if isinstance(part, OfClasses)]


class OwnTensors(NamedTuple):
    """The parameters and buffers of a module tree as they were read, from the tables that had some.

    Attributes:
        tensors: in the order of `slots_of`.
        places: the keys of each table, with whether there is a tensor.
    """

    tables: list[dict[str, torch.Tensor | None]]
    watched: Watch
    tensors: list[torch.Tensor]
    places: list[list[tuple[str, bool]]]

    @classmethod
    def of(cls, tables: list[dict[str, torch.Tensor | None]]) -> OwnTensors:
        watched = watch((), tables)  # first: what changes from now on is noticed
        tensors = [tensor for table in tables for tensor in table.values() if tensor is not None]
        places = [[(key, tensor is not None) for key, tensor in table.items()] for table in tables]
        return cls(tables, watched, tensors, places)


OWN_TENSOR = ("a tensor of the module's own",)


def without_tensors(path: str, module: nn.Module, names: Collection[str]) -> Mapping[str, Any]:
    """The attributes of one module. In those with the names, tensors are arguments, and no part of the state."""
    attributes = {name: value for name, value in vars(module).items() if name not in SKIPPED}
    for key in attributes if names else ():
        if dotted(path, key) in names:
            attributes[key] = pytree.tree_map_only(torch.Tensor, lambda tensor: OWN_TENSOR, attributes[key])
    return attributes


def own_state(module: nn.Module, values: Mapping[str, Any], content: Callable[[Any], Hashable]) -> Hashable:
    """The state of one module without its submodules; `values` are its attributes."""
    attributes = module.__dict__
    contents = tuple((name, content(value)) for name, value in values.items())
    hooks = ("hooks", *(hook_state(attributes, name) for name in HOOKS))
    tables = tuple((key, tensor is None) for table in TABLES for key, tensor in attributes[table].items())
    parts = tuple((name, content(part)) for name, part in attributes["_modules"].items())
    return (type(module), contents, hooks, tables, parts)


def class_state(kind: type, content: Callable[[Any], Hashable]) -> Hashable:
    """The attributes of one class without those of its bases."""
    named = class_attributes(kind)
    return (kind, *((name, content(value) if is_readable(value) else Identity(value)) for name, value in named))


def hook_state(attributes: Mapping[str, Any], name: str) -> Hashable:
    """The hooks in order, each with its flags; removing and registering a hook changes nothing."""
    flags = [attributes[flag] for flag in HOOK_FLAGS if flag.startswith(name)]
    return tuple((Identity(hook), *(key in flag for flag in flags)) for key, hook in attributes[name].items())


class LiftedModule:
    """`forward(*tensors, *args)` runs the module with `tensors` for its parameters, buffers and `assigned` attributes.

    Its result is an `AssignedResult` if the module assigns buffers or attributes.

    Attributes:
        owns_attributes: whether a plain attribute that is a tensor is the module's own, even if no trace assigns it.
        is_part: whether a traced function calls the module with its hooks, in place of its forward.
    """

    def __init__(self, module: nn.Module, *, owns_attributes: bool = False, is_part: bool = False) -> None:
        self.module, self.owns_attributes, self.is_part = module, owns_attributes, is_part
        self.state: ModuleState | None = None
        self.assigned: set[str] = set()  # the buffers and attributes that a trace was found to assign
        self.swaps = 0  # odd while a trace has its own tensors in the module

    def read(self) -> tuple[list[torch.Tensor], Hashable]:
        """The module's tensors and its other state."""
        tensors, state = self.read_state()
        return tensors, state.value

    def read_state(self) -> tuple[list[torch.Tensor], ModuleState]:
        """The module's tensors and its other state. Waits while another thread traces the module."""
        while True:
            swaps = self.swaps
            if swaps % 2 == 0:
                state = self.current_state()
                tensors = state.tensors()
                if swaps == self.swaps:
                    return tensors, state
            with COMPILING:
                pass

    def paths(self) -> list[str]:
        """The name of each tensor that `read` returns."""
        return [slot.name for slot in self.places.slots]

    def moving(self) -> set[str]:
        """The paths of the tensors that calls assign, which are other ones in each call."""
        attributes = tensor_attributes(self.module, self.assigned)
        return self.assigned.union(slot.name for each in attributes for slot in each.slots)

    @property
    def names(self) -> Collection[str]:
        """Those of attributes whose tensors are the module's own."""
        return self.assigned.union(attributes_that_are_tensors(self.module)) if self.owns_attributes else self.assigned

    @property
    def places(self) -> OwnPlaces:
        return OwnPlaces(slots_of(self.module), tensor_attributes(self.module, self.names))

    def note_assigned(self, names: Iterable[str]) -> None:
        """From now on, the tensors of these buffers and attributes are the module's own."""
        if not self.assigned.issuperset(names):
            self.assigned = self.assigned.union(names)
            self.state = None

    def value_with(self, names: Collection[str]) -> Hashable:
        """The present value of the state, where tensors are the module's own in the attributes with these names."""
        return ModuleState(self.module, names, self.is_part).value

    def known(self, inputs: tuple, counts: Collection[int]) -> tuple[list[Any], Hashable] | None:
        """The module's tensors with `inputs`, and its other state.

        `None` if their number is not one of `counts`, if the state has changed, or while the module is traced.
        """
        state, swaps = self.state, self.swaps
        if state is None or swaps % 2 or len(state.own.tensors) + len(inputs) not in counts or not state.is_current():
            return None
        values = [*state.tensors(), *inputs]
        return (values, state.value) if swaps == self.swaps else None

    def current_state(self) -> ModuleState:
        state = self.state
        if state is None or not state.is_current():
            state = self.state = ModuleState(self.module, self.names, self.is_part)
        return state

    @property
    def forward(self) -> LiftedForward:
        """Takes the module's tensors, then its arguments."""
        return LiftedForward(self)

    def finish(self, result: Any) -> Any:
        """Assign what a call has computed for buffers and attributes. Returns what the module's forward returns."""
        if type(result) is not AssignedResult:
            return result
        with COMPILING:  # a trace of another thread would restore what the buffers were before
            result = result.assign(self.module)
            self.current_state()  # keeps no tensors that the module had before
        return result

    @contextlib.contextmanager
    def replaced(self, places: OwnPlaces, tensors: Sequence[torch.Tensor]) -> Iterator[ModuleContents]:
        names = self.names
        before, is_outermost = ModuleContents.of(self.module, names), self.swaps % 2 == 0
        self.swaps += is_outermost
        try:
            before.clear()
            places.put(tensors)
            with kept_flat_weights(self.module):
                yield ModuleContents.of(self.module, names)
        finally:
            places.drop()
            before.restore()
            self.swaps += is_outermost

    @contextlib.contextmanager
    def kept(self) -> Iterator[ModuleContents]:
        """Afterwards, the module holds the tensors that it holds now."""
        contents = ModuleContents.of(self.module, self.names)
        try:
            yield contents
        finally:
            contents.restore()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward. A graph module is interpreted, so that recorded nodes keep its stack traces."""
        if isinstance(self.module, fx.GraphModule):
            with fx_traceback.preserve_node_meta():
                return TracedGraph(self.module).run(*args)
        return type(self.module).forward(self.module, *args, **kwargs)


@dataclass(frozen=True)
class OwnPlaces:
    """Where a module holds its own tensors. `slots`: parameters, buffers, then those of `attributes`."""

    own: Sequence[Slot]
    attributes: Sequence[TensorAttribute]

    @functools.cached_property
    def slots(self) -> list[Slot]:
        return [*self.own, *itertools.chain(*(each.slots for each in self.attributes))]

    def put(self, tensors: Sequence[torch.Tensor]) -> None:
        """Let the module hold other tensors."""
        for slot, tensor in zip(self.slots, tensors, strict=True):
            slot.table[slot.key] = tensor
        for each in self.attributes:
            each.put()

    def drop(self) -> None:
        """Keep no tensors that were put into attributes."""
        for slot in itertools.chain(*(each.slots for each in self.attributes)):
            slot.table[slot.key] = None


@dataclass(frozen=True, eq=False)
class LiftedForward:
    """The forward of a module as a function of the module's tensors and its arguments.

    It may be traced again for derivatives, when buffers have become `None`, or are no longer: `places` are those of before.
    """

    lifted: LiftedModule

    @functools.cached_property
    def places(self) -> OwnPlaces:
        """Those of the module when this was called first."""
        return self.lifted.places

    def __call__(self, *everything: Any, **kwargs: Any) -> Any:
        count, assigned = len(self.places.slots), dict[str, Any]()
        tensors = everything[:count]

        def replaced() -> contextlib.AbstractContextManager[ModuleContents]:
            reject_rerun(assigned)
            return self.lifted.replaced(self.places, tensors)

        with regions.rerun_context(replaced, in_backward=lambda: self.in_backward(tensors, assigned)) as contents:
            result = self.lifted.run(*everything[count:], **kwargs)
            assigned.update(contents.assigned())
        self.lifted.note_assigned(assigned)
        return AssignedResult(result, assigned) if assigned else result

    @contextlib.contextmanager
    def in_backward(self, tensors: Sequence[torch.Tensor], assigned: Collection[str]) -> Iterator[Collection[str]]:
        """Inside, hooks find `tensors` in the module, unless the forward has `assigned` some: these have other values then.

        Raises:
            CaptureError: a buffer or attribute is assigned inside, which no later backward would do.
        """
        lifted = self.lifted
        with lifted.kept() if assigned else lifted.replaced(self.places, tensors) as contents:
            yield assigned
            for name in contents.assigned():
                raise CaptureError(
                    f"a hook or the backward of an autograd function assigns a tensor to {name!r} of a compiled module; "
                    f"change a buffer in place there ({copy_to_assigned(name)}), or register the hook outside"
                )


def reject_rerun(assigned: Mapping[str, Any]) -> None:
    """Raise if a checkpointed region runs once more after its function has assigned state: it would read or assign that.

    Raises:
        CaptureError: names a buffer or attribute.
    """
    for name in assigned:
        raise CaptureError(
            f"the forward assigns a new tensor to {name!r}, and has a region under torch.utils.checkpoint, which runs a "
            f"second time in the backward; change it in place: {copy_to_assigned(name)}"
        )


class TracedGraph(fx.Interpreter):
    """Runs a graph module in a trace. What it asks a device mesh, no trace sees."""

    def call_method(self, target: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        with torch_compat.outside_of_modes() if torch_compat.is_device_mesh(args[0]) else contextlib.nullcontext():
            return super().call_method(target, args, kwargs)


@contextlib.contextmanager
def kept_flat_weights(module: nn.Module) -> Iterator[None]:
    """Inside, recurrent layers do not flatten their weights, which reads addresses on a GPU. Then they have their own."""
    recurrent = [part.__dict__ for part in module.modules() if isinstance(part, nn.RNNBase)]
    before = [{name: table[name] for name in (*FLAT_WEIGHTS, "flatten_parameters") if name in table} for table in recurrent]
    for table in recurrent:
        table["flatten_parameters"] = lambda: None
    try:
        yield
    finally:
        for table, kept in zip(recurrent, before, strict=True):
            table.pop("flatten_parameters", None)
            table.update(kept)
