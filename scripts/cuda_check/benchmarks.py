"""Part 3: times and memory of training steps: eager, torch's own Inductor, and aotgrad, in turns in one process.

Milliseconds of a step are medians, measured by CUDA events. Host time is the time until a step has been submitted. Cases
compile side by side, so that a first step takes longer than alone; then they measure one at a time (`device.turn`). The
gates are `STEP_GATE` and `PEAK_GATE` over torch's Inductor, and `PREDICTION_GATE` for the predicted peak of a memory budget.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as functorch_config
import torch.nn.functional as F
from case import Case, Need, Outcome
from device import turn
from torch import Tensor, nn

import aotgrad

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from gpt import GPT, GPTConfig

STEP_GATE, PEAK_GATE, PREDICTION_GATE = 1.02, 1.0, 0.05
ROUNDS, STEPS_PER_ROUND, WARM_UP = 9, 4, 5
Compile = Callable[[Callable], Callable]
Step = Callable[[Callable, Sequence[Any], Sequence[Tensor]], None]


@dataclass(frozen=True)
class Workload:
    """A training step.

    Attributes:
        build: makes the function to compile, its arguments, and the parameters whose gradients a step computes.
        precision: of products in float32: "high" (TF32) or "highest".
        items: tokens or pictures in a step.
    """

    build: Callable[[], tuple[Callable, Sequence[Any], Sequence[Tensor]]]
    precision: str = "highest"
    items: int = 0


def eager(function: Callable) -> Callable:
    return function


def with_inductor(mode: str | None, function: Callable) -> Callable:
    return torch.compile(function, backend="inductor", mode=mode)


def with_aotgrad(options: Mapping[str, Any], function: Callable) -> Callable:
    return torch.compile(function, backend="aotgrad", options=dict(options))


PLAIN: Mapping[str, Compile] = {
    "eager": eager,
    "Inductor": partial(with_inductor, None),
    "aotgrad": partial(with_aotgrad, {}),
}
GRAPHED: Mapping[str, Compile] = {
    "eager": eager,
    "Inductor": partial(with_inductor, "reduce-overhead"),
    "aotgrad": partial(with_aotgrad, {"mode": "reduce-overhead"}),
}


# --- Workloads -------------------------------------------------------------------------------------------------------


def gpt2(autocast: bool) -> tuple[Callable, Sequence[Any], Sequence[Tensor]]:
    """GPT-2 with 124 million parameters, 8 rows of 1,024 tokens."""
    model = GPT(GPTConfig(vocab_size=50304, context=1024, layers=12, heads=12, width=768)).cuda()
    tokens = torch.randint(50304, (8, 1025), device="cuda")

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            return model(inputs, targets)

    return step, (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()), list(model.parameters())


class Bottleneck(nn.Module):
    """A block of ResNet-50 (He et al., 2016)."""

    def __init__(self, wide: int, narrow: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(wide, narrow, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(True)),
            *(nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(True)),
            *(nn.Conv2d(narrow, 4 * narrow, 1, bias=False), nn.BatchNorm2d(4 * narrow)),
        )
        change = nn.Sequential(nn.Conv2d(wide, 4 * narrow, 1, stride, bias=False), nn.BatchNorm2d(4 * narrow))
        self.shortcut = change if wide != 4 * narrow or stride != 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.shortcut(x))


def resnet50() -> tuple[Callable, Sequence[Any], Sequence[Tensor]]:
    """ResNet-50, 64 pictures of 224 x 224, channels last, bfloat16 by autocast."""
    blocks, wide = [], 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            narrow = 64 << stage
            blocks.append(Bottleneck(wide, narrow, 2 if stage and not block else 1))
            wide = 4 * narrow
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 1000))
    model.cuda().to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    pictures = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    classes = torch.randint(1000, (64,), device="cuda")

    def step(pictures: Tensor, classes: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return F.cross_entropy(model(pictures), classes)

    return step, (pictures, classes), list(model.parameters())


def force_field() -> tuple[Callable, Sequence[Any], Sequence[Tensor]]:
    """Energies of pairs of 512 atoms; the loss compares forces, so that each step takes a second derivative."""
    net = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)).cuda()
    places = torch.rand(512, 3, device="cuda").mul_(8).requires_grad_()
    widths = torch.linspace(0.5, 8.0, 16, device="cuda")
    energy = EnergyOfPairs(net, widths)
    return energy, (places,), list(net.parameters())


class EnergyOfPairs(nn.Module):
    """The energy of atoms, from all distances between them. f32[n, 3] -> f32[]"""

    def __init__(self, net: nn.Module, widths: Tensor) -> None:
        super().__init__()
        self.net, self.widths = net, nn.Buffer(widths)

    def forward(self, places: Tensor) -> Tensor:
        squares = (places[:, None] - places[None]).square().sum(-1) + 1e-3
        return self.net(torch.exp(-(squares.sqrt()[..., None] - self.widths).square())).sum()


def chain(ops: int) -> tuple[Callable, Sequence[Any], Sequence[Tensor]]:
    """A graph of a few ops on a small tensor: what remains is overhead."""
    x = torch.randn(64, 64, device="cuda", requires_grad=True)

    def step(x: Tensor) -> Tensor:
        for k in range(ops - 1):
            x = x.sin() if k % 2 else x * 1.01
        return x.sum()

    return step, (x,), [x]


# --- Measuring -------------------------------------------------------------------------------------------------------


def first_order(run: Callable, inputs: Sequence[Any], wanted: Sequence[Tensor]) -> None:
    """As in a training loop: gradients are accumulated into `.grad`, and dropped."""
    run(*inputs).backward()
    for leaf in wanted:
        leaf.grad = None


def second_order(run: Callable, inputs: Sequence[Any], wanted: Sequence[Tensor]) -> None:
    (forces,) = torch.autograd.grad(run(*inputs), inputs[0], create_graph=True)
    torch.autograd.grad(forces.square().sum(), wanted, allow_unused=True)  # the last bias moves no force


@dataclass(frozen=True)
class Measured:
    """Milliseconds of a step on the device and on the host, the seconds of the first step, and peaks in bytes."""

    step: float
    host: float
    first: float
    allocated: int
    reserved: int


def first_step(step: Callable[[], object]) -> float:
    """Seconds of the first step, which compiles."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def peaks(step: Callable[[], object]) -> tuple[int, int]:
    """The peaks of allocated and of reserved memory over two steps."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def sample(step: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of one step on the device, and until it has been submitted."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    submitted = time.perf_counter()
    start.record()
    for _ in range(STEPS_PER_ROUND):
        step()
    end.record()
    host = (time.perf_counter() - submitted) * 1e3 / STEPS_PER_ROUND
    torch.cuda.synchronize()
    return start.elapsed_time(end) / STEPS_PER_ROUND, host


def measure(workload: Workload, ways: Mapping[str, Compile], take: Step) -> dict[str, Measured]:
    """Each way of running a workload, in turns; torch's Inductor is left out where it raises."""
    torch.set_float32_matmul_precision(workload.precision)
    torch.manual_seed(0)
    function, inputs, wanted = workload.build()
    steps, first = {}, {}
    with turn(alone=False):
        for name, compile in ways.items():
            run = partial(take, compile(function), inputs, wanted)
            with contextlib.suppress(*raised_by(name)):
                first[name] = first_step(run)
                steps[name] = run
        torch.cuda.empty_cache()
    with turn(alone=True):
        for run in steps.values():
            for _ in range(WARM_UP):
                run()
        memory = {name: peaks(run) for name, run in steps.items()}
        medians = medians_in_turns(steps)
    return {name: Measured(step, host, first[name], *memory[name]) for name, (step, host) in medians.items()}


