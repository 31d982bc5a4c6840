"""Jagged nested tensors, against eager."""

from __future__ import annotations

import contextlib

import pytest
import torch

import aotgrad
from tests.subclasses.jagged_programs import jagged, jagged_programs
from tests.subclasses.programs import WAYS, compiled
from tests.subclasses.test_catalogue import check

PROGRAMS = {program.name: program for program in jagged_programs()}
FAILURES = {  # the messages of errors and warnings
    ("unbound", "dynamo"): "_local_scalar_dense",  # of Dynamo
    **{(name, "eager halves"): "ran eagerly" for name in ("attention", "batches, attention", "attention module")},
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")  # torch uses it
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


def test_one_plan_serves_batches_with_the_same_number_of_rows_and_values() -> None:
    ours = aotgrad.aot_function(lambda x: x.sin() * x, "eager")
    for lengths in ((2, 3, 4), (1, 5, 3), (4, 4, 1)):
        ours(jagged(lengths))
    assert len(ours.plans()) == 1


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
