"""Two equal ranks, in one process, and programs with collectives that run on them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.utils.checkpoint import checkpoint

from tests.fake_processes import fake_processes

started: list[str] = []
"""The collectives and waits that ran, with the sizes of their operands."""


def recorded(name, compute):
    def kernel(x, *args):
        sizes = [tuple(t.shape) for t in x] if isinstance(x, (list, tuple)) else tuple(x.shape)
        started.append(f"{name.rstrip('_')}{sizes}")
        return compute(x, *args)

    return kernel


KERNELS = {
    "all_reduce": lambda x, *_: x * 2,
    "all_reduce_": lambda x, *_: x.mul_(2),
    "all_reduce_coalesced": lambda xs, *_: [x * 2 for x in xs],
    "all_gather_into_tensor": lambda x, size, _: torch.cat([x] * size),
    "reduce_scatter_tensor": lambda x, _, size, __: x.chunk(size)[0] * size,
    "all_to_all_single": lambda x, *_: x.clone(),
    "wait_tensor": lambda x: x,
}
"""What the ops compute if both ranks have the same operands."""


@contextlib.contextmanager
def two_equal_ranks() -> Iterator[None]:
    """A process group of two ranks that have the same data; only one of them exists."""
    library = torch.library.Library("_c10d_functional", "IMPL")
    for name, compute in KERNELS.items():
        library.impl(name, recorded(name, compute), "CPU")
    try:
        with fake_processes(2):
            yield
    finally:
        library._destroy()


def all_reduce(x):
    return functional.all_reduce(x, "sum", dist.group.WORLD)


class Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return all_reduce(x).clone()

    @staticmethod
    def backward(ctx, g):
        return all_reduce(g.contiguous()).clone()


class ReducedLater(Reduced):
    @staticmethod
    def forward(ctx, x):
        return x.clone()


class BothGradients(torch.autograd.Function):
    """Its backward communicates for both inputs, whichever gradient is wanted."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return all_reduce(g * y).clone(), all_reduce((g * x).sum(0)).clone().expand_as(y)


class Unread(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, g, h):
        all_reduce(g * 3)
        return g * 2, h * 3


class NoGradient(torch.autograd.Function):
    """Its backward communicates, and gives no gradient to its first input."""

    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, g):
        functional.wait_tensor(all_reduce(g * 3))
        return None, g * 2


class NoTangent(torch.autograd.Function):
    """The collective of its backward reads a saved value only."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * all_reduce(x * 3)


def hooked(x, w, v):
    y = x * w
    y.register_hook(lambda g: all_reduce(g * 2) * 1)
    return y.sin() * v


def gathered(x, w, v):
    full = functional.all_gather_tensor_autograd(x.sin(), 0, dist.group.WORLD)
    return functional.reduce_scatter_tensor_autograd(full @ w, "sum", 0, dist.group.WORLD).cos() @ v


PROGRAMS = {
    "gather, scatter": gathered,
    "all to all": lambda x, w, v: functional.all_to_all_single_autograd(x * 2, None, None, dist.group.WORLD) * w * v,
    "equal ones": lambda x, w, v: all_reduce(x * 2) + all_reduce(x * 2) + w + v,
    "backward only": lambda x, w, v: ReducedLater.apply(x) @ w + ReducedLater.apply(v),
    "for two gradients": lambda x, w, v: BothGradients.apply(x, w).sin() * v,
    "result unread": lambda x, w, v: (Unread.apply(x @ w, v)[0].sin(), w * v),
    "no gradient": lambda x, w, v: NoGradient.apply(x.sin(), w) * v,
    "hook": hooked,
    "forward's unread": lambda x, w, v: (all_reduce(x.detach() * 2), x @ w)[1] * v,
    "returned": lambda x, w, v: (all_reduce(x.detach() * 2), x * w * v),
    "coalesced": lambda x, w, v: (
        sum(functional.all_reduce_coalesced([x.detach() * 2, w.detach() * 3], "sum", dist.group.WORLD)) + v + x
    ),
    "two results": lambda x, w, v: (ReducedLater.apply(x * w), ReducedLater.apply(x.sin() * v)),
    "no tangent": lambda x, w, v: (NoTangent.apply(x * w), NoTangent.apply(x.sin() * v)),
    "checkpoint": lambda x, w, v: checkpoint(lambda a, b: Reduced.apply(a.sin() @ b).cos(), x, w, use_reentrant=False) @ v,
}
MASKS = [(True, True, True), (True, False, False), (False, True, False), (False, False, True), (False, True, True)]


def observed(f, wanted, roots):
    """The collectives of the forward, those of the backward, and the gradients."""
    started.clear()
    inputs = [(torch.arange(16.0).view(4, 4) * (0.1 + k)).sin().requires_grad_() for k in range(3)]
    outputs = f(*inputs)
    outputs = [y * 1 for y in (outputs if isinstance(outputs, tuple) else (outputs,)) if y.requires_grad]
    of_forward = [name for name in started if "wait" not in name]
    started.clear()
    chosen = [x for x, is_wanted in zip(inputs, wanted, strict=True) if is_wanted]
    gradients = torch.autograd.grad([y.sum() for y in outputs[roots]], chosen, allow_unused=True)
    return of_forward, [name for name in started if "wait" not in name], gradients
