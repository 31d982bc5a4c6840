"""Meets a limit step by step: saves more values while there is room, or fewer until they fit.

In: a `Problem`, a `Solution` and a limit in bytes. Out: a `Solution` within the limit, without a cut.

    fill(problem, solution, limit)        the best gain of time per byte first
    empty(problem, solution, limit, ...)  the least loss of time per byte first

The order of values does not depend on the limit, so a higher limit never takes more time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterator

from aotgrad.partition.problem import NEVER, Problem, Solution

FILL_SIZES = (1 << 62, *(4**k for k in range(18, 5, -1)))
"""The largest values to consider, in bytes, one attempt each: small values may fit where a big one does not."""


def fill(problem: Problem, start: Solution, limit: int, fastest: int = 0) -> Solution:
    """Save more of what `start` recomputes, within `limit` bytes and in no less time than `fastest`."""
    room = limit - start.kept_bytes
    gains = Gains(problem, start)
    sizes = [size for size in FILL_SIZES if any(problem.held[value] <= min(size, room) for value in gains.candidates)]
    return min([start, *(_fill_with(problem, start, room, size, fastest) for size in sizes)], key=lambda s: s.rank)


def _fill_with(problem: Problem, start: Solution, room: int, largest: int, fastest: int) -> Solution:
    """Repeatedly save the value with the best gain per byte, of at most `largest` bytes, until one does not fit."""
    gains = Gains(problem, start)
    saved, time = set(start.saved), start.time
    for value in gains.best_first(lambda value: problem.held[value] <= largest):
        room -= gains.growth(value)
        time -= gains.gain(value)
        if room < 0 or time < fastest:
            break
        saved.add(value)
        gains.save(value)
    return problem.solution(saved, start.offloaded)


def empty(problem: Problem, start: Solution, limit: int, otherwise: Solution) -> Solution:
    """Recompute more of what `start` saves, least loss of time per byte first, until it fits; `otherwise` if it cannot."""
    solution = start
    heap = [(*loss(problem, solution, value), value) for value in sorted(start.saved - start.offloaded)]
    heapq.heapify(heap)
    while solution.kept_bytes > limit and heap:
        known, _, value = heapq.heappop(heap)
        now, freed = loss(problem, solution, value)
        if now > known and heap and now > heap[0][0]:
            heapq.heappush(heap, (now, freed, value))
        elif freed < 0:
            solution = problem.solution(solution.saved - {value}, solution.offloaded)
    return solution if solution.kept_bytes <= limit else otherwise


def loss(problem: Problem, solution: Solution, value: int) -> tuple[float, int]:
    """Time lost per byte if `value` is recomputed, and minus the bytes freed; infinite if that is not legal."""
    return _loss_of(problem, value, _chain(problem, solution, value))


def _chain(problem: Problem, solution: Solution, value: int) -> dict[int, None]:
    """The values to recompute for `value`, itself included: its ancestors that are neither saved nor recomputed anyway."""
    chain, stack = {value: None}, [value]
    while stack:
        for parent in problem.parents[stack.pop()]:
            if parent not in solution.saved and parent not in solution.recomputed and parent not in chain:
                chain[parent] = None
                stack.append(parent)
    return chain


def _loss_of(problem: Problem, value: int, chain: Collection[int]) -> tuple[float, int]:
    freed = problem.held[value] - sum([problem.state[other] for other in chain])
    if freed <= 0 or any(problem.rerun[other] == NEVER for other in chain):
        return math.inf, 0
    time = sum([problem.rerun[other] for other in chain]) - problem.saving[value]
    return time / freed, -freed


class Losses:
    """`loss` in a sequence of solutions. Only losses near a change are updated."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.solution = Solution(frozenset(), frozenset(), 0, 0)
        self.known: dict[int, tuple[float, int]] = {}
        self.depending: dict[int, set[int]] = {}  # for each value, those whose known loss depends on it

    def move_to(self, solution: Solution) -> None:
        old, self.solution = self.solution, solution
        for value in (old.saved ^ solution.saved) | (old.recomputed ^ solution.recomputed):
            for other in self.depending.pop(value, ()):
                self.known.pop(other, None)

    def of(self, value: int) -> tuple[float, int]:
        found = self.known.get(value)
        if found is None:
            chain = _chain(self.problem, self.solution, value)
            found = self.known[value] = _loss_of(self.problem, value, chain)
            for other in chain:
                for parent in self.problem.parents[other]:
                    self.depending.setdefault(parent, set()).add(value)
        return found


class Gains:
    """The gain of saving a recomputed value: its own time, and that of values that only it needs."""

    def __init__(self, problem: Problem, solution: Solution) -> None:
        self.problem = problem
        self.recomputed = set(solution.recomputed)
        self.uses = dict.fromkeys(solution.recomputed, 0)
        for value in problem.wanted:
            if value in self.uses:
                self.uses[value] += 1
        for value in solution.recomputed:
            for parent in problem.parents[value]:
                if parent in self.uses:
                    self.uses[parent] += 1
        self.candidates = [v for v in sorted(solution.recomputed) if problem.savable[v]]

    def best_first(self, eligible: Callable[[int], bool]) -> Iterator[int]:
        """Values with a positive gain, best gain per byte first; the caller saves each one or stops."""
        heap = [(-self.ratio(value), value) for value in self.candidates if eligible(value)]
        heapq.heapify(heap)
        while heap:
            known, value = heapq.heappop(heap)
            if value not in self.recomputed:
                continue
            now = -self.ratio(value)
            if now >= 0:
                continue
            if now > known:
                heapq.heappush(heap, (now, value))
            else:
                yield value

    def ratio(self, value: int) -> float:
        return self.gain(value) / max(1, self.growth(value))

    def gain(self, value: int) -> int:
        spared = sum(self.problem.rerun[other] for other in self.spared(value))
        return spared - self.problem.saving[value]

    def growth(self, value: int) -> int:
        """Bytes that saving the value adds, minus recorded states that it makes unnecessary."""
        return self.problem.held[value] - sum(self.problem.state[other] for other in self.spared(value))

    def spared(self, value: int) -> list[int]:
        """The values that need no recomputation then: `value`, and those that only it needs."""
        missing: dict[int, int] = {}
        spared = [value]
        for other in spared:
            for parent in self.problem.parents[other]:
                if parent in self.recomputed:
                    missing[parent] = missing.get(parent, 0) + 1
                    if missing[parent] == self.uses[parent]:
                        spared.append(parent)
        return spared

    def save(self, value: int) -> None:
        for other in self.spared(value):
            self.recomputed.discard(other)
            for parent in self.problem.parents[other]:
                if parent in self.uses:
                    self.uses[parent] -= 1
