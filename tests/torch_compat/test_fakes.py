"""Feature tests of `aotgrad/torch_compat/fakes.py`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import VIEWS_TO_TRY


def test_a_traced_parameter_is_a_parameter(fake_mode):
    fakes = [fake_mode.from_tensor(torch.ones(1)) for _ in range(2)]
    compat.mark_parameters(fakes, [nn.Parameter(torch.ones(1)), torch.ones(1)])
    assert [isinstance(fake, nn.Parameter) for fake in fakes] == [True, False]
    assert compat.is_traced(fakes[0])
    assert not compat.is_traced(torch.ones(1))


def test_a_fake_tensor_has_metadata_and_no_data(fake_mode):
    assert isinstance(fake_mode, compat.FakeTensorMode)
    assert isinstance(fake_mode.shape_env, compat.ShapeEnv)
    fake = fake_mode.from_tensor(torch.ones(2, 3), static_shapes=True)
    assert isinstance(fake, compat.FakeTensor)
    with fake_mode:
        assert (fake @ fake.t()).shape == (2, 2)
        assert isinstance(torch.ones(2) + fake[:, 0], compat.FakeTensor), "real tensors become constants"


def test_symbols_are_named_after_the_argument():
    assert compat.argument_source(3).name == "argument_3"


def test_symbolic_inputs():
    mode = compat.new_fake_mode()
    x, y, three, one, text, sparse = compat.symbolic_inputs(
        mode, [torch.ones(3, 1), torch.ones(4, 3), 3, 1, "text", torch.eye(2).to_sparse()]
    )
    assert str(x.shape[0]) == str(y.shape[1]) == str(three.node.expr) != str(y.shape[0])
    assert x.shape[1] == 1 and type(one) is int and text == "text"
    assert sparse.shape == (2, 2)


def test_a_detached_fake_remembers_which_number_it_holds(fake_mode):
    fake = fake_mode.from_tensor(torch.tensor(3), static_shapes=True)
    with fake_mode:
        number = fake.item()
        detached = compat.detached_fake(fake)
    assert isinstance(number, torch.SymInt)
    assert compat.item_of_fake(detached) is compat.item_of_fake(fake)
    other = fake_mode.from_tensor(torch.tensor(3), static_shapes=True)
    assert compat.item_of_fake(other) is None
    compat.set_item_of_fake(other, number)
    with fake_mode:
        assert str(other.item()) == str(number)


@pytest.mark.parametrize("op", VIEWS_TO_TRY, ids=str)
def test_a_view_of_a_fake_is_what_the_fake_mode_gives(op, fake_mode):
    fake = fake_mode.from_tensor(torch.ones(3, 4), static_shapes=True)[1:]
    with fake_mode:
        expected = op(fake, *VIEWS_TO_TRY[op])
        found = compat.view_of_fake(fake_mode, op, (fake, *VIEWS_TO_TRY[op]), {})
    assert type(found) is type(expected)
    several = isinstance(found, (list, tuple))
    for one, other in zip(found, expected, strict=True) if several else [(found, expected)]:
        assert compat.metadata_of(one) is compat.metadata_of(other)
        assert compat.storage_id(one) == compat.storage_id(fake)
        assert one.fake_mode is fake_mode


def test_a_new_fake_has_the_metadata_of_another_one(fake_mode):
    with fake_mode:
        fake = torch.empty(2, 3, dtype=torch.bfloat16).t()
    metadata = compat.metadata_of_new(fake)
    assert isinstance(metadata, compat.Metadata)
    new = compat.new_fake(fake_mode, metadata)
    assert compat.metadata_of(new) is metadata
    assert (new.device, new.dtype, new.stride()) == (fake.device, fake.dtype, fake.stride())
    assert (metadata.described.shape, metadata.described.dtype) == (fake.shape, fake.dtype)
    assert compat.storage_id(new) != compat.storage_id(fake)
    assert new.untyped_storage().nbytes() == fake.untyped_storage().nbytes()


def test_a_part_of_a_fakes_memory_is_nothing_new(fake_mode):
    with fake_mode:
        whole, empty = torch.empty(4, 4), torch.empty(0, 3)
        parts = [whole[1:], whole[:2], whole.expand(2, 4, 4)[:, :2]]
    assert [compat.metadata_of_new(part) for part in parts] == [None, None, None]
    assert None not in [compat.metadata_of(part) for part in parts]
    assert compat.metadata_of_new(empty) is not None


def test_a_fake_of_a_whole_storage_is_what_the_fake_mode_makes(fake_mode):
    parameter = nn.Parameter(torch.ones(3, 2).t().to(torch.float64))
    assert compat.is_whole_storage(parameter)
    found, expected = compat.fake_of_whole(fake_mode, parameter), fake_mode.from_tensor(parameter, static_shapes=True)
    assert compat.metadata_of(found) is compat.metadata_of(compat.detached_fake(expected))
    assert not found.requires_grad
    assert found.untyped_storage().nbytes() == expected.untyped_storage().nbytes()


def test_what_is_no_whole_storage():
    whole = torch.ones(4, 4)
    with torch.inference_mode():
        inference = torch.ones(2)
    parts = [whole[1:], whole.detach()[:2], whole.view(-1), inference, whole.to_sparse(), torch.empty(2, device="meta"), 3]
    parts += [torch.ones(2, dtype=torch.complex64).conj(), torch._efficientzerotensor(2), whole.expand(2, 4, 4)]
    assert not any(map(compat.is_whole_storage, parts))
    assert compat.is_whole_storage(whole.detach())
    assert compat.is_whole_storage(torch.empty(0, 3))


def test_unusual_fakes_have_no_metadata(fake_mode):
    with fake_mode:
        plain = torch.ones(2, 2)
        unusual = [torch.ones(2, dtype=torch.complex64).conj(), plain.to_sparse(), torch._efficientzerotensor(2)]
        unusual += [torch.ones(2, requires_grad=True), torch.ones(2)]
    unusual[-1].constant = torch.ones(2)
    dynamic = compat.dynamic_fake(compat.new_fake_mode(), torch.ones(3), {0}, 0)
    assert [compat.metadata_of(value) for value in [*unusual, dynamic, torch.ones(2), 3]] == [None] * 8


def test_fakes_in_one_memory_share_it(fake_mode):
    memory = compat.meta_storage(32)
    one, other = (compat.fake_in(fake_mode, memory, torch.float32, torch.device("cpu"), [2, 2], [2, 1], k) for k in (0, 4))
    assert compat.storage_key(one) == compat.storage_key(other) and compat.storage_bytes(one) == 32
    assert (one.device.type, one.dtype, other.storage_offset(), one.fake_mode) == ("cpu", torch.float32, 4, fake_mode)
    assert (one + other).shape == (2, 2)


def test_sizes_of_nested_tensors_are_no_symbols(fake_mode):
    with compat.fixed_nested_ints(fake_mode):
        size = fake_mode.from_tensor(torch.tensor([0, 1, 3])).get_nested_int()
    assert size.node.is_nested_int() and getattr(size.node, "expr", None) is None


def test_the_size_of_a_nested_tensor_is_equal_in_a_trace():
    size = torch.nested.nested_tensor_from_jagged(torch.ones(3), torch.tensor([0, 1, 3])).size(1)
    mode = compat.new_fake_mode()
    (values,) = compat.symbolic_inputs(mode, [torch.ones(3, 5)])
    fixed = compat.fixed_nested_int(size)
    assert fixed == size and fixed * 2 == size * 2
    assert (fixed * values.size(1)).node.nested_int_coeff() == 5


def test_a_size_of_nested_tensors_times_a_symbol_makes_it_static():
    mode = compat.new_fake_mode()
    (values,) = compat.symbolic_inputs(mode, [torch.ones(3, 5)])
    with mode, compat.fixed_nested_ints(mode):
        rows = torch.nested.nested_tensor_from_jagged(values, mode.from_tensor(torch.tensor([0, 1, 3])))
    assert rows.stride()[1:] == (5, 1)


def test_a_negated_tensor_that_is_no_view_has_a_negated_fake(fake_mode) -> None:
    negated = (torch.ones(3) * 2j).conj().imag.detach()
    fake = compat.negated_as(fake_mode.from_tensor(negated), negated)
    assert fake.is_neg() and compat.negated_as(fake, negated) is fake


def test_lazy_bits_of_a_fake(fake_mode) -> None:
    size, bits = ([2], [1]), compat.LazyBits(True, True)
    made = compat.fake_in(fake_mode, compat.meta_storage(16), torch.complex64, torch.device("cpu"), *size, 0, bits)
    assert compat.LazyBits.of(made) == bits and compat.LazyBits.of(torch.ones(1)) == (False, False)


@pytest.mark.filterwarnings("ignore:Sparse (CSR|BSC) tensor support is in beta state:UserWarning")
def test_sparse_tensors_without_entries(fake_mode) -> None:
    x = torch.eye(4)
    for tensor in (x.to_sparse(), x.to_sparse_csr(), x.to_sparse_bsc((2, 1)), torch.stack([x, x], 2).to_sparse(1)):
        form = compat.SparseForm.of(tensor)
        made = form.fake_in(fake_mode, tensor.size(), tensor.dtype, tensor.device)
        empty = form.without_entries(tensor.size(), tensor.dtype, "cpu")
        assert compat.SparseForm.of(made) == compat.SparseForm.of(empty) == form
        assert made.shape == empty.shape == tensor.shape and not empty.to_dense().any()
