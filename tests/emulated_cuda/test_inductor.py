"""Inductor's Triton kernels, in Triton's interpreter."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from tests.emulated_cuda.inductor import check_alignment, launches
from tests.numerics.against_eager import assert_like_eager, compiled, leaf, plain
from tests.numerics.conftest import TORCH_WARNS

pytest.importorskip("triton", reason="Inductor compiles Triton kernels for this device, and triton is not installed")
pytestmark = [pytest.mark.filterwarnings(warning) for warning in TORCH_WARNS]

FUNCTIONS = {
    "pointwise": (lambda x, y: (x.sin() * y).cos(), lambda: (leaf(16, 8), leaf(16, 8))),
    "matrix product": (lambda x, y: (x @ y).sin().relu(), lambda: (leaf(8, 16), leaf(16, 8))),
    "layer norm": (lambda x, w, b: F.gelu(F.layer_norm(x, (8,), w, b)), lambda: (leaf(16, 8), leaf(8), leaf(8))),
    "cross entropy": (lambda x, y: F.cross_entropy(x.softmax(-1), y), lambda: (leaf(4, 8), torch.arange(4))),
    "dropout": (lambda x: F.dropout(x, 0.5).sin(), lambda: (leaf(16, 8),)),
    "CUDA's own functions": (lambda x, y: x.tanh().atan2(y.exp()).expm1() + x.erf(), lambda: (leaf(5), leaf(5))),
    "flags": (lambda x: torch.where(x.signbit() | x.isnan(), x * 2, x.log1p()), lambda: (leaf(5),)),
    "broadcast": (lambda x, y: x.sum(1) * y.mean(0), lambda: (leaf(6, 3), leaf(3, 6))),
}


@pytest.mark.parametrize("backend", ["inductor", "aot_inductor"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_compute_what_eager_computes(name, backend):
    with launches() as kernels:
        assert_like_eager(*FUNCTIONS[name], backend)
    assert kernels and all(kernel.startswith("triton_") for kernel in kernels)


def test_a_missing_gradient_among_the_results():
    """An input without a gradient has `None` among the results of the backward half."""
    with launches() as kernels:
        assert_like_eager(lambda x, w: ((x * w).sin() * x).sum(), lambda: (plain(16, 16), leaf(16, 16)), "inductor")
    assert len(kernels) > 2


def test_the_alignment_of_an_argument_is_checked():
    facts = {(0,): [["tt.divisibility", 16]], (2,): [["tt.divisibility", 16]]}
    meta = {"signature": dict.fromkeys(["in_ptr0", "in_ptr1", "out_ptr0"]), "configs": [facts]}
    kernel = SimpleNamespace(fn=SimpleNamespace(__name__="kernel"), triton_meta=meta)
    aligned, misaligned = torch.empty(8), torch.empty(9)[1:]
    check_alignment(kernel, (aligned, misaligned, aligned))
    with pytest.raises(RuntimeError, match=r"CUDA error: misaligned address \(out_ptr0 of kernel\)"):
        check_alignment(kernel, (aligned, aligned, misaligned))


def test_a_misaligned_argument_is_copied():
    data = torch.randn(257)
    function = compiled(lambda x: x.sin() * 2, "inductor")
    for argument in (data[:256], data[1:]):
        assert torch.allclose(function(argument), argument.sin() * 2)
