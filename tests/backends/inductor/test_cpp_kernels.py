"""Several of Inductor's C++ kernels in one library: each computes and raises the same as alone."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.utils import fresh_cache

from aotgrad import torch_compat
from aotgrad.backends.inductor import cpp_kernels
from aotgrad.backends.inductor.cpp_kernels import CppKernel, libraries, start_library, start_together
from tests.torch_compat.tracing import inductor

TWICE = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(const float* in, float* out, const int64_t count)
{
    #pragma GCC ivdep
    for (int64_t k = 0; k < count; k++) out[k] = 2 * in[k];
}
"""
FILL = """
#include <torch/csrc/inductor/cpp_prefix.h>
#include <stdexcept>
static float helper(float value) { return value; }
extern "C" void kernel(float* out, const float value)
{
    if (value < 0) throw std::runtime_error("less than nothing");
    out[0] = helper(value);
}
"""
KERNELS = [CppKernel(("const float*", "float*", "const int64_t"), TWICE), CppKernel(("float*", "const float"), FILL)]


def several_kernels(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (((x.sin() @ w).cos() @ w).softmax(-1) @ w).relu().sum(0)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (KERNELS[0], True),
        (KERNELS[1], True),
        (CppKernel((), TWICE + TWICE), False),
        (CppKernel((), TWICE.replace("kernel", "other")), False),
        (CppKernel((), TWICE + "\n#define x y\n"), False),
        (CppKernel(("std::vector<int>",), TWICE), False),
    ],
    ids=["pointers and a size", "a helper", "two functions", "another name", "a macro", "an argument of another kind"],
)
def test_which_kernels_may_share_a_library(kernel, expected):
    assert kernel.can_share is expected


@pytest.mark.parametrize(("count", "compilers", "expected"), [(0, 1, 0), (1, 8, 1), (20, 1, 1), (20, 2, 2), (20, 32, 4)])
def test_how_many_libraries(count, compilers, expected, monkeypatch):
    monkeypatch.setattr(torch_compat, "cpp_compilers", lambda: compilers)
    found = libraries(range(count), KERNELS[:1] * count)
    assert len(found) == expected and sorted(position for each in found for position in each) == list(range(count))
    assert not found or max(map(len, found)) - min(map(len, found)) <= 1


@inductor
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("together", [True, False], ids=["together", "one by one"])
def test_what_kernels_compute_and_raise(together, threads, monkeypatch):
    if not together:
        monkeypatch.setattr(cpp_kernels, "library_source", lambda kernels: "#error none of it compiles")
    with torch_compat.inductor_config("default", compile_threads=threads):
        twice, fill = start_together(KERNELS)()
    assert (torch_compat.library_of(twice)[1] == torch_compat.library_of(fill)[1]) is together
    x, y = torch.rand(5), torch.zeros(5)
    assert twice(x, y, 5) is None and torch.equal(y, 2 * x)
    fill(y, 3.0)
    assert y[0] == 3
    for wrong, message in (((y,), "arg"), ((y, "three"), "number|arg"), ((y, -2.0), "less than nothing")):
        with pytest.raises(RuntimeError, match=message):
            fill(*wrong)


def step(dynamic: bool, *sizes: int) -> list[torch.Tensor]:
    """Results and gradients of a fresh compilation, in training steps of these sizes."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    w, found = torch.rand(8, 8, requires_grad=True), []
    with fresh_cache():
        compiled = torch.compile(several_kernels, backend="aotgrad", dynamic=dynamic, options={"cache": False})
        for size in sizes:
            x = torch.rand(size, 8, requires_grad=True)
            result = compiled(x, w)
            found += [x, result, *torch.autograd.grad(result.sum(), (x, w))]
    return found


@inductor
@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_are_those_of_kernels_that_are_compiled_one_by_one(dynamic, monkeypatch):
    sizes = (3, 5) if dynamic else (3,)
    together = step(dynamic, *sizes)
    monkeypatch.setattr(CppKernel, "can_share", False)
    assert all(map(torch.equal, together, step(dynamic, *sizes)))


@inductor
def test_a_graph_has_few_libraries(monkeypatch):
    seen = []
    monkeypatch.setattr(cpp_kernels, "start_library", lambda kernels: seen.append(len(kernels)) or start_library(kernels))
    with torch_compat.inductor_config("default", compile_threads=1):
        step(False, 3)
    assert len(seen) == 2 and min(seen) > 1, "the forward's and the backward's, of several kernels each"
