"""The trade of memory for time: for any exchange rate, and for any number of bytes, which values to save.

In: a `Problem`. Out: `Solution`s. No torch.

    frontier = Frontier(problem)
    frontier.at(Rate(1, 4))         the exact minimum of  1 x bytes + 4 x time
    frontier.within(10_000_000)     the fastest that is found with at most so many bytes

One rate, one minimum cut. A value v is two nodes, v_in and v_out; the sink side means "available in the backward":

    source -> v_in   rate.time x rerun(v) + rate.bytes x state(v)     cut: v runs again
    v_in -> v_out    rate.bytes x held(v) + rate.time x saving(v)     cut: v is saved
    p_out -> v_in    infinite, for each parent p                      v runs again only where its parents are available
    v_out -> sink    infinite                                         the backward reads v

Over all rates the solutions are the corners of the lower convex hull of (bytes, time). A limit in bytes is met in three
steps. A search along the hull (M. J. Eisner and D. G. Severance, "Mathematical Techniques for Efficient Record
Segmentation", JACM 1976) ends at the two neighbouring corners around the limit. Between them lie further optimal
solutions of their common rate: the *sweep* takes that in which values before a position run again as far as possible and
those after it as little as possible, and finds the position by bisection. Early values are the ones to run again, since
the backward needs them last. Two solutions of the sweep are left, one that fits and one that does not quite: the first is
*filled* with the values that spare most time per byte, or the second *emptied* of those that spare least.

More bytes never cost more time: all solutions of a sweep lie on the hull, so each is at least as fast as anything that
fits into fewer bytes; and filling and emptying follow a sequence that does not depend on the limit.
"""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aotgrad.partition import maxflow
from aotgrad.partition.problem import NEVER, Problem, Solution

SOURCE, SINK = 0, 1
FILL_SIZES = (1 << 62, *(4**k for k in range(18, 5, -1)))
"""Largest values that filling considers, in bytes, one attempt each: where a big one does not fit, small ones may."""


@dataclass(frozen=True)
class Rate:
    """What is minimized: `bytes` x bytes kept + `time` x time."""

    bytes: int
    time: int

    def cost(self, solution: Solution) -> int:
        return self.bytes * solution.kept_bytes + self.time * solution.time


