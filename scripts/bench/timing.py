"""Comparable times on a busy machine: candidates take turns in one process, and medians of processor time are compared.
(First calls, which start other processes, are timed by the wall clock. So is everything with more than one thread, since
the processor times of threads add up.)

    seconds = median_seconds({"eager": lambda: f(x), "compiled": lambda: g(x)})
    seconds["eager"] / seconds["compiled"]

A slow spell of the machine then affects all candidates alike, and a median drops the few worst samples.
"""

import argparse
import datetime
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

ROUNDS = 11
SHORT_ROUNDS, SHORT_SAMPLE_SECONDS = 200, 0.001  # Enough short samples that some run undisturbed.
SAMPLE_SECONDS = (
    0.02  # Long compared with the clock's resolution and the loop's cost, short compared with a scheduler's slice.
)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """The option `--threads` of every program that times torch's computations."""
    text = "of torch; one is the least noisy, more are timed by the clock on the wall (default: %(default)s)"
    parser.add_argument("--threads", type=int, default=1, help=text)


def in_a_process(program: str, arguments: Sequence[str], folder: Path, threads: int) -> dict[str, float]:
    """The figures that a program prints last, as JSON, in another process, whose caches are in `folder`."""
    caches = {"AOTGRAD_CACHE_DIR": str(folder / "aotgrad"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    command = [sys.executable, program, "--threads", str(threads), *arguments]
    variables = {**os.environ, **caches, "OMP_NUM_THREADS": str(threads)}
    found = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(found.stdout.splitlines()[-1])


def now() -> float:
    """Processor seconds, or wall-clock seconds with several threads."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def environment() -> str:
    """The conditions of a measurement besides the code: versions, processor, threads, and the day."""
    return (
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, "
        f"{torch.get_num_threads()} thread(s), {datetime.date.today()}"
    )


def median_seconds(candidates: Mapping[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Call each candidate repeatedly, in turns, and return the median time of one call of each."""
    return {name: statistics.median(times) for name, times in _samples(candidates, rounds, SAMPLE_SECONDS).items()}


def least_seconds(candidates: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The minimum of many short samples instead: the undisturbed time of short calls."""
    samples = _samples(candidates, SHORT_ROUNDS, SHORT_SAMPLE_SECONDS)
    return {name: min(times) for name, times in samples.items()}


def _samples(candidates: Mapping[str, Callable[[], object]], rounds: int, sample_seconds: float) -> dict[str, list[float]]:
    """The seconds of one call of each candidate, in each round."""
    repeats = {name: _repeats(run, sample_seconds) for name, run in candidates.items()}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    with _no_garbage_collection():
        for _ in range(rounds):
            for name, run in candidates.items():
                samples[name].append(_seconds_per_call(run, repeats[name]))
    return samples


def first_call_seconds(makers: Mapping[str, Callable[[], Callable[[], object]]], rounds: int) -> dict[str, float]:
    """Make a new function in each round and return the median time of its first call, without its construction."""
    samples: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(rounds):
        for name, make in makers.items():
            run = make()
            with _no_garbage_collection():
                samples[name].append(_seconds_per_call(run, repeats=1, clock=time.perf_counter))
    return {name: statistics.median(times) for name, times in samples.items()}


def _repeats(run: Callable[[], object], sample_seconds: float) -> int:
    """The number of calls per sample; the first two calls compile and warm up."""
    run()
    run()
    return max(1, round(sample_seconds / _seconds_per_call(run, repeats=1)))


def _seconds_per_call(run: Callable[[], object], repeats: int, clock: Callable[[], float] = now) -> float:
    started = clock()
    for _ in range(repeats):
        run()
    return (clock() - started) / repeats


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection walks all leftovers of compilers on the heap, during any candidate."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
