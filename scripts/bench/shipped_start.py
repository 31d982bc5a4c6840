"""Measure how long a fresh process takes to its first result of a training step: compiled there, and loaded from a file.

    python scripts/bench/shipped_start.py
    python scripts/bench/shipped_start.py --layers 2 --backend eager --rounds 3

A training step of a GPT-2 of `transformers` (random weights) with AdamW goes on after a restart: the optimizer has its
state, and no parameter has a gradient. One process has empty caches, compiles the step, and saves its plan (cold); other
processes load that. Seconds are wall-clock time; the median of several processes, of the cold one of a single one.

    imports         from the start of the process until torch, transformers and aotgrad are imported
    model           making the model and the optimizer
    load            `train_step`, or `load`
    first step      until the loss is a number
    first result    load and first step
    warm step       a later step of the same process; in the row `floor`, where nothing is loaded, it is the first result
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

WARM_STEPS = 5
WITH_CODE = "loaded, with its code"
TIMES = ("imports", "model", "load", "first step", "first result", "warm step")


def make_step(layers: int):
    """The state and the function of a step, as after a restart, and its argument."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=layers, n_positions=64, use_cache=False)
    model = transformers.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # otherwise it writes to a logger while it is traced
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()

    def step(tokens):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss

    return step, [model, optimizer], torch.randint(0, config.vocab_size, (2, 64))


def start(way: str, path: str, arguments: argparse.Namespace) -> dict[str, float]:
    """The times of this process, its first loss, and the size of the file."""
    import transformers  # noqa: F401  # its time counts as that of imports

    import aotgrad

    torch.set_num_threads(arguments.threads)
    imported = time.time()
    step, state, tokens = make_step(arguments.layers)
    made = time.time()
    if way == "cold":
        compiled = aotgrad.train_step(step, state, backend=arguments.backend, keep_gradients=False)
    else:
        compiled = aotgrad.load(path, state=state, trust=way == WITH_CODE)
    loaded = time.time()
    loss = compiled(tokens).item()
    ended = time.time()
    warm = statistics.median(map(seconds_of_a_call, [lambda: compiled(tokens).item()] * WARM_STEPS))
    if way == "cold":
        aotgrad.save(compiled, path)
    seconds = (imported - arguments.started, made - imported, loaded - made, ended - loaded, ended - made, warm)
    return {**dict(zip(TIMES, seconds, strict=True)), "loss": loss, "bytes": os.path.getsize(path)}


def seconds_of_a_call(function) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def in_a_fresh_process(way: str, path: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """`start` in another process, whose caches are empty."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--layers", str(arguments.layers), "--backend", arguments.backend, "--child", way, str(path)]
        options += ["--started", str(time.time())]
        return in_a_process(__file__, options, Path(folder), arguments.threads)


def row(way: str, found: dict[str, float], cold: float) -> list[str]:
    share = found["first result"] / cold
    return [way, *(f"{found[name]:.2f}" for name in TIMES), f"{share:.3f}", f"{found['loss']:.6f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--rounds", type=int, default=3)
    add_threads(parser)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        way, path = arguments.child
        print(json.dumps(start(way, path, arguments)))
        return
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.aotgrad"
        found["cold"] = in_a_fresh_process("cold", path, arguments)
        for way in (WITH_CODE, "loaded, graphs only"):
            runs = [in_a_fresh_process(way, path, arguments) for _ in range(arguments.rounds)]
            found[way] = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    warm = found[WITH_CODE]["warm step"]
    found["floor"] = {**found[WITH_CODE], "load": 0.0, "first step": warm, "first result": warm}
    rows = [row(way, times, found["cold"]["first result"]) for way, times in found.items()]
    table = tabulate(rows, ["seconds", *TIMES, "of cold", "loss"], tablefmt="github", disable_numparse=True)
    size = found["cold"]["bytes"] / 1e6
    print(f"{environment()}; GPT-2 of {arguments.layers} layers, {arguments.backend}; file of {size:.1f} MB")
    print(f"\n{table}")


if __name__ == "__main__":
    main()
