"""Limits the peak of memory rather than the saved bytes. No torch.

In: a contracted problem, its `Program` and a limit. Out: a `Solution` of the problem with a simulated peak within the
limit.

Saved bytes are not the peak: the backward also holds its own values and recomputed ones. But the bytes alive at each step
of the backward are a sum over the values of the forward, so a minimum cut can weigh them. A saved value is alive until its
last use, a recomputed one from its first use to its last. With a weight for each step, the cut minimizes the weighted sum
of the bytes alive at all steps. Weights on the steps near the peak lower the peak; each round moves the weights there (the
method of multiplicative weights: S. Arora, E. Hazan and S. Kale, "The Multiplicative Weights Update Method", 2012).

The rounds at a few exchange rates give a pool of solutions. Those that no other solution beats in both time and peak form
the *staircase*. From each of its steps, a *descent* recomputes more of the values held across the peak, as long as it finds
new steps.

If the fastest solution fits a limit, it is the answer. Otherwise, the candidates are the fastest step that fits, and for
each of the next steps, which do not fit, the first solution on its descent that does. Both are filled: more is saved while
it fits, and while the result is no faster than the next step or than the solutions before it on the descent. So a higher
limit never takes more time: the answer for a lower limit is a lower step, or comes later on the same descent.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from aotgrad.partition.contraction import Contraction
from aotgrad.partition.filling import Gains, Losses
from aotgrad.partition.frontier import Frontier, Rate, rate_of
from aotgrad.partition.liveness import Profile, Program, Simulator
from aotgrad.partition.problem import Problem, Solution

PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # numbers of equal parts of the forward, for checkpoints to start from
WEIGHT_UNITS = 1 << 16  # weights of steps are ints with this sum
SHARPNESS = 12.0  # a step at half of the peak weighs exp(-SHARPNESS / 2) of one at the peak
EXCHANGE_RATES = tuple(8.0**exponent for exponent in range(-5, 3))  # relative to the mean rate of the front
WINDOWS = 2  # parts of the backward on which rounds start with their weights, besides equal weights
WORK = 150_000  # values x cuts that the rounds may take in all
MOST_ROUNDS, FEWEST_ROUNDS = 2, 1
CORNERS_UP_TO = 2000  # values of a problem; in a larger one the corners of the front of saved bytes are not tried
DESCENT_WORK = 400_000  # values x simulations that the descents of the staircase may take in all
PATIENCE = 3  # steps down in a row without an improvement, before a descent ends
WALKS = 4  # steps of the staircase above a limit from which descents start
LONGEST_DESCENT = 40
DESCENT_SHARE = 0.02  # the part of the peak that one step down tries to free
REFINEMENTS = 40  # the most simulations while filling


@dataclass(frozen=True)
class Simulated:
    """A solution with its simulation."""

    solution: Solution
    profile: Profile

    @property
    def peak(self) -> int:
        return self.profile.peak

    @property
    def rank(self) -> tuple[int, int, list[int]]:
        return self.solution.time, self.peak, sorted(self.solution.saved)


class PeakFrontier:
    """The trade of peak memory for time. `numbers[k]` is the number in `program` of value k of the original problem.

    `problem` is that of the contraction, or the same within an offer (`OffloadFrontier`). `away` are numbers of values that
    wait on the host in any case.
    """

    def __init__(
        self,
        contraction: Contraction,
        program: Program,
        numbers: Sequence[int],
        problem: Problem,
        away: Collection[int] = (),
    ) -> None:
        self.problem, self.program = problem, program
        self.values = [numbers[value] for value in contraction.values]
        self.free = {numbers[value] for value in contraction.free}
        self.away = self.free.intersection(away)
        self.simulator = Simulator(program)
        self.frontier = Frontier(self.problem)
        self.losses = Losses(self.problem)

    @functools.cached_property
    def fastest(self) -> Simulated:
        return self.simulate(self.frontier.fastest())

    @functools.cached_property
    def staircase(self) -> list[Simulated]:
        return list(_staircase(self._pool()))

    def simulate(self, solution: Solution) -> Simulated:
        away = {self.values[k] for k in solution.offloaded} | self.away
        return Simulated(solution, self.simulator.run({self.values[k] for k in solution.saved} | self.free, away))

    def lowest(self) -> Simulated:
        return self.staircase[0]

    def within(self, limit: int) -> Simulated:
        """The fastest solution found with a peak of at most `limit` bytes; the lowest one if none fits."""
        if self.fastest.peak <= limit:
            return self.fastest
        fitting = sum(step.peak <= limit for step in self.staircase)
        if not fitting:
            return self.lowest()
        above = self.staircase[fitting : fitting + WALKS]
        found = [self._refine(self.staircase[fitting - 1], limit, above[0].solution.time if above else 0)]
        return min([*found, *filter(None, (self._walk(start, limit) for start in above))], key=lambda s: s.rank)

    def _walk(self, start: Simulated, limit: int) -> Simulated | None:
        """The first step down from `start` that fits, filled while no faster than the steps before it."""
        fastest = start.solution.time
        for step in self._descent(start, LONGEST_DESCENT):
            if step.peak <= limit:
                return self._refine(step, limit, fastest)
            fastest = max(fastest, step.solution.time)
        return None

    # -- the pool

    def _pool(self) -> list[Simulated]:
        smallest, fastest = self.frontier.smallest(), self.fastest.solution
        pool = [self.simulate(smallest), self.fastest]
        spread = max(1, smallest.time - fastest.time) / max(1, fastest.kept_bytes - smallest.kept_bytes)
        cuts = len(EXCHANGE_RATES) * (WINDOWS + 1)
        rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, WORK // (len(self.problem) * cuts + 1)))
        pool += [self.simulate(solution) for solution in (*self._corners(), *self._checkpoints(smallest))]
        for exchange in EXCHANGE_RATES:
            pool.append(self.simulate(self.frontier.at(rate_of(exchange * spread))))
            for weights in _starts(len(self.program.backward)):
                pool += self._rounds(rate_of(exchange * spread), weights, rounds, self.fastest)
        return self._descents(list(_staircase(pool)))

    def _corners(self) -> list[Solution]:
        """The corners of the front of saved bytes: they are often good for the peak, too."""
        return self.frontier.corners() if len(self.problem) <= CORNERS_UP_TO else []

    def _checkpoints(self, smallest: Solution) -> Iterator[Solution]:
        """The values that `torch.utils.checkpoint` around equal parts would save: those alive between two parts.

        The parts have about equally many values, and end where the fewest bytes are alive.
        """
        last_reader, forward = list(range(len(self.problem))), set(self.program.forward)
        for value, parents in enumerate(self.problem.parents):
            for parent in parents if self.values[value] in forward else ():
                last_reader[parent] = value
        changes = [0] * (len(self.problem) + 1)
        for value, reader in enumerate(last_reader):
            changes[value] += self.problem.held[value]
            changes[reader] -= self.problem.held[value]
        alive = list(itertools.accumulate(changes))[:-1]
        for parts in (parts for parts in PARTS if 2 * parts <= len(alive)):
            ends = [round(len(alive) * (2 * part + 1) / (2 * parts)) for part in range(parts)]
            places = [min(range(*around), key=alive.__getitem__) for around in itertools.pairwise(ends)]
            between = {v for v, reader in enumerate(last_reader) if any(v <= place < reader for place in places)}
            savable = {value for value in between if self.problem.savable[value]}
            yield self.problem.solution(smallest.saved | savable)

    def _rounds(self, rate: Rate, weights: list[float], rounds: int, start: Simulated) -> Iterator[Simulated]:
        """Repeatedly cut, simulate, and move the weights to the peak."""
        current = start
        for _ in range(rounds):
            solution = self._weighted(weights, current.profile).at(rate)
            current = self.simulate(self.problem.solution(solution.saved, solution.offloaded))
            weights = [(old + new) / 2 for old, new in zip(weights, _at_peak(current.profile), strict=False)]
            yield current

    def _descents(self, starts: list[Simulated]) -> list[Simulated]:
        """The staircase after descents from each start, the lowest first, as far as they improve it."""
        found, left = list(starts), DESCENT_WORK // (len(self.problem) + 1)
        for start in starts:
            patience = PATIENCE
            for step in self._descent(start, min(left, LONGEST_DESCENT)):
                left -= 1
                is_worse = any(s.peak <= step.peak and s.solution.time <= step.solution.time for s in found)
                patience = patience - 1 if is_worse else PATIENCE
                if not patience:
                    break
                found.append(step)
            found = list(_staircase(found))
        return found

    def _descent(self, start: Simulated, steps: int) -> Iterator[Simulated]:
        """Recompute more of the values held across the peak but not used there, least loss of time per byte first."""
        current, barred = start, set()
        for _ in range(steps):
            solution = self._freed(current, barred)
            lower = self.simulate(solution)
            if lower.peak < current.peak:
                current = lower
            else:
                barred |= current.solution.saved - solution.saved
            yield lower

    def _freed(self, current: Simulated, barred: set[int]) -> Solution:
        profile, solution = current.profile, current.solution
        at = profile.backward.index(max(profile.backward)) if max(profile.backward, default=0) >= profile.forward else -1
        held = sorted(solution.saved - solution.offloaded - barred)
        unused = [k for k in held if profile.first[self.values[k]] > at]
        self.losses.move_to(solution)
        ranked = sorted((*self.losses.of(k), k) for k in unused)
        wanted = DESCENT_SHARE * current.peak
        for time, freed, k in ranked:
            if wanted <= 0 or time == math.inf:
                break
            solution = self.problem.solution(solution.saved - {k}, solution.offloaded)
            wanted += freed
        return solution

    def _weighted(self, weights: list[float], profile: Profile) -> Frontier:
        """The problem in which bytes count for each step of the backward while they are alive, with the step's weight."""
        before = [0.0]
        for weight in weights:
            before.append(before[-1] + weight)
        held, state = [], []
        for k, value in enumerate(self.values):
            first, last = profile.first[value], max(0, profile.last(value))
            until, since = before[min(last + 1, len(weights))], before[min(first, len(weights))]
            held.append(self._units(value, until) if self.problem.held[k] else 0)
            state.append(self._units(value, until - since))
        return self.frontier.with_problem(replace(self.problem, held=held, state=state))

    def _units(self, value: int, weight: float) -> int:
        return int(self.program.sizes[value] * weight * WEIGHT_UNITS) // WEIGHT_UNITS

    # -- filling

    def _refine(self, start: Simulated, limit: int, fastest: int) -> Simulated:
        """Save more, best gain per byte first, until it does not fit or would be faster than `fastest`."""
        gains, best, saved = Gains(self.problem, start.solution), start, set(start.solution.saved)
        for count, value in enumerate(gains.best_first(lambda _: True)):
            more = self.simulate(self.problem.solution(saved | {value}, start.solution.offloaded))
            if count == REFINEMENTS or more.peak > limit or more.solution.time < fastest:
                break
            best = more
            saved.add(value)
            gains.save(value)
        return best


def _starts(steps: int) -> Iterator[list[float]]:
    """Initial weights of the steps of the backward: equal ones, and ones mostly on one part. Nothing without steps."""
    if not steps:
        return
    yield [1.0 / steps] * steps
    for window in range(WINDOWS):
        yield [(1.0 if step * WINDOWS // steps == window else 1e-3) * WINDOWS / steps for step in range(steps)]


def _at_peak(profile: Profile) -> list[float]:
    peak = max(1, *profile.backward)
    powers = [math.exp(SHARPNESS * (alive / peak - 1)) for alive in profile.backward]
    total = sum(powers)
    return [power / total for power in powers]


def _staircase(pool: Sequence[Simulated]) -> Iterator[Simulated]:
    """The solutions that are faster than all with a lower peak, by rising peak."""
    best: int | None = None
    for each in sorted(pool, key=lambda s: (s.peak, *s.rank)):
        if best is None or each.solution.time < best:
            best = each.solution.time
            yield each
