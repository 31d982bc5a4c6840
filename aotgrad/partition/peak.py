"""A limit on the peak of memory, rather than on what is saved. No torch.

In: a contracted problem, the `Program` that it is about and a limit. Out: a `Solution` of the former whose simulated peak is
within the limit.

Saved bytes are not the peak: the backward holds its own values beside them, and what it makes again takes memory too. But
at each step of the backward the bytes alive are a sum over the values of the forward, so a minimum cut can weigh them: a
saved value is alive until its last use, one that runs again from its first use to its last. With a weight on each step,
the cut minimizes the weighted sum of the bytes alive at all steps. A weight on the steps near the peak lowers the peak;
the weights are moved there round by round (the method of multiplicative weights: S. Arora, E. Hazan and S. Kale, "The
Multiplicative Weights Update Method", 2012).

The rounds at each of a few exchange rates give a pool of solutions, of which each that is neither slower nor higher than
another is on the *staircase*. From each of its steps a *descent* runs more again of what is held across the peak, as long as
that finds new steps.

A limit that the fastest solution of all fits into needs none of this. Another takes the fastest step that fits, or a
descent from one of the next ones that do not, as soon as it fits. Both are filled: more is saved while that fits, and while
it is no faster than the next step or what the descent came from. So a higher limit never takes more time: what a lower one
gives is a step, or later on the same descent.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from aotgrad.partition.contraction import Contraction
from aotgrad.partition.filling import Gains, Losses
from aotgrad.partition.frontier import Frontier, Rate
from aotgrad.partition.liveness import Profile, Program, Simulator
from aotgrad.partition.problem import Solution

PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # into which the forward is cut for checkpoints to start from
WEIGHT_UNITS = 1 << 16  # weights of steps are ints: this much in all
SHARPNESS = 12.0  # a step at half of the peak weighs exp(-SHARPNESS / 2) of one at the peak
EXCHANGE_RATES = tuple(8.0**exponent for exponent in range(-5, 3))  # relative to the whole front's own
WINDOWS = 2  # parts of the backward in which the rounds start, besides all of it
WORK = 150_000  # values x cuts that the rounds may take in all
MOST_ROUNDS, FEWEST_ROUNDS = 2, 1
CORNERS_UP_TO = 2000  # values of a problem, of which all corners of the front of saved bytes are tried
DESCENT_WORK = 400_000  # values x simulations that the descents of the staircase may take in all
PATIENCE = 3  # steps down in a row that may be no better than what is known
WALKS = 4  # steps of the staircase above a limit from which it is approached
LONGEST_DESCENT = 40
DESCENT_SHARE = 0.02  # of the peak, what one step down tries to free
REFINEMENTS = 40  # simulations that saving more may take


@dataclass(frozen=True)
class Simulated:
    """A solution with what its simulation says."""

    solution: Solution
    profile: Profile

    @property
    def peak(self) -> int:
        return self.profile.peak

    @property
    def rank(self) -> tuple[int, int, list[int]]:
        return self.solution.time, self.peak, sorted(self.solution.saved)


class PeakFrontier:
    """The trade of peak memory for time. `numbers` are those in `program` of the values of the original problem."""

    def __init__(self, contraction: Contraction, program: Program, numbers: Sequence[int]) -> None:
        self.problem, self.program = contraction.problem, program
        self.values = [numbers[value] for value in contraction.values]
        self.free = {numbers[value] for value in contraction.free}
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
        return Simulated(solution, self.simulator.run({self.values[k] for k in solution.saved} | self.free))

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
        """The first step down from `start` that fits, and more saved as long as the step before it is not passed."""
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
            pool.append(self.simulate(self.frontier.at(_rate(exchange * spread))))
            for weights in _starts(len(self.program.backward)):
                pool += self._rounds(_rate(exchange * spread), weights, rounds, self.fastest)
        return self._descents(list(_staircase(pool)))

    def _corners(self) -> list[Solution]:
        """What is best for saved bytes is often good for the peak."""
        return self.frontier.corners() if len(self.problem) <= CORNERS_UP_TO else []

    def _checkpoints(self, smallest: Solution) -> Iterator[Solution]:
        """What `torch.utils.checkpoint` around equal parts would save, besides what must be: what lives between two parts.

        Each part ends where the fewest bytes do, near an equal share of the values.
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
        """Cut, simulate, move the weights to the peak, and again."""
        current = start
        for _ in range(rounds):
            solution = self._weighted(weights, current.profile).at(rate)
            current = self.simulate(self.problem.solution(solution.saved))
            weights = [(old + new) / 2 for old, new in zip(weights, _at_peak(current.profile), strict=False)]
            yield current

    def _descents(self, starts: list[Simulated]) -> list[Simulated]:
        """Walks down from each start, the lowest first, as far as they lead to something better."""
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
        """Run more again of what is held across the peak but not used there, least loss of time per byte first."""
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
        held = sorted(solution.saved - barred)
        unused = [k for k in held if profile.first[self.values[k]] > at]
        self.losses.move_to(solution)
        ranked = sorted((*self.losses.of(k), k) for k in unused)
        wanted = DESCENT_SHARE * current.peak
        for time, freed, k in ranked:
            if wanted <= 0 or time == math.inf:
                break
            solution = self.problem.solution(solution.saved - {k})
            wanted += freed
        return solution

    def _weighted(self, weights: list[float], profile: Profile) -> Frontier:
        """The problem in which bytes count as long as they are alive in the backward, each step with its weight."""
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

    # -- what a limit leaves

    def _refine(self, start: Simulated, limit: int, fastest: int) -> Simulated:
        """Save more, best gain per byte first, until that does not fit any more or would be faster than `fastest`."""
        gains, best, saved = Gains(self.problem, start.solution), start, set(start.solution.saved)
        for count, value in enumerate(gains.best_first(lambda _: True)):
            more = self.simulate(self.problem.solution(saved | {value}))
            if count == REFINEMENTS or more.peak > limit or more.solution.time < fastest:
                break
            best = more
            saved.add(value)
            gains.save(value)
        return best


def _rate(time_per_byte: float) -> Rate:
    """An exchange rate as a fraction of small ints: so many units of time are worth one byte."""
    if time_per_byte >= 1 / 64:
        return Rate(max(1, round(time_per_byte * 4096)), 4096)
    return Rate(4096, round(4096 / time_per_byte))


def _starts(steps: int) -> Iterator[list[float]]:
    """Weights of the steps of the backward to start from: all alike, and mostly on one part. None if it has no steps."""
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
    """The solutions that are faster than all with a lower peak, from the lowest peak on."""
    best: int | None = None
    for each in sorted(pool, key=lambda s: (s.peak, *s.rank)):
        if best is None or each.solution.time < best:
            best = each.solution.time
            yield each
