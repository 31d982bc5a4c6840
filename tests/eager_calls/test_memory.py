"""Islands that change their arguments, or return views of them: values, gradients, versions and aliases are eager's."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

import aotgrad
from aotgrad.errors import CaptureError, EagerCallError
from tests.eager_calls.functions import ISLANDS, leaf, step_of


def added(x):
    return x.add_(1)


def added_twice(x):
    return x.mul_(2).add_(1).sin()


def added_without_gradient(x):
    with torch.no_grad():
        x.add_(1)
    return x * 2


def added_to_data(x):
    x.data.add_(1)
    return x * 2


def added_to_array(x):
    array = x.detach().numpy()
    array += 1
    return x * 2


def added_to_detached(x):
    return x.detach().mul_(3).sin() + x


def row_changed(x):
    x[0].mul_(3)


def product_added(x, y):
    x.add_(y * 2)
    return x.exp() * y


def new_views(x):
    y = x * 2
    return y.view(-1), y.t(), y.detach(), y


def chunks(x):
    return (x * 2).chunk(2)


def viewed_without_gradient(x):
    with torch.no_grad():
        return x.view(-1)


def as_view_then_changed(x):
    flat = x.view(-1)
    x.mul_(2)
    return flat


def read_as_numbers(x):
    return x.add_(float(x.detach().abs().max())), x[1:]


ISLAND_FUNCTIONS = {
    "itself": lambda x: x,
    "itself twice": lambda x: (x, x),
    "a view": lambda x: x.view(-1),
    "a view of a view": lambda x: x.t()[1:].unsqueeze(0),
    "detached": lambda x: x.detach(),
    "a row of it detached": lambda x: x.detach()[1],
    "its data": lambda x: x.data,
    "its bits": lambda x: x.view(torch.int32),
    "a complex view": lambda x: torch.view_as_complex(x.view(-1, 2)).conj(),
    "an expanded view": lambda x: x.unsqueeze(0).expand(2, -1, -1),
    "views of a new tensor": new_views,
    "chunks": chunks,
    "viewed without a gradient": viewed_without_gradient,
    "the same new tensor twice": lambda x: [x.exp()] * 2,
    "changed": added,
    "changed twice": added_twice,
    "changed without a gradient": added_without_gradient,
    "its data changed": added_to_data,
    "its array changed": added_to_array,
    "changed through detach": added_to_detached,
    "a row changed": row_changed,
    "changed, and an older view": as_view_then_changed,
    "changed by a number": read_as_numbers,
}
AROUND = {
    "of an intermediate": lambda function: lambda x: observed(function, x.cos()),
    "of a view": lambda function: lambda x: observed(function, (x.cos() * 2)[:2]),
    "of an argument": lambda function: lambda x: observed(function, x),
}


def observed(function, x):
    """All that a function around could compute from an argument before the call, after it, and from the results."""
    before = x * 3
    returned = function(x)
    results = [returned] if isinstance(returned, torch.Tensor) else list(returned or ())
    computed = [value.float().sin() for value in results if not value.is_complex()]
    return [before, x.exp(), *results, *computed, x]


def relations(tensors):
    """Which of some tensors are one tensor, share memory, are views of which, and how often they were changed."""
    storages = [value.untyped_storage().data_ptr() for value in tensors]
    return {
        "ids": [next(k for k, other in enumerate(tensors) if other is value) for value in tensors],
        "memory": [storages.index(place) for place in storages],
        "views": [None if value._base is None else id(value._base) in map(id, tensors) for value in tensors],
        "is view": [value._is_view() for value in tensors],
        "versions": [value._version for value in tensors],
        "requires_grad": [value.requires_grad for value in tensors],
        "strides": [value.stride() for value in tensors],
    }


def outcome(function, make_input):
    """Results, relations and gradients of two calls."""
    found = []
    for seed in (0, 1):
        x = leaf(4, 6, seed=seed)
        given = make_input(x)
        results = function(given)
        pairs = [value for value in results if value.requires_grad]
        loss = sum((value.abs() * k).sum() for k, value in enumerate(pairs, 1))
        gradient = torch.autograd.grad(loss, x, allow_unused=True) if pairs else ()
        found.append(([value.detach().clone() for value in results], relations([given, *results]), gradient))
    return found


def assert_equal(found, expected):
    for (values, kinds, gradients), (their_values, their_kinds, their_gradients) in zip(found, expected, strict=True):
        torch.testing.assert_close(values, their_values)
        assert kinds == their_kinds
        torch.testing.assert_close(gradients, their_gradients)


INPUTS = {"with a gradient": lambda x: x * 1, "without": lambda x: x.detach().clone()}


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", ISLAND_FUNCTIONS)
def test_writes_and_aliases_are_eagers(name, around, inputs):
    function = ISLAND_FUNCTIONS[name]
    run = aotgrad.aot_function(AROUND[around](aotgrad.island(function)), "eager", options=ISLANDS)
    assert_equal(outcome(run, INPUTS[inputs]), outcome(AROUND[around](function), INPUTS[inputs]))
    assert len(run.plans()) == 1


@pytest.mark.parametrize("name", ["a view", "changed twice", "changed without a gradient", "chunks"])
def test_through_inductor(name):
    function = ISLAND_FUNCTIONS[name]
    run = aotgrad.aot_function(AROUND["of an argument"](aotgrad.island(function)), "inductor", options=ISLANDS)
    assert_equal(outcome(run, INPUTS["with a gradient"]), outcome(AROUND["of an argument"](function), lambda x: x * 1))


def test_two_arguments_one_of_them_changed():
    def function(x, y, call):
        z = x.cos()
        result = call(z, y.sin())
        return (result + z).sum(), z

    found = []
    for run in (product_added, aotgrad.island(product_added)):
        compiled = aotgrad.aot_function(lambda x, y, run=run: function(x, y, run), "eager", options=ISLANDS)
        x, y = leaf(), leaf(seed=1)
        loss, z = compiled(x, y)
        first = torch.autograd.grad(loss + z.exp().sum(), (x, y), create_graph=True)
        found.append([loss, z, *first, *torch.autograd.grad(sum(map(torch.sum, first)), (x, y))])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", ["a view", "changed twice", "chunks"])
def test_gradients_of_gradients(name):
    found = []
    for call in (ISLAND_FUNCTIONS[name], aotgrad.island(ISLAND_FUNCTIONS[name])):
        around = AROUND["of an intermediate"](call)
        run = aotgrad.aot_function(
            lambda x, run=around: sum(value.exp().sum() for value in run(x)), "eager", options=ISLANDS
        )
        x = leaf(4, 6)
        (first,) = torch.autograd.grad(run(x), x, create_graph=True)
        found.append((first, *torch.autograd.grad(first.sum(), x)))
    torch.testing.assert_close(*found)


def test_a_leaf_that_requires_grad_is_changed_without_a_gradient():
    def function(x):
        return added_without_gradient(x).sin()

    run = aotgrad.aot_function(lambda x: aotgrad.island(added_without_gradient)(x).sin(), "eager", options=ISLANDS)
    found = []
    for call in (function, run):
        x = leaf()
        call(x).sum().backward()
        found.append((x.detach(), x.grad, x._version, x.is_leaf))
    torch.testing.assert_close(*(case[:2] for case in found))
    assert found[0][2:] == found[1][2:]


def test_a_leaf_that_requires_grad_is_not_changed_with_a_gradient():
    run = aotgrad.aot_function(lambda x: aotgrad.island(added)(x).sin(), "eager", options=ISLANDS)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        run(leaf())


class Counting(nn.Module):
    """Its island changes two buffers, each in another way."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3))

    def count(self, x):
        self.calls += 1
        self.mean.lerp_(torch.from_numpy(x.detach().numpy().mean(0)), 0.5)
        return self.linear(x) * float(self.calls)

    def forward(self, x):
        return self.count(x.sin()).cos()


