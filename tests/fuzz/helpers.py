"""Functions that fuzzed programs call. Imports only torch: a standalone script contains a copy of this file."""

import torch


def tensor(*shape, dtype=torch.float32, requires_grad=False, first=0):
    """Small whole numbers, so that sums are exact in any order."""
    count = torch.Size(shape).numel()
    values = (torch.arange(first, first + count) * 7 % 11 - 4).reshape(shape).to(dtype)
    if dtype.is_complex:
        values = values + 1j * ((torch.arange(count) * 5 % 7 - 3).reshape(shape))
    return values.to(dtype).requires_grad_(requires_grad)


def cotangents(tensors, expanded):
    """Tangents for a backward from `tensors`: whole numbers, or one expanded number, as the backward of `sum` gives."""
    if expanded:
        return [torch.full((), 2, dtype=t.dtype).expand_as(t) for t in tensors]
    return [tensor(*t.shape, dtype=t.dtype, first=3) for t in tensors]


def backward(*tensors, expanded=False, **options):
    """`torch.autograd.backward` from those `tensors` where a backward can start."""
    roots = [t for t in tensors if t is not None and t.requires_grad]
    if roots:
        torch.autograd.backward(roots, cotangents(roots, expanded), **options)


def gradients(tensors, inputs, **options):
    """`torch.autograd.grad`, with `None` for inputs that do not require grad."""
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    roots = [t for t in tensors if t is not None and t.requires_grad]
    if not roots or not wanted:
        return [None] * len(inputs)
    found = iter(torch.autograd.grad(roots, wanted, cotangents(roots, False), allow_unused=True, **options))
    return [next(found) if t is not None and t.requires_grad else None for t in inputs]


def watch(log, name, tensor, factor=None):
    """Register a hook that records every gradient of `tensor` in `log[name]`, and multiplies it by `factor`."""

    def note(gradient):
        log.setdefault(name, []).append(gradient.detach().clone())
        return None if factor is None else gradient * factor

    tensor.register_hook(note)
