"""What to save and what to run again, as a problem on ints: no torch, no graph of ops.

In: a `Problem`, which lists the values that a backward may need, and a set of saved values. Out: a `Solution` with what
it keeps, in bytes, and what it costs, in units of time.

    problem = Problem(held=[0, 8, 8], saving=[0, 0, 0], rerun=[NEVER, 2, 2], ..., parents=[[], [0], [1]], wanted=[2])
    problem.solution({0})           keeps 0 bytes, runs 1 and 2 again, 4 units of time
    problem.solution({2})           keeps 8 bytes, runs nothing again

A value is available in the backward if it is saved, or if it runs again and its parents are available. Values are
numbered so that parents come first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

NEVER = -1
"""The `rerun` time of a value that may not run again."""


@dataclass(frozen=True)
class Problem:
    """One entry a value in each list but `wanted`.

    Attributes:
        held: bytes that saving it keeps alive.
        saving: time that saving it takes.
        savable: whether it may be saved.
        rerun: time that running it again takes, or `NEVER`.
        state: bytes that must be recorded so that it can run again.
        parents: the values that running it reads.
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
        """What the backward reads, and what that is made of, as far as the saved values."""
        needed, stack = set(self.wanted), list(self.wanted)
        while stack:
            value = stack.pop()
            for parent in self.parents[value] if value not in saved else ():
                if parent not in needed:
                    needed.add(parent)
                    stack.append(parent)
        return needed

    def solution(self, saved: Collection[int]) -> Solution:
        """The bytes and the time of saving `saved`; those of them that nobody needs are left out."""
        needed = self.needed(saved)
        kept = frozenset(value for value in needed if value in saved)
        again = frozenset(needed - kept)
        kept_bytes = sum(self.held[value] for value in kept) + sum(self.state[value] for value in again)
        time = sum(self.saving[value] for value in kept) + sum(self.rerun[value] for value in again)
        return Solution(kept, again, kept_bytes, time)

    def is_legal(self, solution: Solution) -> bool:
        """Whether nothing runs again that may not, and nothing is saved that may not."""
        may_rerun = all(self.rerun[value] != NEVER for value in solution.again)
        return may_rerun and all(self.savable[value] for value in solution.saved)


@dataclass(frozen=True)
class Solution:
    """`saved` and `again` are disjoint: what is kept, and what runs again. `kept_bytes` includes recorded states."""

    saved: frozenset[int]
    again: frozenset[int]
    kept_bytes: int
    time: int

    @property
    def rank(self) -> tuple[int, int, list[int]]:
        """Of two solutions that fit, the better one is the smaller: faster, then smaller, then by the values' order."""
        return self.time, self.kept_bytes, sorted(self.saved)
