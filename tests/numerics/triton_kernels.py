"""A stand-in for a user's Triton kernel without the package and a device.

`launch` is the operator that Dynamo and `torch.library.wrap_triton` make of a kernel call; eager runs it, too. The kernel
is a Python object that is called like a compiled one, and writes like one: invisible to autograd and versions.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_mutation


class AddKernel:
    """`out = x + scale * y`, by the arguments' names."""

    arg_names = ("x", "y", "out", "scale")
    fn = SimpleNamespace(__name__="add")
    configs = ()

    def __getitem__(self, grid):
        return self.run

    def run(self, x, y, out, scale):
        with torch.no_grad():
            out.data.copy_(x.detach() + scale * y.detach())


ADD = AddKernel()


def launch(x, y, out, scale=1.0):
    """Launches the kernel for tensors of one size."""
    triton_kernel_wrapper_mutation(
        kernel_idx=kernel_side_table.add_kernel(ADD),
        constant_args_idx=kernel_side_table.add_constant_args({"scale": scale}),
        grid=[(1, 1, 1)],
        tma_descriptor_metadata={},
        kwargs={"x": x, "y": y, "out": out},
    )


def add(x, y, scale=1.0):
    out = torch.empty_like(x)
    launch(x, y, out, scale)
    return out


class Add(torch.autograd.Function):
    """The sum of sines, with kernels in both directions."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return add(x.sin(), y.sin(), 2.0)

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return add(gradient, gradient, 0.0) * x.cos(), add(gradient, gradient) * y.cos()
