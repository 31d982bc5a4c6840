"""When a compiled plan may be reused: all facts that its trace depends on.

A plan serves calls with the same structure and Python values (the key of its cache entry, `structure_key`), if these facts
are the same:

    global state    grad mode, inference mode, autocast, default dtype and device, determinism, settings of `torch.backends`
    tensors         type, dtype, device, layout, requires_grad, conj and neg bits, static sizes and strides, number
    identity        which arguments are the same tensor
    memory          how arguments share elements and version counters with those that the plan changes
    facts           properties of arguments that the function reads, or that the plan depends on: whether a changed argument
                    is a leaf or a view, the storage offset if a view is replayed by absolute geometry
    shapes          the symbolic guards of the trace
    values          the answers to questions about values, if the function branches on them; computed last

One C++ call checks all tensors, torch's or our own (`aotgrad.native`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.convention import Dedupe
from aotgrad.guards.data_dependent import ValueGuard
from aotgrad.guards.memory import MemoryGuard
from aotgrad.guards.python_values import hashable_key
from aotgrad.guards.tensor_properties import FACTS
from aotgrad.passes.registry import generation_of_passes

Admission = bool | Sequence[torch.Tensor]
"""Whether a plan serves a call; the values that it takes from its guard, if it takes some."""


@dataclass(frozen=True)
class PlanGuards:
    """The conditions of one plan. Positions are those of the distinct tensors."""

    dedupe: Dedupe
    global_state: torch_compat.GlobalState
    tensors: torch_compat.TensorGuard
    memory: MemoryGuard | None
    facts: tuple[tuple[int, str, Any], ...]
    shapes: torch_compat.ShapeGuards | None
    values: ValueGuard | None

    def check(self, tensors: Sequence[torch.Tensor]) -> Admission:
        """Whether the plan serves a call with these arguments, now."""
        if not self.dedupe.is_identity:
            if not self.dedupe.matches(tensors):
                return False
            tensors = self.dedupe.enter(tensors)
        return len(tensors) == self.tensors.count and self.holds(tensors)

    @functools.cached_property
    def holds(self) -> Callable[[Sequence[torch.Tensor]], Admission]:
        """`check` for as many distinct tensors as the plan has."""
        return self.emitted(*self.global_state.conditions)

    def plain_check(self, generation: int) -> Callable[[Sequence[Any]], Admission] | None:
        """`check` for as many values, which may be no tensors; `None` if it would be no faster.

        It is false while a mode or transform watches every op, and after passes were registered, which changes `generation`.
        """
        if not self.dedupe.is_identity or not self.tensors.is_one_call:
            return None
        names, conditions = self.global_state.conditions_of_plain_calls
        return self.emitted(names | {"generation": generation_of_passes}, [*conditions, f"generation() == {generation}"])

    def emitted(self, names: dict[str, Any], conditions: Sequence[str]) -> Callable[[Sequence[Any]], Admission]:
        """One function that checks all conditions of this plan, and no more."""
        names = {**names, "tensors_hold": self.tensors.fastest}
        conditions = [f"tensors_hold({self.tensors.argument})", *conditions]
        for number, (position, fact, value) in enumerate(self.facts):
            names |= {f"fact_{number}": FACTS[fact], f"value_{number}": value}
            conditions.append(f"fact_{number}(tensors[{position}]) == value_{number}")
        parts = {"memory": self.memory, "shapes": self.shapes, "values": self.values}
        names |= parts
        conditions += [f"{name}(tensors)" for name, part in parts.items() if part is not None]
        return eval(f"lambda tensors: {' and '.join(conditions)}", names)

    def why_not(self, tensors: Sequence[torch.Tensor]) -> str:
        """The first difference, for the log; the empty string if there is none."""
        if not self.dedupe.matches(tensors):
            return "other arguments are the same tensor"
        distinct = self.dedupe.enter(tensors)
        if reason := self.tensors.failure(distinct):
            return reason
        if not self.global_state.check():
            return f"global state: {self.global_state.reason()}"
        if self.memory is not None and not self.memory(distinct):
            return "other arguments share memory or a version counter with a changed one"
        for k, name, value in self.facts:
            if (now := FACTS[name](distinct[k])) != value:
                return f"tensor argument {k}: {name}: {now}, not {value}"
        if self.shapes is not None and not self.shapes(distinct):
            return f"symbolic sizes: not {self.shapes.text}"
        failing = None if self.values is None else self.values.failing(distinct)
        return "" if failing is None else f"values: {failing}"

    def lines(self) -> Iterator[str]:
        """The conditions, one a line, to print."""
        if not self.dedupe.is_identity:
            yield f"the same tensors, by position among the distinct ones: {self.dedupe.positions}"
        yield from self.tensors.lines()
        if self.memory is not None:
            groups = ", ".join(map(str, self.memory.groups())) or "none"
            yield f"tensors that share memory with a changed one ({', '.join(map(str, self.memory.changed))}): {groups}"
        yield from (f"tensor {k}: {name}: {value}" for k, name, value in self.facts)
        if self.shapes is not None:
            yield from (f"sizes: {condition}" for condition in self.shapes.conditions)
        if self.values is not None:
            yield from self.values.lines()
        yield f"global state: {self.global_state.text}"


def structure_key(constants: Sequence[tuple[int, Any]], spec: Any, extra: Any) -> tuple:
    """The Python side of a call, hashable; `1`, `1.0` and `True` differ."""
    return (spec, tuple((position, hashable_key(value)) for position, value in constants), extra)
