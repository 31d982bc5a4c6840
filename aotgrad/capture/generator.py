"""Sees whether a function that is traced moves the random generator otherwise than by drawing from it.

A trace draws nothing, so that seeds and states that the function sets would be lost: `torch.manual_seed`, also within
`torch.random.fork_rng()`, and `torch.set_rng_state`. What the function leaves as it found it is fine:

    with torch.random.fork_rng():        # saves and restores the state
        y = x * 2                        # draws nothing
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx as fx

from aotgrad import op_table
from aotgrad.errors import CaptureError


class WatchedGenerator:
    """Stands for the default generator while a function is traced.

    A state is known by how many draws lead to it from the state at the start: `shift` is by how many it is ahead of the ops
    in the graph, `None` if the state came from elsewhere. Nothing is set in the real generator, which other threads use.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._generator = torch.default_generator
        self._thread = threading.get_ident()
        self._graph = graph
        self._saved: list[tuple[torch.Tensor, int | None]] = []
        self._shift: int | None = 0
        self._draws_before_shift = 0
        self._drew_elsewhere = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def get_state(self) -> torch.Tensor:
        state = self._generator.get_state()
        if self._is_traced():
            self._saved.append((state, None if self._shift is None else self._draws() + self._shift))
        return state

    def set_state(self, state: torch.Tensor) -> Any:
        if not self._is_traced():
            return self._generator.set_state(state)
        self._move_to(next((draws for saved, draws in self._saved if saved is state), None))
        return self

    def manual_seed(self, seed: int) -> Any:
        if not self._is_traced():
            return self._generator.manual_seed(seed)
        self._move_to(None)
        return self

    def seed(self) -> int:
        if not self._is_traced():
            return self._generator.seed()
        self._move_to(None)
        return self._generator.initial_seed()

    @property
    def follows_the_graph(self) -> bool:
        """Whether running the ops of the graph draws the same numbers, and leaves the same state."""
        self._look_at_draws()
        return self._shift == 0 and not self._drew_elsewhere

    def _is_traced(self) -> bool:
        return threading.get_ident() == self._thread

    def _draws(self) -> int:
        return sum(op_table.is_random(node.target) for node in self._graph.nodes)

    def _move_to(self, draws: int | None) -> None:
        self._look_at_draws()
        self._draws_before_shift = self._draws()
        self._shift = None if draws is None else draws - self._draws_before_shift

    def _look_at_draws(self) -> None:
        self._drew_elsewhere |= self._shift != 0 and self._draws() > self._draws_before_shift


@contextlib.contextmanager
def reject_seeding(graph: fx.Graph) -> Iterator[None]:
    """Inside, a function is traced into `graph` that shall only draw from the default generator.

    Raises:
        CaptureError: at the end, if it also sets it, or draws from another one.
    """
    watched, seed = WatchedGenerator(graph), torch.initial_seed()
    torch.random.default_generator = watched  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.random.default_generator = watched._generator  # type: ignore[assignment]
    if torch.initial_seed() != seed or not watched.follows_the_graph:
        raise CaptureError(
            "the function seeds the random generator or sets its state; call torch.manual_seed, torch.set_rng_state and "
            "torch.random.fork_rng outside of the compiled function"
        )
