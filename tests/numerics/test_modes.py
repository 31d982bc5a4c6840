"""Grad mode, inference mode and autocast, around the compiled function and inside of it."""

from __future__ import annotations

import functools

import torch
from torch import nn

from tests.device import TYPE

from .against_eager import leaf, non_leaf, plain
from .cases import Case, Cases

CASES = Cases()
HALF = 2e-2
"""What rounding to bfloat16 makes of a result; Inductor leaves some of it out."""

BF16 = functools.partial(torch.autocast, TYPE, dtype=torch.bfloat16)
NO_AUTOCAST = functools.partial(torch.autocast, TYPE, enabled=False)


# --- Grad mode -------------------------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(3),), around=torch.no_grad)
def no_grad_around(x):
    return x.sin(), x


@CASES.add(lambda: (leaf(3),), around=torch.enable_grad)
def enable_grad_around(x):
    return x.sin()


@CASES.add(lambda: (leaf(3),))
def no_grad_inside(x):
    with torch.no_grad():
        scale = x.exp()
    return x * scale, scale


@CASES.add(lambda: (leaf(3),))
def everything_under_no_grad(x):
    with torch.no_grad():
        return x.exp()


@CASES.add(lambda: (leaf(3),), around=torch.no_grad)
def enable_grad_inside_no_grad_around(x):
    y = x.exp()
    with torch.enable_grad():
        z = x * y
    return y, z


@CASES.add(lambda: (leaf(3),))
def no_grad_and_enable_grad_nested(x):
    with torch.no_grad():
        y = x.exp()
        with torch.enable_grad():
            z = x.sin()
    return x * y + z


@CASES.add(lambda: (leaf(3),))
def decorated_with_no_grad(x):
    @torch.no_grad()
    def statistic(value):
        return value.max()

    return x - statistic(x)


@CASES.add(lambda: (leaf(3),))
def grad_mode_switched_off_for_the_caller(x):
    y = x.sin()
    torch.set_grad_enabled(False)
    return y, x.cos()


@CASES.add(lambda: (leaf(3),), around=torch.no_grad)
def grad_mode_switched_on_for_the_caller(x):
    y = x.sin()
    torch.set_grad_enabled(True)
    return y, x * 2


@CASES.add(lambda: (leaf(3),))
def switched_off_and_on_again(x):
    torch.set_grad_enabled(False)
    y = x.exp()
    torch.set_grad_enabled(True)
    return x * y


@CASES.add(lambda: (leaf(3),))
def asks_for_the_grad_mode(x):
    return x * 2 if torch.is_grad_enabled() else x * 3


@CASES.add(lambda: (leaf(3),), around=torch.no_grad)
def asks_for_the_grad_mode_under_no_grad(x):
    return x * 2 if torch.is_grad_enabled() else x * 3


@CASES.add(lambda: (leaf(3),), without_dynamo="Dynamo leaves autograd.grad to eager")
def a_gradient_taken_inside(x):
    y = (x * x).sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    return gradient * x


# --- Inference mode --------------------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(3),), around=torch.inference_mode)
def inference_mode_around(x):
    return x.sin(), x * 2


@CASES.add(lambda: (plain(3),), around=torch.inference_mode)
def inference_mode_around_without_gradients(x):
    return x.sin(), x[1:]


@CASES.add(lambda: (plain(3),), around=torch.inference_mode)
def mutation_under_inference_mode(x):
    x.mul_(2)
    return x.sin()


@CASES.add(lambda: (plain(3),), around=torch.inference_mode)
def changed_result_under_inference_mode(x):
    y = torch.zeros_like(x)
    y.add_(x)
    return y * 2, y


@CASES.add(lambda: (leaf(4, 3),), around=torch.inference_mode)
def views_under_inference_mode(x):
    y = x * 2
    return y[0], y[1], x[0]


@CASES.add(lambda: (torch.inference_mode()(plain)(3),), around=torch.inference_mode)
def inference_tensor_as_input(x):
    return x.sin(), x


