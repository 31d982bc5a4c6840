"""Jagged nested tensors, against eager."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.nested import nested_tensor_from_jagged as from_jagged

import aotgrad
from tests.subclasses.catalogue import nodes_and_gradients
from tests.subclasses.jagged_programs import Attention, attention, jagged, jagged_programs
from tests.subclasses.programs import WAYS, compiled, plain
from tests.subclasses.test_catalogue import check

PROGRAMS = {f"{program.group}: {program.name}": program for program in jagged_programs()}
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")  # torch uses it
FAILURES = {  # the messages of errors and warnings
    ("jagged: unbound", "dynamo"): "_local_scalar_dense",  # of Dynamo
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.parametrize("way", [way for way in WAYS if "eager" in way])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name, way) -> None:
    reason = FAILURES.get((name, way.split(",")[0]))
    with contextlib.nullcontext() if reason is None else pytest.raises(Exception, match=reason):
        check(PROGRAMS[name], way)


@pytest.mark.parametrize("way", WAYS)
def test_a_result_has_the_offsets_of_the_argument(way) -> None:
    x = jagged()
    y = compiled(lambda x: x.sin(), way)(x)
    y.sum().backward()
    assert y.offsets() is x.offsets() and y.shape == x.shape == x.grad.shape
    assert (x * y + x.grad).shape == x.shape


@pytest.mark.parametrize("way", WAYS)
def test_pieces_of_one_call_have_one_node(way) -> None:
    """Two nodes would get one undefined gradient each, and that of a split of a nested tensor cannot fill it."""
    function = lambda x: (x * 2).split(2, -1)  # noqa: E731
    assert nodes_and_gradients(compiled(function, way), [jagged()]) == nodes_and_gradients(function, [jagged()])


CHANGES = {
    "itself": lambda x: x.mul_(2),
    "its values": lambda x: x.values().mul_(2),
    "an alias": lambda x: x.detach().mul_(2),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", WAYS)
def test_a_change_before_the_backward_is_noticed(way, change) -> None:
    """Eager raises, too, with an error in the making of the error."""
    for function, message in (
        (torch.sin, None),
        (compiled(torch.sin, way), "modified by an inplace operation|_nested_tensor_size"),
    ):
        x = jagged()
        y = function(x)
        with torch.no_grad():
            CHANGES[change](x)
        with pytest.raises(RuntimeError, match=message):
            y.sum().backward()


BATCHES = ((2, 3, 4), (1, 5, 3), (4, 2), (1, 2, 3, 4))
SERVED = {"pointwise": lambda x: x.sin() * x, "attention": lambda x: attention(x, x, x)}


@pytest.mark.parametrize("function", SERVED.values(), ids=SERVED)
@pytest.mark.parametrize(("dynamic", "counts"), [(True, [1, 1, 1, 1]), (False, [1, 1, 2, 3]), (None, [1, 1, 2, 2])])
def test_plans_of_batches(function, dynamic, counts) -> None:
    """By default, the second plan has symbolic numbers of rows and of values."""
    ours, found = aotgrad.aot_function(function, "eager", dynamic=dynamic), []
    for lengths in BATCHES:
        x, y = jagged(lengths), jagged(lengths)
        assert torch.equal(ours(x).values(), function(y).values())
        found.append(len(ours.plans()))
    assert found == counts


BOUNDED = {
    "sin": lambda x: x.sin(),
    "doubled": lambda x: x * 2,
    "product": lambda x: x.sin() * x,
    "of values": lambda x: x.sin().values(),
    "attention": lambda x: attention(x, x, x),
}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BOUNDED)
def test_a_gradient_knows_the_least_and_largest_length(name, way, known) -> None:
    """As in eager, where the argument knows them. No batch takes another plan for them."""
    ours, missed = compiled(BOUNDED[name], way, dynamic=True), []
    for lengths in ((2, 3, 4), (2, 5, 3), (4, 2, 6)):
        found, before = [], aotgrad.counters["misses"]
        for function in (ours, BOUNDED[name]):
            x = jagged(lengths)
            bounds = (x._min_seqlen, x._max_seqlen) if known else (None, None)  # which computes and keeps them
            y = function(x)
            (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
            found.append((gradient._maybe_min_seqlen, gradient._maybe_max_seqlen))
            assert found[-1] in (bounds, (None, None)) and gradient.offsets() is x.offsets()
        assert found[0] == found[1]
        missed.append(aotgrad.counters["misses"] - before)
    assert not any(missed[1:])


def test_one_plan_serves_all_batches_by_inductor() -> None:
    module = Attention()
    ours = aotgrad.aot_module(module, "inductor", dynamic=True)
    for lengths in BATCHES:
        x, y = jagged(lengths), jagged(lengths)
        for inputs, function in ((x, ours), (y, module)):
            function(inputs).values().square().sum().backward()
        torch.testing.assert_close(x.grad.values(), y.grad.values())
    assert len(ours.plans()) == 1


def test_another_width_takes_another_plan() -> None:
    ours = aotgrad.aot_function(lambda x: x.sin() * x, "eager", dynamic=True)
    for width in (4, 3, 4):
        x = jagged(width=(width,))
        assert torch.equal(ours(x).values(), (x.sin() * x).values())
    assert len(ours.plans()) == 2


def test_attention_has_gradients_of_gradients() -> None:
    """Eager has none: the expected ones are those of rows."""
    offsets = torch.tensor([0, 2, 5, 9])

    def nested(*values):
        heads = (from_jagged(each, offsets).transpose(1, 2) for each in values)
        return nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).values()

    def by_rows(*values):
        rows = zip(*(each.transpose(0, 1).split([2, 3, 4], 1) for each in values), strict=True)
        return torch.cat([nn.functional.scaled_dot_product_attention(*row) for row in rows], 1).transpose(0, 1)

    found = []
    for function in (aotgrad.aot_function(nested, "eager"), by_rows):
        leaves = [plain(9, 2, 4, seed=seed) for seed in range(3)]
        gradients = torch.autograd.grad(function(*leaves).square().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(each.square().sum() for each in gradients), leaves))
    torch.testing.assert_close(*found)


def test_one_graph_serves_all_batches_behind_dynamo() -> None:
    ours = compiled(lambda x: x.sin() * x, "dynamo, eager halves", dynamic=True)
    ours(jagged((2, 3, 4)))
    with torch.compiler.set_stance("fail_on_recompile"):
        for lengths in ((1, 5, 3), (4, 4, 2)):
            x = jagged(lengths)
            assert torch.equal(ours(x).values(), (x.sin() * x).values())


def test_two_with_other_offsets_are_told_apart() -> None:
    """Eager refuses to multiply them: their rows may have other lengths."""
    ours = aotgrad.aot_function(lambda x, y: x * y, "eager")
    x = jagged()
    ours(x, x.detach())
    with pytest.raises(RuntimeError):
        ours(x, jagged())


MADE = {
    "alone": lambda v, o: [from_jagged(v, o)],
    "beside another": lambda v, o: [from_jagged(v, o), v * 2],
    "beside a wrapper": lambda v, o: [from_jagged(v.view(-1, 2), o), from_jagged(v.sin(), o)],
    "after a change": lambda v, o: [from_jagged(v.mul_(2), o)],
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.parametrize("way", [way for way in WAYS if "eager" in way])
@pytest.mark.parametrize("name", MADE)
def test_a_view_of_a_plain_argument_is_one(name: str, way: str) -> None:
    """A change of the nested tensor changes the argument, its version and its history."""
    found = []
    for function in (MADE[name], compiled(MADE[name], way)):
        leaf = plain(9, 2)
        values = leaf * 1
        view = function(values, torch.tensor([0, 2, 5, 9]))[0]
        version = values._version
        view.mul_(3)
        values.sum().backward()
        found.append([view._base is values, values._version - version, view._version - version, values.detach(), leaf.grad])
    assert found[0][:3] == found[1][:3] == [True, 1, 1]
    assert all(map(torch.equal, found[0][3:], found[1][3:]))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.parametrize("way", WAYS)
def test_parts_of_an_argument_get_no_history(way) -> None:
    rows = [torch.rand(length, 3) for length in (2, 3)]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    compiled(lambda x: x.sin() * 2, way)(x)
    parts = [getattr(x, name) for name in x.__tensor_flatten__()[0]]
    assert not any(part.requires_grad for part in parts)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.parametrize("backend", ["aot_eager", "aotgrad_eager"])
def test_graphs_of_batches_behind_dynamo(backend) -> None:
    """One for each number of rows; Dynamo guards the parts, too."""
    torch._dynamo.reset()
    counter = torch._dynamo.utils.counters["stats"]
    counter.clear()
    function = torch.compile(lambda x: x.sin() * 2, backend=backend)
    for lengths in ((3, 2), (4, 2), (5, 2), (5, 2, 1), (6, 1, 1)):
        rows = [torch.rand(length, 3) for length in lengths]
        function(torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)).values().sum().backward()
    assert counter["unique_graphs"] == 2
