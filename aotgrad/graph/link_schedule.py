"""Simulates a schedule of computations and collectives on two queues: the compute stream and the link.

In: the ops of a graph in order, each with its time or its bytes. Out: when each starts and ends, and the time while the
compute stream waits for the link. There is no torch in it.

    compute  mm 0-4 ........... wait ... add         a collective occupies the link from its start;
    link            all_reduce 4-9                   its wait holds the compute stream until it has ended
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """A message of n bytes takes `latency + n / bandwidth` seconds."""

    bandwidth: float
    latency: float

    def seconds(self, size: int) -> float:
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Computation:
    """Runs on the compute stream."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Start:
    """Puts a message on the link, after those that are there."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Wait:
    """Holds the compute stream until the message `of` has arrived."""

    of: str


LinkOp = Computation | Start | Wait


@dataclass(frozen=True)
class Occupation:
    """When an op runs, and on which queue: `compute`, `link` or `exposed`."""

    name: str
    queue: str
    start: float
    end: float


def simulate_link(ops: Iterable[LinkOp], link: Link) -> list[Occupation]:
    """The intervals of all ops, in order. A wait is an interval of `exposed` time, which may be empty.

    >>> simulate_link([Start("a", 10), Computation("mm", 2.0), Wait("a")], Link(bandwidth=10.0, latency=3.0))[-1]
    Occupation(name='a', queue='exposed', start=2.0, end=4.0)
    """
    now, free = 0.0, 0.0
    arrival: dict[str, float] = {}
    found: list[Occupation] = []
    for op in ops:
        match op:
            case Computation(name, seconds):
                found.append(Occupation(name, "compute", now, now + seconds))
                now += seconds
            case Start(name, size):
                start = max(now, free)
                free = arrival[name] = start + link.seconds(size)
                found.append(Occupation(name, "link", start, free))
            case Wait(name):
                found.append(Occupation(name, "exposed", now, max(now, arrival[name])))
                now = max(now, arrival[name])
    return found


def exposed(intervals: Iterable[Occupation]) -> float:
    """The time during which the compute stream waits."""
    return sum(each.end - each.start for each in intervals if each.queue == "exposed")


def table(intervals: Iterable[Occupation]) -> str:
    """The intervals as text, in microseconds."""
    intervals = list(intervals)
    rows = [f"{each.queue:8} {each.name:24} {each.start * 1e6:10.1f} {each.end * 1e6:10.1f}" for each in intervals]
    head = f"{'queue':8} {'op':24} {'start':>10} {'end':>10}"
    return "\n".join([head, *rows, f"exposed: {exposed(intervals) * 1e6:.1f}", ""])
