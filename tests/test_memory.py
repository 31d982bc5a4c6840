"""The guard on shared memory."""

from __future__ import annotations

import pytest
import torch

from aotgrad.convention import MemorySharing
from aotgrad.errors import UnsupportedAliasingError
from aotgrad.memory import MemoryGuard, are_separate
from aotgrad.torch_compat import new_fake_mode


def separate(count: int) -> list[torch.Tensor]:
    return [torch.ones(4) for _ in range(count)]


def guard_of(tensors, *changed: int, **options) -> MemoryGuard:
    return MemoryGuard(tensors, MemorySharing.among(tensors, changed, changed), **options)


def test_moving_tensors_pass_while_they_are_separate():
    guard = guard_of(separate(5), 1)
    kept = []
    for _ in range(4):
        kept.append(separate(5))
        assert guard(kept[-1])
        assert guard(kept[-1][::-1])
        assert guard(kept[0])


def test_an_overlap_with_a_changed_tensor_is_found_and_others_are_let_through():
    guard = guard_of(separate(4), 1)
    base = torch.ones(8)
    other = separate(4)
    assert not guard([base[:4], base[2:6], *other[2:]])
    assert not guard([other[0], base[:4], other[2], base[3:7]])
    assert guard([base[:4], other[1], base[2:6], other[3]]), "nobody writes to these"


def test_a_version_counter_in_common_counts():
    guard = guard_of(separate(2), 0)
    base = torch.ones(8)
    assert not guard([base[:4], base[4:]])
    assert guard([base[:4], base.data[4:]])


def test_the_same_addresses_with_another_counter():
    """Whatever is remembered of the last hit, it does not hide a counter that is now shared."""
    base = torch.ones(8)
    guard = guard_of(separate(2), 0)
    alias = base.data
    assert [guard([base[:4], alias[4:]]), guard([base[:4], base[4:]])] == [True, False]


def test_a_pattern_of_overlaps_is_kept():
    base, other = torch.ones(8), torch.ones(8)
    guard = guard_of([base[:4], base[2:6]], 0)
    assert guard.groups() == [(0, 1)]
    assert guard([other[:4], other[2:6]])
    assert not guard([other[:4], other[3:7]])
    assert not guard([other[:4], base[2:6]])
    assert not guard(separate(2))


def test_tensors_that_become_views_again_after_a_hit():
    guard = guard_of(separate(2), 0)
    base, other = torch.ones(8), torch.ones(4)
    assert [guard([base[:4], other]), guard([base[:4], base[3:7]]), guard([base[:4], other])] == [True, False, True]


def test_tensors_without_memory_share_none():
    sparse, meta = torch.eye(2).to_sparse(), torch.ones(4, device="meta")
    freed, other = torch.ones(4), torch.ones(4)
    for tensor in (freed, other):
        tensor.untyped_storage().resize_(0)
    tensors = [sparse, meta, torch.ones(4, device="meta"), freed, other, torch.ones(0), 3]
    guard = guard_of(tensors, 1, 3, 5)
    assert guard.groups() == []
    assert guard(tensors)


def test_fake_tensors_stand_for_real_ones():
    base = torch.ones(8)
    real = [base[:4], base[2:6], torch.ones(4)]
    mode = new_fake_mode()
    guard = guard_of([mode.from_tensor(tensor) for tensor in real], 0, counters=False)
    assert guard.groups() == [(0, 1)]
    assert guard(real)
    assert not guard(separate(3))


def test_two_storages_of_one_memory():
    """Tensors made from one array: nothing can be a view of both."""
    array = torch.zeros(4).numpy()
    guard = guard_of(separate(2), 0)
    assert not guard([torch.from_numpy(array), torch.from_numpy(array)])
    assert guard_of(separate(2))([torch.from_numpy(array), torch.from_numpy(array)])
    with pytest.raises(UnsupportedAliasingError, match="inputs 0 and 1 are the same memory in two storages"):
        guard_of([torch.from_numpy(array), torch.from_numpy(array)], 0)


def test_separate_storages_hold_one_address_each():
    assert are_separate([100, 200, 300], [(90, 150), (290, 310)])
    assert not are_separate([100, 150, 300], [(90, 150)])
    assert are_separate([0, 0, 300], [(0, 0), (300, 310)])
