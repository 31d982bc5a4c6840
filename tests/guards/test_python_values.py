"""Python values, as plans tell them apart."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import weakref

import pytest
import torch
from torch import nn

from aotgrad.guards.python_values import hashable_key


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Number(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass
class Settings:
    scale: float
    names: list


class Attributes:
    def __init__(self, **values):
        self.__dict__.update(values)

    def __call__(self, x):
        return x


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


Pair = collections.namedtuple("Pair", "x y")

EQUAL = {
    "int": lambda: 1000,
    "nan": lambda: float("nan"),
    "string": lambda: "".join(["a", "b"]),
    "none": lambda: None,
    "enum": lambda: Colour.RED,
    "nested": lambda: {"a": [1, (2.0, None)], "b": {3}},
    "named tuple": lambda: Pair(1, 2),
    "dataclass": lambda: Settings(1.0, ["a"]),
    "object": lambda: Attributes(a=1, b=[2]),
    "object with slots": lambda: Slots(1),
    "slice": lambda: slice(1, 2),
    "partial": lambda: functools.partial(torch.add, alpha=2),
    "bound method": lambda: Attributes(a=1).__call__,
    "size": lambda: torch.Size([2, 3]),
    "dtype": lambda: torch.float64,
    "device": lambda: torch.device("cpu"),
    "memory format": lambda: torch.channels_last,
    "module": lambda: nn.Dropout(0.5),
    "deque": lambda: collections.deque([1, 2]),
    "function": lambda: torch.sin,
}


@pytest.mark.parametrize("kind", EQUAL)
def test_equal_content_counts_as_equal(kind):
    one, other = hashable_key(EQUAL[kind]()), hashable_key(EQUAL[kind]())
    assert one == other
    assert hash(one) == hash(other)


DIFFERENT = {
    "number types": (1, 1.0, True, 1 + 0j, Number.ONE, "1"),
    "zeros": (0.0, -0.0, 0, False, None, ""),
    "complex zeros": (complex(0.0, 0.0), complex(-0.0, 0.0), complex(0.0, -0.0)),
    "sequences": ((1, 2), [1, 2], Pair(1, 2), torch.Size([1, 2]), {1: 2}, {1, 2}, collections.deque([1, 2])),
    "zeros inside": ([0.0], [-0.0], [0], [False]),
    "zeros in a dataclass": (Settings(0.0, []), Settings(-0.0, []), Settings(0, [])),
    "objects": (Attributes(a=1), Attributes(a=True), Attributes(b=1), Slots(1), Slots(2)),
    "order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "keys": ({1: "a"}, {True: "a"}, {1.0: "a"}),
    "partials": tuple(functools.partial(torch.add, alpha=alpha) for alpha in (1, 1.0, 2)),
    "slices": (slice(1), slice(2), slice(0, 1), slice(1.0)),
    "dtypes": (torch.float32, torch.float64, torch.channels_last, torch.contiguous_format, torch.strided),
    "devices": (torch.device("cpu"), torch.device("meta"), "cpu"),
    "modules": (nn.Dropout(0.5), nn.Dropout(0.5).eval(), nn.Dropout(0.25), nn.ReLU()),
    "functions": (torch.sin, torch.cos, lambda x: x, lambda x: x),
    "tensors": (torch.ones(1), torch.ones(1)),
    "generators": (iter([1]), iter([2]), (i for i in ()), (i for i in ())),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_what_a_trace_can_tell_apart_differs(kind):
    snapshots = [hashable_key(value) for value in DIFFERENT[kind]]
    assert len(set(snapshots)) == len(snapshots)


def test_what_cannot_be_read_equals_nothing():
    generator = (i for i in range(3))
    assert hashable_key(generator) != hashable_key(generator)


def test_a_change_inside_is_seen():
    value = Attributes(inner=Settings(1.0, []))
    before = hashable_key(value)
    value.inner.names.append("a")
    assert hashable_key(value) != before


def test_a_cycle_ends():
    value = Attributes()
    value.self = value
    other = Attributes()
    other.self = other
    assert hashable_key(value) == hashable_key(other)


def test_a_tensor_in_an_object_is_not_kept_alive():
    tensor = torch.ones(1)
    reference = weakref.ref(tensor)
    one = hashable_key(Attributes(x=tensor))
    assert one == hashable_key(Attributes(x=tensor))
    del tensor
    assert reference() is None
