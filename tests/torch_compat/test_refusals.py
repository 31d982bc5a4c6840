"""Feature tests of `aotgrad/torch_compat/refusals.py`."""

from __future__ import annotations

import contextlib

import pytest
import torch

import aotgrad
from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import Tracing

aten = torch.ops.aten


def test_writes_from_the_memory_that_they_write_to():
    x = torch.arange(4.0)
    assert (
        compat.share_elements(x[1:], x) and not compat.share_elements(x[:2], x[2:]) and not compat.share_elements(x[::2], x)
    )
    assert aten.index_add_.default in compat.NEVER_FROM_ITSELF
    first = torch.tensor([0])
    with pytest.raises(RuntimeError, match=compat.OVERLAPPING[:90]):
        x.index_add_(0, first, x[:1])
    with pytest.raises(RuntimeError, match=compat.OVERLAPPING[:90]):
        compat.refuse_overlapping_operands(aten.index_add_.default, x, (x, 0, first, x[:1]), {})
    compat.refuse_overlapping_operands(aten.index_add_.default, x, (x, 0, first, x[:1].clone()), {})
    compat.refuse_overlapping_operands(aten.mul_.Tensor, x, (x, x), {})


def test_a_number_is_read_before_a_mask_is_filled_with_it():
    x = torch.arange(4.0)
    for args in ((x, [x > 2], x[1]), (x, [x > 2], x[1:2])):
        assert compat.fills_a_mask(aten.index_put_.default, args)
        aten.index_put_(*args)
    for args in ((x, [x > 2], x[1], True), (x, [x.long()], x[1]), (x, [x > 0], x[:2])):
        assert not compat.fills_a_mask(aten.index_put_.default, args)
    with pytest.raises(RuntimeError, match=compat.OVERLAPPING[:90]):
        aten.index_put_(x, [x > 2], x[1], True)


def test_what_is_written_to_part_of_what_is_read():
    x = torch.arange(4.0)
    (read,) = compat.read_arguments(aten.sin.out, (x,), {"out": x[1:]})
    assert read is x
    assert {aten.sort.values, aten.sort.values_stable} <= {*compat.overloads("sort")} <= compat.NEVER_FROM_A_PART
    assert aten.sort.default not in compat.NEVER_FROM_A_PART
    for write in (lambda x: torch.sin(x[1:], out=x[:-1]), lambda x: torch.cumsum(x[1:], 0, out=x[:-1])):
        with pytest.raises(RuntimeError, match=compat.OVERLAPPING[:90]):
            write(x)
    with pytest.raises(RuntimeError, match=compat.OVERLAPPING[:90]):
        compat.refuse_overlapping_operands(aten.sin.out, x[:-1], (x[1:],), {"out": x[:-1]})
    compat.refuse_overlapping_operands(aten.cat.out, x[:2], ([x[2:3], x[3:]],), {"out": x[:2]})


def test_memory_of_aliases_of_an_argument():
    x = torch.arange(4.0)
    assert compat.memory_key(x[1:]) == compat.memory_key(x.detach()) != compat.memory_key(x.clone())


@pytest.mark.parametrize(
    ("view", "is_refused"),
    [
        (lambda x: torch.view_as_real(x.conj()), True),
        (lambda x: x.conj().view(torch.int32), True),
        (lambda x: x.conj().imag.view(torch.int32), True),
        (lambda x: x.conj().view(torch.complex64), True),
        (lambda x: torch.view_as_real(x), False),
        (lambda x: x.conj().real, False),
    ],
)
def test_views_of_lazy_bits_are_refused_as_in_eager(view, is_refused: bool):
    x = torch.ones(3, dtype=torch.complex64)
    assert compat.refuses_lazy_bits(aten.view.dtype, (x.conj(), torch.int32)) and not compat.refuses_lazy_bits(
        aten.sin, (x,)
    )
    for function in (view, aotgrad.aot_function(lambda x: view(x * 1), "eager")):
        with pytest.raises(RuntimeError) if is_refused else contextlib.nullcontext():
            function(x)


