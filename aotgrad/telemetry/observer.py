"""The one hook between stages: verifies, logs, times and records the result of every stage. Stages do not know it.

AOTGRAD_VERIFY=1                                            each stage is checked against its contract
AOTGRAD_LOGS=joint,partition                                stages are printed, with the time they took (`telemetry/logs.py`)
logging.getLogger("aotgrad.stages").setLevel("DEBUG")       every stage is logged, `aotgrad.stages.joint` one of them
logging.getLogger("aotgrad.passes").setLevel("DEBUG")       the graph after each pass is logged
TORCH_TRACE=folder, TORCH_LOGS=aot_graphs                   the graphs go to torch's own logs, where tlparse finds them

with record_stages() as stages:                             a program can read the texts
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

import torch.fx as fx

from aotgrad import printing, torch_compat, verify
from aotgrad.ir import GraphHalf, JointGraph, Partition
from aotgrad.passes import Pass
from aotgrad.telemetry.counters import counters

STAGE_LOGGERS = {
    stage: f"aotgrad.stages.{stage.replace(' ', '_')}"
    for stage in ("capture", "analysis", "small graph", "joint", "partition", "compiled", "executable")
}
"""The logger of each stage; all are below `aotgrad.stages`."""

loggers = {stage: logging.getLogger(name) for stage, name in STAGE_LOGGERS.items()}
passes_log = logging.getLogger("aotgrad.passes")


@dataclass(frozen=True)
class Stage:
    """The result of one stage as text, since later stages change the same graph."""

    name: str
    text: str
    elapsed_ns: int


_recordings: list[list[Stage]] = []


@contextlib.contextmanager
def record_stages() -> Iterator[list[Stage]]:
    """Record every stage of every compilation inside, in any thread, in order."""
    stages: list[Stage] = []
    _recordings.append(stages)
    try:
        yield stages
    finally:
        _recordings[:] = [other for other in _recordings if other is not stages]


def is_watched() -> bool:
    """Whether a recording or a log needs the stages of a compilation."""
    wanted = (*loggers.values(), passes_log)
    is_logged = any(map(torch_compat.artifact_is_on, TORCH_ARTIFACTS.values()))
    return bool(_recordings) or is_logged or any(log.isEnabledFor(logging.DEBUG) for log in wanted)


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
            verify.check_stage(stage, result)
        if _recordings or loggers[stage].isEnabledFor(logging.DEBUG):
            publish(Stage(stage, printing.text(result), elapsed_ns))
        for name, module in stage_graphs(result):
            log_to_torch(name, module)
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
"""The stages that end a compilation, and their counters."""


def publish(stage: Stage) -> None:
    """Log a stage and append it to every open recording."""
    loggers[stage.name].debug("%s, %.1f ms\n%s", stage.name, stage.elapsed_ns / 1e6, stage.text)
    for stages in _recordings:
        stages.append(stage)


# --- torch's own logs ------------------------------------------------------------------------------------------------

TORCH_ARTIFACTS = {"joint": "aot_joint_graph", "forward": "aot_graphs", "backward": "aot_graphs", "inference": "aot_graphs"}
"""The names of the graphs' logs in `TORCH_LOGS`. For tlparse they are `aot_forward_graph` and so on."""


def stage_graphs(result: Any) -> Iterator[tuple[str, fx.GraphModule]]:
    """The graphs that are complete after this stage, by role."""
    if isinstance(result, JointGraph) and result.differentiable:
        yield "joint", result.module
    if isinstance(result, Partition):
        yield "inference" if result.backward is None else "forward", result.forward.module
        if result.backward is not None:
            yield "backward", result.backward.module


def log_to_torch(name: str, module: fx.GraphModule) -> None:
    """Log a graph to torch's own logs, if they are on."""
    logger = torch_compat.artifact_logger(TORCH_ARTIFACTS[name])
    is_logged, is_traced = torch_compat.artifact_is_on(TORCH_ARTIFACTS[name]), torch_compat.structured_trace_is_on()
    if not is_logged and not is_traced:
        return
    text = module.print_readable(print_output=False, include_stride=True, include_device=True)
    if is_logged:
        logger.info("%s graph\n\n%s", name.capitalize(), text)
    if is_traced:
        torch_compat.trace_structured(f"aot_{name}_graph", text)
