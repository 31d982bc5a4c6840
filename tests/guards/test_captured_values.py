"""Which Python values a function depends on besides its arguments."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
import weakref
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.guards.captured_values import Captured
from aotgrad.guards.code_reads import code_reads, is_installed

SCALE = 2.0
SHIFTS = [1.0, 2.0]


class Config:
    width = 3
    depth = 4

    def __init__(self) -> None:
        self.rate, self.step = 0.5, 0

    def rated(self, x):
        return x * self.rate


CONFIG = Config()


def helper(x):
    return x * SCALE


def names_in(function, *known):
    return sorted(place.name for place in Captured.of([function], known).places)


def test_names_of_code():
    def f(x):
        CONFIG.step = len(SHIFTS)
        return [helper(y) * math.pi for y in x.unbind()]

    reads = code_reads(f.__code__)
    assert {"CONFIG", "SHIFTS", "helper", "math"} <= reads.globals
    assert {"step", "pi", "unbind"} <= reads.attributes and reads.optional == {"step"}
    assert not reads.computes_names


NAMES_ASKED = {
    "one": lambda x: getattr(CONFIG, "rate"),  # noqa: B009
    "with a default": lambda x: getattr(CONFIG, "rate", x * 2 + 1),
    "of a result": lambda x: getattr(helper(x)[SCALE], "rate"),  # noqa: B009
    "of another": lambda x: getattr(getattr(CONFIG, "rate"), "rate", x.t()),  # noqa: B009
    "in a condition": lambda x: hasattr(CONFIG, "rate") and x,
    "in an inner function": lambda x: [getattr(each, "rate", None) for each in x],
    "assigned": lambda x: setattr(CONFIG, "rate", x),
    "deleted": lambda x: delattr(CONFIG, "rate"),
}
NAMES_COMPUTED = {
    "a variable": lambda x, name: getattr(x, name),
    "of a result": lambda x, name: getattr(helper(x), name),
    "of an item": lambda x, name: getattr(CONFIG.rate[x], name),
    "of a method": lambda x, name: getattr(CONFIG.rated(x), name),
    "a sum": lambda x: getattr(x, "ra" + x, 1),
    "a result": lambda x: getattr(x, "rate".lower()),
    "formatted": lambda x: getattr(x, f"rate{x}", None),
    "one of two": lambda x: getattr(CONFIG, "rate" if x else "step"),
    "an item": lambda x: getattr(x, ("rate", "step")[x]),
    "of a list": lambda *x: getattr(*x),
    "by another function": lambda x: list(map(getattr, x)),
    "vars": lambda x: vars(CONFIG)["rate"],
    "a dictionary": lambda x: CONFIG.__dict__["rate"],
}


@pytest.mark.parametrize("case", NAMES_ASKED)
def test_a_constant_name_is_known(case):
    reads = code_reads(NAMES_ASKED[case].__code__)
    assert reads.optional == {"rate"} <= reads.attributes and not reads.computes_names


@pytest.mark.parametrize("case", NAMES_COMPUTED)
def test_a_computed_name_may_be_any(case):
    assert code_reads(NAMES_COMPUTED[case].__code__).computes_names


def test_names_of_a_package_are_constants():
    def read(x, name):
        return getattr(nn.functional, name)(x) + getattr(torch, f"{name}_", None)(x)

    reads = code_reads(read.__code__)
    assert reads.computed_of == {"nn", "torch"} and not reads.computes_names
    assert Captured.of([read]).is_empty
    assert not Captured.of([lambda name: getattr(CONFIG.rate, name)]).is_empty


class Shown:
    """Its methods for pickling, texts and comparisons read all attributes."""

    def __init__(self):
        self.rate, self.step = 0.5, 0

    def __getstate__(self):
        return dict(self.__dict__)

    def __repr__(self):
        return str(vars(self))

    def __eq__(self, other):
        return vars(self) == vars(other)

    __hash__ = None


def test_methods_count_where_code_may_call_them():
    shown = Shown()
    assert names_in(lambda x: x * shown.rate) == ["rate", "shown"]
    for function in (lambda x: f"{shown}", lambda x: repr(shown), lambda x: x * (shown == x)):
        captured = Captured.of([function])
        shown.step += 1
        assert not captured.is_current()


def test_a_weak_mapping_keeps_nothing_alive():
    config = Config()
    table = weakref.WeakValueDictionary(only=config)
    captured = Captured.of([lambda x: x * table["only"].rate])
    reference = weakref.ref(config)
    del config
    assert reference() is None and [place.name for place in captured.places] == ["table"]


def test_where_names_are_computed_all_attributes_count():
    config = Config()
    captured = Captured.of([lambda x, name: x * getattr(config, name)])
    key = captured.key()
    config.later = 1
    assert not captured.is_current() and Captured.of([lambda x, name: x * getattr(config, name)]).key() != key
    Config.width = 5
    assert len(list(captured.changes())) == 2
    for change in captured.changes():
        change.undo()
    assert captured.is_current() and vars(config) == {"rate": 0.5, "step": 0} and Config.width == 3


def test_code_of_packages_is_installed():
    assert is_installed(nn.__file__) and is_installed(math.__spec__.origin) and is_installed(subprocess.__file__)
    assert is_installed(aotgrad.__file__) and not is_installed(__file__) and not is_installed("<stdin>")


def test_functions_are_followed():
    assert names_in(lambda x: helper(x)) == ["SCALE", "helper"]
    assert names_in(functools.partial(lambda s, x: s(x), helper)) == ["SCALE"]
    assert names_in(torch.no_grad()(lambda x: helper(x))) == ["SCALE", "helper"]
    assert names_in(aotgrad.aot_function(helper, aotgrad.nop)) == ["SCALE"]


def test_packages_are_constants():
    assert Captured.of([lambda x: torch.sin(x) + math.pi + nn.functional.relu(x).sum()]).is_empty


def test_an_island_is_not_followed():
    run = aotgrad.island(helper)
    assert names_in(lambda x: run(x)) == ["run"]


def test_of_an_object_only_what_the_code_names():
    config = Config()
    assert names_in(lambda x: x * config.rate) == ["config", "rate"]
    assert names_in(lambda x: x * config.width) == ["config", "width", "width"]  # of the object, and of its class
    assert names_in(config.rated) == ["rate"]
    assert names_in(lambda x: config.rated(x)) == ["config", "rate", "rated"]


def test_what_is_known_is_left_out():
    assert names_in(lambda x: CONFIG.rated(x), CONFIG) == ["CONFIG"]


@pytest.mark.parametrize(
    "change",
    [
        lambda box, items: setattr(box, "a", 2),
        lambda box, items: setattr(box, "a", 1.0),
        lambda box, items: delattr(box, "a"),
        lambda box, items: items.append(1),
        lambda box, items: items.__setitem__(0, 5.0),
        lambda box, items: items[1].update(b=3),
        lambda box, items: items[1].pop("b"),
    ],
)
def test_each_change_is_noticed_and_undone(change):
    box, items = SimpleNamespace(a=1), [2.0, {"b": 1}]

    def f(x):
        return x * box.a + items[0] + items[1]["b"]

    captured = Captured.of([f])
    key = captured.key()
    assert captured.is_current() and Captured.of([f]).key() == key
    change(box, items)
    assert not captured.is_current() and Captured.of([f]).key() != key
    for each in captured.changes():
        each.undo()
    assert captured.is_current() and Captured.of([f]).key() == key
    assert (vars(box), items) == ({"a": 1}, [2.0, {"b": 1}])


def test_an_equal_number_is_no_change():
    number = float("2.5")

    def f(x):
        return x * number

    captured = Captured.of([f])
    number = float("2.5")
    assert captured.is_current()
    number = -0.0
    negative = Captured.of([f]).key()
    number = 0.0
    assert Captured.of([f]).key() != negative


def test_a_new_equal_object_has_the_same_key():
    def around(config):
        return Captured.of([lambda x: x * config.rate]).key()

    assert around(Config()) == around(Config())


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate):
        self.rate = rate


class Callables:
    def one(self, x):
        return x

    def two(self, x):
        return x * 2


def scaling(s):
    return lambda x: x * s


PAIRS = {
    "defaults": (lambda x, s=2.0: x * s, lambda x, s=3.0: x * s),
    "keyword-only defaults": (lambda x, *, s=2.0: x * s, lambda x, *, s=3.0: x * s),
    "arguments of partial": (functools.partial(pow, 2), functools.partial(pow, 3)),
    "methods": (Callables().one, Callables().two),
    "functions of torch": (torch.sin, torch.cos),
    "arrays": (numpy.ones(2), numpy.zeros(2)),
    "objects with slots": (Slotted(2.0), Slotted(3.0)),
    "tuples": ((1, [2.0]), (1, [3.0])),
    "sets": ({1, 2}, {1, 3}),
    "closures": tuple(map(scaling, (2.0, 3.0))),
    "tensors": (torch.ones(2), torch.ones(2)),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_other_values_have_another_key(kind):
    box = SimpleNamespace()

    def key_with(value):
        box.value = value
        return Captured.of([lambda x: box.value]).key()

    one, other = PAIRS[kind]
    first = key_with(one)
    captured = Captured.of([lambda x: box.value])
    assert key_with(one) == first and captured.is_current()
    assert key_with(other) != first and not captured.is_current()


def test_an_object_with_slots_that_changes():
    slotted = Slotted(2.0)
    captured = Captured.of([lambda x: x * slotted.rate])
    key = captured.key()
    slotted.rate = 3.0
    assert not captured.is_current() and Captured.of([lambda x: x * slotted.rate]).key() != key


def test_a_property_and_a_memo_are_followed():
    class WithProperty:
        @property
        def rate(self):
            return SCALE

    box = WithProperty()
    assert names_in(lambda x: x * box.rate) == ["SCALE", "box", "rate"]
    memo = functools.lru_cache(helper)
    assert "SCALE" in names_in(lambda x: memo(x))


def test_what_is_in_cycles():
    box = SimpleNamespace(value=1.0)
    box.itself, items = box, [box]
    items.append(items)
    assert Captured.of([lambda x: items[0].itself.value * x]).is_current()


def test_a_class_that_is_counted_on():
    class Counted:
        calls = 0

    def f(x):
        Counted.calls += 1
        return x

    captured = Captured.of([f])
    f(1)
    assert [change.name for change in captured.changes()] == ["'calls'"]
    for change in captured.changes():
        change.undo()
    assert Counted.calls == 0


def test_a_program_from_the_command_line():
    """Its functions and modules have no file."""
    program = """
import torch, aotgrad
s = 2.0
f = aotgrad.aot_function(lambda x: x * s, aotgrad.nop)
a = f(torch.ones(1)).item()
s = 3.0
print(a, f(torch.ones(1)).item())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2.0", "3.0"]