@CASES.add(lambda: (torch.inference_mode()(plain)(3),), around=torch.inference_mode)
def inference_tensor_changed(x):
    x.mul_(2)
    return x + 1


@CASES.add(lambda: (torch.inference_mode()(plain)(3), plain(3)))
def inference_tensor_outside_of_inference_mode(x, y):
    return x + y


@CASES.add(lambda: (leaf(3),), without_dynamo="Dynamo leaves inference mode in a function to eager")
def inference_mode_inside(x):
    with torch.inference_mode():
        scale = x.exp()
    return x * 2, scale


@CASES.add(lambda: (leaf(3),), without_dynamo="Dynamo leaves inference mode in a function to eager")
def everything_under_inference_mode_inside(x):
    with torch.inference_mode():
        return x.exp(), x


# --- Autocast --------------------------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(4, 3), leaf(3, 5)), around=BF16, inductor_rtol=HALF)
def autocast_around(x, w):
    return x @ w


@CASES.add(lambda: (leaf(4, 3), leaf(3, 5)), around=BF16, inductor_rtol=HALF)
def autocast_around_with_a_loss(x, w):
    return torch.log_softmax(x @ w, dim=-1).sum()


@CASES.add(lambda: (leaf(4, 3), leaf(3, 5)))
def autocast_inside(x, w):
    with BF16():
        y = x @ w
    return y.float().sin(), y


@CASES.add(lambda: (leaf(4, 3), leaf(3, 5)), around=BF16, inductor_rtol=HALF)
def autocast_switched_off_inside(x, w):
    y = x @ w
    with NO_AUTOCAST():
        z = x @ w
    return y, z


@CASES.add(lambda: (leaf(4, 3), leaf(3, 5), leaf(5, 2)), around=BF16, inductor_rtol=HALF)
def autocast_switched_off_for_the_last_product(x, w, v):
    y = x @ w
    with NO_AUTOCAST():
        return y.float() @ v


@CASES.add(lambda: (leaf(4, 3), leaf(3, 5)))
def autocast_to_float16(x, w):
    with torch.autocast(TYPE, dtype=torch.float16):
        return x @ w


@CASES.add(lambda: (leaf(4, 3), leaf(3, 5)), around=NO_AUTOCAST)
def autocast_disabled_around(x, w):
    return x @ w


@CASES.add(lambda: (leaf(4, 3), leaf(3, 5)), around=BF16, inductor_rtol=HALF)
def weight_used_twice_under_autocast(x, w):
    return (x @ w).sin() + (x * 2) @ w


@CASES.add(lambda: (leaf(2, 3, 8, 8), leaf(4, 3, 3, 3)), around=BF16, inductor_rtol=HALF)
def convolution_under_autocast(x, w):
    return nn.functional.conv2d(x, w).relu()


@CASES.add(lambda: (leaf(4, 3), leaf(5, 3), leaf(5)), around=BF16, inductor_rtol=HALF)
def linear_and_layer_norm_under_autocast(x, w, b):
    return nn.functional.layer_norm(nn.functional.linear(x, w, b), (5,))


@CASES.add(lambda: (leaf(4, 3), leaf(3, 5)), around=BF16, inductor_rtol=HALF)
def no_grad_under_autocast(x, w):
    with torch.no_grad():
        y = x @ w
    return x @ w * y


@CASES.add(lambda: (leaf(2, 4, 6, 8),), around=BF16, inductor_rtol=HALF)
def attention_under_autocast(x):
    return nn.functional.scaled_dot_product_attention(x, x, x)


@CASES.add(lambda: (non_leaf(4, 3), leaf(3, 3)), around=BF16, inductor_rtol=HALF)
def mutation_under_autocast(x, w):
    x.copy_(x @ w)
    return x.exp()


@CASES.parametrize()
def test_modes(case: Case, backend: str) -> None:
    case.check(backend)
