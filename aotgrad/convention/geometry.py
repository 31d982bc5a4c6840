"""The view ops that make a tensor from the flat memory that it lies in, decided from integers.

If the dtypes are equal, one `as_strided` does. If they differ, the memory is first viewed as the other dtype, and
functionalization refuses writes through an `as_strided` that is not first in its chain. Slices and views of a grid are used
then, which exist for every geometry with nested strides.

    size (2, 3), stride (8, 1), offset 9     flat[8:24].view(2, 8)[:, 1:4]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aotgrad.ir import ViewStep

aten = torch.ops.aten


def step(op: torch._ops.OpOverload, *args: object) -> ViewStep:
    return ViewStep(op, args, (), None)


def strided_steps(size: Sequence[int], stride: Sequence[int], offset: int) -> tuple[ViewStep, ...]:
    """The geometry by one `as_strided`."""
    return (step(aten.as_strided.default, tuple(size), tuple(stride), offset),)


def reinterpret_steps(base: torch.dtype, dtype: torch.dtype, differentiable: bool) -> tuple[ViewStep, ...]:
    """The flat memory of dtype `base` as flat memory of `dtype`, by a view that carries gradients if there is one."""
    if differentiable and base.is_complex and dtype is base.to_real():
        return (step(aten.view_as_real.default), step(aten.view.default, (-1,)))
    if differentiable and dtype.is_complex and base is dtype.to_real():
        return (step(aten.view.default, (-1, 2)), step(aten.view_as_complex.default))
    return (step(aten.view.dtype, dtype),)


def nested_steps(size: Sequence[int], stride: Sequence[int], offset: int, length: int) -> tuple[ViewStep, ...] | None:
    """The geometry in `length` flat elements by nested slices of rows, or `None` if its strides are not nested."""
    dims = sorted((d for d in range(len(size)) if size[d] > 1 and stride[d] > 0), key=lambda d: -stride[d])
    steps: list[ViewStep] = []
    for k, dim in enumerate(dims):
        row, rest = divmod(offset, stride[dim])
        reach = rest + 1 + sum((size[d] - 1) * stride[d] for d in dims[k + 1 :])
        if reach > stride[dim] or (row + size[dim]) * stride[dim] > length:
            return None
        grid = (*(size[d] for d in dims[: k + 1]), stride[dim])
        steps.append(step(aten.slice.Tensor, k, row * stride[dim], (row + size[dim]) * stride[dim]))
        steps.append(step(aten.view.default, grid))
        offset, length = rest, stride[dim]
    return (*steps, step(aten.select.int, len(dims), offset), *arrange_steps(size, dims))


def arrange_steps(size: Sequence[int], dims: Sequence[int]) -> tuple[ViewStep, ...]:
    """From dimensions in the order of `dims` to the order of `size`. Inserts dimensions of size 1 or stride 0."""
    kept = sorted(dims)
    steps = [step(aten.permute.default, tuple(dims.index(d) for d in kept))]
    steps += [step(aten.unsqueeze.default, d) for d in range(len(size)) if d not in kept]
    if any(size[d] != 1 for d in range(len(size)) if d not in kept):
        steps.append(step(aten.expand.default, tuple(size)))
    return tuple(steps)
