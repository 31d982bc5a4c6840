"""Feature tests of `aotgrad/torch_compat/inductor/kernels.py`."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch._inductor.utils import fresh_cache

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import graph_of_sin_cos, inductor


@inductor
def test_cpp_kernels_are_collected(fake_mode):
    module, fake = graph_of_sin_cos(fake_mode)
    settings = compat.inductor_graph_settings(False)
    collected = compat.collected_cpp_kernels(lambda types, source: (types, source))
    with fresh_cache(), compat.inductor_context(fake_mode, "default"), collected as places:
        made = compat.inductor_compile(module, [fake], static_input_idxs=[], **settings)
        ((namespace, name, (types, source)),) = places
        assert namespace[name] == (types, source) and types == ("const float*", "float*") and "kernel(" in source
        namespace[name] = compat.start_cpp_kernel(types, source, None)()
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
        assert compat.cpp_compilers() == threads
        module = compat.start_cpp_library(f"{source}// {threads}", Promise if threads > 1 else None)()
    assert isinstance(module, types.ModuleType)


@dataclass(frozen=True)
class Promise:
    """Does work when its result is asked for."""

    work: Callable[[], None]

    def result(self) -> None:
        self.work()