def test_a_view_across_gaps_is_refused_as_in_eager():
    x = torch.ones(2, 4)
    compat.refuse_view_across_gaps(x[:1], (4,))
    for view in (lambda: x[:, :2].view(4), lambda: compat.refuse_view_across_gaps(x[:, :2], (4,))):
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            view()
    assert compat.views_across_gaps(aten.view.default, (x[:, :2], (4,)))
    assert not compat.views_across_gaps(aten.view.default, (x, (8,)))
    assert not compat.views_across_gaps(aten.t.default, (x[:, :2],))


@pytest.mark.parametrize(
    ("one", "other", "partly"),
    [
        (lambda x: x[1:], lambda x: x[:-1], True),
        (lambda x: x[1:], lambda x: x[1:], False),
        (lambda x: x.view(2, 2), lambda x: x.view(2, 2).t(), True),
        (lambda x: x[:2], lambda x: x[2:], False),
        (lambda x: x[::2], lambda x: x[1:3], False),
    ],
)
def test_partial_overlap_is_what_eager_refuses(one, other, partly):
    x = torch.arange(4.0)
    assert compat.partly_overlap(one(x), other(x)) == partly
    if partly:
        with pytest.raises(RuntimeError, match=compat.OVERLAPPING[:90]):
            one(x).add_(other(x))
    else:
        one(x).add_(other(x))


def test_a_write_of_a_higher_kind_is_refused():
    real, complex_ = torch.ones(2), torch.ones(2, dtype=torch.complex64)
    assert aten.addcmul_.default in compat.PROMOTING
    assert compat.SMALLEST_OF_KIND[float].is_floating_point
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        compat.refuse_lossy_cast(aten.addcmul_.default, (real, real, complex_))
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        compat.refuse_lossy_cast(aten.mul_.Scalar, (torch.ones(2, dtype=torch.int64), 1.5))
    compat.refuse_lossy_cast(aten.add_.Tensor, (real, real.double()))
    compat.refuse_lossy_cast(aten.eq_.Tensor, (real, complex_))


def test_a_product_of_two_dtypes_is_refused():
    one, other = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64)
    assert aten.mm.default in compat.PRODUCTS
    with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype"):
        compat.refuse_mixed_products(aten.mm.default, (one, other))
    compat.refuse_mixed_products(aten.addmm.default, (other, one, one))
    compat.refuse_mixed_products(aten.mul.Tensor, (one, other))


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_communication_in_place_is_refused():
    import torch.distributed._functional_collectives

    op = torch.ops.c10d.allreduce_.default
    assert not op._schema.arguments[0].is_write  # else functionalization would see it
    with pytest.raises(RuntimeError, match=compat.COMMUNICATES_IN_PLACE):
        compat.refuse_communication_in_place(op)
    compat.refuse_communication_in_place(torch.ops._c10d_functional.all_reduce.default)
    compat.refuse_communication_in_place(aten.mul_.Tensor)


STORAGE_REPLACED = [
    *(lambda x: x.set_(x + 1), lambda x: x.set_(), lambda x: x.set_(x + 1, 0, (1,), (1,))),
    *(lambda x: x.set_(x.untyped_storage()), lambda x: x.set_(x.untyped_storage(), 0, (1,), (1,))),
]


@pytest.mark.parametrize("replace", STORAGE_REPLACED)
def test_another_storage_is_refused(fake_mode, replace):
    trace = Tracing(fake_mode, torch.ones(2))
    with trace.active() as x, torch.no_grad(), pytest.raises(RuntimeError, match=compat.ANOTHER_STORAGE):
        replace(x)


def test_resize_as_is_a_resize(fake_mode):
    with Tracing(fake_mode, torch.ones(2)).active() as x:
        assert x.clone().resize_as_(x[1:]).shape == (1,)
    assert len(compat.REPLACES_STORAGE) == 5


