"""Which vector instructions Inductor's C++ kernels may use, found by one small program in place of a dozen large ones.

Inductor compiles programs for each set of instructions, one after another, and a process of its own loads each of them: ten
seconds with an empty cache, and one or two in each later process. Here, one program uses all instructions of the processor
and Sleef's functions of each width. If it compiles and loads, so would those of Inductor, which are left out.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

_PROBE = """
#include <cstdint>
#include <cstring>
#include <immintrin.h>

extern "C" __m256 Sleef_expf8_u10(__m256);
#ifdef __AVX512F__
extern "C" __m512 Sleef_expf16_u10(__m512);
#endif
struct Tiles { uint8_t palette, row, reserved[14]; uint16_t columns[16]; uint8_t rows[16]; };

template <typename T> static void store(float* data, const T& value) { std::memcpy(data, &value, sizeof(value)); }

extern "C" void probe(float* data) {
    store(data, Sleef_expf8_u10(_mm256_loadu_ps(data)));
#ifdef __AVX512F__
    const __m512 x = Sleef_expf16_u10(_mm512_loadu_ps(data));
    store(data, x);
#endif
#ifdef __AVX512VNNI__
    const __m512i integers = _mm512_loadu_si512(data);
    const __m256i half = _mm512_castsi512_si256(integers);
    store(data, _mm512_dpbusd_epi32(integers, integers, integers));
    store(data, _mm256_dpbusd_epi32(half, half, half));
#endif
#ifdef __AVX512BF16__
    store(data, _mm512_cvtne2ps_pbh(x, x));
#endif
#ifdef __AMX_TILE__
    const Tiles tiles = {};
    _tile_loadconfig(&tiles);
    _tile_zero(0);
    _tile_dpbf16ps(0, 1, 2);
    _tile_dpbusd(0, 1, 2);
#endif
#ifdef __AMX_FP16__
    _tile_dpfp16ps(0, 1, 2);
#endif
}
"""

_MORE_FLAGS = {"_is_avx512_bf16_supported": "-mavx512bf16", "_is_amx_fp16_supported": "-mamx-fp16"}
"""Functions of `torch.cpu` that name instructions which Inductor tries by themselves, and the compiler's flags for them."""


@contextlib.contextmanager
def vector_instructions_by_one_probe() -> Iterator[None]:
    """Inside, Inductor finds by one program which vector instructions its kernels may use, and by itself if that fails."""
    from torch._inductor import config, cpu_vec_isa

    by_itself = cpu_vec_isa.valid_vec_isa_list
    is_ready = hasattr(by_itself, "cache_info") and hasattr(cpu_vec_isa.VecISA, "check_build")
    if not is_ready or by_itself.cache_info().currsize or config.cpp.vec_isa_ok is not None:
        yield
        return

    def found() -> list[Any]:
        if by_itself.cache_info().currsize or not _probe_loads():
            return by_itself()
        with mock.patch.object(cpu_vec_isa.VecISA, "check_build", lambda *args: True):
            return by_itself()

    with mock.patch.object(cpu_vec_isa, "valid_vec_isa_list", found):
        yield


def _probe_loads() -> bool:
    """Whether a program with all vector instructions of the processor compiles, links with torch, and loads."""
    from torch._inductor import cpu_vec_isa

    if sys.platform != "linux":
        return False
    try:
        has = {*cpu_vec_isa.x86_isa_checker()}  # empty on other processors
        isa = copy.copy(next(isa for isa in cpu_vec_isa.supported_vec_isa_list if {*str(isa).split()} <= has))
        if "avx512" in has:
            isa._arch_flags += "".join(f" {flag}" for name, flag in _MORE_FLAGS.items() if getattr(torch.cpu, name)())
        ctypes.CDLL(_built(isa))
    except Exception:  # the compiler's, the loader's, or of a torch that looks for instructions in another way
        return False
    return True


def _built(isa: Any) -> str:
    """The path of the compiled probe, which is kept in Inductor's cache."""
    from torch._inductor.codecache import LOCK_TIMEOUT, get_lock_dir, write
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions, get_compiler_version_info, get_cpp_compiler
    from torch.utils._filelock import FileLock

    flags = isa.build_arch_flags()
    key, source = write(_PROBE, "cpp", extra=f"{get_compiler_version_info(get_cpp_compiler())}={flags}={torch.__version__}")
    folder = os.path.dirname(source)
    builder = CppBuilder(key, [source], CppTorchOptions(vec_isa=isa, warning_all=False), folder)
    path = builder.get_target_file_path()
    with FileLock(os.path.join(get_lock_dir(), f"{key}.lock"), timeout=LOCK_TIMEOUT):
        if not os.path.isfile(path):
            builder.build()
    return path
