"""Effects on each input, derived from a capture."""

from __future__ import annotations

import re

import pytest
import torch

import aotgrad
from aotgrad.errors import CaptureError, UnsupportedMutationError
from aotgrad.ir import MutationType
from tests.executables import executable_of


def first_input(function, *specs: str):
    return executable_of(function, *specs).meta.inputs[0]


@pytest.mark.parametrize(
    ("function", "mutation", "bumps"),
    [
        (lambda x: x + 1, MutationType.NONE, 0),
        (lambda x: x.add_(1), MutationType.DATA, 1),
        (lambda x: x[0].add_(1), MutationType.DATA, 1),
        (lambda x: x.add_(1).mul_(2), MutationType.DATA, 2),
        (lambda x: x.t_(), MutationType.METADATA_ONLY, 1),
        (lambda x: x.t_().t_(), MutationType.NONE, 2),
        (lambda x: x.t_().add_(1), MutationType.DATA_AND_METADATA, 2),
        (lambda x: x.data.add_(1), MutationType.DATA, 0),
        (lambda x: x.detach().add_(1), MutationType.DATA, 1),
    ],
)
def test_mutation_types_and_versions(function, mutation, bumps):
    info = first_input(function, "f32[2, 3]")
    assert (info.mutation, info.version_bumps) == (mutation, bumps)


def test_geometry_after_a_metadata_mutation():
    info = first_input(lambda x: x.t_(), "f32[2, 3]")
    assert (info.geometry.size, info.geometry.stride, info.geometry.offset) == ((3, 2), (1, 3), 0)


def under_no_grad(x):
    with torch.no_grad():
        x.add_(1)


@pytest.mark.parametrize(
    ("function", "specs", "carries"),
    [
        (lambda x: x.mul_(2), ["f32[2] nonleaf"], True),
        (lambda x: x.mul_(2), ["f32[2]"], False),
        (under_no_grad, ["f32[2] nonleaf"], False),
        (lambda x: x.detach().mul_(2), ["f32[2] nonleaf"], False),
        (lambda x, y: x.copy_(y), ["f32[2]", "f32[2] requires_grad"], True),
        (lambda x, y: x.copy_(y.detach()), ["f32[2] nonleaf", "f32[2] requires_grad"], True),
    ],
)
def test_whether_the_new_value_carries_a_gradient(function, specs, carries):
    assert first_input(function, *specs).carries_gradient == carries


def swap(x):
    torch.utils.swap_tensors(x, x + 1)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (swap, "input 0 was given another storage, by swap_tensors(); use x.copy_(...)"),
        (lambda x: x.resize_(9), "resized beyond its storage"),  # by us, or by torch >= 2.15 in the trace
    ],
)
def test_a_replaced_storage_is_refused_and_the_input_stays(function, message):
    x = torch.ones(2)
    with pytest.raises((UnsupportedMutationError, CaptureError), match=re.escape(message)):
        aotgrad.aot_function(function, aotgrad.nop)(x)
    assert torch.equal(x, torch.ones(2))
