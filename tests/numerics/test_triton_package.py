"""Real Triton kernels, if the package is installed: traced for an absent device, and run where one is present."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional

import aotgrad
from tests.numerics.against_eager import assert_like_eager

triton = pytest.importorskip("triton", reason="the package triton is not installed")
tl = triton.language

SIZE = 20


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)


def launched(kernel, x, y):
    out = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), BLOCK=16)
    return out


class Add(torch.autograd.Function):
    """A user's launcher of a kernel; Dynamo turns the call into an operator."""

    @staticmethod
    def forward(ctx, x, y):
        return launched(add_kernel, x, y)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, launched(add_kernel, gradient, gradient)


@torch.library.triton_op("aotgrad_tests::add", mutates_args={})
def add_op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launched(torch.library.wrap_triton(add_kernel), x, y)


add_op.register_autograd(lambda ctx, gradient: (gradient, add_op(gradient, gradient)))


class NoDevice:
    """A Triton driver that only names a compilation target, which suffices to detect a kernel's writes."""

    def get_current_target(self):
        return triton.backends.compiler.GPUTarget("cuda", 90, 32)


@pytest.fixture
def no_device(monkeypatch):
    monkeypatch.setattr(triton.runtime.driver, "_active", NoDevice())
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    torch._dynamo.reset()


def leaves(device="cpu"):
    return tuple(torch.randn(SIZE, device=device, requires_grad=True) for _ in range(2))


def kernels(graph):
    return [node for node in graph.nodes if node.target is triton_kernel_wrapper_functional]


def test_an_op_made_of_a_kernel(no_device):
    joint = aotgrad.export_joint(lambda x, y: (add_op(x, y).cos(),), leaves())
    assert [node.kwargs["tensors_to_clone"] for node in kernels(joint.module.graph)] == [["out_ptr"], ["out_ptr"]]


def test_a_kernel_in_dynamos_graph(no_device):
    graphs = []

    def compiler(graph, example_inputs):
        """Runs nothing: there is no device."""
        graphs.append(graph)
        results = graph.graph.output_node().args[0]
        return aotgrad.make_boxed_func(lambda *args: [torch.zeros(node.meta["val"].shape) for node in results])

    def backend(module, example_inputs):
        return aotgrad.aot_module_simplified(module, example_inputs, fw_compiler=compiler)

    x, y = leaves()
    torch.compile(lambda x, y: Add.apply(x, y).cos(), backend=backend, fullgraph=True)(x, y).sum().backward()
    assert [[node.kwargs["tensors_to_clone"] for node in kernels(graph.graph)] for graph in graphs] == [[["out_ptr"]]] * 2
    assert x.grad is not None and y.grad is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels need a GPU to run")
@pytest.mark.parametrize("backend", ["nop", "dynamo", "inductor"])
@pytest.mark.parametrize("function", [add_op, Add.apply], ids=["op", "autograd.Function"])
def test_kernels_run(function, backend):
    if function is not add_op and backend == "nop":
        pytest.skip("a bare call of a kernel is an operator behind Dynamo only")
    assert_like_eager(lambda x, y: function(x, y) * x, lambda: leaves("cuda"), backend)
