"""Buffers and attributes that a forward assigns: values, gradients, aliases and identities are eager's, call after call."""

from __future__ import annotations

import copy
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad.errors import CaptureError, ExportError, ShippingError

COMPILED: dict[str, Callable[[nn.Module], Callable]] = {
    "eager halves": lambda module: aotgrad.aot_module(module, "eager"),
    "inductor": lambda module: aotgrad.aot_module(module, "inductor"),
    "symbolic sizes": lambda module: aotgrad.aot_module(module, "eager", dynamic=True),
    "islands": lambda module: aotgrad.aot_module(module, "eager", options={"islands": True, "min_graph_ops": 0}),
    "dynamo, eager halves": lambda module: torch.compile(module, backend="aotgrad_eager"),
    "dynamo, inductor": lambda module: torch.compile(module, backend="aotgrad"),
}


class Assigning(nn.Module):
    """Has a parameter, and buffers to assign."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("first", torch.ones(3))
        self.register_buffer("second", torch.full((3,), 2.0))
        self.register_buffer("cache", None)

    def own(self) -> dict[str, Any]:
        return {name: part for name, part in (*self._parameters.items(), *self._buffers.items())}


class Counting(Assigning):
    def forward(self, x):
        self.count = self.count + 1
        return x * self.weight * self.count


class Averaging(Assigning):
    def forward(self, x):
        y = x * self.weight
        with torch.no_grad():
            self.first = 0.9 * self.first + 0.1 * y.mean(0)
        return y - self.first


class AveragingDetached(Assigning):
    def forward(self, x):
        y = x * self.weight
        self.first = 0.9 * self.first + 0.1 * y.mean(0).detach()
        return y - self.first


class Growing(Assigning):
    def forward(self, x):
        y = x * self.weight
        self.cache = y.detach() if self.cache is None else torch.cat([self.cache, y.detach()])
        return y.sum() + self.cache.sum(0)


class Forgetting(Assigning):
    def forward(self, x):
        self.first = None if self.first is not None else self.second + 1
        return x * self.weight


class Swapping(Assigning):
    def forward(self, x):
        self.first, self.second = self.second, self.first
        return x * self.weight * self.first


class KeepingArgument(Assigning):
    def forward(self, x):
        self.cache = x
        return x * self.weight


class KeepingView(Assigning):
    def forward(self, x):
        self.cache = x[1:]
        return x * self.weight


class KeepingResult(Assigning):
    def forward(self, x):
        self.cache = x * self.weight
        return self.cache


class KeepingViewOfResult(Assigning):
    def forward(self, x):
        y = x * self.weight
        self.cache, self.first = y[0], y.detach()[1]
        return y


class KeepingOneTensorTwice(Assigning):
    def forward(self, x):
        self.cache = self.first = (x * self.weight).detach()
        return x + self.weight


class AssigningTwice(Assigning):
    def forward(self, x):
        self.first = self.first * 2
        y = x * self.first
        self.first = self.first + self.weight.detach()
        return y * self.weight


class ChangingThenAssigning(Assigning):
    def forward(self, x):
        self.first.add_(1)
        self.first = self.first * 2
        return x * self.weight * self.first


class AssigningThenChanging(Assigning):
    def forward(self, x):
        self.first = self.first + 1
        self.first.mul_(2)
        return x * self.weight * self.first


class AssigningWhatItHad(Assigning):
    def forward(self, x):
        before, self.first = self.first, self.first + 1
        y = x * self.weight * self.first
        self.first = before
        return y


class KeepingALeaf(Assigning):
    def forward(self, x):
        self.first = torch.full((3,), 4.0, requires_grad=True)
        return x * self.weight * self.first


class OfAnotherType(Assigning):
    def forward(self, x):
        self.count = torch.tensor(3, dtype=torch.int64) + x.numel()
        return x * self.weight


class KeepingTheParameter(Assigning):
    def forward(self, x):
        self.cache, self.first = self.weight.detach(), self.weight[:2]
        return x * self.weight


class ChangingWhatItKept(Assigning):
    """What it keeps is an argument of the call before, and of this one."""

    def forward(self, x):
        if self.cache is not None:
            self.cache.add_(1)
        y = x * self.weight
        self.cache = x.detach()
        return y


class Drawing(Assigning):
    def forward(self, x):
        self.first = torch.rand(3)
        return nn.functional.dropout(x * self.weight, 0.5) * self.first


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other = Counting(), AveragingDetached()
        self.parts = nn.ModuleList([self.inner, KeepingView()])

    def own(self) -> dict[str, Any]:
        parts = enumerate((*self.parts, self.other))
        return {f"{k}.{name}": value for k, part in parts for name, value in part.own().items()}

    def forward(self, x):
        for part in (*self.parts, self.inner):
            x = part(x)
        return {"y": self.other(x), "number": 3}


BUFFERS = ("count", "first", "second", "cache")


def with_attributes(kind: type[Assigning]) -> type[Assigning]:
    """The same module with plain attributes in place of buffers."""

    class WithAttributes(kind):
        def __init__(self) -> None:
            super().__init__()
            buffers = {name: self._buffers.pop(name) for name in BUFFERS}
            vars(self).update(buffers)

        def own(self) -> dict[str, Any]:
            return {**self._parameters, **{name: vars(self)[name] for name in BUFFERS}}

    WithAttributes.__name__ = f"{kind.__name__}Attributes"
    return WithAttributes


MODULES = [*Assigning.__subclasses__(), Nested, *map(with_attributes, Assigning.__subclasses__())]


def call(module: Any, owner: Any, x: torch.Tensor) -> dict[str, Any]:
    """What can be observed of a call."""
    before, version = owner.own(), x._version
    torch.manual_seed(0)
    result = module(x)
    named = {"x": x, "result": result, **{f"old {name}": value for name, value in before.items()}, **owner.own()}
    tensors = {name: value for name, value in flat(named) if isinstance(value, torch.Tensor)}
    pairs = list(itertools.combinations(tensors, 2))
    new = (value for name, value in tensors.items() if not name.startswith("old"))
    roots = [value for value in new if value.requires_grad and value.grad_fn is not None]
    wanted = [x, *(value for value in before.values() if value is not None and value.requires_grad and value.is_leaf)]
    found = torch.autograd.grad([root.sum() for root in roots], wanted, allow_unused=True) if roots else []
    return {
        "values": {name: value.detach().clone() for name, value in tensors.items()},
        "none": [name for name, value in flat(named) if value is None],
        "requires_grad": {name: (value.requires_grad, value.is_leaf) for name, value in tensors.items()},
        "views": {name: value._is_view() for name, value in tensors.items() if not name.startswith("old")},
        "identical": [pair for pair in pairs if tensors[pair[0]] is tensors[pair[1]]],
        "shared": [pair for pair in pairs if share(*map(tensors.get, pair))],
        "version": x._version - version,
        "gradients": found,
    }


def flat(named: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in named.items():
        leaves = pytree.tree_leaves(value)
        yield from ((f"{name}{k}" if k else name, leaf) for k, leaf in enumerate(leaves))


def share(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    torch.testing.assert_close(found.pop("values"), expected.pop("values"))
    gradients = [each.pop("gradients") for each in (found, expected)]
    assert [each is None for each in gradients[0]] == [each is None for each in gradients[1]]
    for one, other in zip(*gradients, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other)
    assert found == expected


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("requires_grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo asks for it
def test_every_call_is_eagers(kind, compiled, requires_grad):
    reference = kind()
    module = copy.deepcopy(reference)
    run = COMPILED[compiled](module)
    torch.compiler.reset()
    with torch.set_grad_enabled(requires_grad), torch._inductor.config.patch(fallback_random=True):
        for number in range(4):
            if number != 2:  # the same arguments once more
                inputs = [torch.arange(6.0).view(2, 3).add(number).requires_grad_(requires_grad) for _ in range(2)]
            expected = call(reference, reference, inputs[0])
            found = call(run, module, inputs[1])
            same(found, expected)
    assert list(module.state_dict()) == list(reference.state_dict())


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_buffer_may_carry_a_graph_to_the_next_call(backend):
    class Carrying(Assigning):
        def forward(self, x):
            self.first = 0.5 * self.first + (x * self.weight).mean(0)
            return x * self.first

    reference = Carrying()
    module = copy.deepcopy(reference)
    run = aotgrad.aot_module(module, backend)
    losses = []
    for forward in (reference, run):
        x = torch.arange(6.0).view(2, 3)
        losses.append(sum(forward(x + number).sum() for number in range(4)))
        losses[-1].backward()
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(module.weight.grad, reference.weight.grad)
    torch.testing.assert_close(module.first, reference.first)
    assert module.first.requires_grad and module.first.grad_fn is not None
    assert len(run.plans()) == 2, "the buffer requires grad from the second call on"


def test_a_plan_serves_later_calls():
    run = aotgrad.aot_module(Averaging(), "eager")
    for _ in range(5):
        run(torch.ones(2, 3))
    assert [plan.hits for plan in run.plans()] == [4]
    static = {spec.path: spec.is_static for spec, _ in run.plans()[0].executable.arguments}
    assert static == {"weight": True, "count": True, "first": False, "second": True, None: False}


def test_what_a_buffer_was_is_freed():
    module = Counting()
    run = aotgrad.aot_module(module, "eager")
    run(torch.ones(3))
    before = weakref.ref(module.count)
    run(torch.ones(3))
    assert before() is None


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_gradients_of_gradients_after_a_buffer_came_to_be(backend):
    class Filling(Assigning):
        def forward(self, x):
            if self.cache is None:
                self.cache = (x * 2).detach()
            return (x * self.weight).pow(3) * self.cache

    reference = Filling()
    module = copy.deepcopy(reference)
    run = aotgrad.aot_module(module, backend)
    found = []
    for forward in (reference, run):
        x = torch.arange(1.0, 4.0, requires_grad=True)
        results = [forward(x).sum(), forward(x).sum()]
        (first,) = torch.autograd.grad(sum(results), x, create_graph=True)
        found.append([first, *torch.autograd.grad(first.sum(), [x, forward.weight])])
    torch.testing.assert_close(*found)


def test_several_results_with_a_generator():
    class DrawingFromItsOwn(Assigning):
        def __init__(self):
            super().__init__()
            self.generator = torch.Generator().manual_seed(3)

        def forward(self, x):
            self.first = torch.rand(3, generator=self.generator)
            return x * self.first

    reference, module = DrawingFromItsOwn(), DrawingFromItsOwn()
    run = aotgrad.aot_module(module, "eager")
    for _ in range(3):
        assert torch.equal(run(torch.ones(3)), reference(torch.ones(3)))
        assert torch.equal(module.first, reference.first)


TRANSFORMED = {
    "vmap": lambda forward, x: torch.func.vmap(forward)(x),
    "grad": lambda forward, x: torch.func.grad(lambda x: forward(x).sum())(x),
    "jvp": lambda forward, x: torch.func.jvp(forward, (x,), (x,)),
    "vmap of grad": lambda forward, x: torch.func.vmap(torch.func.grad(lambda x: forward(x).sum()))(x),
}


@pytest.mark.parametrize("transform", TRANSFORMED)
@pytest.mark.parametrize("compiled", ["eager halves", "inductor"])
def test_under_transforms_the_module_runs_itself(compiled, transform):
    reference = Counting()
    module = copy.deepcopy(reference)
    run, x = COMPILED[compiled](module), torch.arange(6.0).view(2, 3)
    for forward in (run, reference):
        forward(x)
    torch.testing.assert_close(TRANSFORMED[transform](run, x), TRANSFORMED[transform](reference, x))
    assert module.count == reference.count == 2


@pytest.mark.parametrize("compiled", ["eager halves", "inductor"])
def test_functional_calls_keep_the_modules_own_buffers(compiled):
    reference = Averaging()
    module = copy.deepcopy(reference)
    run = COMPILED[compiled](module)
    for _ in range(2):
        given = [{"weight": torch.full((3,), 5.0), "first": torch.zeros(3)} for _ in range(2)]
        results = [
            torch.func.functional_call(each, state, torch.ones(2, 3))
            for each, state in zip((run, reference), given, strict=True)
        ]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*given)
        assert torch.equal(module.first, torch.ones(3))


def test_threads_lose_no_assignment():
    """One thread assigns, another one traces the module meanwhile, again and again."""
    module = Counting()
    run = aotgrad.aot_module(module, "eager", options={"plan_limit": 1000})
    run(torch.ones(3))

    def trace():
        for size in range(1, 12):
            run.calls.plan_for(torch.ones(size, 3))

    thread = threading.Thread(target=trace)
    thread.start()
    for _ in range(200):
        run(torch.ones(3))
    thread.join()
    assert module.count == 201


def test_a_function_too_small_to_compile():
    module = Counting()
    run = aotgrad.aot_module(module, "eager", options={"min_graph_ops": 50})
    for number in range(3):
        assert torch.equal(run(torch.ones(3)), module.weight * (number + 1))


def test_a_compiled_module_as_a_part():
    model = nn.Sequential(aotgrad.aot_module(Counting(), "eager"), Counting())
    run = aotgrad.aot_module(model, "eager")
    for number in range(3):
        run(torch.ones(3))
        assert [part.count.item() for part in model] == [number + 1, number + 1]


def test_copies_have_buffers_of_their_own():
    run = aotgrad.aot_module(Counting(), "eager")
    run(torch.ones(3))
    other = copy.deepcopy(run)
    other(torch.ones(3))
    assert (run.count, other.count) == (1, 2)


def test_an_island_may_change_a_buffer_that_is_assigned_afterwards():
    @aotgrad.island
    def raised(count):
        return torch.tensor(count.numpy() + 1)

    class WithAnIsland(Assigning):
        def forward(self, x):
            self.count = raised(self.count)
            return x * self.weight * self.count

    module = WithAnIsland()
    run = aotgrad.aot_module(module, "eager")
    for number in range(3):
        assert torch.equal(run(torch.ones(3)), module.weight * (number + 1))
        assert module.count == number + 1


@pytest.mark.parametrize("compiled", ["eager halves", "inductor", "dynamo, eager halves"])
def test_a_buffer_that_is_a_tensor_subclass(compiled):
    class OfParts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.arange(1.0, 4.0))
            self.register_buffer("pair", TwoTensor(torch.ones(3), torch.full((3,), 2.0)))
            self.register_buffer("plain", torch.ones(3))

        def forward(self, x):
            self.pair = self.pair * 2 + self.weight.detach()
            self.plain = self.pair.a if isinstance(self.pair, TwoTensor) else self.pair
            return x * self.weight * self.plain

    torch.compiler.reset()
    reference = OfParts()
    module = copy.deepcopy(reference)
    run = COMPILED[compiled](module)
    for _ in range(3):
        results = [forward(torch.ones(3)) for forward in (run, reference)]
        torch.testing.assert_close(*results)
        assert type(module.pair) is TwoTensor
        torch.testing.assert_close(module.pair.a, reference.pair.a)
        torch.testing.assert_close(module.pair.b, reference.pair.b)
        torch.testing.assert_close(module.plain, reference.plain)
        pairs = zip(results, (module, reference), strict=True)
        gradients = [torch.autograd.grad(result.sum(), each.weight) for result, each in pairs]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_module_from_a_file_assigns_its_buffers(backend, tmp_path):
    reference, loaded = Averaging(), Averaging()
    run = aotgrad.aot_module(Averaging(), backend)
    run(torch.ones(2, 3)).sum().backward()
    aotgrad.save(run, tmp_path / "plans")
    run = aotgrad.load(tmp_path / "plans", loaded)
    for number in range(2):
        x = torch.arange(6.0).view(2, 3) + number
        torch.testing.assert_close(run(x), reference(x))
        torch.testing.assert_close(loaded.first, reference.first)


def test_a_file_is_for_modules_with_the_same_buffers(tmp_path):
    run = aotgrad.aot_module(Growing(), "eager")
    run(torch.ones(2, 3))
    aotgrad.save(run, tmp_path / "plans")
    with pytest.raises(ShippingError, match="'cache' is missing; saved: has shape"):
        aotgrad.load(tmp_path / "plans", Growing())


def test_a_buffer_that_grows_has_symbolic_sizes():
    module = Growing()
    run = aotgrad.aot_module(module, "eager", dynamic=True)
    for number in range(12):
        run(torch.ones(2, 3))
        assert module.cache.shape == (2 * number + 2, 3)
    assert len(run.plans()) == 2, "the first one has no cache"


@pytest.mark.parametrize("compiled", ["inductor", "dynamo, inductor"])
def test_a_plan_whose_graphs_come_from_the_disk(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("AOTGRAD_CACHE_DIR", str(tmp_path))
    makers = {
        "inductor": lambda module: aotgrad.aot_module(module, "inductor", options={"cache": True}),
        "dynamo, inductor": lambda module: torch.compile(module, backend="aotgrad", options={"cache": True}),
    }
    for _ in range(2):
        torch.compiler.reset()
        reference, module = Averaging(), Averaging()
        run = makers[compiled](module)
        for number in range(3):
            x = torch.arange(6.0).view(2, 3) + number
            torch.testing.assert_close(run(x), reference(x))
            torch.testing.assert_close(module.first, reference.first)


# --- Refusals --------------------------------------------------------------------------------------------------------


class AssigningAParameter(Assigning):
    def forward(self, x):
        self.weight = nn.Parameter(x * 2)
        return x


class Registering(Assigning):
    def forward(self, x):
        self.register_buffer("third", x * 2)
        return x


class Removing(Assigning):
    def forward(self, x):
        del self.first
        return x


class WithARegion(Assigning):
    def forward(self, x):
        y = checkpoint(lambda x: (x * self.weight).sin(), x, use_reentrant=False)
        self.first = self.first + 1
        return y * self.first


REFUSED = {
    AssigningAParameter: "assigns or removes the parameter 'weight'",
    Registering: "registers or removes the buffer 'third'",
    Removing: "registers or removes the buffer 'first'",
    WithARegion: "assigns a new tensor to 'first', and has a region under torch.utils.checkpoint",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused(kind):
    module = kind()
    before = {name: value.clone() for name, value in module.own().items() if value is not None}
    with pytest.raises(CaptureError, match=REFUSED[kind]):
        aotgrad.aot_module(module, "eager")(torch.ones(3, requires_grad=True))
    torch.testing.assert_close({name: module.own()[name] for name in before}, before)
    assert list(module.state_dict()) == list(kind().state_dict())


def test_a_tensor_assigned_to_a_parameter_is_eagers_error():
    class OfAParameter(Assigning):
        def forward(self, x):
            self.weight = x * 2
            return x

    with pytest.raises(TypeError, match=r"cannot assign 'torch.*Tensor' as parameter 'weight'"):
        aotgrad.aot_module(OfAParameter(), "eager")(torch.ones(3))


@pytest.mark.parametrize("options", [{}, {"trace_joint": True, "output_loss_index": 0}], ids=["forward", "joint"])
def test_an_exported_graph_assigns_nothing(options):
    with pytest.raises(ExportError, match=r"assigns a new tensor to '0\.first', which an exported graph cannot"):
        model = nn.Sequential(Averaging(), nn.Flatten(0), nn.Linear(6, 1, bias=False))
        aotgrad.aot_export_module(model, (torch.ones(2, 3),), **{"trace_joint": False, **options})


def test_a_module_of_flat_inputs_assigns_nothing():
    with pytest.raises(CaptureError, match="assigns a new tensor to 'count'; a module of flat inputs"):
        aotgrad.aot_module_simplified(Counting(), (torch.ones(3),), aotgrad.nop)


CLOSED_OVER = Counting()


@pytest.mark.parametrize("function", [CLOSED_OVER.forward, lambda x: CLOSED_OVER(x) + 1], ids=["method", "function"])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_module_that_a_function_closes_over_keeps_no_tensor_of_the_trace(function, backend):
    before = CLOSED_OVER.count
    with pytest.raises(CaptureError, match="assigns a tensor to 'count' of a Counting, which is no argument"):
        aotgrad.aot_function(function, backend)(torch.ones(3))
    assert CLOSED_OVER.count is before


def test_a_function_may_make_modules():
    def f(x):
        inner = nn.Linear(3, 2).requires_grad_(False)
        inner.last = x * 2
        inner.weight.fill_(1)
        inner.bias.fill_(0)
        return inner(x) + inner.last[0]

    run = aotgrad.aot_function(f, "eager")
    for _ in range(2):
        torch.testing.assert_close(run(torch.ones(3)), torch.full((2,), 5.0))


class KeepingInAnAttribute(nn.Module):
    def forward(self, x):
        self.last = (x * 2, 3)
        return x + 1


KEEPING = KeepingInAnAttribute()


@pytest.mark.parametrize("function", [KEEPING.forward, lambda x: KEEPING(x) * 2], ids=["method", "function"])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("before", [{}, {"last": None}, {"last": 5}], ids=["absent", "none", "number"])
def test_a_plain_attribute_of_a_module_that_is_closed_over(function, backend, before):
    vars(KEEPING).pop("last", None)
    vars(KEEPING).update(before)
    for x in (torch.ones(3), torch.ones(3, requires_grad=True)):
        with pytest.raises(CaptureError, match="assigns a tensor to 'last' of a KeepingInAnAttribute, which is no argument"):
            aotgrad.aot_function(function, backend)(x)
        assert {name: value for name, value in vars(KEEPING).items() if name == "last"} == before


def test_a_function_may_call_what_it_has_made():
    def f(x):
        inner = KeepingInAnAttribute()
        return inner(x) + inner.last[0]

    run = aotgrad.aot_function(f, "eager")
    for _ in range(2):
        assert torch.equal(run(torch.ones(3)), torch.full((3,), 4.0))
