"""Copies and detaches: which go, and that nobody can tell."""

from __future__ import annotations

import pytest
import torch

import aotgrad
from aotgrad.passes import DeadCodeElimination, RemoveLeftovers
from tests.executables import executable_of
from tests.numerics.against_eager import assert_like_eager, leaf, plain
from tests.passes.graphs import aten, inference_graph, names, targets, tidied

PASSES = (RemoveLeftovers(), DeadCodeElimination())


def test_detach_is_the_identity():
    def build(graph, x):
        return graph.call_function(aten.sin.default, (graph.call_function(aten.detach.default, (x,)),))

    assert targets(tidied(inference_graph(build), *PASSES)) == [aten.sin.default]


@pytest.mark.parametrize(
    ("op", "arguments", "kwargs"),
    [
        (aten.clone.default, lambda x, y: (y,), {}),
        (aten.clone.default, lambda x, y: (y,), {"memory_format": torch.contiguous_format}),
        (aten.copy.default, lambda x, y: (x, y), {}),
        (aten.slice_scatter.default, lambda x, y: (x, y), {}),
        (aten.slice_scatter.default, lambda x, y: (x, y, 1, 0, 9223372036854775807), {}),
    ],
)
def test_a_copy_of_a_fresh_tensor_is_that_tensor(op, arguments, kwargs):
    def build(graph, x):
        y = graph.call_function(aten.sin.default, (x,))
        return graph.call_function(aten.cos.default, (graph.call_function(op, arguments(x, y), kwargs),))

    assert names(tidied(inference_graph(build), *PASSES)) == ["sin", "cos"]


@pytest.mark.parametrize(
    ("op", "arguments", "kwargs"),
    [
        (aten.clone.default, lambda y: (y,), {"memory_format": torch.contiguous_format}),
        (aten.copy.default, lambda y: (0, y), {}),
    ],
)
def test_a_copy_with_another_layout_stays(op, arguments, kwargs):
    def build(graph, x):
        y = graph.call_function(aten.sin.default, (graph.call_function(aten.t.default, (x,)),))
        memory = graph.call_function(aten.empty.memory_format, ([3, 2],))
        values = [memory if value == 0 else value for value in arguments(y)]
        return graph.call_function(aten.cos.default, (graph.call_function(op, tuple(values), kwargs),))

    assert "cos" in names(tidied(inference_graph(build), *PASSES))
    assert len({"clone", "copy"} & set(names(tidied(inference_graph(build), *PASSES)))) == 1


def test_a_copy_that_checkpointing_treats_differently_stays():
    def build(graph, x):
        copy = graph.call_function(aten.clone.default, (graph.call_function(aten.sin.default, (x,)),))
        copy.meta["recompute"] = "must save"
        return graph.call_function(aten.cos.default, (copy,))

    assert names(tidied(inference_graph(build), *PASSES)) == ["sin", "clone", "cos"]


def test_a_cast_by_copy_stays():
    def function(x):
        y = torch.empty(3, dtype=torch.float64)
        y[:] = x.exp()
        return y.sin()

    assert "copy" in names(executable_of(function, "f32[3]").joint)
    assert_like_eager(function, lambda: (leaf(3),), "interpreter")


def swapped(x, y):
    """Each input becomes a copy of the other: the copies must be taken before the first one is written."""
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return x * 1


@pytest.mark.parametrize("backend", ["eager", "interpreter", "dynamo"])
@pytest.mark.parametrize("kept", [False, True])
def test_inputs_that_are_swapped(backend, kept):
    options = (
        {"options": {"keep_input_mutations": kept}} if backend == "dynamo" else {"keep_inference_input_mutations": kept}
    )
    assert_like_eager(swapped, lambda: (plain(3), plain(3)), backend, **options)


def test_a_copy_that_is_returned_may_be_written_to():
    def write(outputs, args):
        outputs[1].mul_(2)

    assert_like_eager(lambda x: (x.exp(), x.exp().clone(), x.clone()), lambda: (plain(3),), "eager", caller=write)


def test_what_was_copied_before_the_caller_changes_it_is_the_copy():
    """Eager saves the copy, so a write to the input between forward and backward does not matter."""

    def write(outputs, args):
        with torch.no_grad():
            args[1].mul_(2)

    def function(x, y):
        return x * y.clone()

    assert_like_eager(function, lambda: (leaf(3), plain(3)), "eager", caller=write, partition_fn=aotgrad.default_partition)
