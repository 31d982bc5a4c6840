"""The observations of one run of a program: losses, gradients and times of its steps.

run = Run("aotgrad")                       # None: eager
model = run.compile(torch.nn.Linear(2, 1))
...
run.step(loss, model)                      # after its backward
run.observations["step 0 gradient weight"]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import aotgrad

Compiled = TypeVar("Compiled", bound=Callable[..., Any])


@dataclass
class Run:
    """One run of a program. Steps are timed from the end of one to the end of the next, without observations and without
    the setup before the first step."""

    backend: str | None
    observations: dict[str, Tensor | None] = field(default_factory=dict)
    wall_s: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start_clocks()

    def compile(self, target: Compiled, **options: Any) -> Compiled:
        """A function compiled with the run's backend, or a module compiled in place."""
        if self.backend is None:
            return target
        if isinstance(target, nn.Module):
            target.compile(backend=self.backend, **options)
            return target  # pyright: ignore[reportReturnType]
        return torch.compile(target, backend=self.backend, **options)

    @contextmanager
    def installed(self) -> Iterator[str | None]:
        """For a framework that compiles by itself: its user's name of the backend. "inductor" is aotgrad inside of it."""
        if self.backend is None or not self.backend.startswith("aotgrad"):
            yield self.backend
        else:
            with aotgrad.install():
                yield "inductor" if self.backend == "aotgrad" else self.backend

    def step(self, loss: Tensor | None, *modules: nn.Module) -> None:
        """Record the end of a step: its loss, and the gradients of the modules' parameters."""
        self.wall_s.append(time.perf_counter() - self._wall)
        self.processor_s.append(time.process_time() - self._processor)
        place = f"step {len(self.wall_s) - 1}"
        if loss is not None:
            self.observe(f"{place} loss", loss)
        for module in modules:
            for name, parameter in module.named_parameters():
                self.observe(f"{place} gradient {name}", parameter.grad)
        self._start_clocks()

    def observe(self, name: str, value: Tensor | None) -> None:
        """Record any other result of the program."""
        if name in self.observations:
            raise ValueError(f"{name!r} was observed before")
        self.observations[name] = None if value is None else value.detach().clone()

    def observe_all(self, name: str, values: Iterable[Tensor | float]) -> None:
        for k, value in enumerate(values):
            self.observe(f"{name} {k}", torch.as_tensor(value))

    @property
    def first_s(self) -> float:
        """The first step, which compiles."""
        return self.wall_s[0]

    @property
    def step_s(self) -> float:
        """A step of the second half, which has nothing to compile if sizes and numbers stay."""
        return statistics.median(self.processor_s[len(self.processor_s) // 2 :])

    def _start_clocks(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()
