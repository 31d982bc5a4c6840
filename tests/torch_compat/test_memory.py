"""Feature tests of `aotgrad/torch_compat/memory.py`."""

from __future__ import annotations

import pytest
import torch

from aotgrad import torch_compat as compat


def test_versions_of_many_tensors():
    x, y = torch.ones(2), torch.ones(2)
    y.add_(1)
    assert compat.versions_of([x, y, x]) == [0, 1, 0]


def test_storage_ids_are_equal_for_shared_memory_only():
    x = torch.ones(4)
    assert compat.storage_id(x) == compat.storage_id(x[1:]) == compat.storage_key(x.view(2, 2))
    assert compat.storage_id(x) != compat.storage_id(x.clone())


def test_what_a_storage_holds():
    x, held = torch.ones(4), object()
    assert compat.attached_to_storage(x) is None
    compat.attach_to_storage(x, held)
    alias = x.detach()[1:]
    del x
    assert compat.attached_to_storage(alias) is held
    assert compat.attached_to_storage(alias.clone()) is None


def test_who_has_a_tensor_and_its_memory():
    x = torch.ones(4, requires_grad=True) * 1
    assert compat.owners_of(x) == 1
    y = x.sin()
    assert compat.owners_of(x) == 2  # the node of `sin` has saved its argument
    assert compat.sharers_of_memory(y) == 1 and compat.sharers_of_memory(y.detach()) == 2
    value = torch.ones(4)
    assert (compat.owners_of(value), compat.sharers_of_memory(value)) == (1, 1)
    view, storage = value[1:], value.untyped_storage()
    assert compat.sharers_of_memory(value) == compat.sharers_of_memory(view) == 3
    del view, storage
    assert compat.sharers_of_memory(value) == 1


def test_a_tensor_without_a_storage_has_a_key_of_its_own():
    x, y = torch.eye(2).to_sparse(), torch.eye(2).to_sparse()
    assert compat.storage_key(x) == compat.storage_key(x) != compat.storage_key(y)


def test_versions():
    x = torch.ones(2)
    before = compat.version_of(x)
    compat.raise_version(x, before, 3)
    assert compat.version_of(x) == x._version == before + 3


def test_versions_of_several_tensors():
    x, y = torch.ones(2), torch.ones(3).mul_(2)
    assert list(compat.versions_at_entry([x, y])) == [0, 1]
    compat.raise_versions([x, y], [0, 1], [2, 3])
    assert compat.versions_of([x, y]) == [2, 4]


def test_inference_tensors_have_no_version():
    with torch.inference_mode():
        x = torch.ones(2)
    assert compat.version_of(x) is None
    compat.raise_version(x, None, 1)
    compat.raise_versions([x, y := torch.ones(1)], compat.versions_at_entry([x, y]), [1, 2])
    assert y._version == 2


def test_a_raised_version_is_noticed_by_autograd():
    x = torch.ones(2)
    w = torch.ones(2, requires_grad=True)
    y = (x * w).sum()
    compat.raise_version(x, compat.version_of(x), 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_sharing_version_makes_a_write_to_one_seen_at_the_other():
    x = torch.arange(4.0)
    view, before = torch.arange(4.0).set_(x.untyped_storage(), 1, (2,)), x._version
    assert compat.sharing_version(x, x) is x
    assert compat.sharing_version(torch.ones(2), x)._version == 0
    shared = compat.sharing_version(view, x)
    assert (shared.tolist(), shared.storage_offset()) == ([1, 2], 1)
    assert shared._version == x._version == before
    x.add_(1)
    assert shared._version == x._version > before


def test_sharing_version_of_views_with_another_dtype_or_lazy_bits():
    x = torch.tensor([1 + 2j, 3 + 4j])
    for view in (torch.view_as_real(x)[:, 1], x.conj(), x.conj().imag):
        with torch.no_grad():
            separate = torch.empty(0).to(view.dtype)
            separate.data = view
        shared = compat.sharing_version(separate, x)
        assert shared.equal(view) and (shared.stride(), shared.data_ptr()) == (view.stride(), view.data_ptr())
        x.mul_(1)
        assert shared._version == x._version > separate._version


def test_strided_alias_sees_writes_and_leaves_the_version_alone():
    x = torch.arange(4.0)
    alias = compat.strided_alias(x, (2,), (2,), 1)
    assert (alias.tolist(), x._version, alias._version) == ([1, 3], 0, 0)
    x.add_(1)
    assert (alias.tolist(), alias._version) == ([2, 4], 1)


def test_where_dense_and_expanded_tensors_lie():
    x = torch.ones(2, 3)
    assert compat.is_dense(x.t()) and not compat.is_dense(x[:, :2])
    assert compat.byte_range(x[1]) == (12, 24)
    assert compat.is_expanded(x[:1].expand(2, 3)) and not compat.is_expanded(x[:1])
    assert not compat.is_expanded(torch.empty_strided((0, 3), (1, 0)))


def test_share_version_tells_and_leaves_no_trace():
    x = torch.ones(2)
    assert compat.share_version(x, x[:1]) and compat.share_version(x, x.detach())
    assert not compat.share_version(x, x.data) and not compat.share_version(x, torch.ones(2))
    assert x._version == 0


def test_flat_alias_is_a_part_of_the_storage():
    x = torch.arange(6.0)
    alias = compat.flat_alias(x.view(2, 3), 8, 12, torch.int32)
    assert (alias.dtype, alias.size(), alias.storage_offset(), alias._base) == (torch.int32, (3,), 0, None)
    alias.zero_()
    assert (x.tolist(), x._version) == ([0, 1, 0, 0, 0, 5], 0)


def test_strides_of_a_tensor_without_any():
    assert compat.strides(torch.ones(2, 3)) == (3, 1)
    assert compat.strides(torch.eye(2).to_sparse()) == ()


def test_forward_mode_makes_zeros_without_memory():
    assert compat.has_no_memory(compat.zero_without_memory([2]))
    assert not compat.has_no_memory(torch.zeros(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16, torch.complex64, torch.int8])
def test_the_bytes_of_a_tensor(dtype):
    for tensor in (torch.arange(6).to(dtype).view(2, 3).t(), torch.empty(0, 2, dtype=dtype), torch.ones((), dtype=dtype)):
        again = compat.tensor_of_bytes(compat.bytes_of(tensor), dtype, list(tensor.size()), list(tensor.stride()))
        assert torch.equal(again, tensor) and again.stride() == tensor.stride()


def test_a_weak_reference_to_memory_and_its_checksum():
    x = torch.arange(4.0)
    memory = compat.memory_reference(x)
    assert memory.cdata == compat.storage_id(x) and not memory.expired()
    before = compat.content_checksum(memory, 4, 12)
    x[3] = 0
    assert compat.content_checksum(memory, 4, 12) == before != compat.content_checksum(memory, 4, 16)
    x[1] = 0
    assert compat.content_checksum(memory, 4, 12) != before and compat.content_checksum(memory, 4, 20) is None
    del x
    assert memory.expired() and compat.content_checksum(memory, 4, 12) is None
