"""Times that can be compared on a busy machine: candidates take turns in one process, and medians of the time that the
process had the processor are compared. (First calls, which start other processes, are timed by the clock on the wall. So is
everything with more than one thread, since the processor times of threads add up.)

    seconds = median_seconds({"eager": lambda: f(x), "compiled": lambda: g(x)})
    seconds["eager"] / seconds["compiled"]

A slow spell of the machine then hits all candidates alike, and a median drops the few samples that it hits hardest.
"""

import argparse
import datetime
import gc
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

ROUNDS = 11
SHORT_ROUNDS, SHORT_SAMPLE_SECONDS = 200, 0.001  # So many short ones that some of them meet nobody else.
SAMPLE_SECONDS = 0.02  # Long against the clock's resolution and the loop's own cost, short against a scheduler's slice.


def add_threads(parser: argparse.ArgumentParser) -> None:
    """The option `--threads`, of every program that times what torch computes."""
    text = "of torch; one is the least noisy, more are timed by the clock on the wall (default: %(default)s)"
    parser.add_argument("--threads", type=int, default=1, help=text)


def now() -> float:
    """Seconds: of the processor, or of the clock on the wall if there are several threads."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def environment() -> str:
    """What times depend on besides the code: versions, processor, threads, and the day."""
    return (
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, "
        f"{torch.get_num_threads()} thread(s), {datetime.date.today()}"
    )


def median_seconds(candidates: Mapping[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Call each candidate again and again, in turns, and return the median time of one call of each."""
    return {name: statistics.median(times) for name, times in _samples(candidates, rounds, SAMPLE_SECONDS).items()}


def least_seconds(candidates: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The least time of many short samples instead: what short calls take when nobody else is there."""
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
    """Make something new in each round and return the median time of its first call, making it not included."""
    samples: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(rounds):
        for name, make in makers.items():
            run = make()
            with _no_garbage_collection():
                samples[name].append(_seconds_per_call(run, repeats=1, clock=time.perf_counter))
    return {name: statistics.median(times) for name, times in samples.items()}


def _repeats(run: Callable[[], object], sample_seconds: float) -> int:
    """How many calls make one sample; the first two calls compile and warm up."""
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
    """A collection walks all that compilers leave on the heap, and hits whoever happens to run."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
