"""Aliasing of outputs, kind by kind."""

from __future__ import annotations

import enum

import pytest
import torch

import aotgrad
from aotgrad.errors import UnsupportedOutputError
from tests.executables import executable_of


class Color(enum.Enum):
    RED = 1


def kinds(function, *specs: str) -> list[str]:
    return [type(info).__name__ for info in executable_of(function, *specs).meta.outputs]


def two_views_and_their_base(x):
    y = x.sin()
    return y[0], y, y[1]


def two_views(x):
    y = x.sin()
    return y[0], y[1]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.sin(), ["NonAlias"]),
        (lambda x: x, ["IsInput"]),
        (lambda x: x.t(), ["AliasOfInput"]),
        (lambda x: x.sin().t(), ["AliasOfIntermediate"]),
        (lambda x: x.sin().detach(), ["UnsafeViewAlias"]),
        (two_views, ["AliasOfIntermediate", "AliasOfIntermediate"]),
        (
            two_views_and_their_base,
            ["AliasOfIntermediateBaseIsUserOutput", "NonAlias", "AliasOfIntermediateBaseIsUserOutput"],
        ),
        (lambda x: (None, 2, 0.5, "text", Color.RED, torch.float32), ["ConstantOutput"] * 6),
    ],
)
def test_kinds_of_outputs(function, expected):
    assert kinds(function, "f32[2, 3] requires_grad") == expected


def test_one_base_serves_all_views_of_a_tensor():
    def function(x):
        y, z = x.sin(), x.cos()
        return y[0], z[0], y[1], z[1]

    meta = executable_of(function, "f32[2, 3] requires_grad").meta
    assert [info.base for info in meta.outputs] == [0, 1, 0, 1]
    assert [base.node.name for base in meta.bases] == ["sin", "cos"]


def test_symbolic_numbers_are_outputs_of_the_graph():
    executable = executable_of(lambda x: x.shape[0] * 2, "f32[3, 4]", dynamic=True)
    assert [type(info).__name__ for info in executable.meta.outputs] == ["SymOutput"]


def test_an_object_that_cannot_be_made_again_is_refused():
    with pytest.raises(UnsupportedOutputError, match=r"output 1 is a builtins.object; a compiled function returns"):
        aotgrad.aot_function(lambda x: (x, object()), aotgrad.nop)(torch.ones(1))
