"""Feature tests of `aotgrad/torch_compat/global_state.py`."""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from aotgrad import torch_compat as compat
from aotgrad.torch_compat import global_state


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


@pytest.mark.parametrize(("vendor", "is_slow"), [("vendor_id\t: AuthenticAMD", True), ("vendor_id\t: GenuineIntel", False)])
def test_a_math_library_is_slow_on_processors_that_it_is_not_made_for(vendor, is_slow, monkeypatch):
    monkeypatch.setattr(global_state, "_processor", lambda: ["flags\t: fpu amd_ppin", vendor])
    for is_there in (True, False):
        monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: is_there)  # noqa: B023
        assert compat.math_library_is_slow() is (is_slow and is_there)


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


def flip(read: Callable[[], bool], write: Callable[[bool], None]) -> Any:
    @contextlib.contextmanager
    def flipped():
        before = read()
        write(not before)
        try:
            yield
        finally:
            write(before)

    return flipped


def write_to(write: Callable[[Any], None], value: Any, before: Any) -> Any:
    @contextlib.contextmanager
    def written():
        write(value)
        try:
            yield
        finally:
            write(before)

    return written


def named(name: str) -> Any:
    return flip(getattr(torch._C, f"_get_{name}"), getattr(torch._C, f"_set_{name}"))


def attention(name: str) -> Any:
    return flip(getattr(torch._C, f"_get_{name}_sdp_enabled"), getattr(torch._C, f"_set_sdp_use_{name}"))


mha, opt_einsum = torch.backends.mha, torch.backends.opt_einsum
precision = torch._C._set_fp32_precision_setter
CHANGES = {
    "inference mode": torch.inference_mode,
    "flash attention": attention("flash"),
    "memory-efficient attention": attention("mem_efficient"),
    "math attention": attention("math"),
    "cudnn attention": flip(torch._C._get_cudnn_sdp_enabled, torch._C._set_sdp_use_cudnn),
    "overrideable attention": attention("overrideable"),
    "reductions of half precision in math attention": named("math_sdp_allow_fp16_bf16_reduction"),
    "cudnn": named("cudnn_enabled"),
    "benchmarks of cudnn": named("cudnn_benchmark"),
    "determinism of cudnn": named("cudnn_deterministic"),
    "mkldnn": named("mkldnn_enabled"),
    "determinism of mkldnn": named("mkldnn_deterministic"),
    "filled new memory": named("deterministic_fill_uninitialized_memory"),
    "accumulation in half precision": named("cublas_allow_fp16_accumulation"),
    "order of attention kernels": write_to(torch._C._set_sdp_priority_order, [2, 1, 0, 3, 4], [1, 2, 0, 3, 4]),
    "precision of convolutions": write_to(lambda value: precision("cuda", "conv", value), "ieee", "tf32"),
    "fast path of attention layers": flip(mha.get_fastpath_enabled, mha.set_fastpath_enabled),
}
if opt_einsum.is_available():
    CHANGES["opt_einsum"] = flip(lambda: opt_einsum.enabled, lambda value: setattr(opt_einsum, "enabled", value))
"""Contexts that change the settings that are guarded besides those of torch's guard."""


def test_every_guarded_setting_is_changed_by_a_test():
    assert [*CHANGES] == [*compat.SETTINGS]
    assert compat.MODULE_SETTINGS.items() <= compat.SETTINGS.items()


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_setting_is_noticed(what):
    state, settings = compat.GlobalState(), compat.global_settings()
    with CHANGES[what]():
        assert not state.check()
        assert what in state.reason()
        assert compat.global_settings() != settings, "part of the key on disk"
    assert state.check() and compat.global_settings() == settings


BY_TORCHS_GUARD = {
    "cublas_allow_bf16_reduced_precision_reduction",
    "cublas_allow_fp16_reduced_precision_reduction",
    "cublas_allow_tf32",
    "deterministic_algorithms",
    "float32_matmul_precision",
    "torch_function_state",
}

