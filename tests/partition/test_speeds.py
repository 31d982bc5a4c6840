"""The figures of devices: by type, by compute capability, by dtype, and by what float32 products are computed in."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from aotgrad.partition import speeds
from aotgrad.partition.speeds import GPUS, flops_per_byte

HOPPER = (9, 0)


@pytest.fixture
def gpu(monkeypatch):
    """Results on a GPU of the H100's capability, of any dtype."""
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex128)
    results = {dtype: on_cuda(dtype) for dtype in dtypes}  # made before: a torch built for GPUs would look for the driver
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: HOPPER)
    return results.__getitem__


def on_cuda(dtype: torch.dtype) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(2, 2, device="cuda", dtype=dtype)


def test_a_cpu_has_one_figure():
    assert flops_per_byte(torch.empty(2)) == flops_per_byte(torch.empty(2, dtype=torch.bfloat16)) == speeds.CPU


@pytest.mark.parametrize(
    "dtype, field",
    [(torch.float64, "double"), (torch.float32, "single"), (torch.bfloat16, "half"), (torch.float16, "half")],
)
def test_a_gpu_has_figures_by_dtype(gpu, dtype, field):
    assert flops_per_byte(gpu(dtype)) == getattr(GPUS[HOPPER], field)


def test_tf32_counts_where_it_is_on(gpu):
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert flops_per_byte(gpu(torch.float32)) == GPUS[HOPPER].tf32
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_convolutions_have_a_setting_of_their_own(gpu):
    on = torch.backends.cudnn.conv.fp32_precision == "tf32"
    assert flops_per_byte(gpu(torch.float32), is_convolution=True) == (GPUS[HOPPER].tf32 if on else GPUS[HOPPER].single)
    assert flops_per_byte(gpu(torch.float32)) == GPUS[HOPPER].single


def test_unknown_devices_have_a_common_figure(monkeypatch):
    result = on_cuda(torch.float32)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (99, 0))
    assert flops_per_byte(result) == speeds.ELSEWHERE
    assert flops_per_byte(torch.empty(2, device="meta")) == speeds.ELSEWHERE


def test_a_trace_of_a_gpu_on_a_machine_without_one_has_a_common_figure(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert flops_per_byte(on_cuda(torch.float32)) == speeds.ELSEWHERE