class CountingInAnIsland(Counting):
    count = aotgrad.island(Counting.count)


def trained(make_model, compile_model):
    torch.manual_seed(0)
    model = make_model()
    run, losses = compile_model(model), []
    for seed in range(3):
        losses.append(run(leaf(seed=seed)).sum())
        losses[-1].backward()
    return losses, dict(model.named_buffers()), [each.grad for each in model.parameters()], model.calls._version


def test_buffers_of_a_module():
    *expected, version = trained(Counting, lambda model: model)
    *found, found_version = trained(CountingInAnIsland, lambda model: aotgrad.aot_module(model, "eager", options=ISLANDS))
    torch.testing.assert_close(found, expected)
    assert found_version == version


def test_buffers_in_a_training_step():
    found = []
    for kind in (Counting, CountingInAnIsland):
        torch.manual_seed(0)
        model = kind()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = step_of(model, optimizer)
        if kind is CountingInAnIsland:
            run = aotgrad.train_step(run, state=[model, optimizer], backend="eager")
        losses = [run(leaf(seed=seed).detach()).detach() for seed in range(3)]
        found.append([losses, dict(model.state_dict())])
    torch.testing.assert_close(*found)


def test_a_closed_over_tensor_is_changed_once_a_call():
    total = torch.zeros(3)

    @aotgrad.island
    def add_up(x):
        total.add_(x.detach())
        return x * total

    run = aotgrad.aot_function(lambda x: add_up(x.cos()) * 1, "eager", options=ISLANDS)
    for count in (1, 2):
        torch.testing.assert_close(run(torch.zeros(3)), torch.full((3,), float(count)))
        assert total.tolist() == [count] * 3 and total._version == count