def test_writes_that_no_graph_can_record_are_refused():
    trace, real = Tracing(compat.new_fake_mode(), torch.ones(1)), torch.ones(2)
    for closed_over in (real, trace.fake):
        with pytest.raises(RuntimeError, match="mutating a non-functional tensor"):
            compat.refuse_unrecordable_write(aten.add_.Tensor, [closed_over, 1], {})
    compat.refuse_unrecordable_write(aten.add.Tensor, [real, 1], {})
    with trace.active() as x:
        compat.refuse_unrecordable_write(aten.add_.Tensor, [x, 1], {})
        with pytest.raises(RuntimeError, match="mutating a sparse tensor"):
            compat.refuse_unrecordable_write(aten.add_.Tensor, [x.to_sparse(), 1], {})
        with pytest.raises(RuntimeError) as refused:
            compat.refuse_unrecordable_write(aten.add_.Tensor, [x.expand(3), 1], {})
        with pytest.raises(RuntimeError, match="writing through an expanded tensor"):
            compat.refuse_unrecordable_write(aten.fill_.Scalar, [x.expand(3), 1], {})
        gaps = torch.ones(4, 10)[:, ::2]
        compat.refuse_unrecordable_write(aten.uniform_.default, [gaps], {})
        with pytest.raises(RuntimeError, match="normal_ of a tensor with gaps"):
            compat.refuse_unrecordable_write(aten.normal_.default, [gaps], {})
    with pytest.raises(RuntimeError) as eager:
        torch.ones(1).expand(3).add_(1)
    assert str(refused.value) == str(eager.value) == compat.SEVERAL_IN_ONE_PLACE


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated:UserWarning")
def test_what_may_be_written_to_an_expanded_tensor():
    matrix, index, mask = torch.ones(1, 2).expand(2, 2), torch.tensor([0]), torch.ones(2, 2, dtype=torch.bool)
    arguments = {
        "fill_": (1,),
        "index_put_": ((index,), torch.ones(())),
        "_index_put_impl_": ((index,), torch.ones(())),
        "index_fill_": (0, index, 1),
        "masked_fill_": (mask, 1),
        "fill_diagonal_": (1,),
    }
    for op in compat.WRITES_TO_EXPANDED:
        name = op._schema.name.split("::")[1]
        op.overloadpacket(matrix, *arguments.get(name, ()))


def test_what_kernels_find_in_empty_tensors_is_found_before():
    empty, index = torch.ones(0, 2), torch.tensor([0])
    refused = [
        (aten.max.dim, (empty, 0)),
        (aten.min.dim, (empty, -2, True)),
        (aten.index_select.default, (empty, 0, index)),
        (aten.index.Tensor, (empty, [index])),
        (aten.index.Tensor, (empty.t(), [None, index])),
    ]
    for op, arguments in refused:
        with pytest.raises((IndexError, RuntimeError)) as raised:
            op(*arguments)
        with pytest.raises(raised.type, match=r"size|positive"):
            compat.refuse_empty_dimension(op, arguments)
    allowed = [
        (aten.max.dim, (empty, 1)),
        (aten.index_select.default, (empty, 1, index)),
        (aten.index_select.default, (empty, 0, index[:0])),
        (aten.index.Tensor, (empty, [None, index])),
        (aten.index.Tensor, (empty, [torch.ones(0, dtype=torch.bool)])),
    ]
    for op, arguments in allowed:
        op(*arguments)
        compat.refuse_empty_dimension(op, arguments)
    assert len(compat.EXTREMA) == 2
    assert [compat.misses(empty, [index, None], dim) for dim in (0, 1)] == [True, False]
    assert [compat.is_known_empty(tensor, 0) for tensor in (empty, empty.t(), torch.ones(()))] == [True, False, False]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
def test_rows_that_require_grad_are_refused():
    rows = torch.eye(2).to_sparse_csr()
    assert rows.layout in compat.COMPRESSED_LAYOUTS
    compat.refuse_differentiable_rows([torch.eye(2)], rows)
    with torch.no_grad():
        compat.refuse_differentiable_rows([torch.eye(2, requires_grad=True)], rows)
    with pytest.raises(RuntimeError, match="layout_impl"):
        compat.refuse_differentiable_rows([torch.eye(2, requires_grad=True)], rows)
