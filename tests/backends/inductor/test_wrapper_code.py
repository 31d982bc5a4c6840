"""Inductor's wrapper code without compilation: the same results, or Inductor loads the graph."""

from __future__ import annotations

import operator
from pathlib import Path

import pytest
import torch

from aotgrad import torch_compat
from aotgrad.backends.inductor import backend
from aotgrad.backends.inductor.wrapper_code import Wrapper, remove_compilation
from tests.torch_compat.tracing import graph_of_sin_cos, inductor

SOURCE = """\
import math
from torch._inductor.codegen.memory_planning import _align as align
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.select_algorithm import extern_kernels

inductor_ops = torch.ops.inductor
async_compile = AsyncCompile()

cpp_fused_0 = async_compile.cpp_pybinding(['float*'], r'''
int x;
''')

async_compile.wait(globals())
del async_compile

def call(args):
    extern_kernels.mm(args[0], args[1])

def benchmark_compiled_module(args):
    return align(args)

if __name__ == "__main__":
    benchmark_compiled_module([])
"""


@pytest.fixture
def compiled():
    mode = torch_compat.new_fake_mode()
    module, fake = graph_of_sin_cos(mode)
    with torch_compat.inductor_context(mode, "default"):
        settings = torch_compat.inductor_graph_settings(False)
        return torch_compat.inductor_compile(module, [fake], static_input_idxs=[], **settings)


def test_what_compiles_goes_and_other_lines_stay_where_they_are():
    lean, kernels = remove_compilation(SOURCE)
    assert kernels == ["cpp_fused_0"]
    assert [line for line in lean.splitlines() if line] == [
        "import math",
        "def call(args):",
        "    extern_kernels.mm(args[0], args[1])",
    ]
    assert len(lean.splitlines()) == len(SOURCE.splitlines())


@inductor
def test_a_wrapper_computes_the_same(compiled):
    content = backend.serialize(compiled)
    assert content.partition(b"\n")[0], "there is a wrapper"
    loaded, x = backend.deserialize(content, is_backward=False), torch.rand(4)
    assert torch.equal(loaded([x.clone()])[0], compiled([x.clone()])[0])


@inductor
@pytest.mark.parametrize("change", [lambda path: "/nowhere.so", lambda path: __file__], ids=["gone", "another"])
def test_where_a_kernel_is_not_what_it_was_inductor_makes_the_graph_ready(compiled, change, monkeypatch):
    text, _, content = backend.serialize(compiled).partition(b"\n")
    wrapper = Wrapper.of_text(text.decode())
    kernels = {
        name: (module, change(path), function, digest) for name, (module, path, function, digest) in wrapper.kernels.items()
    }
    changed = Wrapper(wrapper.source, kernels, wrapper.functions)
    with pytest.raises(OSError):
        changed.module("changed")
    loaded, x = backend.deserialize(changed.to_text().encode() + b"\n" + content, is_backward=False), torch.rand(4)
    assert torch.equal(loaded([x.clone()])[0], compiled([x.clone()])[0])


@inductor
@pytest.mark.parametrize(
    "line",
    ["triton_poi_0 = async_compile.triton('', '')", "inductor_ops.accumulate_grad_(x)", "align(3)", "extern_kernels.lost()"],
)
def test_a_wrapper_that_needs_more_is_none(compiled, line):
    module = torch_compat.inductor_module(compiled)
    assert Wrapper.of(compiled.source_code, module) is not None
    assert Wrapper.of(f"{compiled.source_code}\n{line}\n", module) is None


@inductor
def test_the_libraries_of_kernels(compiled):
    module = torch_compat.inductor_module(compiled)
    (kernel,) = (value for name, value in vars(module).items() if name.startswith("cpp_fused"))
    module_name, path, name = torch_compat.library_of(kernel)
    assert Path(path).exists() and torch_compat.kernel_in(module_name, path, name) is kernel
    assert torch_compat.library_of(test_the_libraries_of_kernels) is None
    assert torch_compat.inductor_module(operator.add) is None
