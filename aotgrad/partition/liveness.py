"""Simulates the memory of the two halves at each step, for a choice of saved values. No torch.

In: a `Program`, which is a joint graph of ints in execution order, and the saved values. Out: a `Profile`.

    forward 0 1 2, backward 3 4, 3 reads 2, 4 reads 1
    simulate(program, saved={1, 2})      both are alive from the forward to their last use in the backward
    simulate(program, saved={1})         2 is recomputed just before 3, and is alive from there to its last use

A `Simulator` answers for many choices: it adds up once what does not depend on the choice, and the time for one choice
depends on the number of values that it saves or recomputes.

A value is allocated when it runs and freed after its last use. A saved value is alive from the forward to its last use in
the backward. An offloaded one leaves the device when the link has carried it away after its last use in the forward, and
takes memory again from the moment when its way back starts, which is as late as it can arrive in time. A value that is not
saved is recomputed once, just before its first use in the backward. An op may write its result into memory that it is the
last to read, and may need workspace while it runs. Memory that the halves do not allocate, such as parameters and arguments
of the call, has size 0.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from aotgrad.graph.message_order import Message, arrival_places, latest_places


@dataclass(frozen=True)
class Program:
    """Values are numbered in the order of the joint graph.

    Attributes:
        sizes: bytes of each value.
        reads: the values that computing each one reads.
        forward: the values that the forward always computes, in order.
        backward: the values that only the backward can compute, in order.
        results: values that the caller holds from the forward on.
        tangents: values that are inputs of the backward.
        gradients: values that the backward returns.
        workspace: bytes that computing a value takes besides its result, if any.
        overwrites: the values whose memory a value takes over if it reads them last and they were computed in the same
            half; of several, the first.
        times: how long computing each value takes; empty if no time passes.
        trips: how long the link carries a value in one direction, where that takes time.
    """

    sizes: list[int]
    reads: list[list[int]]
    forward: list[int]
    backward: list[int]
    results: frozenset[int]
    tangents: list[int]
    gradients: frozenset[int]
    workspace: Mapping[int, int] = field(default_factory=dict)
    overwrites: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    times: Sequence[int] = ()
    trips: Mapping[int, int] = field(default_factory=dict)

    def seconds(self, values: Sequence[int]) -> list[float]:
        """The times of some values, as `message_order` takes them."""
        return [float(self.times[value]) if self.times else 0.0 for value in values]

    def trip(self, value: int, place: int) -> Message:
        """The way of a value out, which starts at a place of the forward, or back, which ends at one of the backward."""
        return Message(self.trips.get(value, 0), self.sizes[value], ready=0, place=place, read=place)


@dataclass(frozen=True)
class Profile:
    """The bytes alive in the forward while each value is computed, and in the backward while each op of it runs.

    Attributes:
        in_forward: by value; a value that the forward does not compute has the bytes of the one before.
        backward: the most bytes, by op of `Program.backward`.
        first: for each value the first step of `Program.backward` that needs it; beyond the last step if none does.
        last_moment: the moment when it is needed last; `last` is the step.
    """

    in_forward: list[int]
    backward: list[int]
    first: list[int]
    last_moment: list[int]

    @functools.cached_property
    def forward(self) -> int:
        """The most bytes alive in the forward."""
        return max(self.in_forward)

    @functools.cached_property
    def peak(self) -> int:
        return max(self.forward, *self.backward, 0) if self.backward else self.forward

    def last(self, value: int) -> int:
        """The last step of `Program.backward` that needs the value; -1 if none does."""
        return self.last_moment[value] // _moments_per_step(self.first)


def _moments_per_step(values: Sequence[int]) -> int:
    """Moments are numbered: in each step, recomputed values run first, by number, and then the step's own op."""
    return len(values) + 1


def simulate(program: Program, saved: Collection[int], offloaded: Collection[int] = ()) -> Profile:
    """The memory of both halves if `saved` crosses between them, and `offloaded`, a part of it, on the host."""
    return Simulator(program).run(saved, offloaded)


