"""Which values to save and which to recompute, as a problem on ints. No torch.

In: a `Problem`, which lists the values that a backward may need, and a set of saved values. Out: a `Solution` with its
bytes and its units of time.

    problem = Problem(held=[0, 8, 8], saving=[0, 0, 0], rerun=[NEVER, 2, 2], ..., parents=[[], [0], [1]], wanted=[2])
    problem.solution({0})           keeps 0 bytes, recomputes 1 and 2, 4 units of time
    problem.solution({2})           keeps 8 bytes, recomputes nothing

A value is available in the backward if it is saved, or if it is recomputed and its parents are available. Values are in
topological order.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

NEVER = -1
"""The `rerun` time of a value that may not be recomputed."""


@dataclass(frozen=True)
class Problem:
    """Each list but `wanted` has one entry for each value.

    Attributes:
        held: bytes that saving it keeps alive.
        saving: time that saving it takes.
        savable: whether it may be saved.
        rerun: time that recomputing it takes, or `NEVER`.
        state: bytes that must be recorded so that it can be recomputed.
        parents: the values that computing it reads.
        wanted: the values that the backward reads.
    """

    held: list[int]
    saving: list[int]
    savable: list[bool]
    rerun: list[int]
    state: list[int]
    parents: list[list[int]]
    wanted: list[int]

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

    def solution(self, saved: Collection[int]) -> Solution:
        """The solution that saves those of `saved` that are needed."""
        needed = self.needed(saved)
        kept = frozenset(value for value in needed if value in saved)
        recomputed = frozenset(needed - kept)
        kept_bytes = sum(self.held[value] for value in kept) + sum(self.state[value] for value in recomputed)
        time = sum(self.saving[value] for value in kept) + sum(self.rerun[value] for value in recomputed)
        return Solution(kept, recomputed, kept_bytes, time)

    def is_legal(self, solution: Solution) -> bool:
        """Whether each value may be saved or recomputed as the solution does."""
        may_rerun = all(self.rerun[value] != NEVER for value in solution.recomputed)
        return may_rerun and all(self.savable[value] for value in solution.saved)


@dataclass(frozen=True)
class Solution:
    """The values that are saved, and those that are recomputed. `kept_bytes` includes recorded states."""

    saved: frozenset[int]
    recomputed: frozenset[int]
    kept_bytes: int
    time: int

    @property
    def rank(self) -> tuple[int, int, list[int]]:
        """Smaller for the better of two solutions: less time, then fewer bytes, then the order of values."""
        return self.time, self.kept_bytes, sorted(self.saved)
