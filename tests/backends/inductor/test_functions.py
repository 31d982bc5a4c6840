"""Functions of vectors in Inductor's C++ kernels: those of `functions.h`."""

from __future__ import annotations

import logging
import math

import mpmath
import pytest
import torch

import aotgrad
from aotgrad.backends.inductor import cpp_kernels
from aotgrad.backends.inductor.cpp_kernels import CppKernel

HAS_LANES = {512: torch.cpu._is_avx512_supported(), 256: torch.cpu._is_avx2_supported()}
SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-39, 0.6, -0.6, 9.0, 10.0, 88.0, -3e38]


def compiled(lanes, caplog):
    """`tanh`, and another op, since one op alone runs in eager."""
    if not HAS_LANES[lanes]:
        pytest.skip("the processor has no such registers")
    caplog.set_level(logging.INFO, "aotgrad.backends")
    return aotgrad.aot_function(lambda x: (x.tanh(), x + 1), "inductor", options={"inductor": {"cpp.simdlen": lanes}})


def every_float(step: int) -> torch.Tensor:
    """Each `step`-th of all finite floats."""
    bits = torch.arange(0, 0x7F800000, step, dtype=torch.int64).to(torch.int32).view(torch.float32)
    return torch.cat([bits, -bits])


@pytest.mark.parametrize("lanes", [512, 256])
def test_tanh_is_off_by_at_most_one_and_a_half_units_in_the_last_place(lanes, caplog):
    x = torch.cat([every_float(step=1009), torch.tensor(SPECIAL)])
    found, _ = compiled(lanes, caplog)(x)
    assert not [record for record in caplog.records if "one by one" in record.getMessage()]
    exact = x.double().tanh()
    unit = torch.exp2((exact.abs().log2().floor() - 23).clamp(min=-149))
    off = (found.double() - exact).abs() / unit
    assert off[~x.isnan() & (exact != 0)].max() <= 1.5
    assert_special_values(found, x)


@pytest.mark.parametrize("lanes", [512, 256])
def test_tanh_of_doubles_is_off_by_at_most_one_and_a_half_units_in_the_last_place(lanes, caplog):
    numbers = [10**exponent * sign for exponent in torch.linspace(-12, 1.2, 4000).tolist() for sign in (1, -1)]
    x = torch.tensor([*numbers, *SPECIAL, 1e-320, 18.0, 25.0, 1e308], dtype=torch.float64)
    found, _ = compiled(lanes, caplog)(x)
    with mpmath.workdps(40):
        for value, tanh in zip(x.tolist(), found.tolist(), strict=True):
            exact = mpmath.tanh(value)
            assert math.isnan(value) or abs(tanh - exact) <= 1.5 * math.ulp(float(exact)), value
    assert_special_values(found, x)


def assert_special_values(found: torch.Tensor, x: torch.Tensor) -> None:
    assert found.isnan().equal(x.isnan())
    assert found[x == 0].signbit().equal(x[x == 0].signbit())


@pytest.mark.parametrize("lanes", [512, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("size", [1, 5, 37])
def test_tanh_of_other_types_and_sizes(lanes, dtype, size, caplog):
    x = torch.linspace(-4, 4, size).to(dtype)
    found, _ = compiled(lanes, caplog)(x)
    torch.testing.assert_close(found, x.tanh())


def test_the_calls_that_are_replaced():
    lines = "auto tmp1 = tmp0.tanh(); auto tmp2 = (tmp0 + tmp1).tanh(); std::tanh(a);"
    source = f'extern "C"  void kernel(float* p)\n{{\n    {lines}\n}}'
    found = cpp_kernels.body(0, CppKernel(("float*",), source))
    assert "auto tmp1 = aotgrad_functions::tanh(tmp0);" in found
    assert "(tmp0 + tmp1).tanh(); std::tanh(a);" in found
