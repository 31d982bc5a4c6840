"""Functions that read or change Python values outside of their arguments, through both backends, without Dynamo."""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import operator
import random
import sys
import threading
import weakref
from collections import ChainMap
from contextvars import ContextVar
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.errors import CaptureError
from tests.numerics.against_eager import compiled, leaf

BACKENDS = ["nop", "aot_inductor"]


def results(function, x, between, calls=3):
    """The result and gradient of each call; `between` runs after each."""
    seen = []
    for _ in range(calls):
        result = function(x)
        (gradient,) = torch.autograd.grad(result.sum(), x)
        seen.append((result.detach().clone(), gradient))
        between()
    return seen


def assert_same_in_each_call(make, backend, calls=3):
    """`make` returns a function, what happens between calls, and the objects to compare afterwards."""
    x = leaf(4)
    function, between, objects = make()
    wanted = results(function, x, between, calls)
    other, between_others, others = make()
    found = results(compiled(other, backend), x, between_others, calls)
    torch.testing.assert_close(found, wanted)
    assert list(map(repr, others)) == list(map(repr, objects))


def a_variable_that_changes():
    scale = 1.0

    def f(x):
        return (x * scale).sin()

    def between():
        nonlocal scale
        scale += 1

    return f, between, ()


def an_attribute_that_changes():
    box = SimpleNamespace(scale=2.0)
    return lambda x: (x * box.scale).sin(), lambda: setattr(box, "scale", box.scale + 1), ()


def a_list_that_changes():
    scales = [1.0]
    return lambda x: sum((x * s).sin() for s in scales), lambda: scales.append(len(scales) + 1.0), ()


def a_function_that_is_replaced():
    box = SimpleNamespace(act=torch.sin)
    return lambda x: box.act(x * 2), lambda: setattr(box, "act", torch.cos), ()


def a_tensor_that_is_replaced():
    box = SimpleNamespace(shift=torch.ones(4))
    return lambda x: (x + box.shift).sin(), lambda: setattr(box, "shift", box.shift * 2), ()


def a_module_in_another_mode():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0)).requires_grad_(False)
    with torch.no_grad():
        model[0].weight.fill_(0.5), model[0].bias.fill_(0.25)
    return lambda x: model(x).sin(), model.eval, ()


def a_counter():
    box = SimpleNamespace(calls=0)

    def f(x):
        box.calls += 1
        return (x * box.calls).sin()

    return f, lambda: None, (box,)


def a_log():
    log = []

    def f(x):
        log.append(("f", tuple(x.shape)))
        return x.sin()

    return f, lambda: None, (log,)


def a_memo():
    memo = {}

    def f(x):
        if "scale" not in memo:
            memo["scale"] = 3.0
        return (x * memo["scale"]).sin()

    return f, lambda: None, (memo,)


def numbers_of_python():
    random.seed(0), numpy.random.seed(0)
    return lambda x: (x * random.random() + float(numpy.random.rand())).sin(), lambda: None, ()


