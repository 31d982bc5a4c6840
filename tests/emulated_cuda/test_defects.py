"""Programs that were wrong on GPUs, each with what is expected of it."""

from __future__ import annotations

import contextlib
import queue
import threading

import pytest
import torch
import torch.nn.functional as F
from torch._inductor import compile_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

import aotgrad
from aotgrad.errors import CaptureError
from tests.emulated_cuda import device
from tests.numerics.against_eager import assert_like_eager, compiled, leaf
from tests.numerics.conftest import TORCH_WARNS

pytestmark = [pytest.mark.filterwarnings(warning) for warning in TORCH_WARNS]

# --- Saved inputs are declared static


def test_a_saved_input_that_is_misaligned_in_the_second_call():
    pytest.importorskip("triton")
    function, w, data = compiled(lambda x, w: ((x * w).sin() * x).sum(), "inductor"), leaf(16, 16), torch.randn(257)
    for x in (data[:256].view(16, 16), data[1:].view(16, 16)):
        w.grad = None
        function(x, w).backward()
        expected = torch.autograd.grad(((x * w).sin() * x).sum(), w)[0]
        torch.testing.assert_close(w.grad, expected)


class StaticInputs:
    """In place of Inductor's CUDA graphs: notes at which addresses the inputs are that it may expect to stay."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: dict[tuple[bool, int], set[int]] = {}
        monkeypatch.setattr(torch._C, "_cuda_cudaCachingAllocator_is_enabled", lambda: True, raising=False)
        monkeypatch.setattr(compile_fx, "cudagraphify", self.cudagraphify)

    def cudagraphify(self, model, static_input_idxs=(), *, is_backward, **ignored):
        def run(inputs):
            for k in static_input_idxs:
                self.addresses.setdefault((is_backward, k), set()).add(inputs[k].data_ptr())
            return model(inputs)

        run._boxed_call = True
        return run


def test_static_inputs_stay_where_they_are(monkeypatch):
    """Otherwise CUDA graphs are recorded in every step."""
    pytest.importorskip("triton")
    inputs, model = StaticInputs(monkeypatch), torch.nn.Linear(16, 16)
    function = torch.compile(
        lambda x: model(x).sin().sum(), backend="aotgrad", options={"mode": "reduce-overhead", "cache": False}
    )
    batches = [torch.randn(16, 16) for _ in range(3)]
    for batch in batches:
        function(batch).backward()
    assert inputs.addresses and all(len(addresses) == 1 for addresses in inputs.addresses.values())


# --- Random state


def test_numbers_are_drawn_again_with_the_state_of_their_device():
    def arguments():
        return tuple(torch.randn(64, 64, device="cuda:1", requires_grad=True) for _ in range(2))

    def function(x, w):
        return F.dropout((x @ w).sin(), 0.5).cos().sin()

    torch.rand(3)  # the generators of the devices differ
    assert_like_eager(function, arguments, "nop", options={"memory_budget": 0.0})


def test_a_function_with_dropout_can_be_captured():
    function, x = aotgrad.aot_function(lambda x: F.dropout(x, 0.5).sin(), aotgrad.nop), leaf(8, 8)
    function(x).sum().backward()
    with device.capturing():
        function(x).sum().backward()


def masked(x):
    return F.dropout(x.exp(), 0.5) * x


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_function_whose_backward_draws_again_cannot_be_captured(backend):
    compiled = aotgrad.aot_function(masked, backend, options={"memory_budget": 0.0})
    x = leaf(8, 8)
    with torch._inductor.config.patch(fallback_random=True):
        compiled(x).sum().backward()
        with device.capturing(), pytest.raises(RuntimeError, match="a CUDA graph is being captured, and the backward draws"):
            compiled(x)
        compiled(x).sum().backward()


def test_inductors_own_numbers_are_drawn_again_in_a_capture_from_a_saved_seed():
    compiled = aotgrad.aot_function(masked, "inductor", options={"memory_budget": 0.0})
    x = leaf(8, 8)
    compiled(x).sum().backward()
    with device.capturing():
        result = compiled(x)
        (gradient,) = torch.autograd.grad(result.sum(), x)
    kept = result != 0
    assert 0 < int(kept.sum()) < 64
    expected = 2 * (x.exp() * x + x.exp()) * kept
    torch.testing.assert_close(gradient, expected.detach())


STATE = torch.zeros(16, dtype=torch.uint8, device="cpu")


def seeds(x):
    torch.cuda.manual_seed(7)
    return x * torch.rand_like(x)


def seeds_all(x):
    torch.cuda.manual_seed_all(7)
    return x * torch.rand_like(x)


def sets_the_state(x):
    torch.cuda.set_rng_state(STATE)
    return x * torch.rand_like(x)


@pytest.mark.parametrize("function", [seeds, seeds_all, sets_the_state])
def test_a_function_that_seeds_a_device_is_refused(function):
    with pytest.raises(CaptureError, match="the function seeds the random generator or sets its state"):
        aotgrad.aot_function(function, aotgrad.nop)(leaf(4))


# --- Threads


class Noted(torch.autograd.Function):
    threads: queue.SimpleQueue[int]
    """A queue, since a backward may change no value that aotgrad can read."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        Noted.threads.put(threading.get_ident())
        return gradient * 2


def test_the_backward_is_traced_on_the_thread_that_compiles():
    """The thread holds the lock of compilations. One that waits for it on the thread of the device would wait forever."""
    Noted.threads = queue.SimpleQueue()
    aotgrad.aot_function(lambda x: Noted.apply(x).sin(), aotgrad.nop)(leaf(3))
    assert Noted.threads.qsize() and {Noted.threads.get() for _ in range(Noted.threads.qsize())} == {threading.get_ident()}


# --- Settings


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


AROUND = {
    "device": lambda: torch.device("cuda:1"),
    "dtype": lambda: default_dtype(torch.float64),
}


@pytest.mark.parametrize("around", AROUND)
def test_a_gradient_of_a_gradient_under_other_defaults(around):
    def second(function):
        with AROUND[around]():
            x = torch.ones(3, requires_grad=True)
            y = function(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    function = lambda x: (x * torch.tensor([1.1, 2.2, 3.3])).exp()  # noqa: E731
    torch.testing.assert_close(second(aotgrad.aot_function(function, aotgrad.nop)), second(function), rtol=0, atol=0)


def test_another_precision_of_attention_is_another_plan():
    def function(q):
        return F.scaled_dot_product_attention(q, q, q)

    q, under_test = torch.randn(2, 4, 64, 32, dtype=torch.bfloat16), aotgrad.aot_function(function, aotgrad.nop)
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    try:
        with sdpa_kernel(SDPBackend.MATH):
            for allowed in (False, True):
                torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(allowed)
                assert torch.equal(under_test(q), function(q))
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)
