"""Feature tests of `aotgrad/torch_compat/inductor/indices.py`."""

from __future__ import annotations

import pytest
import sympy
from torch._inductor.codegen import cpp
from torch.utils._sympy.functions import Mod, ModularIndexing, Where

from aotgrad import torch_compat as compat


def stride_of_a_remainder(name: str) -> None:
    """The stride of `index`, an index modulo a size, for which sympy has no simpler form."""
    size, place = (sympy.Symbol(each, integer=True, nonnegative=True) for each in (name, "d0"))
    remainder = ModularIndexing(place + Mod(size, size - 1) - 1, 1, size - 1)
    index = Where(remainder < 0, remainder + size - 1, remainder)
    stride = cpp.stride_at_vec_range(index, place, 16)
    assert stride.subs({size: 9, place: 0}) == 1
    assert stride.subs({size: 9, place: 7}) == -7


def test_a_stride_that_cannot_be_simplified_is_left_as_it_is():
    with compat.leave_strides_unsimplified():
        stride_of_a_remainder("s0")


def test_without_it_sympy_fails():
    """If this fails, torch has mended it: remove `leave_strides_unsimplified`."""
    with pytest.raises(AssertionError):
        stride_of_a_remainder("s1")