class Frontier:
    """The solutions of one problem; its network is built once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.network = maxflow.Network(2 + 2 * len(problem), list(_edges(problem)))
        self.unlimited = sum(len(parents) for parents in problem.parents) + len(problem.wanted)
        self.found: dict[Rate, Solution] = {}

    def with_problem(self, problem: Problem) -> Frontier:
        """The frontier of a problem with other numbers but the same values, parents and readers."""
        other = copy.copy(self)
        other.problem, other.found = problem, {}
        return other

    def at(self, rate: Rate) -> Solution:
        """The exact minimum at one exchange rate.

        Raises:
            Unsolvable: if the backward needs a value that may be neither saved nor run again.
        """
        if rate not in self.found:
            self.found[rate] = self._cut(rate, [rate.time] * len(self.problem))
        return self.found[rate]

    def smallest(self) -> Solution:
        """The fewest bytes, and among those the least time."""
        return self.at(Rate(1 + sum(t for t in (*self.problem.rerun, *self.problem.saving) if t > 0), 1))

    def fastest(self) -> Solution:
        """The least time, and among those the fewest bytes."""
        return self.at(Rate(1, 1 + sum(self.problem.held) + sum(self.problem.state)))

    def within(self, limit: int) -> Solution:
        """The fastest solution found with at most `limit` bytes; the smallest one if none fits."""
        above, below = self.fastest(), self.smallest()
        if above.kept_bytes <= limit:
            return above
        if below.kept_bytes >= limit:
            return below
        below, above, rate = self._neighbours(below, above, limit)
        below, above = self._sweep(below, above, rate, limit)
        return min(fill(self.problem, below, limit), empty(self.problem, above, limit, below), key=lambda s: s.rank)

    def corners(self) -> list[Solution]:
        """The corners of the hull, from the fewest bytes to the least time."""
        ends = [self.smallest(), self.fastest()]
        if ends[0].kept_bytes >= ends[1].kept_bytes:
            return ends[:1]
        corners, stack = [ends[0]], [(ends[0], ends[1])]
        while stack:
            below, above = stack.pop()
            middle = self._between(below, above)
            if middle is None:
                corners.append(above)
            else:
                stack += [(middle, above), (below, middle)]
        return corners

    def bound(self, limit: int) -> float:
        """No solution with at most `limit` bytes takes less time: the hull's height there."""
        above, below = self.fastest(), self.smallest()
        if above.kept_bytes <= limit or below.kept_bytes >= limit:
            return above.time if above.kept_bytes <= limit else below.time
        below, above, _ = self._neighbours(below, above, limit)
        share = (limit - below.kept_bytes) / (above.kept_bytes - below.kept_bytes)
        return below.time + share * (above.time - below.time)

    # -- the search along the hull

    def _neighbours(self, below: Solution, above: Solution, limit: int) -> tuple[Solution, Solution, Rate]:
        """The corners next to each other of which the first fits `limit` and the second does not, and their rate."""
        while True:
            middle = self._between(below, above)
            if middle is None:
                return below, above, _common_rate(below, above)
            if middle.kept_bytes <= limit:
                below = middle
            else:
                above = middle

    def _between(self, below: Solution, above: Solution) -> Solution | None:
        """A corner under the line through two solutions, or `None` if they are neighbours."""
        rate = _common_rate(below, above)
        middle = self.at(rate)
        return middle if rate.cost(middle) < rate.cost(below) else None

    def _sweep(self, below: Solution, above: Solution, rate: Rate, limit: int) -> tuple[Solution, Solution]:
        """Where values before some position run again and later ones do not: the last that fits, the one after it."""
        first, last = 0, len(self.problem)  # leaning at `first` gives `above`, at `last` it gives `below`
        while last - first > 1:
            middle = (first + last) // 2
            solution = self._leaning(rate, middle)
            if solution.kept_bytes <= limit:
                last, below = middle, solution
            else:
                first, above = middle, solution
        return below, above

    def _leaning(self, rate: Rate, position: int) -> Solution:
        """Of the solutions that are best at `rate`, the one that runs most before `position` again and least after it."""
        scale = 2 * sum(time for time in self.problem.rerun if time > 0) + 1
        times = [scale * rate.time + (-1 if value < position else 1) for value in range(len(self.problem))]
        return self._cut(Rate(scale * rate.bytes, scale * rate.time), times)

    # -- one cut

    def _cut(self, rate: Rate, rerun_rates: list[int]) -> Solution:
        """Minimize at `rate`, but with a rate of its own for the time of running each value again."""
        value, side = self.network.min_cut(self._capacities(rate, rerun_rates), SOURCE, SINK)
        if value >= maxflow.INFINITE:
            raise Unsolvable
        saved = {k for k in range(len(self.problem)) if _entry(k) in side and _exit(k) not in side}
        return self.problem.solution(saved)

    def _capacities(self, rate: Rate, rerun_rates: list[int]) -> list[int]:
        problem, capacities = self.problem, []
        for value, rerun_rate in enumerate(rerun_rates):
            rerun, state = problem.rerun[value], problem.state[value]
            capacities.append(maxflow.INFINITE if rerun == NEVER else rerun_rate * rerun + rate.bytes * state)
            save = rate.bytes * problem.held[value] + rate.time * problem.saving[value]
            capacities.append(save if problem.savable[value] else maxflow.INFINITE)
        return capacities + [maxflow.INFINITE] * self.unlimited


class Unsolvable(Exception):
    """The backward needs a value that may be neither saved nor run again."""


def _entry(value: int) -> int:
    return 2 + 2 * value


def _exit(value: int) -> int:
    return 3 + 2 * value


def _edges(problem: Problem) -> Iterator[tuple[int, int]]:
    for value in range(len(problem)):
        yield SOURCE, _entry(value)
        yield _entry(value), _exit(value)
    for value, parents in enumerate(problem.parents):
        for parent in parents:
            yield _exit(parent), _entry(value)
    for value in problem.wanted:
        yield _exit(value), SINK


