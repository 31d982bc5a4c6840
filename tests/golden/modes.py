"""Grad mode, inference mode and autocast, inside the function and around it."""

from __future__ import annotations

import torch

from tests.golden.cases import case


def bf16_autocast():
    return torch.autocast("cpu", torch.bfloat16)


@case("capture", "joint", args=["f32[3] requires_grad"])
def no_grad_inside(x):
    """Values computed under `no_grad` are constants to the backward."""
    with torch.no_grad():
        scale = x.exp()
    return x * scale


@case("analysis", "joint", args=["f32[3] requires_grad"], around=torch.no_grad)
def no_grad_around(x):
    """Called under `no_grad`: an inference graph, although an input requires grad."""
    return x.sin()


@case("analysis", "runtime", args=["f32[3] requires_grad"], around=torch.no_grad)
def enable_grad_inside(x):
    """`enable_grad` inside a call under `no_grad`: the output requires grad, as in eager."""
    with torch.enable_grad():
        return x.sin()


@case("analysis", "runtime", args=["f32[2, 3] requires_grad"])
def view_under_no_grad(x):
    """A view made under `no_grad` is replayed under `no_grad`: it has no history."""
    with torch.no_grad():
        return x[0]


@case("analysis", "runtime", args=["f32[3]"])
def grad_mode_left_off(x):
    """A function that switches grad mode permanently: the plan does the same."""
    torch.set_grad_enabled(False)
    return x + 1


@case("joint", "runtime", args=["f32[3]"], around=torch.inference_mode)
def inference_mode_around(x):
    """Under `inference_mode`."""
    return x.view(3, 1) * 2


@case("joint", args=["f32[2, 3] requires_grad", "f32[3, 4] requires_grad"])
def autocast_inside(x, w):
    """Autocast in the function casts the operands. The backward is traced with it off: its dtypes are the forward's."""
    with torch.autocast("cpu", torch.bfloat16):
        return x @ w


@case("joint", "runtime", args=["f32[2, 3] requires_grad", "f32[3, 4] requires_grad"], around=bf16_autocast)
def autocast_around(x, w):
    """Autocast around the call is traced like autocast inside, and switched off while the compiled graph runs."""
    return (x @ w).sum()
