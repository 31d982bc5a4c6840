"""Feature tests of `aotgrad/torch_compat/guards.py`."""

from __future__ import annotations

import collections
import sys

import pytest
import torch

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import symbolic

counted = pytest.mark.skipif(
    not compat.versions_are_counted(), reason="only Python up to 3.11 counts the changes of a dictionary"
)


@counted
@pytest.mark.parametrize("make", [dict, collections.OrderedDict])
def test_the_version_of_a_dictionary_changes_with_it(make):
    tables = [make(), make(), make(a=1)]
    for change in (lambda: tables[1].update(a=1), lambda: tables[1].update(a=2), lambda: tables[2].pop("a")):
        versions = compat.DictVersions([], tables)
        assert [versions.hold(), versions.hold()] == [True, True]
        change()
        assert [versions.hold(), versions.hold()] == [False, False]
    assert compat.DictVersions([], []).hold()


@counted
def test_the_version_of_an_object_is_that_of_its_dictionary():
    module = torch.nn.Linear(1, 1)
    for change in (lambda: setattr(module, "scale", 1.0), lambda: setattr(module, "__dict__", dict(module.__dict__))):
        versions = compat.DictVersions([module], [])
        assert versions.hold()
        change()
        assert not versions.hold()


def test_versions_are_counted_up_to_3_11():
    assert compat.versions_are_counted() == (sys.version_info < (3, 12))


def test_shape_guards_are_evaluated_on_real_tensors(fake_mode):
    fakes = [symbolic(fake_mode, 4)]
    with fake_mode:
        assert fakes[0].size(0) % 2 == 0
    holds = compat.shape_guards(fakes)
    assert holds([torch.ones(6)])
    assert not holds([torch.ones(5)])
    assert "t0.size()[0]" in holds.text
    assert isinstance(holds, compat.ShapeGuards)


def test_a_shape_guard_that_is_an_or_does_not_let_others_pass(fake_mode):
    fake = symbolic(fake_mode, 4)
    size = fake.size(0)
    with fake_mode:
        assert size % 2 == 0
        torch._check(torch.fx.experimental.symbolic_shapes.sym_or(size == 4, size > 100))
    holds = compat.shape_guards([fake])
    assert [holds([torch.ones(n)]) for n in (4, 102, 101, 6)] == [True, True, False, False]


def test_tensor_guards_compare_metadata_and_leave_symbolic_sizes_out(fake_mode):
    traced = torch.ones(4, 3)
    guard = compat.TensorGuard([traced], [compat.dynamic_fake(fake_mode, traced, dims=[0], index=0)])
    assert guard(torch.zeros(9, 3))
    assert guard.failure([torch.zeros(9, 3)]) == ""
    for other in (torch.ones(4, 2), torch.ones(4, 3).double(), torch.ones(4, 3, requires_grad=True)):
        assert not guard(other)
        assert "tensor argument 0" in guard.failure([other])
    assert not guard(traced, traced)
    assert guard.failure([traced, traced]) == "2 distinct tensors in place of 1"


def test_tensor_guards_of_sparse_tensors():
    sparse, dense = torch.eye(2).to_sparse(), torch.ones(2)
    guard = compat.TensorGuard([sparse, dense], [sparse, dense])
    assert guard(torch.eye(2).to_sparse(), dense)
    assert not guard(torch.eye(3).to_sparse(), dense)
    assert guard.failure([torch.eye(3).to_sparse(), dense]) == "a sparse tensor differs"
