"""Runs a program line by line, and records everything observable after each line.

    world = World(f)
    world.setup(round)
    world.step("o0.mul_(2)")        Step(code, error=None, facts={...}, values={...})

The eager run and the compiled one are two worlds; `compare` finds the first step that differs.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import aotgrad
from tests.fuzz import helpers
from tests.fuzz.program import Backward, Gradients, Program, Round, source

HELPERS = {"aotgrad": aotgrad, **{name: value for name, value in vars(helpers).items() if not name.startswith("_")}}


@dataclass(frozen=True)
class Step:
    """Observations after one line of a caller, with its `error`."""

    code: str
    error: Exception | None
    facts: Mapping[str, Any]
    values: Mapping[str, Tensor | None]


@dataclass
class World:
    """The variables of one round, and the function that is called."""

    function: Callable
    namespace: dict[str, Any] = field(default_factory=dict)
    log: dict[str, list[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.namespace.update(HELPERS, f=self.function, log=self.log)

    def run(self, code: str) -> Exception | None:
        """Run a line; return its error."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compiled_line(code), self.namespace)
        except Exception as error:
            # The frames of the traceback hold tensors.
            error.__traceback__ = None
            return error
        return None

    def step(self, code: str) -> Step:
        return self.seen(code, self.run(code))

    def call(self, code: str) -> Step:
        """The line that calls the function; its results become variables `o0`, `o1`, ..."""
        error = self.run(code)
        if error is not None:
            return self.seen(code, error)
        leaves, structure = pytree.tree_flatten(self.namespace.pop("result"))
        self.namespace.update({f"o{k}": leaf for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)})
        others = {f"o{k}": (type(leaf), leaf) for k, leaf in enumerate(leaves) if not isinstance(leaf, Tensor)}
        return self.seen(code, None, {"structure": structure, **others})

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.namespace.items() if isinstance(value, Tensor)}

    def seen(self, code: str, error: Exception | None, more: Mapping[str, Any] | None = None) -> Step:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Step(code, error, {**(more or {}), **self.facts()}, dict(self.values()))

    def facts(self) -> dict[str, Any]:
        tensors = self.tensors()
        facts: dict[str, Any] = {"grad mode": torch.is_grad_enabled()}
        relations = Relations(tensors)
        for name, value in tensors.items():
            facts.update({f"{name}: {what}": fact for what, fact in properties(name, value).items()})
            if not name.startswith("g"):
                facts.update({f"{name}: {what}": fact for what, fact in relations.of(name).items()})
        return facts

    def values(self) -> Iterator[tuple[str, Tensor | None]]:
        for name, value in self.tensors().items():
            yield name, copied(value)
            yield f"{name}.grad", copied(value.grad)
        for name, gradients in self.log.items():
            yield from ((f"gradient {k} seen by the hook of {name}", value) for k, value in enumerate(gradients))

    def version_groups(self) -> dict[str, list[str]]:
        """The variables that share a version counter. Changes the versions."""
        tensors = {name: value for name, value in self.tensors().items() if not name.startswith("g")}
        groups = {}
        for name, value in tensors.items():
            before = {other: tensor._version for other, tensor in tensors.items()}
            torch.autograd.graph.increment_version(value)
            groups[name] = [other for other, tensor in tensors.items() if tensor._version != before[other]]
        return groups


@functools.lru_cache(maxsize=4096)
def compiled_line(code: str) -> CodeType:
    return compile(code, "<fuzz>", "exec")


OF_GRADIENTS: dict[str, Callable[[Tensor], Any]] = {
    "type": type,
    "dtype": lambda value: value.dtype,
    "shape": lambda value: tuple(value.shape),
    "requires_grad": lambda value: value.requires_grad,
    "has a grad_fn": lambda value: value.grad_fn is not None,
}
"""What is read of a gradient: how it lies in memory is nobody's business."""

