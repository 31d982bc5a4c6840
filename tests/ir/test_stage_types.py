"""The types that pass between stages: frozen, all imported from one place, and what they answer about themselves."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil

import pytest

from aotgrad import ir
from aotgrad.ir import Compiled, Partition, SavedValue, WriteTime, needs_sentinel
from aotgrad.ir.joints import SENTINEL_INPUTS
from aotgrad.slots import Saved

MODULES = [importlib.import_module(f"aotgrad.ir.{each.name}") for each in pkgutil.iter_modules(ir.__path__)]


def types_of(module):
    return [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_type_is_frozen_and_imported_from_the_room(module):
    for each in types_of(module):
        assert getattr(ir, each.__name__) is each
        assert not dataclasses.is_dataclass(each) or each.__dataclass_params__.frozen, each


def test_when_an_input_is_written():
    assert [WriteTime.of(each) for each in ({True}, {False}, {True, False})] == [
        WriteTime.BEFORE,
        WriteTime.AFTER,
        WriteTime.BOTH,
    ]


@pytest.mark.parametrize("inputs", [0, SENTINEL_INPUTS, SENTINEL_INPUTS + 1])
def test_a_node_without_inputs_or_with_many_has_a_sentinel(inputs):
    assert needs_sentinel(inputs)


@pytest.mark.parametrize("inputs", [1, SENTINEL_INPUTS - 1])
def test_a_node_with_few_inputs_has_none(inputs):
    assert not needs_sentinel(inputs)


def test_the_bytes_of_a_partition_are_those_of_its_saved_values():
    on_device = SavedValue(Saved(0), 8, "its backward reads it", None)
    on_host = SavedValue(Saved(1), 0, "its backward reads it", None, host_bytes=4)
    partition = Partition(forward=None, backward=None, saved=(on_device, on_host))
    assert (partition.saved_bytes, partition.host_bytes) == (8, 4)


def test_a_backward_compiler_is_wrapped_if_there_is_one():
    wrapped = Compiled("toy", list, None).with_backward(lambda compiles: pytest.fail("there is nothing to wrap"))
    assert wrapped.compile_backward is None
    wrapped = Compiled("toy", list, len).with_backward(lambda compiles: (compiles, "wrapped"))
    assert wrapped.compile_backward == (len, "wrapped")
