"""Inputs that share memory, one of which is changed."""

from __future__ import annotations

import pytest
import torch

import aotgrad
from aotgrad.errors import UnsupportedAliasingError


def test_a_change_that_another_input_would_see_is_refused_and_nothing_is_changed():
    x = torch.ones(4)
    function = aotgrad.aot_function(lambda x, y: x.mul_(2) + y, aotgrad.nop)
    with pytest.raises(UnsupportedAliasingError, match="input 1 is mutated and shares its memory with input 0"):
        aotgrad.aot_function(lambda x, y: x + y.mul_(2), aotgrad.nop)(x[:3], x[1:])
    with pytest.raises(UnsupportedAliasingError, match="input 0 is mutated and shares its memory with input 1"):
        function(x[:3], x[1:])
    assert torch.equal(x, torch.ones(4))


def test_shared_memory_that_nobody_changes_is_fine():
    x = torch.arange(4.0)
    assert torch.equal(aotgrad.aot_function(lambda x, y: x + y, aotgrad.nop)(x[:3], x[1:]), x[:3] + x[1:])


def test_one_tensor_passed_twice_may_be_changed():
    x = torch.ones(2)
    result = aotgrad.aot_function(lambda x, y: x.mul_(2) + y, aotgrad.nop)(x, x)
    assert torch.equal(result, torch.full((2,), 4.0))
