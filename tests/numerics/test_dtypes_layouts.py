"""Dtypes other than float32, memory formats, and tangents with another layout than the traced one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .against_eager import EXACT, THREE_TERMS, assert_like_eager, leaf, non_leaf, plain
from .cases import Case, Cases

CASES = Cases()


def channels_last(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last).requires_grad_()


# --- Dtypes ----------------------------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(3, dtype=torch.complex64),))
def complex_product(z):
    return z * z, z.abs()


@CASES.add(lambda: (leaf(3, dtype=torch.complex64),))
def complex_conjugate(z):
    return z.conj(), z.conj() * 2


@CASES.add(lambda: (leaf(3, dtype=torch.complex64).conj(),))
def conjugate_as_input(z):
    return z * 2, z


@CASES.add(lambda: (leaf(3, dtype=torch.complex64),), gradients_close="the sign of a zero real part")
def imaginary_part_of_a_conjugate(z):
    return z.conj().imag, z.conj().imag * 2


def negated(*shape: int) -> torch.Tensor:
    """A tensor whose memory has the negatives of its values; no view."""
    return torch.randn(shape, dtype=torch.complex64).conj().imag.detach()


@CASES.add(lambda: (negated(3, 4), leaf(3, 4)))
def negated_input(x, w):
    return x * 2, (x.t() * w.t()).sum(), x[1:]


@CASES.add(lambda: (negated(3, 4).requires_grad_(), leaf(3, 4)))
def negated_leaf(x, w):
    return x * 2 * w, w + 1


@CASES.add(lambda: (negated(3, 4),))
def negated_input_changed_in_place(x):
    x.mul_(2)
    return x + 1


@CASES.add(lambda: (leaf(3),))
def negated_tensor_that_was_closed_over(w):
    return w * NEGATED + w, w + 1


NEGATED = (torch.arange(3) * 2j).conj().imag


@CASES.add(lambda: (leaf(3), leaf(3)))
def real_to_complex_and_back(x, y):
    z = torch.complex(x, y) * 1j
    return z.real * 2, torch.view_as_real(z), z.angle()


@CASES.add(lambda: (non_leaf(3, dtype=torch.complex64),))
def complex_changed_in_place(z):
    z.mul_(1j)
    return z.exp()


@CASES.add(lambda: (leaf(3, dtype=torch.complex128),))
def fourier_transform(z):
    return torch.fft.fft(z), torch.fft.rfft(z.real)


@CASES.add(lambda: (leaf(3), leaf(3, dtype=torch.complex64)))
def real_times_complex(x, z):
    return x * z


@CASES.add(lambda: (leaf(4, 3, dtype=torch.bfloat16), leaf(3, 5, dtype=torch.bfloat16)))
def bfloat16(x, w):
    return torch.softmax(x @ w, dim=-1), x.float().sin()


@CASES.add(lambda: (leaf(4, 3, dtype=torch.float16),))
def float16(x):
    return x.exp(), x.sum()


@CASES.add(lambda: (leaf(4, 3, dtype=torch.float64), leaf(3)))
def float64_and_float32(x, y):
    return x * y, x.float() + y


@CASES.add(lambda: (torch.arange(4, dtype=torch.uint8), torch.tensor([True, False, True, True])))
def integers_and_booleans(n, mask):
    return n * 2, n[0], mask & (n > 1), n.sum(), n / 2


@CASES.add(lambda: (plain(4),))
def quantised_by_hand(x):
    return (x * 16).to(torch.int8), (x * 16).to(torch.int8).float() / 16


@CASES.add(lambda: (leaf(3), torch.tensor(2.0), torch.tensor(3)))
def scalars_of_other_dtypes(x, y, n):
    return x * y, x * n, y * n


@CASES.add(lambda: (leaf(3),), inductor_rtol=2e-2)
def casts_there_and_back(x):
    return x.double().exp().bfloat16(), x.to(torch.float16).float()


# --- Layouts ---------------------------------------------------------------------------------------------------------


@CASES.add(lambda: (channels_last(2, 3, 4, 4), leaf(5, 3, 3, 3)))
def channels_last_convolution(x, w):
    return nn.functional.conv2d(x, w, padding=1).relu()


@CASES.add(lambda: (channels_last(2, 3, 4, 4),), gradients_close=THREE_TERMS)
def channels_last_pointwise(x):
    return x.sin(), x.mean(dim=(2, 3)), x


@CASES.add(lambda: (channels_last(2, 3, 4, 4), leaf(2, 3, 4, 4)))
def channels_last_and_contiguous(x, y):
    return x * y, y * x, x.contiguous()


@CASES.add(lambda: (leaf(2, 3, 4, 4),))
def made_channels_last_inside(x):
    return (x * 2).to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)


@CASES.add(lambda: (leaf(3, 4).t(),))
def transposed_input(x):
    return x.sin(), x @ x.t(), x.sum(0)


@CASES.add(lambda: (leaf(8)[1::2],))
def input_with_gaps(x):
    return x.exp(), x * 2


@CASES.add(lambda: (leaf(3, 1).expand(3, 4),))
def expanded_input(x):
    return x.exp(), x.sum(1)


@CASES.add(lambda: (leaf(12)[3:],))
def input_with_an_offset(x):
    return x.view(3, 3) * 2, x[3:]


@CASES.add(lambda: (leaf(2, 3, 4).permute(2, 0, 1),))
def permuted_input(x):
    return x * 2, x.contiguous(), torch.empty_like(x).zero_() + x


def columns_first(*shape: int) -> torch.Tensor:
    """Neither contiguous nor channels-last."""
    return torch.rand(shape).transpose(1, 3).contiguous().transpose(1, 3)


def columns_first_complex() -> torch.Tensor:
    return torch.ones(2, 3, dtype=torch.complex64).t() * 1j


@CASES.add(lambda: (columns_first(2, 3, 4, 5),))
def normalization_of_permuted_input(x):
    return nn.functional.batch_norm(x, None, None, training=True), nn.functional.logsigmoid(x)


@CASES.add(lambda: (columns_first(2, 3, 4, 5), plain(2, 3, 4, 5).sigmoid()))
def kernels_of_two_layouts(x, y):
    loss = nn.functional.binary_cross_entropy(x, y, reduction="none")
    ratios = torch.xlogy(x, y), torch.special.xlog1py(y, x), x // y
    return ratios, loss, nn.functional.mse_loss(x, y, reduction="none"), x.lerp(y, 0.5), x.lerp(y, x)


@CASES.add(lambda: (torch.ones(3, 2, dtype=torch.complex64), columns_first_complex()))
def complex_interpolation(x, y):
    return x.lerp(y, x / 2), y.lerp(x, x / 2)


@CASES.add(lambda: (leaf(3, 4).t(),))
def strides_follow_the_input(x):
    return torch.zeros_like(x), x.clone(), x.new_zeros(2), torch.where(x > 0, x, 0)


@CASES.parametrize()
def test_dtypes_and_layouts(case: Case, backend: str) -> None:
    case.check(backend)


# --- Tangents --------------------------------------------------------------------------------------------------------


def expanded(value):
    return torch.randn((), dtype=value.dtype).expand(value.shape)


def transposed(value):
    return torch.randn(value.shape[::-1], dtype=value.dtype).permute(*reversed(range(value.dim())))


def with_gaps(value):
    return torch.randn((*value.shape, 2), dtype=value.dtype)[..., 0]


def channels_last_tangent(value):
    tangent = torch.randn(value.shape, dtype=value.dtype)
    return tangent.to(memory_format=torch.channels_last) if value.dim() == 4 else tangent


def conjugated(value):
    tangent = torch.randn(value.shape, dtype=value.dtype)
    return tangent.conj() if value.is_complex() else tangent


def zeros(value):
    return torch.zeros(()).to(value.dtype).expand(value.shape)


TANGENTS = {
    "expanded": expanded,
    "transposed": transposed,
    "with_gaps": with_gaps,
    "channels_last": channels_last_tangent,
    "conjugated": conjugated,
    "zeros": zeros,
}

# A tangent of another layout is copied first, and these kernels round differently on operands of different layouts.
ROUNDING_DEPENDS_ON_LAYOUT = {"complex", "matmul"}

DIFFERENTIATED = {
    "pointwise": (lambda x: x * x, lambda: (leaf(2, 3, 4, 5),)),
    "pass_through": (lambda x: x + 1, lambda: (leaf(2, 3, 4, 5),)),
    "viewing": (lambda x: (x * 2).view(6, 20), lambda: (leaf(2, 3, 4, 5),)),
    "channels_last_result": (
        lambda x, w: nn.functional.conv2d(x, w),
        lambda: (channels_last(2, 3, 4, 4), leaf(5, 3, 3, 3)),
    ),
    "matmul": (lambda x, y: x @ y, lambda: (leaf(3, 4), leaf(4, 5))),
    "complex": (lambda z: z * z, lambda: (leaf(2, 3, dtype=torch.complex64),)),
    "bfloat16": (lambda x: x * x, lambda: (leaf(2, 3, dtype=torch.bfloat16),)),
    "views_of_one_base": (lambda x: (x * 2).split(1), lambda: (leaf(2, 3),)),
    "changed_input": (lambda x: x.mul_(2) * 3, lambda: (non_leaf(2, 3),)),
}


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("function", DIFFERENTIATED)
@pytest.mark.parametrize("tangent", TANGENTS)
def test_tangents_of_any_layout(tangent: str, function: str, backend: str) -> None:
    differentiated, make_args = DIFFERENTIATED[function]
    close = "rounding depends on the layout" if function in ROUNDING_DEPENDS_ON_LAYOUT else ""
    assert_like_eager(differentiated, make_args, backend, cotangent=TANGENTS[tangent], gradients_close=close)
