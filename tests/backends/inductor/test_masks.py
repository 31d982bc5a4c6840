"""Masks of Inductor's C++ kernels: loaded from bools and stored as bools with the code of `masks.h`."""

from __future__ import annotations

import itertools
import logging

import pytest
import torch

import aotgrad

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64)
SIZES = (3, 16, 45)


def comparisons(x, mask):
    """Masks that are computed and returned, and some that are read."""
    return x <= 1, mask.logical_not(), mask | (x > 2), torch.where(mask, x, 3), (mask & (x < 2)).sum(), mask.to(x.dtype) + x


def all_of(*pairs):
    return [result for x, mask in pairs for result in comparisons(x, mask)]


@pytest.mark.parametrize("lanes", [512, 256])
def test_masks_are_as_in_eager(lanes, caplog):
    if not (torch.cpu._is_avx512_supported() if lanes == 512 else torch.cpu._is_avx2_supported()):
        pytest.skip("the processor has no such registers")
    generator = torch.Generator().manual_seed(0)
    pairs = [
        (torch.randint(-1, 4, (size,), generator=generator).to(dtype), torch.rand(size, generator=generator) > 0.5)
        for dtype, size in itertools.product(DTYPES, SIZES)
    ]
    compiled = aotgrad.aot_function(all_of, "inductor", options={"inductor": {"cpp.simdlen": lanes}})
    with caplog.at_level(logging.INFO, "aotgrad.backends"):
        found = compiled(*pairs)
    assert not [record for record in caplog.records if "one by one" in record.getMessage()]
    for result, expected in zip(found, all_of(*pairs), strict=True):
        assert result.dtype == expected.dtype
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
