"""Which arguments share memory or a version counter with a mutated one."""

from __future__ import annotations

import pytest
import torch

from aotgrad.convention.sharing import MemorySharing
from aotgrad.errors import UnsupportedAliasingError


def sharing(*args, mutated=(0,), unused=()):
    return MemorySharing(mutated, bumped=mutated, unused=unused).among(args)


def members(sharing):
    return [tuple(index for index, _ in group.starts) for group in sharing.groups]


def test_separate_tensors_share_nothing():
    assert not sharing(torch.ones(2), torch.ones(2))


def test_only_those_that_overlap_the_mutated_one_are_a_group():
    x = torch.arange(10.0)
    found = sharing(x[:4], x[3:6], x[5:7], x[8:])
    assert members(found) == [(0, 1, 2)]
    assert found.counters == ((0, 1, 2, 3),)


def test_overlap_that_nobody_writes_to_does_not_matter():
    x, y = torch.arange(4.0), torch.ones(2)
    assert not sharing(y, x[:3], x[1:])
    assert members(sharing(y, x[:3], x[1:], mutated=(2,))) == [(1, 2)]


def test_an_unused_argument_may_share_any_memory():
    x = torch.arange(4.0)
    assert not sharing(x[:3], x[1:], unused=(1,))
    assert members(sharing(x[:3], x[1:], x[2:], unused=(1,))) == [(0, 2)]


def test_interleaved_slices_do_not_overlap():
    x = torch.arange(12.0).view(3, 4)
    found = sharing(x[:, :2], x[:, 2:])
    assert (found.groups, found.counters) == ((), ((0, 1),))


def test_where_the_members_of_a_group_lie():
    x = torch.arange(20.0)
    (group,) = sharing(x[9:12], x[10:12]).groups
    assert (group.nbytes, group.starts) == (16, ((0, 4), (1, 8)))


@pytest.mark.parametrize(
    ("make", "families", "through_base"),
    [
        (lambda x: (x, x[1:]), [(0, 1)], [False]),
        (lambda x: (x[1:], x[:3]), [(0, 1)], [True]),
        (lambda x: (x, x.detach()), [(0,), (1,)], [False, False]),
        (lambda x: (x[1:], x.detach()), [(0,), (1,)], [False, False]),
    ],
)
def test_families_are_views_of_one_tensor(make, families, through_base):
    (group,) = sharing(*make(torch.arange(4.0))).groups
    assert [family.members for family in group.families] == families
    assert [family.through_base for family in group.families] == through_base


@pytest.mark.parametrize(
    ("other", "counters"),
    [(lambda x: x[2:], ((0, 1),)), (lambda x: x.detach()[2:], ((0, 1),)), (lambda x: x.data[2:], ())],
)
def test_version_counters(other, counters):
    x = torch.arange(4.0)
    found = sharing(x[:2], other(x))
    assert (found.groups, found.counters) == ((), counters)


def test_what_a_plan_was_made_for_is_recognised():
    x, y = torch.arange(12.0), torch.arange(12.0)
    found = sharing(x[:4], x[2:6])
    assert found.matches((y[:4], y[2:6])) and found.matches((y[4:8], y[6:10]))
    assert not found.matches((y[:4], y[3:7]))
    assert not found.matches((y[:4], x[2:6]))
    assert not found.matches((y[:4], y.detach()[2:6]))


def test_two_gradient_histories_are_refused():
    x = torch.ones(3, requires_grad=True) * 1
    with pytest.raises(UnsupportedAliasingError, match=r"inputs 0 and 1 .* separate histories"):
        sharing(x, x.detach().requires_grad_())
