"""Part 2, continued: training steps, offloading, second derivatives under CUDA graphs, islands, the C++ functions."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from case import Case, Outcome
from runtime import CASES, GPU, GRAPHS, NOTHING, close, plain_layers, runtime
from torch import Tensor, nn

import aotgrad

STEPS = 6
Compile = Callable[[Callable, list], Callable]

# --- Training steps --------------------------------------------------------------------------------------------------


def trained(make: Callable, compile: Compile, amp: bool) -> list[Tensor]:
    """The parameters after some steps, with a schedule of the rate; with `amp`, float16 and a scaler of gradients."""
    torch.manual_seed(0)
    model = plain_layers().cuda()
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=amp, init_scale=2.0**10)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=amp):
            loss = (model(x) - x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    run = compile(step, [model, optimizer, scaler])
    for k in range(STEPS):
        optimizer.param_groups[0]["lr"] = 1e-2 / (k + 1)
        run(torch.randn(64, 32, device="cuda"))
    return [parameter.detach().clone() for parameter in model.parameters()]


def training_step(make: Callable, backend: str, amp: bool, options: Mapping[str, Any]) -> Outcome:
    expected = trained(make, lambda step, state: step, amp)
    found = trained(make, lambda step, state: aotgrad.train_step(step, state, backend=backend, options=dict(options)), amp)
    problems = []
    for k, pair in enumerate(zip(expected, found, strict=True)):
        problems += close(f"parameter {k}", *pair, 2e-3 if amp else 1e-4)
    return Outcome(problems)


OPTIMIZERS: Mapping[str, Callable] = {
    "AdamW": partial(torch.optim.AdamW, foreach=True),
    "fused AdamW": partial(torch.optim.AdamW, fused=True),
    "SGD with momentum": partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
}

for optimizer, make in OPTIMIZERS.items():
    for backend, needs in (("eager", GPU if "fused" in optimizer else NOTHING), ("inductor", GRAPHS)):
        name = f"a training step, {optimizer}, {backend}"
        CASES.append(Case(name, partial(training_step, make, backend, False, {}), 150, needs))
CASES.append(
    Case(
        "a training step, float16 and GradScaler, inductor",
        partial(training_step, OPTIMIZERS["AdamW"], "inductor", True, {}),
        150,
        GRAPHS,
    )
)

# --- Offloading ------------------------------------------------------------------------------------------------------


class Blocks(nn.Module):
    """Blocks with large activations, each of which a policy sends to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = aotgrad.checkpoint_name(torch.tanh(layer(x)), "block")
        return x.square().mean()


def offloaded(backend: str) -> Outcome:
    """The gradients are eager's, and what waits on the host is not held on the device."""
    torch.manual_seed(0)
    model, batch = Blocks().cuda(), torch.randn(16384, 512, device="cuda")
    expected = torch.autograd.grad(model(batch), list(model.parameters()))
    held, problems = {}, []
    for options in ({}, {"checkpoint_policies": {"block": "offload"}}):
        run = aotgrad.aot_module(model, backend, options=options)
        torch.autograd.grad(run(batch), list(model.parameters()))
        for _ in range(3):
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            loss = run(batch)
            torch.cuda.synchronize()
            held[len(options)] = torch.cuda.memory_allocated() - before
            for k, pair in enumerate(zip(expected, torch.autograd.grad(loss, list(model.parameters())), strict=True)):
                problems += close(f"gradient {k}", *pair)
            del loss
    figures = {"held with and without (MiB)": f"{held[1] / 2**20:.0f}, {held[0] / 2**20:.0f}"}
    return Outcome(
        [*problems[:3], *([] if held[1] < 0.6 * held[0] else ["the device holds what waits on the host"])], figures
    )


for backend in ("eager", "inductor"):
    name = f"offloaded values of eight blocks, {backend}"
    CASES.append(Case(name, partial(offloaded, backend), 150, GRAPHS if backend == "inductor" else GPU, alone=True))

# --- Second derivatives, islands, memory, C++ ------------------------------------------------------------------------


