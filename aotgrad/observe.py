"""The one hook between stages: verifies, logs, times and records what every stage returns. No stage knows of it.

AOTGRAD_VERIFY=1                                            each stage is checked against its contract
logging.getLogger("aotgrad.stages").setLevel("DEBUG")       each stage is printed, with the time it took
logging.getLogger("aotgrad.passes").setLevel("DEBUG")       so is the graph after each pass

with recorded() as stages:                                  and a program can ask for the texts
    f(x)
stages[0]                                                   Stage(name="capture", text="def captured(...", ...)
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aotgrad import printing, verify
from aotgrad.counters import counters
from aotgrad.ir import GraphHalf, JointGraph
from aotgrad.passes import Pass

log = logging.getLogger("aotgrad.stages")
passes_log = logging.getLogger("aotgrad.passes")


@dataclass(frozen=True)
class Stage:
    """What one stage returned, as text: later stages extend the same graph, so the result itself would not stay."""

    name: str
    text: str
    elapsed_ns: int


_recordings: list[list[Stage]] = []


@contextlib.contextmanager
def recorded() -> Iterator[list[Stage]]:
    """Every stage of everything that is compiled inside, in any thread, in order."""
    stages: list[Stage] = []
    _recordings.append(stages)
    try:
        yield stages
    finally:
        _recordings[:] = [other for other in _recordings if other is not stages]


@dataclass
class Observer:
    """Called with (stage, result) after each stage of one compilation."""

    verify: bool = False
    _last_ns: int = field(default_factory=time.perf_counter_ns)

    def __call__(self, stage: str, result: Any) -> None:
        elapsed_ns = time.perf_counter_ns() - self._last_ns
        if stage in COUNTED:
            counters[COUNTED[stage]] += 1
        if self.verify:
            verify.check(stage, result)
        if _recordings or log.isEnabledFor(logging.DEBUG):
            publish(Stage(stage, printing.text(result), elapsed_ns))
        self._last_ns = time.perf_counter_ns()

    def after_pass(self, place: str, done: Pass, graph: JointGraph | GraphHalf, elapsed_ns: int) -> None:
        """Called between two passes."""
        if self.verify:
            verify.check_pass(place, done.name, graph)
        if passes_log.isEnabledFor(logging.DEBUG):
            text = printing.text(graph)
            passes_log.debug("%s pass %s, %.1f ms\n%s", place, done.name, elapsed_ns / 1e6, text)


LAST_STAGE = "executable"
COUNTED = {LAST_STAGE: "compilations", "small graph": "small_graphs"}
"""The stages that end a compilation, and what counts them."""


def publish(stage: Stage) -> None:
    """Log a stage and hand it to every recording that is open."""
    log.debug("%s, %.1f ms\n%s", stage.name, stage.elapsed_ns / 1e6, stage.text)
    for stages in _recordings:
        stages.append(stage)
