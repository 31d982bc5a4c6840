"""Backends by name."""

from __future__ import annotations

import pytest
import torch

import aotgrad
from aotgrad.backends import registry
from aotgrad.errors import BackendError


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))


def test_the_backends_that_are_there():
    assert aotgrad.backends.names() == ["eager", "inductor", "interpreter"]


def test_a_registered_backend_is_found_and_used(own_registry):
    decompositions = {torch.ops.aten.silu.default: lambda x: x * x.sigmoid()}
    backend = aotgrad.backends.register("mine", fw_compiler=aotgrad.nop, decompositions=decompositions)
    assert aotgrad.backends.get("mine") is backend
    assert backend.decompositions() is decompositions
    assert "mine" in aotgrad.backends.names()


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(BackendError, match="no backend 'tpu'; registered are eager, inductor, interpreter"):
        aotgrad.backends.get("tpu")


def test_a_compiler_must_be_callable(own_registry):
    with pytest.raises(BackendError, match="backend 'mine': fw_compiler is a str; it must be a callable"):
        aotgrad.backends.register("mine", fw_compiler="inductor")
