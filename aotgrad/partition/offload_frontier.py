"""The trade of memory for time with a third choice: a value waits on the host. No torch.

In: a `Problem` with times of transfer, the `hidden` time that the link may take for nothing, and the room of the host.
Out: `Solution`s, as `Frontier` has.

    problem = Problem(held=[8, 8], ..., transfer=[6, 6], hidden=6)
    OffloadFrontier(problem).within(8)      offloads the first value and keeps the second

If time on the link had a price, each choice would be one minimum cut (`Frontier`): offloading costs its transfer, and saving
costs whichever of the two is less. The device waits for what exceeds the hidden time, so the price is between 0 and that of
other time. It is found by bisection: the lowest price at which all transfers are hidden (the multiplier of a Lagrangian
relaxation of the link; H. Everett, "Generalized Lagrange Multiplier Method", 1963). Just below it, a few too many are
offloaded; of these, the link carries those with the most bytes per time, and early ones first: they have the most time.

What the link carries for nothing is an *offer*. Within one offer, offloading is free or costs its full time, and all that
`Frontier` proves holds: its solutions are exact at a rate, and more bytes never cost more time. There is one offer for each
of a few exchange rates, an empty one, and the problem without offloading. They do not depend on the limit, so the best of
them keeps this property, and is never slower than recomputing alone.

The relaxation also gives a lower bound of the time within a limit (`bound`), for any size of the host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from aotgrad.partition.frontier import Frontier, Rate, rate_of
from aotgrad.partition.problem import PRICES, Problem, Solution

OFFER_RATES = tuple(8.0**exponent for exponent in range(-2, 2))  # of the offers, relative to the mean rate of the front
DENSITIES = 8  # levels of transfer time per byte: within one, early values come first


class OffloadFrontier:
    """The solutions of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.plain = Frontier(problem.without_link())

    @functools.cached_property
    def offers(self) -> list[Frontier]:
        """The problem without offloading, and with each offer."""
        rates = [rate_of(exchange * self._mean_rate()) for exchange in OFFER_RATES]
        offers = dict.fromkeys([frozenset(), *map(self.offer, rates)])
        return [self.plain, *(self.plain.with_problem(self.problem.carrying(offer)) for offer in offers)]

    @property
    def largest_offer(self) -> Problem:
        """The problem with the offer that frees most bytes."""

        def carried(problem: Problem) -> int:
            return sum(held for held, time in zip(problem.held, problem.transfer, strict=False) if time == 0)

        return max((offer.problem for offer in self.offers), key=carried)

    def at(self, rate: Rate) -> Solution:
        """The best solution found at one exchange rate."""
        own = self.plain.with_problem(self.problem.carrying(self.offer(rate)))
        return self._best([own, *self.offers], lambda frontier: frontier.at(rate), rate.cost)

    def smallest(self) -> Solution:
        """The fewest bytes on the device, and among those the least time."""
        return self._best(self.offers, Frontier.smallest, lambda found: (found.kept_bytes, found.time))

    def fastest(self) -> Solution:
        """The least time, and among those the fewest bytes."""
        return self._best(self.offers, Frontier.fastest, lambda found: (found.time, found.kept_bytes))

    def within(self, limit: int) -> Solution:
        """The fastest solution found with at most `limit` bytes; the smallest one if none fits."""
        smallest = self.smallest()
        if smallest.kept_bytes >= limit:
            return smallest
        fitting = [offer for offer in self.offers if offer.smallest().kept_bytes <= limit]
        return self._best(fitting, lambda frontier: frontier.within(limit), lambda found: found.rank)

    def at_most(self, rate: Rate, limit: int) -> Solution:
        """The best solution found at one exchange rate, or the fastest one with at most `limit` bytes if it has more."""
        found = self.at(rate)
        if found.kept_bytes <= limit:
            return found

        def excess_and_rank(solution: Solution) -> object:
            return (max(solution.kept_bytes, limit), *solution.rank)

        return self._best(self.offers, lambda frontier: frontier.at_most(rate, limit), excess_and_rank)

    def corners(self) -> list[Solution]:
        """The corners of the hulls of all offers, without those that another one beats, from the fewest bytes on."""
        found = [self._in_truth(corner) for offer in self.offers for corner in offer.corners()]
        return list(_improvements(found))

    def bound(self, limit: int) -> float:
        """A lower bound of the time within `limit` bytes: the highest of the bounds at all prices."""
        known: dict[int, float] = {}

        def height(price: int) -> float:
            if price not in known:
                priced = self.plain.with_problem(self.problem.priced(price))
                known[price] = (priced.bound(limit) - price * self.problem.hidden) / PRICES
            return known[price]

        return height(_top(height, PRICES))

    def offer(self, rate: Rate) -> frozenset[int]:
        """What the link should carry while the device computes, if bytes are worth as much as `rate` says."""
        low, high = 0, PRICES
        solution = self._at_price(rate, low)
        if self._is_hidden(solution):
            return solution.offloaded
        while high - low > 1:
            middle = (low + high) // 2
            found = self._at_price(rate, middle)
            if self._is_hidden(found):
                high = middle
            else:
                low, solution = middle, found
        return self._carried(solution.offloaded)

    def _at_price(self, rate: Rate, price: int) -> Solution:
        found = self.plain.with_problem(self.problem.priced(price)).at(Rate(PRICES * rate.bytes, rate.time))
        return self.problem.solution(found.saved, found.offloaded)

    def _is_hidden(self, solution: Solution) -> bool:
        return solution.transfer <= self.problem.hidden and self.problem.fits_host(solution.offloaded)

    def _carried(self, values: frozenset[int]) -> frozenset[int]:
        """The first of `values`, by time per byte and then by position, that are hidden and that the host has room for."""
        problem, carried = self.problem, set()
        time, room = problem.hidden, problem.host
        for value in sorted(values, key=lambda value: (self._density(value), value)):
            if problem.transfer[value] <= time and problem.held[value] <= room:
                carried.add(value)
                time, room = time - problem.transfer[value], room - problem.held[value]
        return frozenset(carried)

    def _density(self, value: int) -> int:
        return DENSITIES * self.problem.transfer[value] // max(1, self.problem.held[value])

    def _mean_rate(self) -> float:
        """Time per byte between the ends of the front without offloading."""
        smallest, fastest = self.plain.smallest(), self.plain.fastest()
        return max(1, smallest.time - fastest.time) / max(1, fastest.kept_bytes - smallest.kept_bytes)

    def _best(
        self, frontiers: list[Frontier], find: Callable[[Frontier], Solution], cost: Callable[[Solution], object]
    ) -> Solution:
        """The best of what is found with each offer, as a solution of the problem itself."""
        return self._in_truth(min(map(find, frontiers), key=cost))  # type: ignore[arg-type, type-var]

    def _in_truth(self, solution: Solution) -> Solution:
        """A solution within an offer as one of the problem: more may be hidden than the offer says."""
        return self.problem.solution(solution.saved, solution.offloaded)


AnyFrontier = Frontier | OffloadFrontier


def frontier_of(problem: Problem) -> AnyFrontier:
    """The solutions of a problem, with offloading if it allows any."""
    return OffloadFrontier(problem) if problem.transfer else Frontier(problem)


def _improvements(solutions: list[Solution]) -> Iterator[Solution]:
    """The solutions that are faster than all with fewer bytes, by rising bytes."""
    best: int | None = None
    for each in sorted(solutions, key=lambda s: (s.kept_bytes, *s.rank)):
        if best is None or each.time < best:
            best = each.time
            yield each


def _top(height: Callable[[int], float], last: int) -> int:
    """The place from 0 to `last` where a concave function is highest."""
    low, high = 0, last
    while low < high:
        middle = (low + high) // 2
        if height(middle) < height(middle + 1):
            low = middle + 1
        else:
            high = middle
    return low