def test_a_closed_over_tensor_that_gets_a_history_is_an_error():
    total = torch.zeros(4, 3)
    add_up = aotgrad.island(lambda x: total.add_(x) * 2)
    with pytest.raises(CaptureError, match="changes a tensor that is no argument of it in a way that has a gradient"):
        aotgrad.aot_function(lambda x: add_up(x.cos()), "eager", options=ISLANDS)(leaf())
    assert not total.any() and not total.requires_grad


def test_a_write_to_one_of_two_views_is_an_error():
    add = aotgrad.island(lambda x, y: x.add_(y))
    with pytest.raises(CaptureError, match="another argument is a view of the same memory"):
        aotgrad.aot_function(lambda x: add(x, x[0]), "eager", options=ISLANDS)(torch.ones(2, 2))


def test_a_closed_over_tensor_as_an_argument_is_an_error():
    total = torch.zeros(3)
    add = aotgrad.island(lambda x, total: total.add_(x))
    with pytest.raises(CaptureError, match="a tensor that is no argument of the function is changed in place"):
        aotgrad.aot_function(lambda x: add(x.cos(), total), "eager", options=ISLANDS)(torch.zeros(3))
    assert not total.any()


def test_one_tensor_as_two_arguments():
    def twice(x, y):
        return x.add_(1), y.mul_(2), x is y

    marked = aotgrad.island(lambda x, y: twice(x, y)[:2])
    found = []
    for call in (twice, marked):
        x = torch.ones(3)
        run = aotgrad.aot_function(lambda x, call=call: call(x, x)[:2], "eager", options=ISLANDS)
        first, second = run(x)
        found.append((x.tolist(), first is x, second is x, x._version))
    assert found[0] == found[1] == ([4.0] * 3, True, True, 2)


LATER = {
    "changes an argument in place, but did not do so": lambda x, n: x.add_(1) if n else x * 1,
    "returns other views": lambda x, n: x[0] if n else x[1],
}


@pytest.mark.parametrize("message", LATER)
def test_what_a_later_call_does_otherwise_is_an_error(message):
    calls = []

    @aotgrad.island
    def counted(x):
        calls.append(1)
        return LATER[message](x, len(calls) - 1)

    run = aotgrad.aot_function(lambda x: counted(x.cos()) * 1, "eager", options=ISLANDS)
    run(torch.ones(2, 2))
    with pytest.raises(EagerCallError, match=message):
        run(torch.ones(2, 2))


