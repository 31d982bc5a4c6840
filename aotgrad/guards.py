"""When a compiled plan may be reused: everything that its trace depended on.

A plan holds for a call with the same structure and Python values (the key of its cache entry, `structure_key`), for which

    global state    grad mode, inference mode, autocast, default dtype and device, determinism, attention kernels
    tensors         type, dtype, device, layout, requires_grad, conj and neg bits, static sizes and strides, number
    identity        which arguments are the same tensor
    memory          how arguments share elements and version counters with one that the plan changes
    facts           is it a leaf, where the plan changes it or the function asked; its storage offset, where a view is
                    replayed by its absolute geometry or the function asked; has it a gradient, where the function asked
    shapes          the symbolic guards of the trace

are as they were. The check of all tensors is one C++ call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.convention import Dedupe
from aotgrad.memory import MemoryGuard
from aotgrad.reads import FACTS
from aotgrad.values import snapshot


@dataclass(frozen=True)
class PlanGuards:
    """The conditions of one plan. Positions are those of the distinct tensors."""

    dedupe: Dedupe
    global_state: torch_compat.GlobalState
    tensors: torch_compat.TensorGuard
    memory: MemoryGuard | None
    facts: tuple[tuple[int, str, Any], ...]
    shapes: torch_compat.ShapeGuards | None

    def check(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the plan is right for these arguments, now."""
        if not self.dedupe.is_identity:
            if not self.dedupe.matches(tensors):
                return False
            tensors = self.dedupe.enter(tensors)
        return (
            len(tensors) == self.tensors.count
            and self.tensors.check(*tensors)
            and self.global_state.check()
            and (self.memory is None or self.memory(tensors))
            and (not self.facts or all(FACTS[name](tensors[k]) == value for k, name, value in self.facts))
            and (self.shapes is None or self.shapes(tensors))
        )

    def why_not(self, tensors: Sequence[torch.Tensor]) -> str:
        """What differs, for the log; the empty string if nothing does."""
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
        return "" if self.shapes is None or self.shapes(distinct) else f"symbolic sizes: not {self.shapes.text}"

    def lines(self) -> Iterator[str]:
        """What is checked, a line each, for people."""
        if not self.dedupe.is_identity:
            yield f"the same tensors, by position among the distinct ones: {self.dedupe.positions}"
        yield from self.tensors.lines()
        if self.memory is not None:
            groups = ", ".join(map(str, self.memory.groups())) or "none"
            yield f"tensors that share memory with a changed one ({', '.join(map(str, self.memory.changed))}): {groups}"
        yield from (f"tensor {k}: {name}: {value}" for k, name, value in self.facts)
        if self.shapes is not None:
            yield from (f"sizes: {condition}" for condition in self.shapes.conditions)
        yield f"global state: {self.global_state.text}"


def structure_key(constants: Sequence[tuple[int, Any]], spec: Any, extra: Any) -> tuple:
    """The Python side of a call, hashable; `1`, `1.0` and `True` differ."""
    return (spec, tuple((position, snapshot(value)) for position, value in constants), extra)
