"""Feature tests of `aotgrad/torch_compat/inductor/kernels.py`."""

from __future__ import annotations

import types

import pytest
import torch
from torch._inductor.utils import fresh_cache

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import graph_of_sin_cos, inductor


@inductor
def test_cpp_kernels_go_through_a_compiler_of_ours(fake_mode):
    seen = []

    def compile_all(kernels: list) -> list:
        seen.extend(kernels)
        return [compat.start_cpp_kernel(*kernel)() for kernel in kernels]

    module, fake = graph_of_sin_cos(fake_mode)
    settings = compat.inductor_graph_settings(False)
    through = compat.compile_cpp_kernels_with(compile_all, lambda types, source: (types, source))
    with fresh_cache(), compat.inductor_context(fake_mode, "default"), through:
        made = compat.inductor_compile(module, [fake], static_input_idxs=[], **settings)
    ((types, source),) = seen
    assert types == ("const float*", "float*") and "kernel(" in source
    x = torch.rand(4)
    assert torch.equal(made([x.clone()])[0], x.sin().cos())


@inductor
@pytest.mark.parametrize("threads", [1, 2])
def test_cpp_libraries_are_modules(threads):
    source = """
    #include <Python.h>
    static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "kernel", nullptr, -1, nullptr};
    PyMODINIT_FUNC PyInit_kernel(void) { return PyModule_Create(&definition); }
    """
    with compat.inductor_config("default", compile_threads=threads):
        assert compat.cpp_compilers() == threads and (compat.submit_cpp() is None) is (threads == 1)
        module = compat.start_cpp_library(f"{source}// {threads}")()
    assert isinstance(module, types.ModuleType)
