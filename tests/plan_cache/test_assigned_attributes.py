"""Plain attributes that a forward assigns: tuples, lists and dictionaries of tensors, new ones, and what is refused."""

from __future__ import annotations

import copy
import weakref
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import aotgrad
from aotgrad.errors import CaptureError
from tests.training_step.comparing import Training, assert_trains_like_eager, batches, plain_step

COMPILED = {
    "eager halves": lambda module: aotgrad.aot_module(module, "eager"),
    "inductor": lambda module: aotgrad.aot_module(module, "inductor"),
    "symbolic sizes": lambda module: aotgrad.aot_module(module, "eager", dynamic=True),
    "dynamo, eager halves": lambda module: torch.compile(module, backend="aotgrad_eager"),
    "dynamo, inductor": lambda module: torch.compile(module, backend="aotgrad"),
}
every_way = pytest.mark.parametrize("way", COMPILED)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3)
        self.kept: Any = None


class Recurrent(Linear):
    """Carries the state of an LSTM to the next call, without its history."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, 3)

    def forward(self, x):
        h, c = self.cell(x, self.kept)
        self.kept = h.detach(), c.detach()
        return self.linear(h)


class WithHistory(Linear):
    def forward(self, x):
        before = 1 if self.kept is None else self.kept["y"]
        y = (self.linear(x) * before).tanh()
        self.kept = {"y": y, "number": 3}
        return y.sum(0)


class Pair(NamedTuple):
    first: torch.Tensor
    second: Any


class InANamedTuple(Linear):
    def forward(self, x):
        y = self.linear(x)
        self.kept = Pair(y.detach() if self.kept is None else self.kept.first + y.detach(), [x, None])
        return y * self.kept.first


class New(Linear):
    """The attribute is not there before the first call."""

    def forward(self, x):
        self.last = self.linear(x)
        return self.last * 2


class MadeOnce(Linear):
    def forward(self, x):
        if self.kept is None:
            self.kept = x.detach().exp()
        return self.linear(x) * self.kept


class OfAPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Recurrent(), New()])

    def forward(self, x):
        return self.parts[1](self.parts[0](x)) + self.parts[1].last


class InTurns(Linear):
    """A tensor, a tuple, a number, `None`."""

    def forward(self, x):
        y = self.linear(x)
        kept = self.kept
        if kept is None:
            self.kept = y.detach()
        elif isinstance(kept, torch.Tensor):
            self.kept = (kept, y.detach())
        else:
            self.kept = None
        return y


class ChangedInPlace(Linear):
    """The tensor in the attribute, not the attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.zeros(3)

    def forward(self, x):
        y = self.linear(x)
        self.kept.add_(y.detach().mean(0))
        return y * self.kept.clone()


class GrownAnew(Linear):
    def forward(self, x):
        y = self.linear(x)
        self.kept = [*(self.kept or ()), y.detach()][-3:]
        return y + sum(self.kept)


KINDS = [Recurrent, WithHistory, InANamedTuple, New, MadeOnce, OfAPart, InTurns, ChangedInPlace, GrownAnew]


def kept_of(module: nn.Module) -> Any:
    named = ((path, getattr(part, name, "absent")) for path, part in module.named_modules() for name in ("kept", "last"))
    return [each for each in named if each[1] != "absent"]


def assert_same(found: Any, expected: Any) -> None:
    found, expected = map(pytree.tree_flatten, (found, expected))
    assert found[1] == expected[1]
    for one, other in zip(found[0], expected[0], strict=True):
        assert type(one) is type(other)
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other)
            assert one.requires_grad == other.requires_grad
        else:
            assert one == other


@every_way
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo asks for it
def test_every_call_is_eagers(kind, way):
    reference = kind()
    module = copy.deepcopy(reference)
    torch.compiler.reset()
    run = COMPILED[way](module)
    for number in range(6):
        x = torch.linspace(0, 1, 6).view(2, 3).add(number)
        totals = []
        for forward, owner in ((run, module), (reference, reference)):
            totals.append(forward(x).sum())
            kept = [each for each in pytree.tree_leaves(kept_of(owner)) if isinstance(each, torch.Tensor)]
            totals[-1] = totals[-1] + sum(each.sum() for each in kept)
        assert_same(kept_of(module), kept_of(reference))
        assert_same(*totals_and_gradients(totals, (module, reference)))


