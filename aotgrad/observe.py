"""The one hook between stages: verifies, logs and times what every stage returns. No stage knows of it."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

from aotgrad import printing, verify
from aotgrad.counters import counters

log = logging.getLogger("aotgrad.stages")


@dataclass
class Observer:
    """Called with (stage, result) after each stage. `elapsed_ns` holds the time that each stage took."""

    verify: bool = False
    elapsed_ns: dict[str, int] = field(default_factory=dict)
    _last_ns: int = field(default_factory=time.perf_counter_ns)

    def __call__(self, stage: str, result: Any) -> None:
        self.elapsed_ns[stage] = time.perf_counter_ns() - self._last_ns
        if stage == "plan":
            counters["compilations"] += 1
        if self.verify:
            verify.check(stage, result)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s\n%s", stage, printing.text(result))
        self._last_ns = time.perf_counter_ns()
