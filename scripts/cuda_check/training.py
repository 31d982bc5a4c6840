"""Part 3, continued: whole training steps, small networks with derivatives in their losses, the link, first steps."""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from benchmarks import (
    CASES,
    NEEDS,
    SECONDS,
    first_order,
    first_step,
    gpt2,
    medians_in_turns,
    peaks,
    with_aotgrad,
    with_inductor,
)
from case import Case, Need, Outcome
from device import turn
from runtime import close
from torch import Tensor

import aotgrad
from aotgrad.graph.host_copies import speed_on

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

Step = Callable[[], object]


def in_turns(steps: Mapping[str, Step]) -> dict[str, str]:
    """The first step, the time of a step on the device and on the host, and the peak, of each way."""
    with turn(alone=False):
        first = {name: first_step(step) for name, step in steps.items()}
        for step in steps.values():
            step()  # the second step of an optimizer is another graph
        torch.cuda.empty_cache()
    with turn(alone=True):
        memory = {name: peaks(step)[0] for name, step in steps.items()}
        medians = medians_in_turns(steps)
    return {
        name: f"{step:.3f} ms / host {host:.3f} ms / first {first[name]:.1f} s / peak {memory[name] / 2**20:.0f} MiB,"
        for name, (step, host) in medians.items()
    }


# --- Whole training steps --------------------------------------------------------------------------------------------


def trained(compile_model: Callable) -> tuple[Callable, list]:
    """A step of GPT-2 with AdamW, and what it changes."""
    function, arguments, parameters = gpt2(autocast=True)
    run, optimizer = compile_model(function), torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def step() -> Tensor:
        loss = run(*arguments)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, [*parameters, optimizer]


def gpt2_step() -> Outcome:
    """GPT-2 124M with a fused AdamW, beside Inductor's graphs and in one graph with them."""
    torch.set_float32_matmul_precision("high")
    step, state = trained(lambda function: function)
    return Outcome(
        (),
        in_turns(
            {
                "eager": trained(lambda function: function)[0],
                "Inductor": trained(partial(with_inductor, None))[0],
                "aotgrad": aotgrad.train_step(step, state, backend="inductor"),
            }
        ),
    )


# --- Small networks --------------------------------------------------------------------------------------------------


def small_networks(name: str) -> Outcome:
    """A loss that contains derivatives, and its gradients; torch's Inductor raises for each of them."""
    import small_models  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    with torch.device("cuda"):
        program = small_models.PROGRAMS[name]
        module = program.module()
        x = torch.randn(program.inputs, requires_grad=program.by_input)
    parameters = dict(module.named_parameters())

    def loss(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return program.loss(
            lambda values, points: torch.func.functional_call(module, dict(values), (points,)), parameters, x
        )

    def step(run: Callable) -> Sequence[Tensor | None]:
        return torch.autograd.grad(run(parameters, x), list(parameters.values()), allow_unused=True)

    ways = {"eager": loss, "aotgrad": aotgrad.aot_function(loss, "inductor")}
    ways["aotgrad, CUDA graphs"] = aotgrad.aot_function(loss, "inductor", options={"mode": "reduce-overhead"})
    expected, problems = step(loss), []
    for way, run in ways.items():
        for _ in range(4):
            found = step(run)
        for k, (a, b) in enumerate(zip(expected, found, strict=True)):
            problems += [f"{way}: {problem}" for problem in close(f"gradient {k}", a, b, 1e-3)]
    return Outcome(problems, in_turns({way: partial(step, run) for way, run in ways.items()}))


# --- The link to the host --------------------------------------------------------------------------------------------


def seconds_of(run: Callable[[], object], rounds: int = 5) -> float:
    """The fastest of some runs on the device."""
    found = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e-3)
    return min(found)