OF_TENSORS: dict[str, Callable[[Tensor], Any]] = {
    **OF_GRADIENTS,
    "is_leaf": lambda value: value.is_leaf,
    "stride": lambda value: strides_with_extent(value),
    "version": lambda value: value._version,
    "is_conj": lambda value: value.is_conj(),
    "is_neg": lambda value: value.is_neg(),
    "has a grad": lambda value: value.grad is not None,
}


def properties(name: str, value: Tensor) -> dict[str, Any]:
    """The properties of a tensor."""
    table = OF_GRADIENTS if name.startswith("g") else OF_TENSORS
    return {what: asked(read, value) for what, read in table.items()}


def strides_with_extent(value: Tensor) -> list[int | None]:
    """Strides of dimensions with several elements; the others are arbitrary."""
    return [step if size > 1 and value.numel() else None for size, step in zip(value.shape, value.stride(), strict=True)]


def asked(read: Callable[[Tensor], Any], value: Tensor) -> Any:
    """Reading it may raise: after a write to the base of a view that was made under `no_grad`."""
    try:
        return read(value)
    except RuntimeError:
        return "raises"


class Relations:
    """Relations between tensors: same object, shared storage, view and base.

    Sharing of an otherwise invisible detached alias by views is not compared.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = {name: value for name, value in tensors.items() if not name.startswith("g")}
        self.first_by_id = first_names(self.tensors, id)
        self.first_by_storage = first_names(self.tensors, storage_of)
        self.families = {name: base_or_self(value) for name, value in self.tensors.items()}  # keeps the ids of bases valid
        self.first_by_family = first_names(self.families, id)

    def of(self, name: str) -> dict[str, Any]:
        value = self.tensors[name]
        storage = self.first_by_storage[storage_of(value)]
        return {
            "is": self.first_by_id[id(value)],
            "storage of": storage,
            "storage offset": value.storage_offset() if storage[0] in "wxy" else None,
            "family": self.first_by_family[id(self.families[name])] if value.requires_grad else None,
            "base": self.first_by_id.get(id(value._base)) if not name.startswith("c") else None,
        }


def first_names(tensors: Mapping[str, Tensor], key: Callable[[Tensor], Any]) -> dict[Any, str]:
    return {key(value): name for name, value in reversed(list(tensors.items()))}


def base_or_self(value: Tensor) -> Tensor:
    return value if value._base is None else value._base


def storage_of(value: Tensor) -> int:
    return value.untyped_storage()._cdata


def copied(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.detach().clone()


# --- Rounds ----------------------------------------------------------------------------------------------------------


def define(program: Program) -> Callable:
    """The function of a program."""
    namespace: dict[str, Any] = {"torch": torch, "aotgrad": aotgrad}
    exec(compile(program.function(), "<fuzzed function>", "exec"), namespace)
    return namespace["f"]


def run_round(function: Callable, round: Round) -> Iterator[Step]:
    """The steps of a round, up to an error of the call or a backward, which leaves an unspecified state."""
    yield from run_in(World(function), round)


def run_without_storage_errors(function: Callable, round: Round) -> Iterator[Step]:
    """The steps of a round in which each graph is retained, and saved values are copied before they are changed."""
    world = World(function)
    world.namespace["backward"] = functools.partial(with_graph_retained, helpers.backward)
    world.namespace["gradients"] = functools.partial(with_graph_retained, helpers.gradients)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        yield from run_in(world, round)


def with_graph_retained(function: Callable, *args: Any, retain_graph: bool = True, **options: Any) -> Any:
    return function(*args, retain_graph=True, **options)


def run_in(world: World, round: Round) -> Iterator[Step]:
    before = torch.is_grad_enabled()
    try:
        setup = world.step(source(round.setup))
        assert setup.error is None, f"the setup of a program raised {setup.error!r}"
        yield setup
        call = world.call(round.call())
        yield call
        if call.error is not None:
            return
        torch.set_grad_enabled(before)
        for action in round.actions:
            step = world.step(source((action,)))
            yield step
            if step.error is not None and isinstance(action, (Backward, Gradients)):
                return
        yield Step("which tensors count versions together", None, world.version_groups(), {})
    finally:
        torch.set_grad_enabled(before)
