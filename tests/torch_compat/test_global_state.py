"""Feature tests of `aotgrad/torch_compat/global_state.py`."""

from __future__ import annotations

import contextlib

import pytest
import torch

from aotgrad import torch_compat as compat


@contextlib.contextmanager
def default_dtype():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


CHANGED_STATE = {
    "grad_mode": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default_dtype": default_dtype,
    "inference mode": torch.inference_mode,
    "default device": lambda: torch.device("meta"),
    "math attention": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION),
}


@pytest.mark.parametrize("what", CHANGED_STATE)
def test_the_global_state_tells_what_changed(what):
    state = compat.GlobalState()
    assert state.check()
    assert state.reason() == ""
    assert state.text == f"grad, default dtype {torch.get_default_dtype()}"
    with CHANGED_STATE[what]():
        assert not state.check()
        assert what in state.reason()
    assert state.check()


class DispatchMode(compat.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class FunctionMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [DispatchMode, FunctionMode, torch.autograd.forward_ad.dual_level])
def test_someone_watches_the_ops(mode):
    assert not compat.ops_are_observed([torch.ones(1)])
    with mode():
        assert compat.ops_are_observed([torch.ones(1)])
    with torch.device("cpu"):
        assert compat.only_places_tensors(compat.function_modes()[0])
        assert not compat.ops_are_observed([torch.ones(1)])


def test_a_transform_or_trace_watches_the_ops(fake_mode):
    seen = []

    def function(x):
        seen.append(compat.ops_are_observed([x]))
        return x.sum()

    torch.vmap(function)(torch.ones(2, 2))
    torch.func.grad(function)(torch.ones(2))
    function(fake_mode.from_tensor(torch.ones(2)))
    assert seen == [True] * 3


def test_global_settings_are_those_of_now():
    before = compat.global_settings()
    assert compat.global_settings() == before
    with torch.no_grad():
        assert compat.global_settings() != before
    with torch.autocast("cpu", torch.float16):
        assert compat.global_settings() != before
    assert eval(repr(before)) == before, "plain values"


def test_the_build_of_torch():
    assert compat.torch_build()[0] == torch.__version__


def test_the_settings_of_a_call_are_set_again():
    with torch.autocast("cpu", torch.bfloat16), default_dtype(), torch.device("meta"):
        settings = compat.OpSettings.now()
        assert settings == compat.OpSettings.now()
    before = compat.OpSettings.now()
    assert settings != before
    with settings.active():
        assert compat.OpSettings.now() == settings
        assert torch.ones(1).device.type == "meta" and torch.get_default_dtype() is torch.float64
        with before.active():
            assert torch.ones(1).device.type == "cpu" and torch.get_default_dtype() is torch.float32
    assert compat.OpSettings.now() == before
