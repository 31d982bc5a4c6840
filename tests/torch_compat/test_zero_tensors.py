"""Feature tests of `aotgrad/torch_compat/zero_tensors.py`."""

from __future__ import annotations

import itertools
import operator

import pytest
import torch

from aotgrad import torch_compat as compat


def zeros(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch._efficientzerotensor(sizes, dtype=dtype)


VALUES = {
    "zeros": lambda: zeros(3),
    "a zero": lambda: zeros(),
    "rows of zeros": lambda: zeros(2, 3),
    "whole zeros": lambda: zeros(3, dtype=torch.int64),
    "values": lambda: torch.tensor([1.0, -2.0, torch.inf]),
    "a value": lambda: torch.tensor(2.0, dtype=torch.float64),
    "whole values": lambda: torch.tensor([1, 2, 3]),
    "a number": lambda: 2.5,
}
OPS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "scaled sum": lambda x, y: torch.add(x, y, alpha=3) if isinstance(y, torch.Tensor) else x,
}


@pytest.mark.parametrize(
    "pair", [pair for pair in itertools.product(VALUES, VALUES) if any("zero" in each for each in pair)]
)
@pytest.mark.parametrize("op", OPS)
def test_arithmetic_is_what_torchs_own_is(op: str, pair: tuple[str, str]) -> None:
    def result():
        return OPS[op](*(VALUES[name]() for name in pair))

    wanted = result()
    with compat.symbolic_zero_tensors():
        actual = result()
    assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
    assert actual._is_zerotensor() == wanted._is_zerotensor()
    assert torch.equal(actual.nan_to_num(7), wanted.nan_to_num(7))
    assert result()._is_zerotensor() == wanted._is_zerotensor()  # torch's own kernels are back


def test_what_a_tangent_is_asked() -> None:
    wanted = torch.ops.aten._has_same_storage_numel(zeros(3), torch.ones(3))
    with compat.symbolic_zero_tensors():
        assert torch.ops.aten.is_same_size(zeros(3), torch.ones(3)) and not torch.ops.aten.is_same_size(
            zeros(3), torch.ones(2)
        )
        assert torch.ops.aten._has_same_storage_numel(zeros(3), torch.ones(3)) == wanted
        assert torch.ops.aten._has_same_storage_numel(zeros(3), torch.ones(1).expand(3))
        like = torch.ops.aten._new_zeros_with_same_feature_meta(zeros(3, 2), torch.ones(2, 3).t())
        assert torch.equal(like, torch.zeros(3, 2)) and like.stride() == (1, 3)
