"""Train one GPT with the whole step compiled as one graph, beside eager and compiled parts, and compare the runs.

    python examples/train_gpt_step.py
    python examples/train_gpt_step.py --steps 20 --layers 2

Every run starts from the same weights and sees the same batches, with AdamW and a cosine schedule. The runs take turns, a
step each. Eager's losses are the yardstick; those of `train_step` with eager halves are the same numbers.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from gpt import GPT, GPTConfig
from peak_bytes import measure
from tabulate import tabulate
from text import VOCAB_SIZE, StandardLibrary
from torch import Tensor
from torch._inductor.utils import fresh_cache
from tqdm import tqdm
from train_gpt import SEED, learning_rate_factor

import aotgrad

EAGER = "eager"
MODEL = "torch.compile(model)"
PARTS = "torch.compile(model), torch.compile(optimizer.step)"
WHOLE_EAGER = "train_step, eager halves"
WHOLE = "train_step, Inductor"
KINDS = (EAGER, MODEL, PARTS, WHOLE_EAGER, WHOLE)
BACKENDS = {WHOLE_EAGER: "eager", WHOLE: "inductor"}

Step = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Run:
    """A model in training, and its records."""

    kind: str
    step: Step
    schedule: torch.optim.lr_scheduler.LRScheduler
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds[2:] or self.seconds)

    @property
    def compile_seconds(self) -> float:
        """The time of the first two steps beyond normal ones: the second finds the optimizer's state."""
        return sum(self.seconds[:2]) - 2 * self.median_seconds


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS, metavar="KIND", help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=GPTConfig.width)
    return parser.parse_args()


def start(kind: str, config: GPTConfig, steps: int) -> Run:
    torch.manual_seed(SEED)
    model = GPT(config)
    # A compiled optimizer takes `lr` as a tensor, or each change would compile it again.
    rate = torch.tensor(3e-3) if kind == PARTS else 3e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, steps))
    forward = torch.compile(model) if kind in (MODEL, PARTS) else model
    update = torch.compile(optimizer.step) if kind == PARTS else optimizer.step

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = forward(tokens, targets)
        loss.backward()
        update()
        return loss.detach()

    if kind in BACKENDS:
        step = aotgrad.train_step(step, [model, optimizer], keep_gradients=False, backend=BACKENDS[kind])
    return Run(kind, step, schedule)


def train(runs: Sequence[Run], batches: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Train all runs, a step of each in turn."""
    with tqdm(batches, unit="step", dynamic_ncols=True) as progress:
        for number, batch in enumerate(progress):
            for run in runs:
                progress.set_postfix_str(run.kind if number < 2 else "")
                with fresh_cache() if number < 2 else nullcontext():
                    started = time.perf_counter()
                    run.losses.append(run.step(*batch).item())
                    run.seconds.append(time.perf_counter() - started)
                run.schedule.step()


def difference(run: Run, reference: Run) -> str:
    """The largest relative difference between two loss curves."""
    pairs = list(zip(run.losses, reference.losses, strict=True))
    largest = max(abs(a - b) / abs(b) for a, b in pairs)
    return "-" if run is reference else "equal" if largest == 0 else f"within {largest:.0e}"


def row(run: Run, reference: Run, batch: tuple[Tensor, Tensor]) -> list[str]:
    measured = measure(lambda: run.step(*batch))
    return [
        *(run.kind, f"{run.losses[0]:.4f}", f"{run.losses[-1]:.4f}", difference(run, reference)),
        *(f"{run.median_seconds * 1e3:.1f}", f"{measured.peak_bytes / 1e6:.2f}", f"{measured.launches}"),
        f"{run.compile_seconds:.1f}",
    ]


HEADERS = ["", "first loss", "last loss", "losses, to eager's", "median step (ms)", "peak (MB)", "kernels", "compile (s)"]


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch._inductor.config.cpp.enable_kernel_profile = True
    torch.compile(torch.sin)(torch.ones(8))  # the first compilation of a process tries what the processor can do
    text = StandardLibrary.load()
    batches = [text.batch(step, arguments.batch_size, arguments.context) for step in range(arguments.steps)]
    config = GPTConfig(VOCAB_SIZE, arguments.context, arguments.layers, width=arguments.width)
    runs = [start(kind, config, arguments.steps) for kind in arguments.kinds]
    train(runs, batches)
    table = [row(run, runs[0], batches[0]) for run in runs]
    print(
        f"\nA GPT of {config.layers} layers, AdamW, a cosine schedule, {arguments.steps} steps, torch {torch.__version__}\n"
    )
    # The cells are formatted already; tabulate must not read them as numbers and drop their zeros.
    print(tabulate(table, headers=HEADERS, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
