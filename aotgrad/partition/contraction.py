"""Contracts a problem to a smaller one with the same optimal solutions. No torch.

In: a `Problem`. Out: a `Contraction`: a problem of fewer values, and the translation of its solutions.

    h saved or not, a = h + 1, b = sin(a), c = cos(b); the backward reads c
    a and b are read once and are no smaller than c, so saving c beats saving them: {a, b, c} is one value

Three kinds of values leave no choice. A value that costs nothing to save is saved. A value that nothing needs is left out.
A value with one reader is *merged* into it if saving the reader is at least as good, or if the value may not be saved: then
both are recomputed, or neither. At any exchange rate and any limit, an optimal solution remains.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotgrad.partition.problem import NEVER, Problem, Solution


@dataclass(frozen=True)
class Contraction:
    """Value k of `problem` stands for value `values[k]` of `original`; those in `free` are always saved."""

    original: Problem
    problem: Problem
    values: list[int]
    free: frozenset[int]

    @classmethod
    def of(cls, problem: Problem) -> Contraction:
        merging = _Merging(problem)
        for value in range(len(problem)):
            merging.visit(value)
        values = merging.left()
        free = frozenset(value for value in range(len(problem)) if merging.free[value])
        return cls(problem, merging.problem_of(values), values, free)

    def expand(self, solution: Solution) -> Solution:
        """A solution of the contracted problem as one of the original problem, with equal bytes and time."""
        return self.original.solution(self.saved(solution), {self.values[k] for k in solution.offloaded})

    def saved(self, solution: Solution) -> set[int]:
        """The values of the original problem that a solution saves, and all that cost nothing."""
        return {self.values[k] for k in solution.saved} | self.free


class _Merging:
    """A problem during merging. `users` is right for the values that remain; `parents` leaves out free ones."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.free = [s and not h and not t for s, h, t in zip(problem.savable, problem.held, problem.saving, strict=True)]
        self.parents = [[p for p in parents if not self.free[p]] for parents in problem.parents]
        self.rerun, self.state = list(problem.rerun), list(problem.state)
        self.wanted = {value for value in problem.wanted if not self.free[value]}
        self.users: list[set[int]] = [set() for _ in range(len(problem))]
        for value in self._needed():
            for parent in self.parents[value]:
                self.users[parent].add(value)
        self.merged: set[int] = set()

    def _needed(self) -> set[int]:
        """The values that the backward may need. Values that may not be recomputed need no parents."""
        needed, stack = set(self.wanted), list(self.wanted)
        while stack:
            value = stack.pop()
            if self.problem.rerun[value] == NEVER:
                self.parents[value] = []
            for parent in self.parents[value]:
                if parent not in needed:
                    needed.add(parent)
                    stack.append(parent)
        return needed

    def visit(self, value: int) -> None:
        """Merge the value into its only reader if an optimal solution remains."""
        if value in self.wanted or len(self.users[value]) != 1:
            return
        (user,) = self.users[value]
        if not self._is_worse(value, user):
            return
        self.merged.add(value)
        self.parents[user].remove(value)
        self.state[user] += self.state[value]
        self.rerun[user] = NEVER if self.rerun[value] == NEVER else self.rerun[user] + self.rerun[value]
        for parent in self.parents[value] if self.rerun[user] != NEVER else ():
            self.users[parent].add(user)
            if parent not in self.parents[user]:
                self.parents[user].append(parent)
        for parent in self.parents[value]:
            self.users[parent].discard(value)
        if self.rerun[user] == NEVER:
            self._detach(user)

    def _detach(self, value: int) -> None:
        """Remove the parents of a value that may not be recomputed."""
        for parent in self.parents[value]:
            self.users[parent].discard(value)
        self.parents[value] = []

    def _is_worse(self, value: int, user: int) -> bool:
        """Whether saving `value` is never better than saving `user`, its only reader."""
        problem = self.problem
        if not problem.savable[value]:
            return True
        if not problem.savable[user] or self.rerun[value] == NEVER:
            return False
        if problem.transfer and not self._travels_as_well(value, user):
            return False
        slower = problem.saving[user] <= problem.saving[value] + self.rerun[user]
        return slower and problem.held[user] <= problem.held[value] + self.state[user]

    def _travels_as_well(self, value: int, user: int) -> bool:
        """Whether offloading `user` takes the link no longer than offloading `value`."""
        mine, its = self.problem.transfer[value], self.problem.transfer[user]
        return mine == NEVER or NEVER < its <= mine

    def left(self) -> list[int]:
        needed = (v for v in range(len(self.problem)) if v in self.wanted or self.users[v])
        return [value for value in needed if value not in self.merged and not self.free[value]]

    def problem_of(self, values: list[int]) -> Problem:
        problem, number = self.problem, {value: k for k, value in enumerate(values)}
        return Problem(
            held=[problem.held[value] for value in values],
            saving=[problem.saving[value] for value in values],
            savable=[problem.savable[value] for value in values],
            rerun=[self.rerun[value] for value in values],
            state=[self.state[value] for value in values],
            parents=[sorted(number[parent] for parent in self.parents[value]) for value in values],
            wanted=sorted(number[value] for value in self.wanted),
            transfer=[problem.transfer[value] for value in values] if problem.transfer else [],
            hidden=problem.hidden,
            host=problem.host,
        )