def speeds() -> Outcome:
    """Bytes and operations per second, and what the model of offloading assumes."""
    size = 1 << 28
    here, there = torch.empty(size, dtype=torch.uint8, device="cuda"), torch.empty(size, dtype=torch.uint8, pin_memory=True)
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    small = torch.empty(16, dtype=torch.uint8, pin_memory=True)
    assumed = speed_on(here.device)
    copy = here.clone()
    with turn(alone=True):
        out, back = (
            seconds_of(lambda: there.copy_(here, non_blocking=True)),
            seconds_of(lambda: here.copy_(there, non_blocking=True)),
        )
        latency = seconds_of(lambda: small.copy_(here[:16], non_blocking=True))
        inside, product = seconds_of(lambda: copy.copy_(here)), seconds_of(lambda: a @ a)
    shown = {
        "to the host": f"{size / out:.2e} bytes/s,",
        "back": f"{size / back:.2e} bytes/s (assumed {assumed.link.bandwidth:.1e}),",
        "latency": f"{latency:.1e} s (assumed {assumed.link.latency:.0e}),",
        "memory": f"{2 * size / inside:.2e} bytes/s (assumed {assumed.bytes_per_second:.1e}),",
        "bfloat16": f"{2 * 8192**3 / product:.2e} flops/s (assumed {assumed.flops_per_second:.1e})",
    }
    return Outcome((), shown)


# --- The host's time -------------------------------------------------------------------------------------------------


def functions_of_the_host() -> Outcome:
    """The functions that take most of the host's time in ten steps of GPT-2, in milliseconds of a step."""
    torch.set_float32_matmul_precision("high")
    function, arguments, parameters = gpt2(autocast=True)
    ways = {"Inductor": with_inductor(None, function), "aotgrad": with_aotgrad({}, function)}
    steps, shown = {way: partial(first_order, run, arguments, parameters) for way, run in ways.items()}, {}
    with turn(alone=False):
        for step in steps.values():
            first_step(step)
    with turn(alone=True):
        for way, step in steps.items():
            step()
            with cProfile.Profile() as profile:
                for _ in range(10):
                    step()
            torch.cuda.synchronize()
            shown[way] = slowest(pstats.Stats(profile))
    return Outcome((), shown)


def slowest(stats: pstats.Stats, count: int = 8) -> str:
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:count]  # pyright: ignore[reportAttributeAccessIssue]
    named = (f"{Path(file).name}:{name} {calls} calls {own * 100:.2f}" for (file, _, name), (_, calls, own, *_) in rows)
    return ", ".join(named) + ";"


# --- First steps -----------------------------------------------------------------------------------------------------


def start_here(backend: str) -> None:
    """Print the seconds of the first step of GPT-2 in this process."""
    import device

    device.register_backends()
    torch.set_float32_matmul_precision("high")
    function, arguments, _ = gpt2(autocast=True)
    run = torch.compile(function, backend=backend)
    torch.cuda.synchronize()
    start = time.perf_counter()
    run(*arguments).backward()
    torch.cuda.synchronize()
    print(json.dumps(time.perf_counter() - start))


def starts() -> Outcome:
    """The first step of a fresh process, with empty caches and with those of the process before."""
    shown = {}
    for name, backend in {"Inductor": "inductor", "aotgrad": "aotgrad"}.items():
        with tempfile.TemporaryDirectory() as folder:
            folders = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch", "AOTGRAD_CACHE_DIR": f"{folder}/own"}
            settings = {**os.environ, **folders, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0"}
            seconds = []
            for _ in range(2):
                program = f"import training; training.start_here({backend!r})"
                done = subprocess.run([sys.executable, "-c", program], env=settings, capture_output=True, text=True)
                if done.returncode:
                    return Outcome([f"{name}: {done.stderr[-300:]}"])
                seconds.append(float(done.stdout.splitlines()[-1]))
        shown[name] = f"cold {seconds[0]:.1f} s, warm {seconds[1]:.1f} s,"
    return Outcome((), shown)


CASES = [
    *CASES,
    Case("GPT-2 124M, bfloat16, training step with AdamW", gpt2_step, SECONDS, NEEDS),
    *(
        Case(f"small networks: {name}", partial(small_networks, name), SECONDS, NEEDS)
        for name in ("laplacian", "forces", "penalty", "meta")
    ),
    Case("speeds of the device and of its link", speeds, SECONDS, frozenset({Need.GPU})),
    Case("GPT-2 124M: functions of the host", functions_of_the_host, SECONDS, NEEDS),
    Case("GPT-2 124M: first step of a process", starts, SECONDS, NEEDS),
]
