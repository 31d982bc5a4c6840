"""Feature tests of `aotgrad/torch_compat/layouts.py`."""

from __future__ import annotations

import pytest
import torch

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import Tracing

aten = torch.ops.aten


def test_a_view_without_an_offset_starts_where_the_tensor_does(fake_mode):
    with Tracing(fake_mode, torch.ones(13)[1:].view(3, 4)).active() as x, torch.no_grad():
        assert compat.is_compact(x) and not compat.is_plain(x)
        x.as_strided((2,), (3,)).mul_(2)
    with Tracing(fake_mode, torch.ones(13)[1:9].view(2, 4)).active() as x, torch.no_grad():
        x.as_strided((2,), (8,))  # ends behind the tensor
        with pytest.raises(RuntimeError, match="as_strided and a write to the same memory"):
            x.mul_(2)


def test_as_strided_and_writes_exclude_one_another_unless_the_layout_is_known(fake_mode):
    with Tracing(fake_mode, torch.ones(3, 4)).active() as x, torch.no_grad():
        assert compat.is_plain(x)
        assert compat.is_compact(x) and not compat.is_plain(x[1:])
        x.as_strided((2,), (1,))
        x.mul_(2)
        y = x * 2
        y[1:].as_strided((2,), (1,), 4)
        with pytest.raises(RuntimeError, match="as_strided and a write to the same memory"):
            y.mul_(2)
        dense = x * 2
        dense.mul_(2)
        assert compat.keeps_geometry(dense[1:])
        dense[1:].as_strided((2,), (1,))
        z = torch.empty_strided((3, 4), (8, 2))
        z.mul_(2)
        with pytest.raises(RuntimeError, match="as_strided and a write to the same memory"):
            z[1:].as_strided((2,), (1,))
        assert compat.AbsoluteGeometry().written == {}
        (written,) = compat.written_arguments(torch.ops.aten.add_.Tensor, (z, y), {})
        assert written is z


def test_ops_that_ask_where_a_tensor_starts_are_noted(fake_mode):
    mode = compat.functional_mode(lambda: None)
    assert not compat.depends_on_offsets(mode)
    mode._geometry.check(aten.as_strided.default, (torch.ones(2), (2,), (1,)), {})
    with compat.making_arguments(mode):
        mode._geometry.check(aten.as_strided.default, (torch.ones(2), (2,), (1,), 0), {})
    assert not compat.depends_on_offsets(mode)
    mode._geometry.check(aten.view.dtype, (), {})
    assert compat.depends_on_offsets(mode)
    mode = compat.functional_mode(lambda: None)
    mode._geometry.check(aten.as_strided.default, (torch.ones(2), (2,), (1,), 0), {})
    assert compat.depends_on_offsets(mode)


def test_a_write_keeps_the_layout(fake_mode):
    assert compat.is_dense_layout((2, 3), (1, 2)) and not compat.is_dense_layout((2, 3), (1, 3))
    moved = compat.contiguous_in_order(torch.arange(6).view(2, 3), (1, 2))
    assert moved.stride() == (1, 2) and torch.equal(moved, torch.arange(6).view(2, 3))
    with Tracing(fake_mode, torch.ones(2, 3)).active() as x, torch.no_grad():
        view = x.clone().t()
        view.cumsum_(0)
        assert compat.from_functional(view).stride() == (1, 3)
        with compat.keep_layouts([x]):
            pass
        assert compat.is_not_contiguous(view) and not compat.is_not_contiguous(x)


def test_a_write_to_a_part_keeps_the_conjugate_bit(fake_mode):
    """Otherwise functionalization returns a view of the whole that is conjugated twice."""
    with Tracing(fake_mode, torch.ones(2, 3)).active() as x, torch.no_grad():
        whole = torch.complex(x, x).conj()
        whole[0].mul_(2)
        compat.keep_lazy_bits([whole, whole._base, x, 1])
        assert whole.is_conj() and compat.from_functional(whole).is_conj()
        assert not whole._base.is_conj() and not compat.from_functional(whole._base).is_conj()
        assert whole.imag.shape == (2, 3)


def test_pieces_that_are_the_same_memory_in_eager(fake_mode):
    """The wholes, pieces and pieces of pieces that are stale after a write to one of them."""
    expected = {"whole": [1, 2, 3, 4], "first": [0, 3, 4], "second": [0], "part": [0, 1], "other part": [0, 1]}
    for written, name in enumerate(expected):
        trace = Tracing(fake_mode, torch.ones(8))
        assert isinstance(trace.functional_mode._pieces, compat.UnsafePieces)
        with trace.active() as x:
            first, second = x.unsafe_chunk(2)
            values = [x, first, second, *first.unsafe_split_with_sizes((1, 3))]
            compat.check_pieces(trace.functional_mode, values)
            values[written].mul_(2)
            stale = [k for k, value in enumerate(values) if is_refused(lambda value=value: value.sin())]
            assert stale == [k for k, value in enumerate(values) if is_refused_at_the_end(trace, value)] == expected[name]


def is_refused(function) -> bool:
    try:
        function()
    except RuntimeError as error:
        assert str(error) == "unsafe_split and a write to the same memory"
        return True
    return False


def is_refused_at_the_end(trace, value) -> bool:
    return is_refused(lambda: compat.check_pieces(trace.functional_mode, [value, 3]))