def _common_rate(below: Solution, above: Solution) -> Rate:
    """The exchange rate at which two solutions cost the same."""
    return Rate(below.time - above.time, above.kept_bytes - below.kept_bytes)


# --- Filling ---------------------------------------------------------------------------------------------------------


def fill(problem: Problem, start: Solution, limit: int) -> Solution:
    """Save more of what `start` runs again, as far as `limit` bytes allow."""
    room = limit - start.kept_bytes
    gains = Gains(problem, start)
    sizes = [size for size in FILL_SIZES if any(problem.held[value] <= min(size, room) for value in gains.candidates)]
    return min([start, *(_fill_with(problem, start, room, size) for size in sizes)], key=lambda s: s.rank)


def _fill_with(problem: Problem, start: Solution, room: int, largest: int) -> Solution:
    """Save the value of at most `largest` bytes with the best gain per byte, again and again, until one does not fit."""
    gains = Gains(problem, start)
    saved = set(start.saved)
    for value in gains.best_first(lambda value: problem.held[value] <= largest):
        room -= gains.growth(value)
        if room < 0:
            break
        saved.add(value)
        gains.save(value)
    return problem.solution(saved)


def empty(problem: Problem, start: Solution, limit: int, otherwise: Solution) -> Solution:
    """Run more of what `start` saves again, least loss of time per byte first, until it fits; `otherwise` if it cannot."""
    solution = start
    heap = [(*loss(problem, solution, value), value) for value in sorted(start.saved)]
    heapq.heapify(heap)
    while solution.kept_bytes > limit and heap:
        known, _, value = heapq.heappop(heap)
        now, freed = loss(problem, solution, value)
        if now > known and heap and now > heap[0][0]:
            heapq.heappush(heap, (now, freed, value))
        elif freed < 0:
            solution = problem.solution(solution.saved - {value})
    return solution if solution.kept_bytes <= limit else otherwise


def loss(problem: Problem, solution: Solution, value: int) -> tuple[float, int]:
    """Time lost per byte if `value` runs again, and minus the bytes freed; infinite where that is not legal."""
    again = [value]
    for other in again:
        missing = (p for p in problem.parents[other] if p not in solution.saved and p not in solution.again)
        again += [parent for parent in dict.fromkeys(missing) if parent not in again]
    freed = problem.held[value] - sum(problem.state[other] for other in again)
    if freed <= 0 or any(problem.rerun[other] == NEVER for other in again):
        return math.inf, 0
    time = sum(problem.rerun[other] for other in again) - problem.saving[value]
    return time / freed, -freed


class Gains:
    """What saving a value that runs again would spare: its own time, and that of what only it needs."""

    def __init__(self, problem: Problem, solution: Solution) -> None:
        self.problem = problem
        self.again = set(solution.again)
        self.uses = dict.fromkeys(solution.again, 0)
        for value in problem.wanted:
            if value in self.uses:
                self.uses[value] += 1
        for value in solution.again:
            for parent in problem.parents[value]:
                if parent in self.uses:
                    self.uses[parent] += 1
        self.candidates = [v for v in sorted(solution.again) if problem.savable[v]]

    def best_first(self, eligible: Callable[[int], bool]) -> Iterator[int]:
        """Values with a positive gain, best gain per byte first; the caller saves each one or stops."""
        heap = [(-self.ratio(value), value) for value in self.candidates if eligible(value)]
        heapq.heapify(heap)
        while heap:
            known, value = heapq.heappop(heap)
            if value not in self.again:
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
        """Bytes that saving the value adds, less the recorded states that are not needed any more."""
        return self.problem.held[value] - sum(self.problem.state[other] for other in self.spared(value))

    def spared(self, value: int) -> list[int]:
        """The values that would not run again any more: `value`, and what only it needs."""
        missing: dict[int, int] = {}
        spared = [value]
        for other in spared:
            for parent in self.problem.parents[other]:
                if parent in self.again:
                    missing[parent] = missing.get(parent, 0) + 1
                    if missing[parent] == self.uses[parent]:
                        spared.append(parent)
        return spared

    def save(self, value: int) -> None:
        for other in self.spared(value):
            self.again.discard(other)
            for parent in self.problem.parents[other]:
                if parent in self.uses:
                    self.uses[parent] -= 1
