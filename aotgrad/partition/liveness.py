"""How much memory the two halves take at each step, for a choice of saved values. No torch.

In: a `Program`, the values of a joint graph as ints in the order in which they run, and the saved ones. Out: a `Profile`.

    forward 0 1 2, backward 3 4, 3 reads 2, 4 reads 1
    simulate(program, saved={1, 2})      both are alive from the forward to their last use in the backward
    simulate(program, saved={1})         2 runs again just before 3, and takes its memory from there to its last use

A value is allocated when it runs and freed after its last use; what is saved stays from the forward to its last use in
the backward. What is not saved runs again just before its first use there, once. Not counted: what takes no memory of the
halves' own, such as parameters and the arguments of the call (their size is 0), and what an op needs while it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Program:
    """Values are numbered in the order of the joint graph.

    Attributes:
        sizes: bytes of each value.
        reads: the values that making each one reads.
        forward: the values that the forward makes whatever is saved, in order.
        backward: those that only the backward can make, in order.
        results: values that the caller holds from the forward on.
        tangents: values that the backward is given.
        gradients: values that the backward returns.
    """

    sizes: list[int]
    reads: list[list[int]]
    forward: list[int]
    backward: list[int]
    results: frozenset[int]
    tangents: list[int]
    gradients: frozenset[int]


@dataclass(frozen=True)
class Profile:
    """Bytes alive in both halves at their worst, and in the backward while each of `Program.backward` runs.

    `first` and `last` are, for values of the forward that the backward uses, the steps of `Program.backward` between
    which it needs them, both included.
    """

    forward: int
    backward: list[int]
    first: dict[int, int]
    last: dict[int, int]

    @property
    def peak(self) -> int:
        return max(self.forward, *self.backward, 0) if self.backward else self.forward


def simulate(program: Program, saved: Collection[int]) -> Profile:
    """The memory of both halves if `saved` crosses between them."""
    saved = set(saved)
    order, step_of = _backward_order(program, saved)
    first, last = _uses(program, order, step_of)
    return Profile(_forward_peak(program, saved), _backward_profile(program, saved, order, step_of), first, last)


def _forward_peak(program: Program, saved: set[int]) -> int:
    order = _with_missing(program, program.forward, saved)
    kept = saved | program.results
    sizes, dying = program.sizes, _dying(program, order, kept)
    alive = peak = 0
    for position, value in enumerate(order):
        alive += sizes[value]
        peak = max(peak, alive)
        for dead in dying[position]:
            alive -= sizes[dead]
    return peak


def _with_missing(program: Program, forward: list[int], saved: set[int]) -> list[int]:
    """The forward's values and those that it makes only because they are saved."""
    made, stack, extra = set(forward), [value for value in saved], set()
    while stack:
        value = stack.pop()
        if value not in made and value not in extra:
            extra.add(value)
            stack.extend(program.reads[value])
    return sorted(made | extra) if extra else forward


def _dying(program: Program, order: Sequence[int], kept: Collection[int]) -> list[list[int]]:
    """The values that nobody uses after each position, without those that are kept."""
    dying: list[list[int]] = [[] for _ in order]
    seen = set(kept)
    made = set(order)
    for position in range(len(order) - 1, -1, -1):
        for value in (order[position], *program.reads[order[position]]):
            if value not in seen and value in made:
                seen.add(value)
                dying[position].append(value)
    return dying


def _backward_order(program: Program, saved: set[int]) -> tuple[list[int], list[int]]:
    """What runs in the backward, and for each the index in `Program.backward` of the value that it runs for."""
    available = saved | set(program.tangents)
    order: list[int] = []
    steps: list[int] = []
    for step, value in enumerate(program.backward):
        missing = _missing(program, program.reads[value], available)
        available.update(missing)
        available.add(value)
        order += [*missing, value]
        steps += [step] * (len(missing) + 1)
    missing = _missing(program, list(program.gradients), available)
    return order + missing, steps + [len(program.backward)] * len(missing)


def _missing(program: Program, wanted: list[int], available: set[int]) -> list[int]:
    missing: set[int] = set()
    stack = [value for value in wanted if value not in available]
    while stack:
        value = stack.pop()
        if value not in missing:
            missing.add(value)
            stack.extend(read for read in program.reads[value] if read not in available)
    return sorted(missing)


def _uses(program: Program, order: list[int], step_of: list[int]) -> tuple[dict[int, int], dict[int, int]]:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for value, step in zip(order, step_of, strict=True):
        for used in (value, *program.reads[value]):
            first.setdefault(used, step)
            last[used] = step
    return first, last


def _backward_profile(program: Program, saved: set[int], order: list[int], step_of: list[int]) -> list[int]:
    sizes = program.sizes
    kept = program.results | program.gradients
    given = (saved | set(program.tangents)) - program.results
    alive = sum(sizes[value] for value in given) + sum(sizes[value] for value in program.results)
    profile = [alive] * (len(program.backward) + 1)
    dying = _dying_given(program, order, kept, given)
    for position, value in enumerate(order):
        alive += sizes[value]
        step = step_of[position]
        profile[step] = max(profile[step], alive) if position and step_of[position - 1] == step else alive
        for dead in dying[position]:
            alive -= sizes[dead]
    return profile[: len(program.backward)] if not order or step_of[-1] < len(program.backward) else profile


def _dying_given(program: Program, order: list[int], kept: Collection[int], given: Collection[int]) -> list[list[int]]:
    """As `_dying`, for what runs in the backward and what it is given."""
    dying: list[list[int]] = [[] for _ in order]
    seen = set(kept)
    counted = set(order) | set(given)
    for position in range(len(order) - 1, -1, -1):
        for value in (order[position], *program.reads[order[position]]):
            if value not in seen and value in counted:
                seen.add(value)
                dying[position].append(value)
    return dying
