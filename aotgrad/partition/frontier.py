"""The trade of memory for time: which values to save, for an exchange rate or a number of bytes.

In: a `Problem`. Out: `Solution`s. No torch.

    frontier = Frontier(problem)
    frontier.at(Rate(1, 4))         the exact minimum of  1 x bytes + 4 x time
    frontier.within(10_000_000)     the fastest solution found within so many bytes
    frontier.at_most(Rate(1, 4), 9) the exact minimum again, unless it takes more bytes

Each rate is one minimum cut. A value v is two nodes, v_in and v_out; the sink side means "available in the backward":

    source -> v_in   rate.time x rerun(v) + rate.bytes x state(v)     cut: v is recomputed
    v_in -> v_out    rate.bytes x held(v) + rate.time x saving(v)     cut: v is saved
                     rate.time x transfer(v), if that is less         cut: v is offloaded
    p_out -> v_in    infinite, for each parent p                      recomputing v needs its parents
    v_out -> sink    infinite                                         the backward reads v

Over all rates the solutions are the corners of the lower convex hull of (bytes, time). A limit in bytes is met in three
steps. A search along the hull (M. J. Eisner and D. G. Severance, "Mathematical Techniques for Efficient Record
Segmentation", JACM 1976) ends at the two neighbouring corners around the limit. Their common rate has further optimal
solutions between them. The *sweep* recomputes as much as possible before a position and as little as possible after it,
and finds the position by bisection. It recomputes early values, since the backward needs them last. It ends with two
solutions: the last that fits and the first that does not. The first is *filled* with the values that save most time per
byte, or the second is *emptied* of those that save least.

If the two are far apart, the search tries more. *Mixtures* use one solution for early values and the other for late ones,
off the hull. Often the two differ by one large value: the search *branches* into always and never saving it, each with a
hull of its own. A branch without a solution below a line proves that there is none (`bound`).

More bytes never cost more time. All solutions of a sweep lie on the hull, so each is at least as fast as any solution with
fewer bytes. Between two of them, the attempts depend on the two and not on the limit, and each has this property, too: the
fastest that fits of a few, a branch, or a sequence of fillings.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from aotgrad.partition import maxflow
from aotgrad.partition.filling import empty, fill
from aotgrad.partition.problem import NEVER, Problem, Solution

SOURCE, SINK = 0, 1
BRANCHES = 1  # values to branch on, one after another, before the search along the hull
BRANCHES_UP_TO = 600  # values of a problem; in a larger one no single value matters much
MOST_EXCHANGES = 16  # values, one of which is not saved
MOST_MIXTURES = 64  # positions at which a mixture changes from one solution to the other
TALL = 0.02  # of the time of the smallest solution: for taller steps of the hull, the search tries more


@dataclass(frozen=True)
class Rate:
    """The weights of the objective: `bytes` x bytes kept + `time` x time."""

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
            Unsolvable: if the backward needs a value that may be neither saved nor recomputed.
        """
        if rate not in self.found:
            self.found[rate] = self._cut(rate, [rate.time] * len(self.problem))
        return self.found[rate]

    def is_solvable(self) -> bool:
        """Whether each value that the backward needs can be saved or recomputed."""
        try:
            self.smallest()
        except Unsolvable:
            return False
        return True

    def smallest(self) -> Solution:
        """The fewest bytes, and among those the least time."""
        return self.at(Rate(1 + self._all_times(), 1))

    def _all_times(self) -> int:
        """More than the time of any solution."""
        problem = self.problem
        return sum(time for time in (*problem.rerun, *problem.saving, *problem.transfer) if time > 0)

    def fastest(self) -> Solution:
        """The least time, and among those the fewest bytes."""
        return self.at(Rate(1, 1 + sum(self.problem.held) + sum(self.problem.state)))

    def within(self, limit: int, branches: int = BRANCHES) -> Solution:
        """The fastest solution found with at most `limit` bytes; the smallest one if none fits."""
        above, below = self.fastest(), self.smallest()
        if above.kept_bytes <= limit:
            return above
        if below.kept_bytes >= limit:
            return below
        tall = TALL * below.time
        below, above = self._around(below, above, limit)
        found = [fill(self.problem, below, limit), empty(self.problem, above, limit, below)]
        if below.time - above.time > tall:
            found.append(self._mixed(below, above, limit))
            found += [branch.within(limit, branches - 1) for branch in self._branches(below, above, branches)]
        return min((s for s in found if s.kept_bytes <= limit), key=lambda s: (s.time, s.kept_bytes))

    def at_most(self, rate: Rate, limit: int) -> Solution:
        """The minimum at one exchange rate, or the fastest solution found with at most `limit` bytes if it has more.

        The minimum again, if no solution fits.
        """
        found = self.at(rate)
        if found.kept_bytes <= limit:
            return found
        others = [self.within(limit), *self._without_one(found, rate, found.kept_bytes - limit)]
        return min((other for other in others if other.kept_bytes <= limit), default=found, key=lambda s: s.rank)

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

    def bound(self, limit: int, branches: int = 0) -> float:
        """A lower bound of the time within `limit` bytes: the height of the hull there, or the least of the branches."""
        above, below = self.fastest(), self.smallest()
        if above.kept_bytes <= limit or below.kept_bytes >= limit:
            reachable = below.kept_bytes <= limit
            return math.inf if not reachable else above.time if above.kept_bytes <= limit else below.time
        below, above = self._around(below, above, limit)
        share = (limit - below.kept_bytes) / (above.kept_bytes - below.kept_bytes)
        height = below.time + share * (above.time - below.time)
        lower = [branch.bound(limit, branches - 1) for branch in self._branches(below, above, branches)]
        return max(height, min(lower, default=height))

    # -- the search along the hull

    def _around(self, below: Solution, above: Solution, limit: int) -> tuple[Solution, Solution]:
        """Two solutions on one line of the hull: the first fits `limit`, the second does not."""
        return self._sweep(*self._neighbours(below, above, limit), limit)

    def _neighbours(self, below: Solution, above: Solution, limit: int) -> tuple[Solution, Solution, Rate]:
        """Neighbouring corners, the first of which fits `limit` while the second does not, and their rate."""
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
        """Recompute before a position and save after it: the last solution that fits, and the next one."""
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
        """Of the solutions optimal at `rate`, the one that recomputes most before `position` and least after it."""
        scale = 2 * self._all_times() + 1
        times = [scale * rate.time + (-1 if value < position else 1) for value in range(len(self.problem))]
        return self._cut(Rate(scale * rate.bytes, scale * rate.time), times)

    # -- off the hull

    def _mixed(self, below: Solution, above: Solution, limit: int) -> Solution:
        """The fastest mixture that fits, filled while it is no faster than the next larger one that does not fit."""
        mixtures = [below, *self._mixtures(below, above)]
        fastest = min((s for s in mixtures if s.kept_bytes <= limit), key=lambda s: s.rank)
        next_ones = (s for s in mixtures if s.kept_bytes > limit and s.time < fastest.time)
        return fill(self.problem, fastest, limit, min(next_ones, key=lambda s: s.kept_bytes, default=above).time)

    def _mixtures(self, below: Solution, above: Solution) -> Iterator[Solution]:
        """The legal solutions that combine early values of one with late values of the other."""
        positions = sorted((below.saved ^ above.saved) | (below.offloaded ^ above.offloaded))
        for position in positions[:: 1 + len(positions) // MOST_MIXTURES]:
            for first, then in ((below, above), (above, below)):
                saved = {v for v in first.saved if v <= position} | {v for v in then.saved if v > position}
                away = {v for v in first.offloaded if v <= position} | {v for v in then.offloaded if v > position}
                solution = self.problem.solution(saved, away)
                if self.problem.is_legal(solution):
                    yield solution

    def _branches(self, below: Solution, above: Solution, branches: int) -> list[Frontier]:
        """Two problems that cover this one: the largest value in which the solutions differ is always saved, or never."""
        different = sorted(below.saved ^ above.saved)
        if not branches or not different or len(self.problem) > BRANCHES_UP_TO:
            return []
        largest = max(different, key=self.problem.held.__getitem__)
        never = replace(self.problem, savable=[s and k != largest for k, s in enumerate(self.problem.savable)])
        always = replace(self.problem, rerun=[NEVER if k == largest else t for k, t in enumerate(self.problem.rerun)])
        return [branch for branch in map(self.with_problem, (never, always)) if branch.is_solvable()]

    def _without_one(self, solution: Solution, rate: Rate, excess: int) -> Iterator[Solution]:
        """The minima at `rate` that do not save one of the values of a solution, of about as many bytes as are in excess."""
        held = self.problem.held
        saved = sorted(solution.saved, key=lambda value: abs(math.log(max(1, held[value]) / excess)))
        for value in saved[:MOST_EXCHANGES]:
            savable = [is_savable and k != value for k, is_savable in enumerate(self.problem.savable)]
            with contextlib.suppress(Unsolvable):
                yield self.with_problem(replace(self.problem, savable=savable)).at(rate)

    # -- one cut

    def _cut(self, rate: Rate, rates: list[int]) -> Solution:
        """Minimize at `rate`, with a separate rate for the time of recomputing or offloading each value."""
        value, side = self.network.min_cut(self._capacities(rate, rates), SOURCE, SINK)
        if value >= maxflow.INFINITE:
            raise Unsolvable
        saved = {k for k in range(len(self.problem)) if _entry(k) in side and _exit(k) not in side}
        kept, away = self._kept_costs(rate), self._away_costs(rates)
        return self.problem.solution(saved, {k for k in saved if away and away[k] < kept[k]})

    def _capacities(self, rate: Rate, rates: list[int]) -> list[int]:
        problem, capacities = self.problem, []
        away = self._away_costs(rates)
        saving = list(map(min, self._kept_costs(rate), away)) if away else self._kept_costs(rate)
        for value, (time_rate, save) in enumerate(zip(rates, saving, strict=True)):
            rerun, state = problem.rerun[value], problem.state[value]
            capacities.append(maxflow.INFINITE if rerun == NEVER else time_rate * rerun + rate.bytes * state)
            capacities.append(save if problem.savable[value] else maxflow.INFINITE)
        return capacities + [maxflow.INFINITE] * self.unlimited

    def _kept_costs(self, rate: Rate) -> list[int]:
        """The cost of saving each value on the device."""
        problem = self.problem
        return [rate.bytes * held + rate.time * time for held, time in zip(problem.held, problem.saving, strict=True)]

    def _away_costs(self, rates: list[int]) -> list[int]:
        """The cost of offloading each value; empty if none may be offloaded."""
        pairs = zip(rates, self.problem.transfer, strict=False)
        return [maxflow.INFINITE if time == NEVER else rate * time for rate, time in pairs]


class Unsolvable(Exception):
    """The backward needs a value that may be neither saved nor recomputed."""


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


def rate_of(time_per_byte: float) -> Rate:
    """An exchange rate as a fraction of small ints: the units of time that one byte is worth."""
    if time_per_byte >= 1 / 64:
        return Rate(max(1, round(time_per_byte * 4096)), 4096)
    return Rate(4096, round(4096 / time_per_byte))


def _common_rate(below: Solution, above: Solution) -> Rate:
    """The exchange rate at which two solutions cost the same."""
    return Rate(below.time - above.time, above.kept_bytes - below.kept_bytes)
