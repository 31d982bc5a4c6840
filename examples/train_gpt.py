"""Train one GPT through several backends side by side, from one seed, and compare the runs.

    python examples/train_gpt.py
    python examples/train_gpt.py --steps 50 --backends eager aotgrad

Every run starts from the same weights and sees the same batches, so eager's losses are the yardstick: a correct backend
has eager's loss curve, up to the rounding of reordered sums. The runs take turns, a step each, so that a slow spell of
the machine affects the step times of all alike.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from gpt import GPT, GPTConfig
from saved_bytes import saved_bytes
from tabulate import tabulate
from text import VOCAB_SIZE, StandardLibrary, decode, encode
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache
from tqdm import tqdm

BACKENDS = ("eager", "inductor", "aotgrad", "aotgrad_eager")
SEED = 1234
EARLY_STEPS = 50  # Rounding differences grow with every step, so the first steps are compared separately.
WARMUP_STEPS = 10
CURVE_ROWS = 8


@dataclass
class Run:
    """A model in training, and its records."""

    backend: str
    model: GPT
    step_model: Callable[[Tensor, Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    graphs: int = 0

    @property
    def median_step_seconds(self) -> float:
        return statistics.median(self.step_seconds[1:] or self.step_seconds)

    @property
    def cold_compile_seconds(self) -> float:
        """The first step's time beyond a normal step; eager has nothing to compile."""
        return 0.0 if self.backend == "eager" else self.step_seconds[0] - self.median_step_seconds


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=BACKENDS, help="the runs, in order (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--context", type=int, default=GPTConfig.context)
    parser.add_argument("--layers", type=int, default=GPTConfig.layers)
    parser.add_argument("--heads", type=int, default=GPTConfig.heads)
    parser.add_argument("--width", type=int, default=GPTConfig.width)
    parser.add_argument("--dropout", type=float, default=GPTConfig.dropout)
    parser.add_argument("--untie-embedding", action="store_true", help="give the head a weight of its own")
    parser.add_argument(
        "--threads", type=int, default=1, help="one keeps the times comparable on a busy machine (default: %(default)s)"
    )
    parser.add_argument("--sample", type=int, default=300, metavar="BYTES", help="length of the sample at the end")
    return parser.parse_args()


def model_config(arguments: argparse.Namespace) -> GPTConfig:
    return GPTConfig(
        vocab_size=VOCAB_SIZE,
        context=arguments.context,
        layers=arguments.layers,
        heads=arguments.heads,
        width=arguments.width,
        dropout=arguments.dropout,
        tie_embedding=not arguments.untie_embedding,
    )


def learning_rate_factor(step: int, steps: int) -> float:
    """A linear warmup, then a cosine down to a tenth."""
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    return warmup * (0.55 + 0.45 * math.cos(math.pi * step / steps))


def start(backend: str, arguments: argparse.Namespace) -> Run:
    torch.manual_seed(SEED)
    model = GPT(model_config(arguments))
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, arguments.steps))
    step_model = model if backend == "eager" else torch.compile(model, backend=backend)
    return Run(backend, model, step_model, optimizer, schedule)


def load_compiler(backend: str) -> None:
    """Compile something tiny, so that the imports a first compilation does are not counted as compile time."""
    if backend != "eager":
        weight = torch.ones(2, requires_grad=True)
        torch.compile(lambda x: x.sin(), backend=backend)(weight).sum().backward()


def take_step(run: Run, tokens: Tensor, targets: Tensor) -> None:
    torch.manual_seed(SEED + len(run.losses))  # With dropout, each run draws the same numbers.
    graphs_before = counters["stats"]["unique_graphs"]
    started = time.perf_counter()
    loss = run.step_model(tokens, targets)
    loss.backward()
    run.optimizer.step()
    run.optimizer.zero_grad()
    run.step_seconds.append(time.perf_counter() - started)
    run.schedule.step()
    run.losses.append(loss.item())
    run.graphs += counters["stats"]["unique_graphs"] - graphs_before