BY_KERNELS = {
    "blas_preferred_backend",
    "cpu_allow_fp16_reduced_precision_reduction",
    "cublaslt_prefer_grouped_gemm",
    "cudnn_allow_tf32",  # for Inductor by "precision of convolutions"
    "cudnn_depthwise_kernel",
    "linalg_preferred_backend",
    "miopen_immediate",
    "native_aot_enabled",
    "native_aot_unconditional_masked",
    "nnpack_enabled",
    "onednn_allow_tf32",
    "qengine",
    "rocm_fa_preferred_backend",
    "sm_carveout_experimental",
}
"""Settings that ATen's kernels read in each call, as they do in eager; no trace depends on them."""

WITHOUT_NUMBERS = {
    "autograd_fallback_mode",
    "backcompat_broadcast_warn",
    "backcompat_keepdim_warn",
    "dispatch_mode",
    "dtensor_allow_implicit_replication",
    "fake_constant",  # of one tensor
    "graph_exec_group",
    "graph_executor_optimize",
    "tensor_metadata",
    "thread_name",
    "tracing_state",
    "value_trace",
    "warnAlways",
}
"""Settings that change no number of a compiled function, and modes in which every op is observed."""

GUARDED = {
    "cudnn_benchmark",
    "cudnn_deterministic",
    "cudnn_enabled",
    "cublas_allow_fp16_accumulation",
    "deterministic_fill_uninitialized_memory",
    "math_sdp_allow_fp16_bf16_reduction",
    "mkldnn_deterministic",
    "mkldnn_enabled",
    "sdp_priority_order",
}


def test_every_setting_of_torch_is_guarded_or_known_to_need_no_guard():
    """Fails for a setting of a new torch: add it to `SETTINGS` if a trace, or Inductor, depends on it."""
    found = {name.removeprefix("_get_") for name in dir(torch._C) if name.startswith("_get_")}
    found = {name for name in found if hasattr(torch._C, f"_set_{name}")}
    assert found - GUARDED - BY_TORCHS_GUARD - BY_KERNELS - WITHOUT_NUMBERS == set()


def test_every_kernel_of_attention_is_guarded():
    kernels = {name.removeprefix("_set_sdp_use_") for name in dir(torch._C) if name.startswith("_set_sdp_use_")}
    assert kernels - {"fa3", "fa4"} == {"flash", "mem_efficient", "math", "cudnn", "overrideable"}


def test_every_folder_of_backends_is_known():
    """Each has settings of its own."""
    without = {"_coreml", "_nnapi", "cusparselt", "kleidiai", "mkl", "mps", "openmp", "xeon", "xnnpack"}
    looked_at = {"cpu", "cuda", "cudnn", "mha", "miopen", "mkldnn", "nnpack", "opt_einsum", "python_native", "quantized"}
    found = {module.name for module in pkgutil.iter_modules(torch.backends.__path__)}
    assert found - without - looked_at == set()


@pytest.mark.parametrize("place", [("generic", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("mkldnn", "matmul")])
def test_a_precision_that_was_set_by_the_new_names_is_a_part_of_the_settings(place):
    before, settings = torch._C._get_fp32_precision_getter(*place), compat.global_settings()
    try:
        precision(*place, "ieee" if before == "tf32" else "tf32")
        assert compat.global_settings() != settings
        compat.GlobalState().check()
    finally:
        precision(*place, before)


def test_named_settings_leave_out_the_threads():
    before, threads = compat.named_settings(), torch.get_num_threads()
    assert tuple(before) == compat.SETTING_GROUPS and compat.GlobalState().described == before
    with torch.no_grad():
        changed = compat.named_settings()
        assert [name for name in before if before[name] != changed[name]] == [compat.SETTING_GROUPS[0]]
    torch.set_num_threads(threads + 1)
    try:
        assert compat.named_settings() == before
    finally:
        torch.set_num_threads(threads)
