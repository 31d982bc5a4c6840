"""The symbols of dynamic shapes."""

from __future__ import annotations

import torch

from aotgrad.graph.symbols import bound_symbol, symbols_of
from tests.partition.joints import grad, joint_of


def traced_value() -> torch.Tensor:
    joint = joint_of(lambda x: x.sin(), grad(6, 5), dynamic=True)
    return next(iter(joint.module.graph.nodes)).meta["val"]


def test_a_symbol_is_bound_and_an_expression_is_not():
    rows = traced_value().shape[0]
    assert bound_symbol(rows) is not None
    assert bound_symbol(rows * 2) is None
    assert bound_symbol(3) is None


def test_symbols_of_sizes_and_strides_by_name():
    value = traced_value()
    assert [str(symbol) for symbol in symbols_of(value)] == sorted(str(size) for size in value.shape)
    assert symbols_of(value.shape[0] * 2) == (bound_symbol(value.shape[0]),)


def test_static_values_have_none():
    assert symbols_of(torch.empty(2, 3)) == symbols_of(7) == symbols_of(torch.eye(2).to_sparse()) == ()
