"""Dictionaries are watched by a mechanism that tells every change, also where Python or torch lies."""

from __future__ import annotations

import collections

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad import native, torch_compat
from aotgrad.guards import dictionaries
from aotgrad.guards.dictionaries import CHANGES, Contents, Example, Versions, tells, tells_every_change, watch

MECHANISMS = [Contents, *([Versions] if torch_compat.versions_are_counted() else [])]


@pytest.fixture
def fresh():
    """What is chosen inside is chosen anew."""
    dictionaries.fastest.cache_clear()
    yield
    dictionaries.fastest.cache_clear()


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_change_is_told(mechanism, change):
    assert tells(mechanism, change)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_key_and_its_equal_are_told_apart(mechanism):
    table = {1: "a", 2: "b"}
    watched = mechanism([], [table])
    assert watched.hold()
    table.clear()
    table.update({True: "a", 2: "b"})
    assert not watched.hold()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_items_that_go_from_one_dictionary_to_the_next_are_told(mechanism):
    first, second = {"a": 1, "b": 2}, {"c": 3}
    watched = mechanism([], [first, second])
    second.clear()
    second.update({"b": first.pop("b"), "c": 3})
    assert not watched.hold()


@pytest.mark.parametrize("make", [dict, collections.OrderedDict])
def test_values_are_compared_by_identity(make):
    """Tensors, and whatever else has an `==` of its own, are asked nothing."""
    table = make(a=torch.ones(2), b=float("nan"))
    watched = Contents([], [table])
    assert watched.hold()
    table["a"] = torch.ones(2)
    assert not watched.hold()


def test_nothing_is_as_it_was():
    assert all(mechanism([], []).hold() for mechanism in MECHANISMS)


def test_what_is_chosen_here_tells_every_change(fresh):
    assert tells_every_change(dictionaries.fastest())


def test_versions_are_used_only_where_python_counts_them(fresh):
    assert dictionaries.fastest() is (Versions if torch_compat.versions_are_counted() else Contents)


class Lies:
    """Versions that stay as they are when something changes, or of some dictionaries, or that change by themselves."""

    def __init__(self, objects, tables):
        self.truth = Contents(objects, tables)


class Forgets(Lies):
    def hold(self):
        return True


class ForgetsAttributes(Lies):
    def __init__(self, objects, tables):
        super().__init__([], tables)

    def hold(self):
        return self.truth.hold()


class ForgetsWhatWasEmpty(Lies):
    def __init__(self, objects, tables):
        super().__init__(objects, [table for table in tables if table])

    def hold(self):
        return self.truth.hold()


class ForgetsAfterOneAnswer(Lies):
    told = False

    def hold(self):
        before, self.told = self.told, self.told or not self.truth.hold()
        return before or self.truth.hold()


class SeesChangesEverywhere(Lies):
    def hold(self):
        return False


LIES = [Forgets, ForgetsAttributes, ForgetsWhatWasEmpty, ForgetsAfterOneAnswer, SeesChangesEverywhere]


@pytest.mark.parametrize("lies", LIES)
def test_a_mechanism_that_lies_is_found_out(lies):
    assert not tells_every_change(lies)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 1.0

    def forward(self, x):
        return x * self.factor


@pytest.mark.parametrize("lies", LIES)
def test_a_module_does_without_a_mechanism_that_lies(fresh, monkeypatch, lies):
    monkeypatch.setattr(torch_compat, "versions_are_counted", lambda: True)
    monkeypatch.setattr(torch_compat, "DictVersions", lies)
    module = Scaled()
    compiled, x = aotgrad.aot_module(module, aotgrad.nop), torch.ones(2)
    for factor in (1.0, 5.0, 7.0):
        module.factor = factor
        assert [compiled(x)[0].item(), compiled(x)[0].item()] == [factor, factor]
    assert type(watch([], [])) is Contents
    assert compiled.plans()[-1].hits == 1


def test_a_module_does_without_versions_that_nobody_counts(fresh, monkeypatch):
    monkeypatch.setattr(torch_compat, "versions_are_counted", lambda: False)
    assert type(watch([], [])) is Contents


def test_the_contents_are_compared_by_the_library_if_there_is_one(monkeypatch):
    example, asked = Example(), []
    monkeypatch.setattr(native, "lookup", lambda name, otherwise: lambda *known: asked.append(name) or otherwise(*known))
    assert Contents([example], [example.table]).hold()
    assert asked == ["same_contents"]
