"""The state of the random generators, and the ops that run other ops from a state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch._prims.rng_prims

run_and_save_rng_state = torch._prims.rng_prims.run_and_save_rng_state
"""`(op, *args) -> (state of the generator before, op(*args))`, an op of graphs, which Inductor calls unchanged."""

run_with_rng_state = torch._prims.rng_prims.run_with_rng_state
"""`(state, op, *args) -> op(*args)` with the generator in that state; leaves the generator as it was."""


RANDOM_STATE_BYTES = {"cpu": 5056, "cuda": 16}
"""The size of a generator's state, for device types whose state can be set."""


def random_state(device_types: Sequence[str]) -> Any:
    """The state of the random generators, to rerun the same random ops."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if "cuda" in device_types:
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


@contextlib.contextmanager
def random_state_of(state: Any) -> Iterator[None]:
    """Inside, the random generators start from `state`; restores them afterwards. `None` changes nothing."""
    if state is None:
        yield
        return
    with torch.random.fork_rng(devices=range(len(state.get("cuda", ())))):
        torch.set_rng_state(state["cpu"])
        if "cuda" in state:
            torch.cuda.set_rng_state_all(state["cuda"])
        yield


def device_types_that_draw() -> tuple[str, ...]:
    """The device types, besides the CPU, whose generators may have been used."""
    return ("cuda",) if torch.cuda.is_initialized() else ()


class RandomReplay:
    """Runs random ops in advance: each part starts where the last one ended, and the generators do not move."""

    def __init__(self) -> None:
        self.states: list[torch.Tensor] | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        generators = (torch.default_generator, *torch.cuda.default_generators)
        before = [generator.get_state() for generator in generators]
        for generator, state in zip(generators, self.states or before, strict=True):
            generator.set_state(state)
        try:
            yield
        finally:
            self.states = [generator.get_state() for generator in generators]
            for generator, state in zip(generators, before, strict=True):
                generator.set_state(state)
