"""Measure the first training step of a fresh process, with an empty disk cache and with that of an earlier process.

    python scripts/bench/warm_start.py
    python scripts/bench/warm_start.py --only MLP --rounds 3

The peer is torch's own AOTAutograd with its AOTAutogradCache and Inductor's FxGraphCache; with eager halves (`aot_eager`) it
keeps nothing. Both sides run in separate processes, in turns, with the same Dynamo in front. Reported are medians of
wall-clock time: of the whole first step (Dynamo, forward and backward), and of the part below Dynamo: the backend and the
first backward. The ratio is aotgrad over peer: below 1, aotgrad starts faster. *floor* is the same step with Dynamo alone,
whose backend runs the graph that it gets, over the peer's.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from models import workloads
from tabulate import tabulate
from timing import add_threads, environment, in_a_process

PEER = {"inductor": "inductor", "eager": "aot_eager"}
OURS = {"inductor": "aotgrad", "eager": "aotgrad_eager"}
FLOOR = "eager"
COLUMNS = ("step", "below Dynamo")


def first_step(backend: str, name: str, threads: int) -> dict[str, float]:
    """Seconds of the first step of this process."""
    import importlib

    if backend.startswith("aotgrad"):
        importlib.import_module("aotgrad")
    if backend == "inductor":
        importlib.import_module("torch._dynamo.backends.inductor")
    from torch._dynamo.backends.registry import lookup_backend

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    workload = next(each for each in workloads() if each.name == name)
    compiler, spent = lookup_backend(backend), []

    def timed(*args, **kwargs):
        started = time.perf_counter()
        try:
            return compiler(*args, **kwargs)
        finally:
            spent.append(time.perf_counter() - started)

    model = torch.compile(workload.fresh_model(), backend=timed)
    started = time.perf_counter()
    loss = model(*workload.inputs)
    between = time.perf_counter()
    loss.backward()
    ended = time.perf_counter()
    return {"step": ended - started, "below Dynamo": sum(spent) + ended - between, "loss": loss.item()}


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {column: statistics.median(run[column] for run in runs) for column in COLUMNS}


def rows(halves: str, name: str, rounds: int, threads: int) -> list[list[str]]:
    """A cold start of each side, and the median warm start."""
    with tempfile.TemporaryDirectory() as peers, tempfile.TemporaryDirectory() as own:
        sides = [(PEER[halves], Path(peers)), (OURS[halves], Path(own)), (FLOOR, Path(own))]
        cold = [in_a_process(__file__, ["--child", backend, name], folder, threads) for backend, folder in sides]
        warm: tuple[list, list, list] = ([], [], [])
        for _ in range(rounds):
            for runs, (backend, folder) in zip(warm, sides, strict=True):
                runs.append(in_a_process(__file__, ["--child", backend, name], folder, threads))
    starts = {"cold": cold, "warm": [medians(runs) for runs in warm]}
    return [[f"{name}, {halves} halves, {start}", *cells(*found)] for start, found in starts.items()]


def cells(peer: dict[str, float], own: dict[str, float], floor: dict[str, float]) -> list[str]:
    found = []
    for column in COLUMNS:
        ratios = [f"{side[column] / peer[column]:.2f}" for side in (own, floor)]
        found += [f"{peer[column]:.2f}", f"{own[column]:.2f}", *ratios]
    return found


def main() -> None:
    names = [workload.name for workload in workloads()]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    parser.add_argument("--halves", nargs="*", choices=list(PEER), default=list(PEER))
    parser.add_argument("--rounds", type=int, default=7)
    add_threads(parser)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        backend, name = arguments.child
        print(json.dumps(first_step(backend, name, arguments.threads)))
        return
    torch.set_num_threads(arguments.threads)
    sides = [(halves, name) for halves in arguments.halves for name in arguments.only]
    table = [row for side in sides for row in rows(*side, arguments.rounds, arguments.threads)]
    headers = ["seconds", *(header for column in COLUMNS for header in (f"{column}: peer", "aotgrad", "ratio", "floor"))]
    body = tabulate(table, headers, tablefmt="github", disable_numparse=True, colalign=("left", *["right"] * 8))
    print(f"{environment()}; medians of {arguments.rounds}; ratio = aotgrad / peer\n\n{body}")


if __name__ == "__main__":
    main()
