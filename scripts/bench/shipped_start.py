"""Measure the first training step of a fresh process: compiled there, and loaded from a file of plans.

    python scripts/bench/shipped_start.py
    python scripts/bench/shipped_start.py --layers 2 --backend eager --rounds 3

A training step of a GPT-2 of `transformers` (random weights) with AdamW. A process trains two steps with empty caches and
saves its plans (cold); other processes load them and train two steps. Seconds are wall-clock time from before `train_step`
or `load` to the end of the second step, without imports and without making the model; the median of several processes. The
second step counts because the first one makes the optimizer's state, and has a plan of its own.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
from tabulate import tabulate
from timing import add_threads, environment, in_a_process


def make_step(layers: int):
    """The state and the function of a step, and the arguments of two steps."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=layers, n_positions=64, use_cache=False)
    model = transformers.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # otherwise it writes to a logger while it is traced
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(tokens):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss

    return step, [model, optimizer], [torch.randint(0, config.vocab_size, (2, 64)) for _ in range(2)]


def first_steps(way: str, path: str, layers: int, backend: str, threads: int) -> dict[str, float]:
    """Seconds and losses of the first two steps of this process."""
    import aotgrad

    torch.set_num_threads(threads)
    step, state, batches = make_step(layers)
    started = time.perf_counter()
    if way == "cold":
        compiled = aotgrad.train_step(step, state, backend=backend)
    else:
        compiled = aotgrad.load(path, state=state, trust=way == "loaded, with its code")
    losses = [compiled(tokens).item() for tokens in batches]
    seconds = time.perf_counter() - started
    if way == "cold":
        aotgrad.save(compiled, path)
    return {"seconds": seconds, "loss": losses[-1], "bytes": os.path.getsize(path)}


def in_a_fresh_process(way: str, path: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """`first_steps` in another process, whose caches are empty."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--layers", str(arguments.layers), "--backend", arguments.backend, "--child", way, str(path)]
        return in_a_process(__file__, options, Path(folder), arguments.threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--rounds", type=int, default=3)
    add_threads(parser)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        way, path = arguments.child
        print(json.dumps(first_steps(way, path, arguments.layers, arguments.backend, arguments.threads)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.aotgrad"
        cold = in_a_fresh_process("cold", path, arguments)
        ways = ("loaded, with its code", "loaded, graphs only")
        loaded = {way: [in_a_fresh_process(way, path, arguments) for _ in range(arguments.rounds)] for way in ways}
    rows = [["cold", f"{cold['seconds']:.2f}", "1.00", f"{cold['loss']:.6f}"]]
    for way, runs in loaded.items():
        seconds = statistics.median(run["seconds"] for run in runs)
        rows.append([way, f"{seconds:.2f}", f"{seconds / cold['seconds']:.2f}", f"{runs[0]['loss']:.6f}"])
    table = tabulate(rows, ["two steps", "seconds", "of cold", "loss"], tablefmt="github", disable_numparse=True)
    print(f"{environment()}; GPT-2 of {arguments.layers} layers, {arguments.backend}; file of {cold['bytes'] / 1e6:.1f} MB")
    print(f"\n{table}")


if __name__ == "__main__":
    main()
