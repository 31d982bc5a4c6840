"""The choice of the device for the tests."""

from __future__ import annotations

import pytest
import torch

from tests import device


def test_the_default_is_the_cpu(monkeypatch):
    monkeypatch.delenv(device.VARIABLE, raising=False)
    assert device.chosen_device() == "cpu"


@pytest.mark.parametrize("given", ["", "gpu", "cuda:0"])
def test_an_unknown_device_is_an_error(monkeypatch, given):
    monkeypatch.setenv(device.VARIABLE, given)
    with pytest.raises(pytest.UsageError, match=f"AOTGRAD_TEST_DEVICE is '{given}'; it must be one of cpu, emulated, cuda"):
        device.chosen_device()


def test_why_a_test_does_not_run(monkeypatch, request):
    item = request.node
    assert device.why_not(item) is None
    monkeypatch.setattr(device, "DEVICE", "emulated")
    assert device.why_not(item) == "runs on the CPU only; AOTGRAD_TEST_DEVICE is emulated"
    if not torch.cuda.is_available():
        monkeypatch.setattr(device, "DEVICE", "cuda")
        assert device.why_not(item) == "AOTGRAD_TEST_DEVICE=cuda, and torch finds no GPU"


def test_the_suites_are_folders():
    assert all((device.TESTS / suite / "__init__.py").exists() for suite in device.SUITES)
