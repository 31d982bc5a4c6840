"""Follows how a traced function moves the random generator.

A trace draws nothing, so seeds and states that the function sets would be lost: `torch.manual_seed`, also within
`torch.random.fork_rng()`, and `torch.set_rng_state`. A state that the function has read is identified by the draws that led
to it. If the function returns to it, as a checkpoint does in the backward, the next ops draw the same numbers:

    state = torch.get_rng_state()
    first = torch.rand(3)                 its node has meta["draw"] = 0
    torch.set_rng_state(state)
    again = torch.rand(3)                 this one, too: a pass merges the two

A function that is not traced may draw, too. It cannot start from a state that an earlier draw has used.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.eager_calls.ops import CALL, called_by
from aotgrad.errors import CaptureError
from aotgrad.graph import op_table

DRAW = "draw"
"""Random nodes with the same number under this key of `meta` draw the same numbers."""


class WatchedGenerator(torch_compat.StandInGenerator):
    """Replaces the default generator of one device while a function or its backward is traced.

    A state is identified by the draws that lead to it: a timeline of random nodes and a position in it. The position is
    `None` if the state came from elsewhere. Forward and backward have a timeline each. The real generator is left alone,
    since other threads use it.
    """

    def __init__(self, real: torch.Generator, graph: fx.Graph) -> None:
        self._thread = threading.get_ident()
        self._graph = graph
        self._numbers = itertools.count()
        self._saved: list[tuple[torch.Tensor, list[fx.Node], int | None]] = []
        self._seen: set[fx.Node] = set()
        self._strays = False
        self._repeated_calls: list[fx.Node] = []
        self.begin()

    def begin(self) -> None:
        """Start a new timeline."""
        self._seen.update(self._graph.nodes)
        self._timeline: list[fx.Node] = []
        self._position: int | None = 0
        self._newest = self._timeline

    def initial_seed(self) -> int:
        self._strays |= self._is_traced()
        return self.real.initial_seed()

    def get_state(self) -> torch.Tensor:
        state = self.real.get_state()
        if self._is_traced():
            self._look_at_draws()
            self._saved.append((state, self._timeline, self._position))
        return state

    def set_state(self, state: torch.Tensor) -> Any:
        if not self._is_traced():
            return self.real.set_state(state)
        found = ((timeline, position) for saved, timeline, position in self._saved if saved is state)
        self._move_to(*next(found, (self._timeline, None)))
        return self

    def manual_seed(self, seed: int) -> Any:
        if not self._is_traced():
            return self.real.manual_seed(seed)
        self._move_to(self._timeline, None)
        return self

    def seed(self) -> int:
        if not self._is_traced():
            return self.real.seed()
        self._move_to(self._timeline, None)
        return self.real.initial_seed()

    @property
    def follows_the_graph(self) -> bool:
        """Whether running the ops of the graph draws the same numbers and leaves the same state."""
        self._look_at_draws()
        return self._timeline is self._newest and self._position == len(self._newest) and not self._strays

    def reject_states(self, values: Iterable[Any]) -> None:
        """Raise if a value is a generator state: it would differ in another call.

        Raises:
            CaptureError
        """
        states = {id(state) for state, *_ in self._saved}
        if any(id(value) in states for value in values):
            reject_state()

    def reject_repeated_calls(self) -> None:
        """Raise if a function that is not traced repeats a draw, or its draw is repeated.

        Raises:
            CaptureError
        """
        if self._repeated_calls:
            name = called_by(self._repeated_calls[0]).invocation.name
            raise CaptureError(
                f"{name}, which is not traced, draws random numbers, and torch.utils.checkpoint, or a state of the random "
                "generator that is set, repeats the draw; call it outside of the checkpoint, or draw outside and pass the "
                "numbers"
            )

    def _is_traced(self) -> bool:
        return threading.get_ident() == self._thread

    def _move_to(self, timeline: list[fx.Node], position: int | None) -> None:
        self._look_at_draws()
        self._timeline, self._position = timeline, position

    def _look_at_draws(self) -> None:
        """Record the draws since the last look."""
        for node in self._graph.nodes:
            if node not in self._seen and draws_on(node, self.device):
                self._seen.add(node)
                self._note(node)

    def _note(self, node: fx.Node) -> None:
        if self._position is None:
            self._strays = True
            return
        if self._position < len(self._timeline):
            self._repeated_calls += (each for each in (node, self._timeline[self._position]) if each.target is CALL)
            node.meta[DRAW] = self._timeline[self._position].meta.setdefault(DRAW, next(self._numbers))
        else:
            self._strays |= self._timeline is not self._newest
            self._timeline.append(node)
        self._position += 1


def draws_on(node: fx.Node, device: torch.device) -> bool:
    """Whether an op draws random numbers from the default generator of a device."""
    if node.target is CALL:
        return device in called_by(node).draws
    return op_table.is_random(node.target) and op_table.drawing_device(node) == device


class WatchedGenerators:
    """The default generators of all devices in use, while a function or its backward is traced."""

    def __init__(self, graph: fx.Graph) -> None:
        self._each = [WatchedGenerator(real, graph) for real in torch_compat.default_generators()]

    def begin(self) -> None:
        """Start new timelines."""
        for generator in self._each:
            generator.begin()

    def reject_states(self, values: Sequence[Any]) -> None:
        """See `WatchedGenerator.reject_states`."""
        for generator in self._each:
            generator.reject_states(values)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Inside, these replace the default generators.

        Raises:
            CaptureError: at the end, if the function did more than draw from them.
        """
        seeds = [generator.real.initial_seed() for generator in self._each]
        with torch_compat.replaced_generators(self._each):
            yield
        for generator in self._each:
            generator.reject_repeated_calls()
        is_seeded = [generator.real.initial_seed() for generator in self._each] != seeds
        if is_seeded or not all(generator.follows_the_graph for generator in self._each):
            reject_state()


def reject_state() -> NoReturn:
    """Raises CaptureError."""
    raise CaptureError(
        "the function seeds the random generator or sets its state, or computes with it; call torch.manual_seed, "
        "torch.set_rng_state, torch.random.fork_rng and torch.get_rng_state outside of the compiled function"
    )