def raised_by(name: str) -> Sequence[type[Exception]]:
    """What a way of running a workload may raise: torch's Inductor takes no second derivatives."""
    return [RuntimeError] if name == "Inductor" else []


def medians_in_turns(steps: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """The median of each column of `sample`, of each step; steps are run in turns."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, run in steps.items():
            samples[name].append(sample(run))
    return {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in samples.items()}


def figures_of(found: Mapping[str, Measured], items: int) -> dict[str, str]:
    """The figures of each way, for the report."""
    shown: dict[str, str] = {}
    for name, each in found.items():
        parts = [f"{each.step:.3f} ms", f"host {each.host:.3f} ms", f"first {each.first:.1f} s"]
        parts += [f"peak {each.allocated / 2**20:.0f} MiB", f"reserved {each.reserved / 2**20:.0f} MiB"]
        parts += [f"{items / each.step * 1e3:.0f} items/s"] if items else []
        shown[name] = " / ".join(parts) + ","
    return shown


def compare(workload: Workload, ways: Mapping[str, Compile], step: Step, gates_memory: bool = True) -> Outcome:
    """Measure, and hold aotgrad against torch's Inductor."""
    found = measure(workload, ways, step)
    ours, theirs, problems = found["aotgrad"], found.get("Inductor"), []
    if theirs is None:
        return Outcome((), {**figures_of(found, workload.items), "Inductor": "raises"})
    if ours.step > STEP_GATE * theirs.step:
        problems.append(f"a step takes {ours.step / theirs.step:.3f} times Inductor's, at most {STEP_GATE} is aimed for")
    if gates_memory and ours.allocated > PEAK_GATE * theirs.allocated:
        problems.append(f"the peak is {ours.allocated / theirs.allocated:.3f} times Inductor's")
    return Outcome(problems, figures_of(found, workload.items))


# --- Memory budgets --------------------------------------------------------------------------------------------------


def budget_point(budget: float) -> Outcome:
    """GPT-2 in bfloat16 with half the rows, at one memory budget, beside torch's own budget."""
    function, (inputs, targets), wanted = gpt2(autocast=True)
    arguments = inputs[:4], targets[:4]
    options = {"memory_budget": budget}
    steps = {"aotgrad": partial(first_order, with_aotgrad(options, function), arguments, wanted)}
    steps["aotgrad, offload"] = partial(first_order, with_aotgrad({**options, "offload": True}, function), arguments, wanted)
    functorch_config.activation_memory_budget = budget
    steps["Inductor"] = partial(first_order, with_inductor(None, function), arguments, wanted)
    with turn(alone=False):
        for run in steps.values():
            first_step(run)
        torch.cuda.empty_cache()
    with turn(alone=True):
        memory = {name: peaks(run)[0] for name, run in steps.items()}
        medians = medians_in_turns(steps)
    found = {name: f"{medians[name][0]:.2f} ms / peak {memory[name] / 2**20:.0f} MiB," for name in steps}
    return Outcome((), found)


class Loss(nn.Module):
    """The mean square of what a model returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Tensor) -> Tensor:
        return self.model(batch).square().mean()


def predicted_peak() -> Outcome:
    """The peaks that `memory_frontier` predicts, over what is held anyway, and those measured with eager halves."""
    torch.manual_seed(0)
    width, layers = 1024, 8
    model = Loss(nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)))).cuda()
    batch, parameters = torch.randn(8192, width, device="cuda"), list(model.parameters())
    frontier = aotgrad.memory_frontier(model, batch)
    problems, shown = [], {}
    for budget, point in ((None, frontier.default), *((point.saved_bytes, point) for point in frontier.points[1:4])):
        compiled = aotgrad.aot_module(model, "eager", options={"memory_budget": budget})

        def step(run: Callable = compiled) -> None:
            torch.autograd.grad(run(batch), parameters)

        step()
        gc.collect()
        held = torch.cuda.memory_allocated()
        measured = peaks(step)[0] - held
        name = f"{'no budget' if budget is None else f'{budget / 2**20:.0f} MiB saved'}:"
        shown[name] = f"predicted {point.peak_bytes / 2**20:.1f}, measured {measured / 2**20:.1f} MiB"
        if abs(point.peak_bytes - measured) > PREDICTION_GATE * measured:
            problems.append(f"{name} the predicted peak is off by {abs(point.peak_bytes / measured - 1):.1%}")
    return Outcome(problems, shown)


# --- Cases -----------------------------------------------------------------------------------------------------------

TOKENS = 8 * 1024
SECONDS = 400
"""The time limit of a case, which waits for the others."""
NEEDS = frozenset({Need.GPU, Need.TRITON})


def case(
    name: str, workload: Workload, ways: Mapping[str, Compile] = PLAIN, step: Step = first_order, gates_memory: bool = True
) -> Case:
    return Case(name, partial(compare, workload, ways, step, gates_memory), SECONDS, NEEDS)


CASES: Sequence[Case] = [
    case("GPT-2 124M, bfloat16", Workload(partial(gpt2, True), "high", TOKENS)),
    case("ResNet-50, channels last, bfloat16", Workload(resnet50, "high", 64)),
    case("GPT-2 124M, bfloat16, CUDA graphs", Workload(partial(gpt2, True), "high", TOKENS), GRAPHED, gates_memory=False),
    case("GPT-2 124M, TF32", Workload(partial(gpt2, False), "high", TOKENS)),
    *(Case(f"memory budget {budget}", partial(budget_point, budget), SECONDS, NEEDS) for budget in (0.8, 0.5, 0.2)),
    case("force field with forces", Workload(force_field), step=second_order),
    *(case(f"{ops} ops", Workload(partial(chain, ops)), gates_memory=False) for ops in (2, 8, 32)),
    *(case(f"{ops} ops, CUDA graphs", Workload(partial(chain, ops)), GRAPHED, gates_memory=False) for ops in (2, 8, 32)),
    Case("predicted peak of a memory budget", predicted_peak, SECONDS, frozenset({Need.GPU})),
]
