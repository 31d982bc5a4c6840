"""Many threads that all need the same functions compiled, in a process that has compiled nothing yet.

    python -m tests.plan_cache.cold_threads inductor --threads 8 --regions 40

Every thread calls every region, each in another order, so that threads meet: at first calls, at first backwards, and at the
other compilations of a backward (some of the gradients, gradients of gradients, a batch of backwards). Results are compared
with eager. Prints the failures, and exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

import aotgrad
from aotgrad.options import Options
from aotgrad.plan_cache.binding import bind
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.compiler import make_compiler

DYNAMO_IS_BUSY = "you are using FX to symbolically trace"
"""Torch refuses a call of what `torch.compile` returned as long as another thread traces with FX, as Inductor does."""


def products(x, w):
    """Inductor calls a library for these, and generates no code that takes a C++ compiler seconds."""
    return ((x @ w) @ w.t()) @ w


def pointwise(x, w):
    return ((x @ w).sin() @ w.t()).exp()


def region(k: int) -> Callable:
    """A separate function with its own code object, since Dynamo caches by code."""
    function = pointwise if k == 0 else products
    code = function.__code__.replace(co_name=f"region_{k}")
    return types.FunctionType(code, globals(), f"region_{k}")


def compiled(function: Callable, how: str) -> Callable:
    if how.startswith("dynamo_"):
        backend = {"dynamo_inductor": "aotgrad", "dynamo_eager": "aotgrad_eager"}[how]
        return torch.compile(function, backend=backend, dynamic=False, options={"min_graph_ops": 0})
    compiler = make_compiler(how, Options.from_mapping({"min_graph_ops": 0}))
    return bind(function, PlanCache(compiler, function.__name__))


def inputs(k: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(k)
    shapes = ((3, k + 2), (k + 2, 4))
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]


def whole(function: Callable, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(function(x, w).sum(), (x, w))


def some(function: Callable, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(function(x, w).sum(), (x,))


def twice(function: Callable, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    (first,) = torch.autograd.grad(function(x, w).sum(), (x,), create_graph=True)
    return torch.autograd.grad(first.sum(), (w,))


def batched(function: Callable, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    result = function(x, w)
    return torch.autograd.grad(result, (x, w), torch.ones(2, *result.shape), is_grads_batched=True)


KINDS = (some, twice, batched)


def call(use: Callable, function: Callable, k: int) -> tuple[torch.Tensor, ...]:
    """One call and its backward; retried where Dynamo cannot be called beside a trace."""
    while True:
        try:
            return use(function, *inputs(k))
        except RuntimeError as error:
            if DYNAMO_IS_BUSY not in str(error):
                raise


def problems(how: str, threads: int, regions: int) -> Iterator[str]:
    eager = [region(k) for k in range(regions)]
    functions = [compiled(function, how) for function in eager]
    barrier = threading.Barrier(threads)

    def work(thread: int) -> list[str]:
        found = []
        barrier.wait()
        for step in range(regions):
            k = (step + thread * regions // threads) % regions
            for use in (whole, KINDS[k % len(KINDS)]):
                try:
                    torch.testing.assert_close(call(use, functions[k], k), use(eager[k], *inputs(k)))
                except Exception:
                    found.append(f"thread {thread}, region {k}, {use.__name__}: {traceback.format_exc()}")
        return found

    with ThreadPoolExecutor(threads) as pool:
        for found in pool.map(work, range(threads)):
            yield from found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=["inductor", "eager", "dynamo_inductor", "dynamo_eager"])
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--regions", type=int, default=40)
    given = parser.parse_args()
    found = list(problems(given.how, given.threads, given.regions))
    print(*found[:3], sep="\n")
    print(f"{len(found)} problems; {dict(aotgrad.counters)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
