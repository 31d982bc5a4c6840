"""Options: checked when they are made, with the environment as default."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import aotgrad
from aotgrad.errors import OptionError
from aotgrad.options import LEGAL_VALUES, PASSES, Options


def test_every_option_has_legal_values_and_a_legal_default():
    assert {field.name for field in dataclasses.fields(Options)} == {*LEGAL_VALUES, *PASSES}
    assert Options() == Options(**{field.name: field.default for field in dataclasses.fields(Options)})


@pytest.mark.parametrize(
    ("name", "value"),
    [("partitioner", "greedy"), ("verify", 1), ("dynamic", "yes"), ("mode", None), ("plan_limit", 0), ("min_graph_ops", -1)],
)
def test_an_illegal_value_is_refused_with_the_legal_ones(name, value):
    with pytest.raises(OptionError) as raised:
        Options.from_mapping({name: value})
    message = str(raised.value)
    assert message.startswith(f"option {name!r} is {value!r}; legal values are ")
    legal = LEGAL_VALUES[name]
    assert str(legal[0]) in message
    assert str(legal[-1]) in message


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(OptionError, match="unknown option 'partitoner'; the options are ") as raised:
        Options.from_mapping({"partitoner": "min_cut"})
    assert all(name in str(raised.value) for name in LEGAL_VALUES)
    assert isinstance(raised.value, ValueError)


def test_options_are_frozen_and_replaced():
    options = Options()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.verify = True
    assert options.replace(partitioner="save_all").partitioner == "save_all"
    with pytest.raises(OptionError):
        options.replace(partitioner="greedy")


def test_the_environment_gives_defaults(monkeypatch):
    monkeypatch.setenv("AOTGRAD_VERIFY", "1")
    monkeypatch.setenv("AOTGRAD_DISABLE", "1")
    options = Options.from_mapping(None)
    assert (options.verify, options.enabled) == (True, False)
    assert not Options.from_mapping({"verify": False}).verify
    monkeypatch.delenv("AOTGRAD_VERIFY")
    assert not Options.from_mapping({}).verify


def test_a_disabled_compilation_runs_the_function_itself():
    seen = []
    function = aotgrad.aot_function(lambda x: seen.append(type(x)) or x + 1, aotgrad.nop, options={"enabled": False})
    assert function(torch.ones(1)).item() == 2
    assert seen == [torch.Tensor]
    assert function.plans() == []