CASES = (
    numbers_of_python,
    *(a_variable_that_changes, an_attribute_that_changes, a_list_that_changes, a_function_that_is_replaced),
    *(a_tensor_that_is_replaced, a_module_in_another_mode, a_counter, a_log, a_memo),
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", CASES)
def test_each_call_reads_the_present_values(make, backend):
    assert_same_in_each_call(make, backend)


class OfClass(type):
    """A metaclass with a property."""

    @property
    def shared(cls) -> float:
        return cls.count


class Box(metaclass=OfClass):
    """A number that Python reads in many ways."""

    count = 1.0

    def __init__(self) -> None:
        self.scale = 1.0
        self.chained = ChainMap({"scale": 1.0})
        self.parsed = argparse.Namespace(scale=1.0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and self.scale == other.scale

    __hash__ = None

    def __str__(self) -> str:
        return "x" * int(self.scale)

    def grow(self) -> None:
        self.scale += 1
        self.chained["scale"] += 1
        self.parsed.scale += 1
        self.local.scale += 1
        self.later = 1
        type(self).count += 1
        VARIABLE.set(VARIABLE.get() + 1)


class Shown:
    """Has the attributes of another object."""

    def __init__(self, box: Box) -> None:
        self.box = box

    def __getattr__(self, name: str) -> float:
        return getattr(self.box, name)


VARIABLE = ContextVar("variable", default=1.0)
GET_SCALE = operator.attrgetter("scale")

READS = {
    "getattr": lambda box: getattr(box, "scale", 0.0),
    "getattr of a name that is made": lambda box: getattr(box, "".join(("sca", "le"))),
    "getattr of one that is formatted": lambda box: sum(getattr(box, f"{name}ale") for name in ("sc",)),
    "hasattr": lambda box: 2.0 if hasattr(box, "later") else 1.0,
    "__getattr__": lambda box: Shown(box).scale,
    "getattr of an object of a library": lambda box: getattr(box.parsed, "scale".lower()),
    "vars": lambda box: vars(box)["scale"],
    "the number of attributes": lambda box: len(vars(box)),
    "__dict__": lambda box: box.__dict__["scale"],
    "attrgetter": lambda box: operator.attrgetter("scale")(box),
    "an attrgetter from outside": lambda box: GET_SCALE(box),
    "eval": lambda box: eval("box.scale"),
    "globals": lambda box: globals()["VARIABLE"].get(),
    "a context variable": lambda box: VARIABLE.get(),
    "a variable of a thread": lambda box: box.local.scale,
    "a mapping of a library": lambda box: box.chained["scale"],
    "a comparison": lambda box: 1.0 if box == Box() else 2.0,
    "a text": lambda box: len(str(box)),
    "a property of a class": lambda box: type(box).shared + Box.shared,
}


@pytest.mark.parametrize(
    ("read", "backend"), [*((read, "nop") for read in READS), *((read, "aot_inductor") for read in ("getattr", "vars"))]
)
def test_a_value_is_read_in_another_way(read, backend):
    def make():
        box = Box()
        box.local, Box.count = threading.local(), 1.0
        box.local.scale = 1.0
        VARIABLE.set(1.0)
        return lambda x: (x * READS[read](box)).sin(), box.grow, ()

    assert_same_in_each_call(make, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_weak_reference_is_followed(backend):
    box = Box()
    reference = weakref.ref(box, lambda _: None)
    function = compiled(lambda x: x * reference().scale, backend)
    x = torch.ones(2)
    assert function(x).tolist() == [1.0, 1.0]
    box.scale = 2.0
    assert function(x).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_thread_reads_its_own_variable(backend):
    local, x = threading.local(), torch.ones(2)
    local.scale = 1.0
    function = compiled(lambda x: x * local.scale, backend)
    found = [function(x).tolist()]

    def other():
        local.scale = 2.0
        found.append(function(x).tolist())

    thread = threading.Thread(target=other)
    thread.start(), thread.join()
    assert [*found, function(x).tolist()] == [[1.0, 1.0], [2.0, 2.0], [1.0, 1.0]]


def test_a_constant_name_does_not_depend_on_other_attributes():
    box = SimpleNamespace(scale=2.0, other=0)
    function = aotgrad.aot_function(lambda x: x * getattr(box, "scale", 1.0), aotgrad.nop)
    for box.other in range(3):
        function(torch.ones(2))
    assert len(function.plans()) == 1


def test_values_of_before_find_their_plan():
    box = SimpleNamespace(scale=2.0, other=0)
    function = aotgrad.aot_function(lambda x: x * box.scale, aotgrad.nop)
    x = torch.ones(3)
    for scale in (2.0, 3.0, 2.0, 3.0):
        box.scale = scale
        box.other += 1  # which the function does not read
        assert torch.equal(function(x), x * scale)
    assert len(function.plans()) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives_and_transforms_read_the_present_values(backend):
    box = SimpleNamespace(scale=2.0)
    x = leaf(4)

    def f(x):
        return (x * box.scale).sin().sum()

    function = compiled(f, backend)
    for _ in range(2):
        for each in (torch.func.grad(torch.func.grad(lambda x: f(x * x.sum()))), None):
            if each is None:
                (first,) = torch.autograd.grad(function(x), x, create_graph=True)
                (found,) = torch.autograd.grad(first.sum(), x)
                torch.testing.assert_close(found, -(box.scale**2) * (x * box.scale).sin().detach())
        torch.testing.assert_close(torch.func.grad(function)(x.detach()), torch.func.grad(f)(x.detach()))
        box.scale += 1


def test_a_training_step():
    box = SimpleNamespace(weight=1.0, steps=0)

    def losses(compile_step):
        torch.manual_seed(0)
        box.weight, box.steps = 1.0, 0
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean() * box.weight
            loss.backward()
            optimizer.step()
            box.steps += 1
            return loss.detach()

        run = compile_step(step, model, optimizer)
        found = []
        for _ in range(4):
            found.append(run(torch.ones(2, 3)))
            box.weight *= 2
        return torch.stack(found), box.steps

    eager = losses(lambda step, *state: step)
    compiled_step = losses(lambda step, *state: aotgrad.train_step(step, state, backend="eager"))
    torch.testing.assert_close(compiled_step, eager)


def assigns(box, x):
    box.last = x * 2


KEPT = {
    "an attribute": assigns,
    "an item": lambda box, x: box.table.update(last=x * 2),
    "an element": lambda box, x: box.items.append(x * 2),
    "an element of an element": lambda box, x: box.nested[0].append((x, 1)),
}


@pytest.mark.parametrize("kind", KEPT)
def test_nothing_keeps_a_tensor_of_the_trace(kind):
    box = SimpleNamespace(table={}, items=[], nested=[[]])
    before = copy.deepcopy(vars(box))

    def f(x):
        KEPT[kind](box, x)
        return x.sin()

    function = aotgrad.aot_function(f, aotgrad.nop)
    with pytest.raises(CaptureError, match="assigns a tensor to"):
        function(torch.ones(3))
    assert vars(box) == before


def a_hook_that_counts(box):
    def f(x):
        y = x.sin()
        y.register_hook(lambda gradient: box.seen.append(1))
        return y * 2

    return f


def a_backward_that_counts(box):
    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            box.calls += 1
            return gradient * 2

    return Counted.apply


@pytest.mark.parametrize("make", [a_hook_that_counts, a_backward_that_counts])
def test_a_backward_that_changes_something_is_refused(make):
    box = SimpleNamespace(seen=[], calls=0)
    function = aotgrad.aot_function(make(box), aotgrad.nop)
    with pytest.raises(CaptureError, match="in the backward, which is traced only once"):
        function(leaf(3)).sum().backward()
    assert vars(box) == {"seen": [], "calls": 0}
    assert torch.equal(aotgrad.aot_function(torch.sin, aotgrad.nop)(torch.ones(3)), torch.ones(3).sin())


@pytest.mark.parametrize("raised", [ValueError, None])
def test_a_trace_that_fails_changes_nothing(raised):
    """The function runs eagerly, or is traced again: its effects happen once."""
    box = SimpleNamespace(calls=0, log=[])

    def f(x):
        box.calls += 1
        box.log.append(box.calls)
        if raised is not None:
            raise raised
        return x * 2 if x.sum() > 0 else x * 3

    function = aotgrad.aot_function(f, aotgrad.nop)
    with pytest.raises(raised) if raised else contextlib.nullcontext():
        assert torch.equal(function(torch.ones(3)), torch.full((3,), 2.0))
    assert (box.calls, box.log) == (1, [1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_small_function_that_counts(backend):
    box = SimpleNamespace(calls=0)

    def f(x):
        box.calls += 1
        return x * box.calls

    function = compiled(f, backend, options={"min_graph_ops": 100})
    x = leaf(3)
    for k in range(1, 4):
        result = function(x)
        assert torch.equal(result, x * k) and torch.equal(
            torch.autograd.grad(result.sum(), x)[0], torch.full((3,), float(k))
        )
    assert box.calls == 3


SCALE, LOG = 1.0, []


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 0.5))

    def forward(self, x):
        LOG.append("forward")
        return self.scaled(x * self.weight).sin()

    def scaled(self, x):
        return x * SCALE


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_module_reads_globals(backend, monkeypatch):
    def run(model):
        x, found = torch.linspace(0, 1, 4).requires_grad_(), []
        LOG.clear()
        for scale in (1.0, 2.0, 1.0):
            monkeypatch.setattr(sys.modules[__name__], "SCALE", scale)
            result = model(x)
            found += [result.detach(), *torch.autograd.grad(result.sum(), [x, *model.parameters()])]
        return found, list(LOG)

    model = Scaled()
    (wanted, log), (found, other_log) = run(model), run(aotgrad.aot_module(model, backend))
    torch.testing.assert_close(found, wanted)
    assert other_log == log == ["forward"] * 3


class Keeping(Scaled):
    def scaled(self, x):
        LOG.append(x)
        return x


def test_a_module_keeps_no_tensor_in_a_global():
    LOG.clear()
    with pytest.raises(CaptureError, match="assigns a tensor to a list"):
        aotgrad.aot_module(Keeping(), aotgrad.nop)(torch.ones(4))
    assert LOG == []


def test_a_compiled_module_inside():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0)).requires_grad_(False)
    inner = aotgrad.aot_module(model, aotgrad.nop)
    function = aotgrad.aot_function(lambda x: inner(x).sin(), aotgrad.nop)
    for training in (False, False, True, False):
        model.train(training)
        assert torch.equal(function(torch.ones(4)), model(torch.ones(4)).sin())
    assert len(function.plans()) == 2


def test_an_island_has_its_effects_in_each_call():
    box = SimpleNamespace(calls=0)

    @aotgrad.island
    def count(x):
        box.calls += 1
        return x * 2

    function = aotgrad.aot_function(lambda x: count(x.sin()).cos(), aotgrad.nop)
    for _ in range(3):
        function(torch.ones(3))
    calls = box.calls
    function(torch.ones(3))
    assert box.calls == calls + 1 and len(function.plans()) == 1


class FailsOnce:
    """A compiler of graphs that raises at first."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, graph, inputs):
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("the backend failed")
        return graph.forward


@pytest.mark.parametrize("on_error", ["raise", "eager"])
def test_a_plan_that_cannot_be_made_leaves_nothing_behind(on_error):
    """The function has been traced when its backend fails."""
    calls, counts, last = [], {"calls": 0}, 0

    def function(x):
        nonlocal last
        last += 1
        calls.append(last)
        counts["calls"] += 1
        return x.sin().exp()

    compiled = aotgrad.aot_function(function, FailsOnce(), options={"min_graph_ops": 0, "on_error": on_error})
    if on_error == "raise":
        with pytest.raises(RuntimeError, match="the backend failed"):
            compiled(torch.ones(2))
        assert (last, calls, counts) == (0, [], {"calls": 0})
        compiled(torch.ones(2))
    else:
        with pytest.warns(UserWarning, match="runs eagerly"):
            compiled(torch.ones(2))
    assert (last, calls, counts) == (1, [1], {"calls": 1})
    compiled(torch.ones(2))
    assert (last, calls, counts) == (2, [1, 2], {"calls": 2})


def test_what_a_trace_replaces_in_torch_is_no_captured_value():
    """Torch's checkpoint reads it from a global, which the failing plan must not restore afterwards."""

    def broken(graph, inputs):
        raise RuntimeError("no kernel")

    checkpoints = torch.utils.checkpoint
    before = checkpoints.CheckpointFunction
    function = functools.partial(checkpoints.checkpoint, torch.sin, use_reentrant=True)
    with pytest.raises(RuntimeError, match="no kernel"):
        aotgrad.aot_function(function, broken, options={"min_graph_ops": 0})(leaf(3))
    assert checkpoints.CheckpointFunction is before
