"""The guard on shared memory."""

from __future__ import annotations

import random

import pytest
import torch

from aotgrad.convention import MemorySharing
from aotgrad.errors import UnsupportedAliasingError
from aotgrad.guards.disjoint_storage import are_distinct, meets
from aotgrad.guards.memory import MemoryGuard
from aotgrad.torch_compat import dynamic_fake, new_fake_mode

pytestmark = pytest.mark.usefixtures("implementation")


def separate(count: int) -> list[torch.Tensor]:
    return [torch.ones(4) for _ in range(count)]


def guard_of(tensors, *changed: int, **options) -> MemoryGuard:
    return MemoryGuard(tensors, sharing(tensors, *changed), **options)


def sharing(tensors, *changed):
    return MemorySharing(changed, bumped=changed).among(tensors)


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
    tensors = [sparse, meta, torch.ones(4, device="meta"), freed(torch.ones(4)), freed(torch.ones(4)), torch.ones(0), 3]
    tensors += [torch._efficientzerotensor(4), torch._efficientzerotensor(4)]
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


def test_memory_that_begins_before_a_changed_storage_and_reaches_into_it():
    array = torch.zeros(8).numpy()
    guard = guard_of([torch.ones(4), torch.ones(8)], 0)
    assert not guard([torch.from_numpy(array[2:6]), torch.from_numpy(array)])
    assert guard([torch.from_numpy(array[2:6]), torch.ones(8)])


def test_a_tensor_that_grows_where_it_lies():
    """Its size is symbolic: at the same address it may reach into the memory of another one."""
    array = torch.zeros(8).numpy()
    reader, writer = torch.from_numpy(array), torch.from_numpy(array[4:])
    mode = new_fake_mode()
    traced = [dynamic_fake(mode, torch.ones(3), frozenset({0}), 0), mode.from_tensor(torch.ones(4))]
    guard = guard_of([torch.ones(3), torch.ones(4)], 1, traced=traced)
    assert [guard([reader[:size], writer]) for size in (3, 4, 5, 8, 4)] == [True, True, False, False, True]


def test_an_empty_view_counts_its_versions_with_its_base():
    guard = guard_of([torch.ones(8), torch.ones(0)], 0)
    base = torch.ones(8)
    assert not any(guard([base, base[k:k]]) for k in (0, 4, 8))
    assert guard([base, torch.ones(0)])


@pytest.mark.parametrize("without_memory", [lambda: torch.ones(0), lambda: freed(torch.ones(4))])
def test_a_storage_without_memory_has_a_version_counter_too(without_memory):
    one, other = without_memory(), without_memory()
    guard = guard_of([one, other], 0)
    for _ in range(2):
        assert guard([one, other])
        assert not guard([one, one.view(-1)])


def freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


def test_what_moves_once_is_looked_at_in_every_call():
    guard = guard_of(separate(4), 1)
    first, base = separate(4), torch.ones(8)
    for _ in range(2):
        assert guard(first)
        assert guard([torch.ones(4), *first[1:]])
        assert not guard([base[:4], base[2:6], *first[2:]])
        assert not guard([first[0], base[:4], first[2], base[3:7]])
        assert not guard([first[0], base[:4], base[2:6], first[3]])


def pieces(draw: random.Random, buffers) -> list[torch.Tensor]:
    """Four elements each: alone, or anywhere in a buffer or in another alias of it."""
    places = [(draw.choice(buffers), draw.choice((0, 2, 4, 8, 12))) for _ in range(4)]
    return [draw.choice([buffer[k : k + 4]] * 4 + [buffer.data[k : k + 4], torch.ones(4)]) for buffer, k in places]


@pytest.mark.parametrize("changed", [(0,), (1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("seed", range(20))
def test_calls_at_random_against_every_pair(changed, seed):
    """Pieces of two buffers: the guard says what comparing all arguments says, whatever the trace saw."""
    draw = random.Random(seed)
    whole = torch.ones(16)
    buffers = [whole, whole.detach(), torch.ones(16)]
    traced = pieces(draw, buffers)
    guard, as_traced = guard_of(traced, *changed), sharing(traced, *changed)
    tensors = traced
    for _ in range(100):
        fresh = pieces(draw, buffers)
        tensors = draw.choice([traced, fresh, [draw.choice(pair) for pair in zip(tensors, fresh, strict=True)]])
        assert guard(tensors) == (sharing(tensors, *changed) == as_traced)


def test_places_that_meet():
    places = [(100, 50), (200, 10), (300, 1)]
    assert are_distinct(places) and not are_distinct([(100, 50), (149, 10)])
    assert [meets(place, places) for place in ((90, 10), (140, 1), (150, 50), (209, 91), (300, 10))] == [
        False,
        True,
        False,
        True,
        True,
    ]
    assert not meets((0, 8), places) and not meets((100, 50), [])
