"""Which values to save and which to recompute, as a problem on ints. No torch.

In: a `Problem`, which lists the values that a backward may need, and a set of saved values. Out: a `Solution` with its
bytes and its units of time.

    problem = Problem(held=[0, 8, 8], saving=[0, 0, 0], rerun=[NEVER, 2, 2], ..., parents=[[], [0], [1]], wanted=[2])
    problem.solution({0})           keeps 0 bytes, recomputes 1 and 2, 4 units of time
    problem.solution({2})           keeps 8 bytes, recomputes nothing
    problem.solution({2}, {2})      offloads 2: keeps 0 bytes, recomputes nothing, occupies the link

A value is available in the backward if it is saved, or if it is recomputed and its parents are available. A saved value
may be *offloaded*: it waits in the memory of the host, and a link carries it there and back while the device computes.
What the link carries beyond the `hidden` time, the device waits for. Values are in topological order.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

NEVER = -1
"""The `rerun` time of a value that may not be recomputed, and the `transfer` time of one that may not be offloaded."""

PRICES = 64
"""A unit of time has so many parts; one on the link costs some of them, see `Problem.priced`."""


@dataclass(frozen=True)
class Problem:
    """Each list but `wanted` has one entry for each value; `transfer` is empty if nothing may be offloaded.

    Attributes:
        held: bytes that saving it keeps alive.
        saving: time that saving it takes.
        savable: whether it may be saved.
        rerun: time that recomputing it takes, or `NEVER`.
        state: bytes that must be recorded so that it can be recomputed.
        parents: the values that computing it reads.
        wanted: the values that the backward reads.
        transfer: time on the link, there and back, if it is offloaded, or `NEVER`.
        hidden: time that the link may take while the device computes.
        host: bytes that the host has room for.
    """

    held: list[int]
    saving: list[int]
    savable: list[bool]
    rerun: list[int]
    state: list[int]
    parents: list[list[int]]
    wanted: list[int]
    transfer: list[int] = field(default_factory=list)
    hidden: int = 0
    host: float = math.inf

    def __len__(self) -> int:
        return len(self.held)

    def needed(self, saved: Collection[int]) -> set[int]:
        """The values that the backward reads, and their ancestors up to saved values."""
        needed, stack = set(self.wanted), list(self.wanted)
        while stack:
            value = stack.pop()
            for parent in self.parents[value] if value not in saved else ():
                if parent not in needed:
                    needed.add(parent)
                    stack.append(parent)
        return needed

    def solution(self, saved: Collection[int], offloaded: Collection[int] = ()) -> Solution:
        """The solution that saves those of `saved` that are needed; those of them in `offloaded` on the host."""
        needed = self.needed(saved)
        kept = frozenset(value for value in needed if value in saved)
        away = kept.intersection(offloaded)
        recomputed = frozenset(needed - kept)
        kept_bytes = sum(self.held[value] for value in kept - away) + sum(self.state[value] for value in recomputed)
        time = sum(self.saving[value] for value in kept - away) + sum(self.rerun[value] for value in recomputed)
        transfer = sum(self.transfer[value] for value in away)
        return Solution(kept, recomputed, kept_bytes, time + max(0, transfer - self.hidden), away, transfer)

    def is_legal(self, solution: Solution) -> bool:
        """Whether each value may be saved, offloaded or recomputed as the solution does, and the host has room."""
        may_rerun = all(self.rerun[value] != NEVER for value in solution.recomputed)
        may_leave = all(self.transfer[value] != NEVER for value in solution.offloaded) and self.fits_host(solution.offloaded)
        return may_rerun and may_leave and all(self.savable[value] for value in solution.saved)

    def fits_host(self, offloaded: Collection[int]) -> bool:
        return sum(self.held[value] for value in offloaded) <= self.host

    def without_link(self) -> Problem:
        """The problem in which nothing may be offloaded."""
        return replace(self, transfer=[], hidden=0, host=math.inf)

    def priced(self, price: int) -> Problem:
        """The problem in which nothing is hidden and times are counted in parts: a unit on the link costs `price` parts."""

        def scaled(times: list[int], factor: int) -> list[int]:
            return [time if time == NEVER else time * factor for time in times]

        rerun, saving = scaled(self.rerun, PRICES), scaled(self.saving, PRICES)
        return replace(self, rerun=rerun, saving=saving, transfer=scaled(self.transfer, price), hidden=0, host=math.inf)

    def carrying(self, values: Collection[int]) -> Problem:
        """The problem in which the link carries `values` for nothing. The device waits for others, if the host has room."""
        rest = self.transfer if self.host == math.inf else [NEVER] * len(self)
        transfer = [0 if value in values else time for value, time in enumerate(rest)]
        return replace(self, transfer=transfer, hidden=0, host=math.inf)


@dataclass(frozen=True)
class Solution:
    """The values that are saved, and those that are recomputed.

    Attributes:
        kept_bytes: on the device, with recorded states.
        time: of the device: what it recomputes, copies and waits for.
        offloaded: the saved values that wait on the host.
        transfer: time on the link.
    """

    saved: frozenset[int]
    recomputed: frozenset[int]
    kept_bytes: int
    time: int
    offloaded: frozenset[int] = frozenset()
    transfer: int = 0

    @property
    def rank(self) -> tuple[int, int, list[int]]:
        """Smaller for the better of two solutions: less time, then fewer bytes, then the order of values."""
        return self.time, self.kept_bytes, sorted(self.saved)
