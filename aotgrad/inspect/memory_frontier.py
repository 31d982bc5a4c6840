"""The trade of memory for time that a function offers: a table that helps to choose a `memory_budget`.

In: a function or module, and the arguments of a call. Out: a `MemoryFrontier`, which prints as a table. The function is
traced once on fake tensors; nothing runs.

    print(aotgrad.memory_frontier(model, x))

         saved    peak  traffic of recomputation  of the most
      12.58 MB  18.9 MB                      0 MB           0%   without a budget
       ...
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from aotgrad.backends import registry
from aotgrad.errors import PartitionError
from aotgrad.export.trace import joint_plan
from aotgrad.ir import JointGraph
from aotgrad.options import Options, host_bytes_of
from aotgrad.partition import FrontierPoint, Objective, frontier_points
from aotgrad.plan_cache.binding import bind
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.compiler import make_tracer


@dataclass(frozen=True)
class MemoryFrontier:
    """The points of the trade, from the most saved bytes to the fewest. `default` is the point without a budget."""

    default: FrontierPoint
    points: tuple[FrontierPoint, ...]

    def __str__(self) -> str:
        most = max(1, *(point.recompute_bytes for point in self.points))
        rows = [_row(self.default, most, "without a budget"), *(_row(point, most, "") for point in self.points)]
        headers = ["saved", "peak", "traffic of recomputation", "of the most"]
        headers += ["on the host", "without offloading", "at least", ""] if self.default.offloading else [""]
        align = ["right"] * (len(headers) - 1) + ["left"]
        return tabulate(rows, headers, tablefmt="plain", disable_numparse=True, colalign=align)


def memory_frontier(
    fn: Callable, *args: Any, backend: str = "eager", offload: bool | int | str = False, **kwargs: Any
) -> MemoryFrontier:
    """The corner points of the trade between saved bytes and recomputation, each with its simulated peak.

    Args:
        fn: a function of tensors, or a module.
        *args, **kwargs: the arguments of a call.
        backend: the name of the backend that would compile it; one that fuses ops recomputes cheaply.
        offload: see `aotgrad.Options`. Then each point also has its bytes on the host, the traffic without offloading if as
            many bytes are saved, and a lower bound of the traffic.

    Returns:
        For each point: the bytes saved for the backward, the peak bytes of both halves (without parameters and arguments),
        and the memory traffic of the recomputed ops in bytes. Floating point operations count as the bytes that take
        as long, and so does waiting for the link to the host.

    Raises:
        OptionError: `offload` is not legal.
        PartitionError: no argument requires grad.

    Examples:
        >>> import torch
        >>> x = torch.ones(4, 4, requires_grad=True)
        >>> memory_frontier(lambda x: (x @ x).sin().sum(), x).default.saved_bytes
        128
    """
    joint, compiler = _joint_of(fn, args, kwargs, backend), registry.get(backend)
    if not joint.differentiable:
        raise PartitionError("no argument requires grad, so there is no backward and nothing is saved for it")
    host_bytes = host_bytes_of(Options(offload=offload).offload)
    default, points = frontier_points(joint, Objective(fuses=compiler.fuses, host_bytes=host_bytes))
    return MemoryFrontier(default, tuple(points))


def _row(point: FrontierPoint, most: int, note: str) -> list[str]:
    sizes = (point.saved_bytes, point.peak_bytes, point.recompute_bytes)
    compared = point.offloading
    others = (compared.host_bytes, compared.alone_bytes, compared.bound_bytes) if compared else ()
    return [*map(_megabytes, sizes), f"{100 * point.recompute_bytes / most:.1f}%", *map(_megabytes, others), note]


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.6g} MB" if size < math.inf else "impossible"


def _joint_of(fn: Callable, args: tuple[Any, ...], kwargs: dict[str, Any], backend: str) -> JointGraph:
    compiler = make_tracer(registry.get(backend), Options.from_mapping({}))
    _, traced = joint_plan(bind(fn, PlanCache(compiler, "memory_frontier")), args, kwargs)
    return traced.joint
