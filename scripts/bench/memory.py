"""Measure real steps: their time and the peak of real memory, with and without a memory budget.

    python scripts/bench/memory.py
    python scripts/bench/memory.py --only gpt --rounds 5 --backend aotgrad

A step is forward and backward. Each model runs in eager, in eager with `torch.utils.checkpoint` around each of its blocks,
and compiled with each budget. Peaks are those of the CPU's allocator, above what is allocated before the step; gradients
are part of them. The floor is the time of the compiled graphs alone without a budget, and the memory of the largest op or of
all gradients. `simulated` is the partitioner's estimate for the same halves. Times are CPU seconds, medians of steps in
turns.
"""

import argparse
import copy
import functools
import gc
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from graph_calls import GraphCalls, recorded
from live_bytes import least_peak
from partition_models import Block, ResidualMLP, Transformer, UNet
from tabulate import tabulate
from timing import add_threads, now
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parents[2]))
from aotgrad import pipeline
from aotgrad.backends import get
from aotgrad.ir import JointGraph, Partition
from aotgrad.partition import Objective, partition
from aotgrad.partition.graphs import analyze_joint
from aotgrad.partition.liveness import simulate
from aotgrad.partition.program import program_of
from examples import peak_bytes

BUDGETS: dict[str, dict[str, Any]] = {
    "no budget": {},
    "half of the bytes": {"memory_budget": 0.5},
    "fifth of the bytes": {"memory_budget": 0.2},
    "0.7 of the peak": {"memory_budget": 0.7, "memory_budget_of": "peak"},
}
FLOOR = "floor"
LENGTH, WORDS = 512, 2000


@dataclass(frozen=True)
class Workload:
    """A model that returns its loss, its inputs, and the modules that a user would checkpoint."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    blocks: Callable[[nn.Module], Iterable[nn.Module]]


def gpt() -> Workload:
    model = Transformer("gpt", 4, width=192, vocabulary=WORDS)
    return Workload(model, (words(), words()), lambda m: [b for b in m.modules() if isinstance(b, Block)])


def residual_mlp() -> Workload:
    inputs = torch.randn(2048, 256), torch.randint(10, (2048,))
    return Workload(ResidualMLP(12, 256), inputs, lambda m: m.get_submodule("blocks").children())


def unet() -> Workload:
    images = torch.randn(4, 3, 64, 64), torch.randn(4, 3, 64, 64)
    return Workload(UNet((16, 32, 64, 128)), images, stages)


def stages(model: nn.Module) -> list[nn.Module]:
    return [stage for part in ("down", "up") for stage in model.get_submodule(part).children()]


def words() -> Tensor:
    return torch.randint(WORDS, (2, LENGTH))


WORKLOADS: dict[str, Callable[[], Workload]] = {"gpt": gpt, "residual MLP": residual_mlp, "U-Net": unet}


@dataclass(frozen=True)
class Measured:
    seconds: float
    peak: int
    simulated: int | None


def measure(workload: Workload, backend: str, rounds: int) -> dict[str, Measured]:
    torch.compiler.reset()
    models = {"eager": copy.deepcopy(workload.model), "eager, checkpoints": checkpointed(workload)}
    for name, options in BUDGETS.items():
        models[name] = compiled = copy.deepcopy(workload.model)
        compiled.compile(backend=backend, options={**options, "cache": False})
    steps = {name: functools.partial(step, model, workload.inputs) for name, model in models.items()}
    expected = {name: first_step(run) for name, run in steps.items()}
    peaks = {name: peak_of(model, workload.inputs) for name, model in models.items()}
    peaks[FLOOR] = least_peak(functools.partial(step, models["eager"], workload.inputs))
    seconds = cpu_seconds({**steps, FLOOR: graphs_of(workload, backend).replay}, rounds)
    return {name: Measured(seconds[name], peaks[name], expected.get(name)) for name in (*steps, FLOOR)}


def graphs_of(workload: Workload, backend: str) -> GraphCalls:
    """The graphs of a step without a budget."""
    model = copy.deepcopy(workload.model)

    def compiled(graphs: GraphCalls) -> Callable[[], None]:
        model.compile(backend=graphs.for_dynamo())
        return functools.partial(step, model, workload.inputs)

    torch.compiler.reset()
    return recorded(get("eager" if backend == "aotgrad_eager" else "inductor"), compiled)


def checkpointed(workload: Workload) -> nn.Module:
    model = copy.deepcopy(workload.model)
    for block in workload.blocks(model):
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return model


def step(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    model.zero_grad(set_to_none=True)
    model(*inputs).backward()


def first_step(run: Callable[[], None]) -> int | None:
    """Compile and warm up; return the estimated peak of the halves, if compiled."""
    expected: list[int] = []

    def partitioned(joint: JointGraph, choose: Any, objective: Objective, finish: Callable) -> Partition:
        halves = partition(joint, choose, objective, finish)
        expected.append(simulated_peak(joint, halves, objective))
        return halves

    with mock.patch.object(pipeline, "partition_joint", partitioned):
        run()
    return expected[0] if expected else None


def simulated_peak(joint: JointGraph, halves: Partition, objective: Objective) -> int:
    analysis = analyze_joint(joint)
    program, number = program_of(analysis, objective.fuses)
    by_name = {node.name: node for node in analysis.nodes}
    saved = (by_name.get(value.slot.name) for value in halves.saved)
    return simulate(program, {number[analysis.base[node]] for node in saved if node is not None}).peak


def peak_of(model: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """The most bytes allocated at any moment of a step, above what was allocated before it, without gradients."""
    step(model, inputs)
    model.zero_grad(set_to_none=True)  # now: the profiler does not count frees of memory whose allocation it did not record
    gc.collect()
    return peak_bytes.measure(lambda: step(model, inputs)).peak_bytes


def cpu_seconds(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    samples: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, run in steps.items():
            gc.collect()
            start = now()
            run()
            samples[name].append(now() - start)
    return {name: statistics.median(times) for name, times in samples.items()}


def rows_of(name: str, measured: dict[str, Measured]) -> Iterable[list[str]]:
    eager = measured["eager"]
    for variant, found in measured.items():
        expected = "" if found.simulated is None else f"{found.simulated / 1e6:.2f}"
        cells = [f"{1000 * found.seconds:.1f}", f"{found.seconds / eager.seconds:.2f}", f"{found.peak / 1e6:.2f}"]
        yield [name, variant, *cells, f"{found.peak / eager.peak:.2f}", expected]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS), help="which models")
    parser.add_argument("--backend", default="aotgrad_eager", help="of torch.compile")
    parser.add_argument("--rounds", type=int, default=11, help="steps of each variant")
    add_threads(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    rows = [row for name in args.only for row in rows_of(name, measure(WORKLOADS[name](), args.backend, args.rounds))]
    headers = ["model", "variant", "ms per step", "over eager", "peak MB", "over eager", "simulated MB"]
    print(f"torch {torch.__version__}, {args.backend}, 1 thread\n")
    print(tabulate(rows, headers, tablefmt="github", disable_numparse=True, colalign=["left"] * 2 + ["right"] * 5))


if __name__ == "__main__":
    main()