def train(runs: Sequence[Run], batches: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Train all runs, a step of each in turn."""
    with tqdm(batches, unit="step", dynamic_ncols=True) as progress:
        for step, batch in enumerate(progress):
            for run in runs:
                if step == 0:
                    progress.set_postfix_str(f"first step of {run.backend}")
                # With empty caches no backend finds what another one compiled.
                with fresh_cache() if step == 0 else nullcontext():
                    take_step(run, *batch)
            progress.set_postfix_str("loss: " + ", ".join(f"{run.backend} {run.losses[-1]:.4f}" for run in runs))


def largest_difference(run: Run, reference: Run, steps: slice) -> str:
    """The largest absolute and the largest relative difference between two loss curves."""
    if run is reference:
        return "-"
    pairs = list(zip(run.losses[steps], reference.losses[steps], strict=True))
    absolute = max(abs(a - b) for a, b in pairs)
    relative = max(abs(a - b) / abs(b) for a, b in pairs)
    return f"{absolute:.1e} / {relative:.1e}"


def curve_table(runs: Sequence[Run]) -> str:
    steps = len(runs[0].losses)
    shown = sorted({round(row * (steps - 1) / CURVE_ROWS) for row in range(CURVE_ROWS + 1)})
    rows = [[step + 1, *(run.losses[step] for run in runs)] for step in shown]
    headers = ["loss at step", *(run.backend for run in runs)]
    return tabulate(rows, headers=headers, tablefmt="github", floatfmt=".6f")


def saved_megabytes(run: Run, batch: tuple[Tensor, Tensor]) -> str:
    return f"{saved_bytes(lambda: run.step_model(*batch), exclude=run.model.parameters()) / 1e6:.2f}"


def summary_table(runs: Sequence[Run], batch: tuple[Tensor, Tensor]) -> str:
    reference = runs[0]
    differs = f"largest difference from {reference.backend} (absolute / relative)"
    rows: dict[str, Callable[[Run], str]] = {
        "first loss": lambda run: f"{run.losses[0]:.6f}",
        "last loss": lambda run: f"{run.losses[-1]:.6f}",
        differs: lambda run: largest_difference(run, reference, slice(None)),
        f"the same, first {EARLY_STEPS} steps": lambda run: largest_difference(run, reference, slice(EARLY_STEPS)),
        "median step (ms)": lambda run: f"{run.median_step_seconds * 1e3:.1f}",
        "cold compile (s)": lambda run: f"{run.cold_compile_seconds:.1f}",
        "saved for the backward (MB)": lambda run: saved_megabytes(run, batch),
        "graphs": lambda run: str(run.graphs),
    }
    cells = [[name, *map(cell, runs)] for name, cell in rows.items()]
    # The cells are formatted already; tabulate must not read them as numbers and drop their zeros.
    return tabulate(cells, headers=["", *(run.backend for run in runs)], tablefmt="github", disable_numparse=True)


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()
    text = StandardLibrary.load()
    batches = [text.batch(step, arguments.batch_size, arguments.context) for step in range(arguments.steps)]
    for backend in arguments.backends:
        load_compiler(backend)
    runs = [start(backend, arguments) for backend in arguments.backends]
    train(runs, batches)
    parameters = sum(parameter.numel() for parameter in runs[0].model.parameters())
    print(f"\nA GPT of {arguments.layers} layers and {parameters:,} parameters, {arguments.steps} steps, ", end="")
    print(f"torch {torch.__version__}, {arguments.threads} thread(s), {time.perf_counter() - started:.0f} s\n")
    print(curve_table(runs), summary_table(runs, batches[0]), sep="\n\n")
    torch.manual_seed(SEED)
    sample = runs[-1].model.sample(encode("def "), arguments.sample)
    print(f"\nA sample from the model trained with {runs[-1].backend}:\n\n{decode(sample)}")


if __name__ == "__main__":
    main()