class Simulator:
    """One program, for any number of choices."""

    def __init__(self, program: Program) -> None:
        self.forward, self.backward = _Forward(program), _Backward(program)

    def run(self, saved: Collection[int], offloaded: Collection[int] = ()) -> Profile:
        """The memory of both halves if `saved` crosses between them, and `offloaded`, a part of it, on the host."""
        return self.backward.profile(saved, self.forward.bytes_alive(saved, offloaded), offloaded)


# --- The forward -----------------------------------------------------------------------------------------------------


class _Forward:
    """Bytes alive while each value runs, and when each value dies, if nothing is saved; indexed by value."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.made = set(program.forward)
        self.death = _last_readers(program, program.forward)
        self.alive = list(itertools.accumulate(self._changes()))
        for value, needed in program.workspace.items():
            self.alive[value] += needed if value in self.made else 0

    def _changes(self) -> list[int]:
        changes = [0] * (len(self.program.sizes) + 1)
        for value in self.program.forward:
            changes[value] += self.program.sizes[value]
            if value not in self.program.results:
                changes[self.death[value] + 1] -= self.program.sizes[value]
        return changes

    def bytes_alive(self, saved: Collection[int], offloaded: Collection[int] = ()) -> list[int]:
        """By value. Saved values do not die; values that run only to be saved keep their inputs alive longer."""
        sizes, results, death = self.program.sizes, self.program.results, self.death
        changes = [0] * (len(sizes) + 1)
        extra = self._only_saved(saved)
        later = _last_readers(self.program, extra)
        for value, read_at in later.items():
            if value not in extra and value not in saved and value not in results:
                changes[death[value] + 1] += sizes[value]
                changes[max(read_at, death[value]) + 1] -= sizes[value]
        for value in extra:
            needed = self.program.workspace.get(value, 0)
            changes[value] += sizes[value] + needed
            changes[value + 1] -= needed
            if value not in saved:
                changes[later[value] + 1] -= sizes[value]
        for value in saved:
            if value in self.made and value not in results:
                changes[death[value] + 1] += sizes[value]
        for value, gone in self._leaving(offloaded):
            changes[gone] -= sizes[value]
        for value, taken_over in self._taken_over({*saved, *results}, set(extra), later):
            changes[value] -= sizes[taken_over]
            changes[value + 1] += sizes[taken_over]
        return list(map(operator.add, self.alive, itertools.accumulate(changes)))

    def _taken_over(self, kept: set[int], extra: set[int], later: dict[int, int]) -> Iterator[tuple[int, int]]:
        """The values that are written into the memory of a dying value, and the dying ones."""
        for value, candidates in self.program.overwrites.items():
            if value in self.made or value in extra:
                dying = (v for v in candidates if max(self.death.get(v, 0), later.get(v, 0)) == value and v not in kept)
                yield from ((value, v) for v in itertools.islice(dying, 1))

    def _leaving(self, offloaded: Collection[int]) -> Iterator[tuple[int, int]]:
        """The values that leave during the forward, and the value before which each is gone."""
        order = self.program.forward
        values = sorted(offloaded, key=lambda value: (self.death[value], value))
        trips = [self.program.trip(value, bisect.bisect_right(order, self.death[value])) for value in values]
        for value, place in zip(values, arrival_places(self.program.seconds(order), trips) if trips else (), strict=True):
            if place < len(order):
                yield value, order[place]

    def _only_saved(self, saved: Collection[int]) -> list[int]:
        """The values that the forward computes only because they, or values computed from them, are saved."""
        found: set[int] = set()
        stack = [value for value in saved if value not in self.made]
        while stack:
            value = stack.pop()
            if value not in self.made and value not in found:
                found.add(value)
                stack.extend(self.program.reads[value])
        return sorted(found)


def _last_readers(program: Program, running: list[int]) -> dict[int, int]:
    """The last of `running` that reads each value; a value in `running` without readers is its own last one."""
    last = {value: value for value in running}
    for value in running:
        for read in program.reads[value]:
            last[read] = value
    return last


# --- The backward ----------------------------------------------------------------------------------------------------


class _Backward:
    """The memory that the backward holds for any choice, and the values of the forward that its own ops read."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.steps = len(program.backward)
        self.per_step = _moments_per_step(program.sizes)
        self.inside = {*program.backward, *program.tangents}
        self.outside = [value for value in range(len(program.sizes) - 1, -1, -1) if value not in self.inside]
        self.first_read = [self.steps + 1] * len(program.sizes)
        self.last_moment = [-1] * len(program.sizes)
        self._read()
        self.held = self._held()
        self.own = [*(self._needed(step) for step in range(self.steps)), 0]
        self.with_own = list(map(operator.add, self.held, self.own))
        self.own_moments = {value: self._end_of(step) for step, value in enumerate(program.backward)}
        self.overwriting = list(self._overwriting())

    def _read(self) -> None:
        """Find the first step and the last moment at which the backward's own ops read each value."""
        for step, value in enumerate(self.program.backward):
            for read in (value, *self.program.reads[value]):
                self.first_read[read] = min(self.first_read[read], step)
                self.last_moment[read] = self._end_of(step)
        for value in self.program.gradients:
            self.first_read[value] = min(self.first_read[value], self.steps)
            self.last_moment[value] = self._end_of(self.steps)

    def _end_of(self, step: int) -> int:
        return (step + 1) * self.per_step - 1

    def _needed(self, step: int) -> int:
        """Bytes that the step's own op takes, if it takes over no memory of a recomputed value."""
        value = self.program.backward[step]
        return self.program.workspace.get(value, 0) + (0 if self._reuses(step) else self.program.sizes[value])

    def _reuses(self, step: int) -> bool:
        """Whether the step's own op writes into the memory of another value of the backward."""
        program = self.program
        candidates = self.inside.intersection(program.overwrites.get(program.backward[step], ()))
        dying = (v for v in candidates if self.last_moment[v] == self._end_of(step))
        return any(v not in program.gradients and v not in program.results for v in dying)

    def _overwriting(self) -> Iterator[tuple[int, list[int]]]:
        """The values that may take over memory of recomputed values, and those values."""
        reuse = {value for step, value in enumerate(self.program.backward) if self._reuses(step)}
        for value, candidates in self.program.overwrites.items():
            outside = [v for v in candidates if v not in self.inside]
            if outside and value not in reuse:
                yield value, outside

    def _held(self) -> list[int]:
        """Bytes alive just before each step's own op, without saved and recomputed values of the forward."""
        sizes = self.program.sizes
        changes = [0] * (self.steps + 1)
        changes[0] = sum(sizes[value] for value in {*self.program.tangents, *self.program.results})
        for step, value in enumerate(self.program.backward):
            changes[step + 1] += sizes[value]
        for value in self.inside - self.program.results:
            if 0 <= self.last_moment[value] < self._end_of(self.steps - 1):
                changes[self.last_moment[value] // self.per_step + 1] -= sizes[value]
        return list(itertools.accumulate(changes))

    def profile(self, saved: Collection[int], forward: list[int], offloaded: Collection[int] = ()) -> Profile:
        first, recomputed = self._recomputed(saved)
        last = self._last_moments(first, recomputed)
        back = dict.fromkeys(saved, 0) | self._returning(offloaded, first)
        return Profile(forward, self._alive(back, recomputed, first, last), first, last)

    def _returning(self, offloaded: Collection[int], first: list[int]) -> dict[int, int]:
        """The step in which the way back of each value starts."""
        values = sorted((v for v in offloaded if first[v] <= self.steps), key=lambda value: (first[value], value))
        if not values:
            return {}
        trips = [self.program.trip(value, first[value]) for value in values]
        return dict(zip(values, latest_places(self.program.seconds(self.program.backward), trips), strict=True))

    def _recomputed(self, saved: Collection[int]) -> tuple[list[int], list[int]]:
        """The first step that needs each value, and the recomputed values in reverse order."""
        first, recomputed, reads, never = list(self.first_read), [], self.program.reads, self.steps
        for value in self.outside:
            step = first[value]
            if step <= never and value not in saved:
                recomputed.append(value)
                for read in reads[value]:
                    if first[read] > step:
                        first[read] = step
        return first, recomputed

    def _last_moments(self, first: list[int], recomputed: list[int]) -> list[int]:
        last, reads, per_step = list(self.last_moment), self.program.reads, self.per_step
        for value in recomputed:
            moment = first[value] * per_step + value
            for read in reads[value]:
                if last[read] < moment:
                    last[read] = moment
        return last

    def _alive(self, saved: Mapping[int, int], recomputed: list[int], first: list[int], last: list[int]) -> list[int]:
        """The most bytes alive in each step, and after the last one if a returned value is recomputed there.

        `saved` has the step from which on each saved value is alive.
        """
        deaths = self._deaths(saved, recomputed, last)
        changes = self._changes(saved, recomputed, first, deaths)
        alive = list(map(operator.add, self.with_own, itertools.accumulate(changes)))
        taken_over = self._taken_over(saved, first, last)
        before = self._before_own_ops(alive, deaths, recomputed, first, taken_over)
        for moment, size in taken_over.items():
            step, at = divmod(moment + 1, self.per_step)
            alive[step - 1] -= size if not at else 0
        for step, most in before.items():
            alive[step] = max(alive[step], most)
        runs_after = any(first[value] == self.steps for value in self.program.gradients)
        return alive if runs_after else alive[:-1]

    def _deaths(self, saved: Collection[int], recomputed: list[int], last: list[int]) -> dict[int, int]:
        """For each moment, the bytes of saved and recomputed values that are needed last then."""
        sizes, gradients, results = self.program.sizes, self.program.gradients, self.program.results
        deaths: dict[int, int] = {}
        for value in itertools.chain((value for value in saved if value not in results), recomputed):
            if sizes[value] and last[value] >= 0 and value not in gradients:
                deaths[last[value]] = deaths.get(last[value], 0) + sizes[value]
        return deaths

    def _changes(
        self, saved: Mapping[int, int], recomputed: list[int], first: list[int], deaths: dict[int, int]
    ) -> list[int]:
        """By how much the bytes of saved and recomputed values alive at each step's own op differ from the step before."""
        sizes, results = self.program.sizes, self.program.results
        changes = [0] * (self.steps + 2)
        for value, step in saved.items():
            if value not in results:
                changes[step] += sizes[value]
        for value in recomputed:
            if sizes[value]:
                changes[first[value]] += sizes[value]
        for moment, size in deaths.items():
            changes[(moment + 1) // self.per_step] -= size  # a death after the own op counts for the next step
        return changes

    def _taken_over(self, saved: Collection[int], first: list[int], last: list[int]) -> dict[int, int]:
        """For each moment, the bytes of a recomputed value that is overwritten then."""
        taken_over = {}
        for value, candidates in self.overwriting:
            moment = self.own_moments.get(value, first[value] * self.per_step + value)
            dying = (v for v in candidates if last[v] == moment and v not in saved and v not in self.program.gradients)
            taken_over.update((moment, self.program.sizes[v]) for v in itertools.islice(dying, 1))
        return taken_over

    def _before_own_ops(
        self, alive: list[int], deaths: dict[int, int], recomputed: list[int], first: list[int], taken_over: dict[int, int]
    ) -> dict[int, int]:
        """The most bytes alive while values are recomputed, in steps where that may be more than at the own op."""
        sizes, workspace, per_step, found = self.program.sizes, self.program.workspace, self.per_step, {}
        steps = {moment // per_step for moment in deaths if (moment + 1) % per_step}
        with_workspace = set(recomputed).intersection(workspace)
        chains: dict[int, list[int]] = {step: [] for step in steps.union(first[value] for value in with_workspace)}
        for value in reversed(recomputed):
            if first[value] in chains:
                chains[first[value]].append(value)
        for step, chain in chains.items():
            died = [deaths.get(step * per_step + value, 0) for value in chain]
            most = now = alive[step] - self.own[step] - sum([sizes[value] for value in chain]) + sum(died)
            for value, dying in zip(chain, died, strict=True):
                overwritten = taken_over.get(step * per_step + value, 0)
                now += sizes[value] - overwritten
                most = max(most, now + workspace.get(value, 0))
                now -= dying - overwritten
            found[step] = most
        return found