def totals_and_gradients(totals: list[torch.Tensor], modules: tuple[nn.Module, nn.Module]) -> list[Any]:
    pairs = zip(totals, modules, strict=True)
    return [
        (total, torch.autograd.grad(total, list(module.parameters()), retain_graph=True, allow_unused=True))
        for total, module in pairs
    ]


@pytest.mark.parametrize("kind", [Recurrent, New, ChangedInPlace])
def test_plans_serve_later_calls(kind):
    run = aotgrad.aot_module(kind(), "eager")
    for _ in range(6):
        run(torch.ones(2, 3))
    plans = run.plans()
    assert len(plans) <= 2 and plans[-1].hits >= 3
    static = {spec.path: spec.is_static for spec, _ in plans[-1].executable.arguments}
    assert static["linear.weight"] and not any(static.get(name) for name in ("kept[0]", "kept[1]", "last"))


def test_what_an_attribute_was_is_freed():
    module = New()
    run = aotgrad.aot_module(module, "eager")
    for _ in range(3):
        run(torch.ones(2, 3))
    before = weakref.ref(module.last)
    run(torch.ones(2, 3))
    assert before() is None


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_gradients_of_gradients_where_nothing_reads_what_is_assigned(backend):
    reference, module = New(), New()
    run = aotgrad.aot_module(module, backend)
    found = []
    for forward, owner in ((run, module), (reference, reference)):
        x = torch.linspace(0, 1, 6).view(2, 3).requires_grad_()
        total = sum(forward(x * number).pow(3).sum() + owner.last.pow(2).sum() for number in range(1, 4))
        (first,) = torch.autograd.grad(total, x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        found.append([first, second, *torch.autograd.grad(second.sum(), [x, owner.linear.weight])])
    torch.testing.assert_close(*found)


def test_an_attribute_that_is_replaced_outside_needs_no_plan():
    """It is an argument of the plan, as a buffer is."""
    reference = ChangedInPlace()
    module = copy.deepcopy(reference)
    run = aotgrad.aot_module(module, "eager")
    for number in range(4):
        for each in (reference, module):
            each.kept = torch.full((3,), float(number))
        x = torch.ones(2, 3) * number
        torch.testing.assert_close(run(x), reference(x))
        torch.testing.assert_close(module.kept, reference.kept)
    assert len(run.plans()) == 1


def test_an_attribute_that_requires_grad():
    class Scaled(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.kept = torch.ones(3, requires_grad=True)

        def forward(self, x):
            return self.linear(x) * self.kept

    reference = Scaled()
    module = Scaled()
    run = aotgrad.aot_module(module, "eager")
    for each in (reference, run):
        each(torch.ones(2, 3)).sum().backward()
    torch.testing.assert_close(module.kept.grad, reference.kept.grad)


@pytest.mark.parametrize("way", ["eager halves", "inductor"])
def test_an_attribute_that_is_a_tensor_subclass(way):
    class OfParts(Linear):
        def forward(self, x):
            y = self.linear(x)
            self.kept = TwoTensor(y.detach(), y.detach() * 2) if self.kept is None else self.kept * 2
            return y * (self.kept.a if isinstance(self.kept, TwoTensor) else self.kept)

    reference, module = OfParts(), OfParts()
    run = COMPILED[way](module)
    for _ in range(3):
        x = torch.ones(2, 3)
        torch.testing.assert_close(run(x), reference(x))
        assert type(module.kept) is TwoTensor
        torch.testing.assert_close(module.kept.a, reference.kept.a)
        torch.testing.assert_close(module.kept.b, reference.kept.b)


def test_the_first_call_of_a_small_graph():
    """A lone op runs eagerly, after its trace has assigned the attribute once."""

    class Lone(nn.Module):
        def forward(self, x):
            self.last = x * 2
            return x

    module = Lone()
    run = aotgrad.aot_module(module, "inductor", options={"min_graph_ops": 50})
    for number in range(3):
        x = torch.full((3,), float(number))
        assert run(x) is x and torch.equal(module.last, x * 2)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("kind", [Recurrent, MadeOnce, InTurns, ChangedInPlace, GrownAnew])
def test_a_step_assigns_attributes(kind, backend):
    def make() -> Training:
        model = nn.Sequential(nn.Linear(4, 3), kind(), nn.Linear(3, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        return Training(plain_step(model, optimizer), [model, optimizer])

    assert_trains_like_eager(make, batches(6), backend)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("kind", [ChangedInPlace, Recurrent])
def test_a_module_from_a_file(kind, backend, tmp_path):
    reference, saved, loaded = kind(), kind(), kind()
    run = aotgrad.aot_module(saved, backend)
    for _ in range(3):
        run(torch.ones(2, 3)).sum().backward()
    aotgrad.save(run, tmp_path / "plans")
    run = aotgrad.load(tmp_path / "plans", loaded)
    for number in range(3):
        x = torch.linspace(0, 1, 6).view(2, 3) + number
        torch.testing.assert_close(run(x), reference(x))
        assert_same(kept_of(loaded), kept_of(reference))


# --- Refusals --------------------------------------------------------------------------------------------------------


class Appending(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.kept = []

    def forward(self, x):
        y = self.linear(x)
        self.kept.append(y)
        return y


class ChangingWhatItAssigned(Linear):
    def forward(self, x):
        y = self.linear(x)
        if self.kept is None:
            self.kept = [y.detach()]
        else:
            self.kept.append(y.detach())
        return y


class Deleting(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.ones(3)

    def forward(self, x):
        y = self.linear(x) * self.kept
        del self.kept
        return y


class Box:
    tensor: torch.Tensor | None = None


class InAnObject(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.kept = Box()

    def forward(self, x):
        y = self.linear(x)
        self.kept.tensor = y
        return y


def test_an_object_of_a_module_holds_what_it_held():
    module = InAnObject()
    with pytest.raises(CaptureError, match="puts a tensor into 'kept'"):
        aotgrad.aot_module(module, "eager")(torch.ones(3))
    assert vars(module.kept) == {}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Appending, "puts a tensor into 'kept'"),
        (ChangingWhatItAssigned, "puts a tensor into 'kept'"),
        (Deleting, "removes the attribute 'kept'"),
    ],
)
def test_what_is_refused(kind, message):
    module = kind()
    run = aotgrad.aot_module(module, "eager")
    with pytest.raises(CaptureError, match=message):
        for _ in range(2):
            before = kept_of(module)
            number = len(pytree.tree_leaves(before))
            run(torch.ones(2, 3))
    assert all(found is wanted for (_, found), (_, wanted) in zip(kept_of(module), before, strict=True))
    assert len(pytree.tree_leaves(kept_of(module))) == number
    assert all(type(each) is torch.Tensor for each in pytree.tree_leaves(module.kept))


def test_an_attribute_of_an_argument_or_result():
    def of_argument(x):
        x.scale = 2
        return x * 2

    def of_result(x):
        y = x * 2
        y.scale = 2
        return y

    for function in (of_argument, of_result):
        x = torch.ones(2)
        with pytest.raises(CaptureError, match=r"assigns an attribute \(scale\) to a tensor that it was given, or"):
            aotgrad.aot_function(function, "eager")(x)
        assert not hasattr(x, "scale")


def test_an_attribute_of_a_tensor_that_dies_inside():
    def function(x):
        y = x * 2
        y.scale = 3
        return y * y.scale

    assert torch.equal(aotgrad.aot_function(function, "eager")(torch.ones(2)), torch.full((2,), 6.0))


@pytest.mark.xfail(strict=True, reason="torch assigns private attributes to traced tensors, too (docs/limits.md)")
def test_a_private_attribute_of_an_argument():
    x = torch.ones(2)
    aotgrad.aot_function(lambda x: setattr(x, "_scale", 2) or x * 2, "eager")(x)
    assert x._scale == 2