# -- memory that is no argument


class Average:
    """Keeps what it returns."""

    def __init__(self):
        self.mean, self.last, self.normed = torch.zeros(4), torch.zeros(4), nn.BatchNorm1d(4)
        self.seen = torch.zeros(4)

    def get(self, x):
        return self.mean

    def add(self, x):
        return self.mean.mul_(0.5).add_(x.detach())

    def hold(self, x):
        self.last = x.detach() * 2
        return self.last, x.detach().sin()

    def norm(self, x):
        return functional.batch_norm(x, self.normed.running_mean, self.normed.running_var, training=True)

    def scaled(self, x):
        return x * self.mean


def run_outside(function, backend):
    """What a function computes in three calls, and what its islands hold afterwards."""
    state = Average()
    names = ("get", "add", "hold", "norm", "scaled")
    call = partial(function, SimpleNamespace(**{name: aotgrad.island(getattr(state, name)) for name in names}), state)
    run = call if backend is None else aotgrad.aot_function(call, backend, options=ISLANDS)
    found = []
    for k in range(3):
        x = (torch.arange(12.0).view(3, 4) / 7 + k).requires_grad_()
        results = run(x)
        found.append([*results, *torch.autograd.grad(sum(each.sum() for each in results), x)])
    return found, [state.mean, state.last, state.seen, state.normed.running_mean]


USES = {
    "a kept result is read": lambda islands, state, x: (islands.get(x) * x.sin(), islands.scaled(x)),
    "a kept result is returned": lambda islands, state, x: (islands.add(x[0]), x.sin()),
    "another result is changed": lambda islands, state, x: (islands.hold(x)[1].mul_(x), x.sin()),
    "statistics that nothing else uses": lambda islands, state, x: (islands.norm(x.sin()).cos(), x.exp()),
    "a change after it was read": lambda islands, state, x: (islands.scaled(x), state.seen.sin() * x),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", USES)
def test_memory_that_an_island_uses_alone(name, backend):
    torch.testing.assert_close(run_outside(USES[name], backend), run_outside(USES[name], None))


SHARED_USES = {
    "read before it is changed": (
        lambda islands, state, x: ((state.mean * 2).sin() * x, islands.add(x[0])),
        "uses this tensor",
    ),
    "read after it is changed": (
        lambda islands, state, x: (islands.add(x[0]) * x, (state.mean * 2).sin() * x),
        "uses this tensor",
    ),
    "statistics": (
        lambda islands, state, x: (islands.norm(x.sin()), state.normed.running_mean * x),
        "uses this tensor",
    ),
    "a kept result is changed": (lambda islands, state, x: (islands.get(x).add_(1) * x,), "that it keeps"),
    "a new result that it keeps is changed": (lambda islands, state, x: (islands.hold(x)[0].mul_(x),), "that it keeps"),
    "an earlier result": (lambda islands, state, x: (x - islands.add(x[0]) * islands.add(x[1]),), "has returned"),
    "the result of another one": (lambda islands, state, x: (x - islands.get(x) * islands.add(x[1]),), "has returned"),
}


@pytest.mark.parametrize("name", SHARED_USES)
def test_memory_that_the_function_around_uses_too_is_an_error(name):
    function, message = SHARED_USES[name]
    with pytest.raises(CaptureError, match=message):
        run_outside(function, "eager")


def test_an_argument_that_is_changed_before_an_island_reads_it_is_an_error():
    mean = torch.zeros(3)
    scaled = aotgrad.island(lambda x: x * mean)
    run = aotgrad.aot_function(lambda x, y: (scaled(x), y.add_(1), x.sin()), "eager")  # the write comes later
    assert run(torch.ones(3), mean)[0].tolist() == [0, 0, 0] and mean.tolist() == [1, 1, 1]
    run = aotgrad.aot_function(lambda x, y: (y.add_(1), scaled(x)), "eager")
    with pytest.raises(CaptureError, match="has changed this tensor"):
        run(torch.ones(3), mean)
    assert mean.tolist() == [1, 1, 1]
