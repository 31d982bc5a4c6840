"""When messages start and are waited for among computations, so that the link works while the device computes.

In: the seconds of each computation, the messages, and how many bytes may be in flight. Out: actions in order. There is no
torch in it.

    compute 0, start 0, wait 0, compute 1        ->        start 0, compute 0, wait 0, compute 1

Computations keep their order, and so do starts. A message starts as late as it can arrive in time if nothing ever waits, and
no later than in its place. It is waited for right before its result is read, or earlier if its bytes are needed: at its own
place, a message waits for the oldest ones until there is room. Before its place, it starts only if there is room.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Message:
    """Places are numbers of computations: what is in place k runs right before computation k.

    Attributes:
        seconds: its time on the link.
        held: bytes that it holds until it is waited for.
        ready: the first place in which it can start.
        place: where it starts in the given order.
        read: the first computation that reads its result; their count if none does.
        after: the messages whose results it sends on.
    """

    seconds: float
    held: int
    ready: int
    place: int
    read: int
    after: tuple[int, ...] = ()


Action = tuple[str, int]
"""`("compute", k)`, `("start", k)` or `("wait", k)`."""


def order_of_actions(seconds: Sequence[float], messages: Sequence[Message], limit: int) -> list[Action]:
    """The actions. `limit`: the bytes in flight; a message that is larger is in flight alone.

    >>> order_of_actions([1.0, 1.0], [Message(seconds=1.0, held=8, ready=0, place=1, read=1)], limit=8)
    [('start', 0), ('compute', 0), ('wait', 0), ('compute', 1)]
    """
    return list(_Order(seconds, messages, limit).run())


def latest_places(seconds: Sequence[float], messages: Sequence[Message]) -> list[int]:
    """The latest place of each message from which it and all later ones arrive in time."""
    times = [0.0, *itertools.accumulate(seconds)]
    needed = [message.read for message in messages]
    for message in messages:
        for earlier in message.after:
            needed[earlier] = min(needed[earlier], message.place)
    end, places = times[-1], []
    for message, read in zip(reversed(messages), reversed(needed), strict=True):
        end = min(end, times[read]) - message.seconds
        in_time = bisect.bisect_right(times, end) - 1
        places.append(min(message.place, max(message.ready, in_time)))
    return places[::-1]


def arrival_places(seconds: Sequence[float], messages: Sequence[Message]) -> list[int]:
    """The first place at which each message has arrived, if each starts in its place; at most the count of computations.

    >>> arrival_places([1.0, 1.0, 1.0], [Message(seconds=1.5, held=8, ready=1, place=1, read=3)])
    [3]
    """
    times = [0.0, *itertools.accumulate(seconds)]
    free, places = 0.0, []
    for message in messages:
        free = max(free, times[message.place]) + message.seconds
        places.append(min(len(seconds), bisect.bisect_left(times, free)))
    return places


@dataclass
class _Order:
    seconds: Sequence[float]
    messages: Sequence[Message]
    limit: int
    in_flight: dict[int, int] = field(default_factory=dict)

    def run(self) -> Iterator[Action]:
        places = latest_places(self.seconds, self.messages)
        left = deque(range(len(self.messages)))
        for place in range(len(self.seconds) + 1):
            while left and places[left[0]] <= place and (self.has_room(left[0]) or self.messages[left[0]].place <= place):
                yield from self.start(left.popleft())
            yield from self.wait(k for k in list(self.in_flight) if self.messages[k].read == place)
            if place < len(self.seconds):
                yield "compute", place
        yield from self.wait(list(self.in_flight))

    def has_room(self, number: int) -> bool:
        return sum(self.in_flight.values()) + self.messages[number].held <= self.limit

    def start(self, number: int) -> Iterator[Action]:
        yield from self.wait(k for k in self.messages[number].after if k in self.in_flight)
        while self.in_flight and not self.has_room(number):
            yield from self.wait([next(iter(self.in_flight))])
        self.in_flight[number] = self.messages[number].held
        yield "start", number

    def wait(self, numbers: Iterator[int] | list[int]) -> Iterator[Action]:
        for number in numbers:
            del self.in_flight[number]
            yield "wait", number
