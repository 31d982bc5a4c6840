"""What once was wrong on CUDA: one case for each, as small as it can be."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from case import Case, Need, Outcome
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import aotgrad

CASES: list[Case] = []


def regression(name: str, *needs: Need, seconds: int = 120) -> Callable:
    """Add a case: the decorated function returns what is wrong."""

    def add(find: Callable[[], Sequence[str]]) -> Callable:
        CASES.append(Case(f"regression: {name}", lambda: Outcome(find()), seconds, frozenset(needs)))
        return find

    return add


def unequal(what: str, expected: Tensor | None, found: Tensor | None, tolerance: float = 1e-4) -> list[str]:
    """One problem if two tensors differ, or only one is there."""
    if expected is None or found is None:
        return [] if expected is found else [f"{what} is there once only"]
    return [] if torch.allclose(expected, found, atol=tolerance) else [f"{what} is not eager's"]


def twins(*size: int, device: str = "cuda", count: int = 2) -> tuple[Tensor, ...]:
    """Leaves with equal values."""
    values = torch.randn(*size, device=device)
    return tuple(values.clone().requires_grad_() for _ in range(count))


@regression("a saved input that is misaligned in a later call", Need.TRITON)
def _() -> Sequence[str]:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return ((x * w).sin() * x).sum()

    compiled, problems = torch.compile(f, backend="aotgrad"), []
    memory = torch.randn(257, device="cuda")
    for x in (memory[:256].view(16, 16).clone(), memory[1:].view(16, 16)):
        mine, eagers = twins(16, 16)
        compiled(x, mine).backward()
        f(x, eagers).backward()
        problems += unequal("the gradient", eagers.grad, mine.grad)
    return problems


@regression("dropout is recomputed with the state of the device that drew", Need.TWO_DEVICES)
def _() -> Sequence[str]:
    def f(x: Tensor) -> Tensor:
        return F.dropout(x.sin(), 0.5).cos().sin()

    compiled, problems = aotgrad.aot_function(f, "eager", options={"memory_budget": 0.1}), []
    for device in ("cuda:0", "cuda:1"):
        mine, eagers = twins(512, 512, device=device)
        for x, run in ((eagers, f), (mine, compiled)):
            torch.manual_seed(1)
            torch.rand(3, device="cuda:0")  # the states of the two devices differ from here
            run(x).sum().backward()
        problems += unequal(f"the gradient on {device}", eagers.grad, mine.grad)
    return problems


@regression("a trace and a backward that compiles do not wait for each other")
def _() -> Sequence[str]:
    tracing, waiting = threading.Event(), threading.Event()
    inner = aotgrad.aot_function(lambda g: (g.sin() * 2).cos(), "eager")
    done: list[str] = []

    class CompilesInBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx, gradient: Tensor) -> Tensor:
            tracing.wait(20)
            waiting.set()
            return inner(gradient)

    def traced(x: Tensor) -> Tensor:
        tracing.set()
        waiting.wait(20)
        return (x.sin() * x).cos()

    def run(function: Callable, what: str) -> None:
        x = torch.ones(3, device="cuda", requires_grad=True)
        function(x).sum().backward()
        done.append(what)

    functions = {"the trace": aotgrad.aot_function(traced, "eager"), "the backward": CompilesInBackward.apply}
    threads = [threading.Thread(target=run, args=(f, what), daemon=True) for what, f in functions.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    return [f"{what} has not ended" for what in functions if what not in done]


@regression("TF32 is set by the new interface")
def _() -> Sequence[str]:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    problems: list[str] = []
    for backend in ("aotgrad_eager",):
        mine, eagers = twins(32, 32)
        torch.compile(lambda x: (x.sin() @ x).sum(), backend=backend)(mine).backward()
        (eagers.sin() @ eagers).sum().backward()
        problems += unequal(f"the gradient through {backend}", eagers.grad, mine.grad, 1e-2)
    return problems


@regression("the default device of the call is that of its second derivative")
def _() -> Sequence[str]:
    def second(function: Callable) -> Tensor:
        with torch.device("cuda"):
            x = torch.ones(3, requires_grad=True)
            y = function(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    def f(x: Tensor) -> Tensor:
        return (x * torch.tensor([1.1, 1.2, 1.3])).exp()

    return unequal("the second derivative", second(f), second(aotgrad.aot_function(f, "eager")))


@regression("the default dtype of the call is that of its second derivative")
def _() -> Sequence[str]:
    def second(function: Callable) -> Tensor:
        torch.set_default_dtype(torch.float64)
        x = torch.ones(3, device="cuda", dtype=torch.float64, requires_grad=True)
        y = function(x)
        torch.set_default_dtype(torch.float32)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    def f(x: Tensor) -> Tensor:
        return (x * torch.tensor([1.1, 1.2, 1.3], device="cuda")).exp()

    return unequal("the second derivative", second(f), second(aotgrad.aot_function(f, "eager")), 1e-12)


@regression("flags of attention are guarded")
def _() -> Sequence[str]:
    def f(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q)

    q, compiled, problems = (
        torch.randn(2, 4, 64, 32, dtype=torch.bfloat16, device="cuda"),
        aotgrad.aot_function(f, "eager"),
        [],
    )
    with sdpa_kernel(SDPBackend.MATH):
        for flag in (False, True, False):
            torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(flag)
            if not torch.equal(f(q), compiled(q)):
                problems.append(f"with the flag {flag}, the result is not eager's")
    return problems


@regression("seeding a device inside is an error or eager's")
def _() -> Sequence[str]:
    def f(x: Tensor) -> Tensor:
        torch.cuda.manual_seed(7)
        return x * torch.rand_like(x)

    x, compiled = torch.ones(4, device="cuda"), aotgrad.aot_function(f, "eager")
    try:
        found = [compiled(x) for _ in range(2)]
    except aotgrad.errors.CaptureError:
        return []
    return [problem for value in found for problem in unequal("the draw", f(x), value)]


@regression("a function of the CPU does not initialize CUDA")
def _() -> Sequence[str]:
    x = torch.ones(4, requires_grad=True)  # without Dynamo, which initializes CUDA itself
    aotgrad.aot_function(lambda x: x.sin().cos().sum(), "eager")(x).backward()
    return ["CUDA is initialized"] if torch.cuda.is_initialized() else []


CACHED = """
import sys
sys.path.insert(0, {folder!r})
import device
device.load()
device.register_backends()
import torch
x = torch.ones(3, device="cuda", requires_grad=True)
f = torch.compile(lambda x: (x * torch.tensor([1.0, 2.0, 3.0], device="cuda")).sin(), backend="aotgrad_eager")
f(x).sum().backward()
print("gradient", x.grad.tolist(), flush=True)
import os; os._exit(0)
"""


@regression("constants on CUDA are right in a second process")
def _() -> Sequence[str]:
    x = torch.ones(3, requires_grad=True)
    (x * torch.tensor([1.0, 2.0, 3.0])).sin().sum().backward()
    assert x.grad is not None
    problems = []
    with tempfile.TemporaryDirectory() as cache:
        for start in ("first", "second"):
            command = [sys.executable, "-c", CACHED.format(folder=os.path.dirname(__file__))]
            environment = {**os.environ, "AOTGRAD_CACHE_DIR": cache}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
            printed = [line for line in done.stdout.splitlines() if line.startswith("gradient ")]
            if not printed:
                problems.append(f"the {start} process failed: {done.stderr[-300:]}")
            else:
                found = torch.tensor([float(each) for each in printed[0][len("gradient [") : -1].split(",")])
                problems += unequal(f"the gradient in the {start} process", x.grad, found)
    return problems
