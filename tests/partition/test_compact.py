"""A saved slice does not keep its base alive, and the backward is unchanged."""

from __future__ import annotations

import pytest
import torch

from aotgrad.partition import default_partition, min_cut_rematerialization_partition, partition
from aotgrad.slots import Saved
from tests.numerics.against_eager import assert_like_eager, leaf
from tests.partition.joints import grad, joint_of, targets

SLICES = {
    "columns": lambda h: h[:, :4].sin(),
    "columns_and_transposed": lambda h: h[:, 2:6].t().exp().t(),
    "rows": lambda h: h[1:3].sin(),
    "every_fourth": lambda h: h[::4].exp().sin(),
    "two": lambda h: h[:, :2].sin() @ h[:, 4:6].exp().t(),
    "split": lambda h: h.split(4, dim=1)[1].exp().cos(),
    "select": lambda h: h[3].sin() * h[:, 1].sum(),
    "viewed": lambda h: h.view(8, 4, 4)[:, 1].reshape(-1).sin(),
}


@pytest.mark.parametrize("backend", ["eager", "interpreter", "dynamo"])
@pytest.mark.parametrize("name", SLICES)
def test_like_eager(name, backend):
    assert_like_eager(lambda x, w: SLICES[name](x @ w), lambda: (leaf(8, 8), leaf(8, 16)), backend)


@pytest.mark.parametrize("partition_fn", [default_partition, min_cut_rematerialization_partition])
@pytest.mark.parametrize("name", SLICES)
def test_only_the_slices_are_held(name, partition_fn):
    halves = partition(joint_of(lambda x, w: SLICES[name](x @ w), grad(8, 8), grad(8, 16), static=[0, 1]), partition_fn)
    held = sum(value.saved_bytes for value in halves.saved if isinstance(value.slot, Saved))
    assert held <= 8 * 16 * 4 // 2
    assert not {"mm"} & {value.slot.name for value in halves.saved}


def test_the_reason_says_so():
    halves = partition(joint_of(lambda x, w: (x @ w)[:, :4].sin(), grad(8, 8), grad(8, 16)), default_partition)
    (reason,) = [value.reason for value in halves.saved if "slice" in value.slot.name]
    assert reason.endswith("; only slices of mm are needed, which a copy holds without it")
    assert "aten.clone.default" in targets(halves.forward.module)


def test_slices_that_cover_most_are_views_of_the_whole():
    """Three thirds of a product: one tensor is saved, and none is copied."""

    def fn(x, w):
        q, k, v = (x @ w).split(4, dim=1)
        return torch.softmax(q @ k.t(), -1) @ v

    halves = partition(joint_of(fn, grad(8, 8), grad(8, 12)), default_partition)
    assert "mm" in {value.slot.name for value in halves.saved}
    assert "aten.clone.default" not in targets(halves.forward.module)


def test_what_is_read_whole_as_well_is_not_cut():
    def fn(x, w):
        h = x @ w
        return h[:, :2].sin() * h.cos().sum()

    halves = partition(joint_of(fn, grad(8, 8), grad(8, 16)), default_partition)
    assert "mm" in {value.slot.name for value in halves.saved}
    assert "aten.clone.default" not in targets(halves.forward.module)
