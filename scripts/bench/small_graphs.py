"""Measure the number of ops from which compiling a graph pays: the basis of the default of `min_graph_ops`.

    python scripts/bench/small_graphs.py
    python scripts/bench/small_graphs.py --ops 1 2 3 --markdown small_graphs.md
    python scripts/bench/small_graphs.py --ops --lone --threads 2
    python scripts/bench/small_graphs.py --ops --peer

A function of a few ops goes through `torch.compile(backend="aotgrad")` twice: compiled by Inductor (`min_graph_ops=0`), and
left alone, so that Dynamo's graph runs eagerly. Both include Dynamo's guards, in one process and in turns. Ratios are left
alone over compiled: above 1, compiling saves time. The last column is the cost of the compilation, with cold caches.

--lone measures functions of one op by kind: the basis of `aotgrad/backends/lone_ops.py`.

--peer measures them beside `torch.compile(backend="inductor")`: aotgrad with its defaults, over the peer. The floor is the
faster one of the op in eager and the compiled graphs alone, without guards, autograd and Python.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from graph_calls import GraphCalls, recorded
from tabulate import tabulate
from timing import add_threads, environment, median_seconds
from torch import Tensor
from torch._inductor.utils import fresh_cache
from torch.nn import functional

import aotgrad
from aotgrad.backends import get

Function = Callable[[Tensor, Tensor], Tensor]

SIZES = (64, 16_384, 1_048_576)
SIZES_OF_LONE = (4_096, 65_536, 4_194_304)
SIZE_WITH_PEER = 4_194_304
ROW = 64
ALONE, COMPILED = 1024, 0
CHAIN: tuple[Callable[..., Tensor], ...] = (
    torch.mul,
    torch.sin,
    torch.add,
    torch.tanh,
    torch.sub,
    torch.sigmoid,
    torch.mul,
    torch.cos,
)


def chain(count: int) -> Function:
    """`count` pointwise ops, one after the other."""

    def run(x: Tensor, y: Tensor) -> Tensor:
        for op in CHAIN[:count]:
            x = op(x) if op in (torch.sin, torch.tanh, torch.sigmoid, torch.cos) else op(x, y)
        return x

    return run


def product(x: Tensor, y: Tensor) -> Tensor:
    """One op that no compiler makes faster."""
    side = int(x.numel() ** 0.5)
    return x.view(side, side) @ y.view(side, side)


@functools.cache
def backwards(count: int) -> Tensor:
    """Indices."""
    return torch.arange(count - 1, -1, -1)


def rows(x: Tensor) -> Tensor:
    return x.view(-1, ROW)


LONE: dict[str, Function] = {  # some are several ops to Inductor
    "x[indices]": lambda x, y: x[backwards(x.numel())],
    "x.gather(0, indices)": lambda x, y: x.gather(0, backwards(x.numel())),
    "x.flip(0)": lambda x, y: x.flip(0),
    "x.t().contiguous()": lambda x, y: rows(x).t().contiguous(),
    "x.sin()": lambda x, y: x.sin(),
    "x / y": torch.div,
    "x + y": torch.add,
    "x.tanh()": lambda x, y: x.tanh(),
    "x.exp()": lambda x, y: x.exp(),
    "x.relu()": lambda x, y: x.relu(),
    "x.abs()": lambda x, y: x.abs(),
    "maximum(x, y)": torch.maximum,
    "atan2(x, y)": torch.atan2,
    "addcmul(x, x, y)": lambda x, y: torch.addcmul(x, x, y),
    "x.tanh() * y": lambda x, y: x.tanh() * y,
    "gelu(x)": lambda x, y: functional.gelu(x),
    "gelu(x), tanh": lambda x, y: functional.gelu(x, approximate="tanh"),
    "softmax(x, 1)": lambda x, y: rows(x).softmax(1),
    "layer_norm(x)": lambda x, y: functional.layer_norm(rows(x), (ROW,)),
    "x.sum(0)": lambda x, y: rows(x).sum(0),
    "x.amax(1)": lambda x, y: rows(x).amax(1),
    "x.var(1)": lambda x, y: rows(x).var(1),
    "x.cumsum(1)": lambda x, y: rows(x).cumsum(1),
}


def compiled(function: Function, min_graph_ops: int) -> Function:
    torch._dynamo.reset()
    return torch.compile(
        function, backend="aotgrad", fullgraph=True, dynamic=False, options={"min_graph_ops": min_graph_ops}
    )


def forward(function: Function, inputs: tuple[Tensor, Tensor]) -> None:
    with torch.no_grad():
        function(*inputs)


def train(function: Function, inputs: tuple[Tensor, Tensor]) -> None:
    result = function(*inputs)
    result.backward(torch.ones_like(result))


def cells(function: Function, size: int, run: Callable) -> tuple[list[str], float]:
    """Time left alone, time compiled, their ratio, and the seconds of the compilation."""
    inputs = torch.randn(size, requires_grad=True), torch.randn(size, requires_grad=True)
    alone = compiled(function, ALONE)
    run(alone, inputs)
    with fresh_cache():
        fast = compiled(function, COMPILED)
        started = time.perf_counter()
        run(fast, inputs)
        cold = time.perf_counter() - started
        seconds = median_seconds({"alone": partial(run, alone, inputs), "compiled": partial(run, fast, inputs)})
    microseconds = [seconds["alone"] * 1e6, seconds["compiled"] * 1e6]
    return [*(f"{value:.1f}" for value in microseconds), f"{microseconds[0] / microseconds[1]:.2f}"], cold


def gradients(function: Function, inputs: tuple[Tensor, Tensor], tangents: dict[torch.Size, Tensor]) -> None:
    """A forward and its backward, which accumulates nothing."""
    result = function(*inputs)
    tangent = tangents.setdefault(result.shape, torch.ones_like(result))
    torch.autograd.grad(result, inputs, tangent, allow_unused=True)


def graphs_alone(function: Function, run: Callable[[Function], None]) -> Callable[[], None]:
    """The compiled graphs of a call."""

    def compiled(graphs: GraphCalls) -> Callable[[], None]:
        return partial(run, aotgrad.aot_function(function, graphs, options={"min_graph_ops": COMPILED}))

    return recorded(get("inductor"), compiled).replay


def beside_peer(function: Function, run: Callable[[Function], None]) -> list[str]:
    """The peer's time, and over it aotgrad's and the floor."""
    torch._dynamo.reset()
    candidates: dict[str, Callable[[], Any]] = {"eager": partial(run, function)}
    candidates["eager"]()  # makes constants, which no trace must make
    for backend in ("inductor", "aotgrad"):
        candidates[backend] = partial(run, torch.compile(function, backend=backend, fullgraph=True, dynamic=False))
        candidates[backend]()
    candidates["graphs"] = graphs_alone(function, run)
    seconds = median_seconds(candidates)
    peer, floor = seconds["inductor"], min(seconds["eager"], seconds["graphs"])
    return [f"{peer * 1e6:.1f}", *(f"{time / peer:.2f}" for time in (seconds["aotgrad"], floor))]


def table_with_peer(functions: dict[str, Function], size: int) -> str:
    inputs = torch.randn(size, requires_grad=True), torch.randn(size, requires_grad=True)
    ways = partial(forward, inputs=inputs), partial(gradients, inputs=inputs, tangents={})
    rows = []
    for name, function in functions.items():
        rows.append([name, *(text for way in ways for text in beside_peer(function, way))])
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    columns = ["Inductor (µs)", "aotgrad", "floor"]
    headers = [f"{size} elements", f"forward, {columns[0]}", *columns[1:], f"with backward, {columns[0]}", *columns[1:]]
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True, colalign=("left", *["right"] * 6))


def chains(counts: list[int]) -> dict[str, Function]:
    return {"1 matrix product": product, **{f"{count} pointwise": chain(count) for count in counts}}


def table(functions: dict[str, Function], sizes: Sequence[int]) -> str:
    rows = []
    for size in sizes:
        for name, function in functions.items():
            inference, _ = cells(function, size, forward)
            training, cold = cells(function, size, train)
            rows.append([f"{name}, {size} elements", *inference, *training, f"{cold:.1f}"])
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    headers = ["", "forward, alone (µs)", "compiled", "ratio", "with backward, alone", "compiled", "ratio", "compile (s)"]
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True, colalign=("left", *["right"] * 7))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="*", type=int, default=[1, 2, 3, 4, 8], choices=range(1, len(CHAIN) + 1))
    parser.add_argument("--lone", action="store_true", help="one op of each kind")
    parser.add_argument("--peer", action="store_true", help="one op of each kind, beside Inductor through torch.compile")
    parser.add_argument("--only", nargs="+", choices=LONE, default=list(LONE), help="these of one op")
    add_threads(parser)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table to a file, too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    lone = {name: LONE[name] for name in arguments.only}
    tables = [table(chains(arguments.ops), SIZES)] if arguments.ops else []
    tables += [table(lone, SIZES_OF_LONE)] if arguments.lone else []
    meanings = ["ratio = left alone / compiled"] if tables else []
    if arguments.peer:
        tables.append(table_with_peer(lone, SIZE_WITH_PEER))
        meanings.append("aotgrad and its floor over Inductor")
    text = "\n\n".join((f"{environment()}; medians; {'; '.join(meanings)}", *tables)) + "\n"
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