@runtime("CUDA graphs: a loss of derivatives", GRAPHS)
def _() -> Sequence[str]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).cuda()
    compiled = torch.compile(model, backend="aotgrad", options={"mode": "reduce-overhead"})
    problems = []
    for step in range(8):
        x = torch.randn(16, 32, device="cuda", requires_grad=True)
        gradients = []
        for run in (model, compiled):
            (slope,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
            gradients.append(torch.autograd.grad(slope.square().sum(), list(model.parameters()), allow_unused=True))
        for k, pair in enumerate(zip(*gradients, strict=True)):
            problems += close(f"step {step}, gradient {k}", *pair)
    return problems[:3]


@runtime("backward() from another stream than the forward's, with Inductor", GRAPHS)
def _() -> Sequence[str]:
    compiled, problems = aotgrad.aot_function(lambda x, w: (x @ w).sin().exp(), "inductor"), []
    for step in range(10):
        x, w = (torch.randn(256, 256, device="cuda", requires_grad=True) for _ in range(2))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            loss = compiled(x, w).sum()
        loss.backward()  # the engine runs each node on the stream of its forward, and waits for all of them
        expected = torch.autograd.grad((x @ w).sin().exp().sum(), (x, w))
        for what, pair in zip("xw", zip(expected, (x.grad, w.grad), strict=True), strict=True):
            problems += close(f"step {step}, the gradient of {what}", *pair)
    return problems


@runtime("memory runs out in the first call, which compiles", GRAPHS, alone=True)
def _() -> Sequence[str]:
    def f(x: Tensor) -> Tensor:
        return (x @ x).sin().exp().sum()

    x, problems = torch.randn(1 << 13, 1 << 13, device="cuda", requires_grad=True), []
    expected = torch.autograd.grad(f(x), x)[0]
    for compile in (partial(aotgrad.aot_function, fw_compiler="inductor"), partial(torch.compile, backend="aotgrad")):
        torch.cuda.empty_cache()
        run, before = compile(f), torch.cuda.memory_allocated()
        filler = torch.empty(max(0, torch.cuda.mem_get_info()[0] - (1 << 27)), dtype=torch.uint8, device="cuda")
        try:
            run(x)
            problems.append("the call fits, so nothing was tested")
        except torch.OutOfMemoryError:
            pass
        del filler
        torch.cuda.empty_cache()
        problems += [] if torch.cuda.memory_allocated() <= before else ["memory is held after the error"]
        problems += close("the gradient after the error", expected, torch.autograd.grad(run(x), x)[0])
    return problems


@runtime("an island between compiled graphs")
def _() -> Sequence[str]:
    @aotgrad.island
    def halved_on_the_host(x: Tensor) -> Tensor:
        return x * (x.detach().sum().item() // 1e9 + 0.5)

    def f(x: Tensor) -> Tensor:
        return halved_on_the_host(x.sin()).exp().sum()

    compiled, problems = aotgrad.aot_function(f, "eager"), []
    for step in range(3):
        x = torch.randn(64, 64, device="cuda", requires_grad=True)
        expected, found = (torch.autograd.grad(run(x), x)[0] for run in (f, compiled))
        problems += close(f"step {step}, the gradient", expected, found)
    return problems


NATIVE = """
import torch, aotgrad, aotgrad.native
assert aotgrad.native.library() is not None, "the library is not loaded"
torch.manual_seed(0)
f = lambda x, w: torch.nn.functional.gelu(x @ w).sum()
compiled = aotgrad.aot_function(f, "eager")
for size in (8, 8, 16, 16, 8):
    x, w = torch.randn(size, 32, device="cuda", requires_grad=True), torch.randn(32, 32, device="cuda", requires_grad=True)
    for retain in (False, True):
        expected, found = (torch.autograd.grad(run(x, w), (x, w), retain_graph=retain) for run in (f, compiled))
        torch.testing.assert_close(found, expected)
"""


@runtime("C++ functions are built and used", GPU)
def _() -> Sequence[str]:
    with tempfile.TemporaryDirectory() as folder:
        settings = {**os.environ, "AOTGRAD_CACHE_DIR": folder, "AOTGRAD_NATIVE": "built"}
        for arguments in (["-m", "aotgrad", "native", "build"], ["-c", NATIVE]):
            done = subprocess.run([sys.executable, *arguments], env=settings, capture_output=True, text=True)
            if done.returncode:
                return [(done.stdout + done.stderr)[-300:]]
    return []
