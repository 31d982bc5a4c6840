"""Train one GPT on several processes, in eager and through each backend, and compare the runs.

    python -m torch.distributed.run --standalone --nproc-per-node 2 examples/train_gpt_parallel.py
    python -m torch.distributed.run --standalone --nproc-per-node 2 examples/train_gpt_parallel.py --steps 5

With FSDP2 each process has a part of each parameter and batches of its own. With tensor parallelism each process computes a
part of each MLP and of the projections of each attention, for the same batches. Eager's losses are the yardstick.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from gpt import GPT, GPTConfig
from peak_bytes import measure
from tabulate import tabulate
from text import VOCAB_SIZE, StandardLibrary
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

BACKENDS = ("eager", "aotgrad_eager", "aotgrad")
SEED = 1234
Batch = tuple[Tensor, Tensor]


def shard_parameters(model: GPT, backend: str) -> nn.Module:
    """FSDP2 by block: each block is gathered when it runs, and compiled."""
    for block in model.blocks:
        fully_shard(compiled(block, backend))
    fully_shard(model)
    return model


def split_layers(model: GPT, backend: str) -> nn.Module:
    """Tensor parallelism; the model is compiled in one graph, with its collectives."""
    plan = {
        "attention.query_key_value": ColwiseParallel(output_layouts=Replicate()),
        "attention.project": RowwiseParallel(input_layouts=Replicate()),
        "mlp.0": ColwiseParallel(),
        "mlp.2": RowwiseParallel(),
    }
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return compiled(model, backend, fullgraph=True)


PARALLELISMS: dict[str, Callable[[GPT, str], nn.Module]] = {"FSDP2": shard_parameters, "tensor parallel": split_layers}


def compiled(module: nn.Module, backend: str, fullgraph: bool = False) -> nn.Module:
    if backend != "eager":
        module.compile(backend=backend, fullgraph=fullgraph)
    return module


@dataclass(frozen=True)
class Run:
    """What this process measured of one run."""

    parallelism: str
    backend: str
    losses: tuple[float, ...]
    step_seconds: tuple[float, ...]
    peak_bytes: int


def train(parallelism: str, backend: str, config: GPTConfig, batches: Sequence[Batch]) -> Run:
    torch.manual_seed(SEED)
    model = PARALLELISMS[parallelism](GPT(config), backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    losses, seconds = [], []
    for batch in batches:
        started = time.perf_counter()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
        losses.append(loss.item())
    peak = measure(lambda: model(*batches[0]).backward()).peak_bytes
    return Run(parallelism, backend, tuple(losses), tuple(seconds), peak)


def every_rank(run: Run) -> list[Run]:
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, run)
    return gathered


def comparison(runs: Sequence[Run], references: Sequence[Run]) -> str:
    """Whether the losses of all processes are those of eager, or how far they are from them."""
    pairs = [
        pair for run, other in zip(runs, references, strict=True) for pair in zip(run.losses, other.losses, strict=True)
    ]
    difference = max(abs(a - b) / abs(b) for a, b in pairs)
    return "-" if runs is references else "equal" if difference == 0 else f"within {difference:.0e}"


def row(runs: Sequence[Run], references: Sequence[Run]) -> list[str]:
    median = max(statistics.median(run.step_seconds[1:] or run.step_seconds) for run in runs)
    first = max(run.step_seconds[0] for run in runs)
    peak = max(run.peak_bytes for run in runs)
    loss = statistics.mean(run.losses[-1] for run in runs)
    return [
        *(runs[0].parallelism, runs[0].backend, f"{loss:.4f}", comparison(runs, references)),
        *(f"{median * 1e3:.1f}", f"{first:.1f}", f"{peak / 1e6:.2f}"),
    ]


HEADERS = ["", "backend", "last loss", "losses, to eager's", "median step (ms)", "first step (s)", "peak (MB)"]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=BACKENDS[1:], help="beside eager (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--context", type=int, default=GPTConfig.context)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=GPTConfig.width)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    config = GPTConfig(VOCAB_SIZE, arguments.context, arguments.layers, width=arguments.width)
    text, count = StandardLibrary.load(), dist.get_world_size()
    table = []
    for parallelism in PARALLELISMS:
        # With tensor parallelism, the processes share a batch.
        offset = dist.get_rank() if parallelism == "FSDP2" else 0
        steps = range(offset, arguments.steps * count, count)
        batches = [text.batch(step, arguments.batch_size, arguments.context) for step in steps]
        references = every_rank(train(parallelism, "eager", config, batches))
        table.append(row(references, references))
        for backend in arguments.backends:
            table.append(row(every_rank(train(parallelism, backend, config, batches)), references))
    if dist.get_rank() == 0:
        print(
            f"\nA GPT of {config.layers} layers on {count} processes, {arguments.steps} steps, torch {torch.__version__}\n"
        )
        # The cells are formatted already; tabulate must not read them as numbers and drop their zeros.
        print(tabulate(table, headers=HEADERS, tablefmt="github", disable_numparse=True), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
