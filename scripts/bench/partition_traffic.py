"""Measure the traffic of Inductor's kernels with the partitioner's plans and its peer's, on the same joint graphs.

    python scripts/bench/partition_traffic.py --rows traffic_rows --markdown docs/partition_traffic.md

Our limits are the bytes that each of the peer's plans really keeps, and its real peak memory, as in `partition.py`. Random
ops read seeds, as in Inductor. Inductor lowers and fuses both halves of each plan, without generating code:

    kept          bytes of the distinct storages that the forward hands to the backward, parameters not counted
    traffic       bytes that the kernels of both halves read and write, and floating point operations divided by
                  `FLOPS_PER_BYTE`; with the layouts that Inductor chooses, of which our backend lets the forward decide and
                  the peer each half
    overhead      traffic above the peer's at its largest budget, in percent
    bytes, equal traffic
                  the fewest bytes with which ours moves no more than the peer's plan, over what that keeps. Between the
                  plans of ours that were counted (those with the peer's bytes at all budgets, the fastest and the smallest)
                  the traffic is taken for linear in the bytes kept. Where ours never moves as little, the bytes of the
                  fastest plan count. Left out where the peer keeps less than a hundredth of its most.

A model takes minutes. With `--rows` each counted budget is kept in that folder and reused. Remove the folder when the
partitioner has changed.
"""

import argparse
import functools
import gc
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.fx as fx
from partition import BUDGETS, FLOPS_PER_BYTE, MEGABYTE, Judge, Plan, by_budget, geometric_mean, heading, table
from partition_models import Captured, joint_graph, parser_of, report
from torch._inductor import config as inductor_config

from aotgrad import torch_compat
from aotgrad.backends.inductor.backend import apply_strides
from aotgrad.ir import Partition
from aotgrad.partition import costs

GIGABYTE = 1e9
NO_LIMIT = 1 << 50


@dataclass(frozen=True)
class Counted:
    """Bytes of one plan."""

    kept: int
    traffic: int


@dataclass(frozen=True)
class Row:
    """One model at one budget of the peer's: the peer's plan, ours with its bytes, ours with its peak.

    Attributes:
        anew: ours with its bytes if Inductor chooses the backward's layouts, too; `None` without a choice.
        fastest, smallest: the ends of our front, the same at all budgets.
    """

    model: str
    budget: float
    peer: Counted
    same_bytes: Counted
    same_peak: Counted
    anew: Counted | None
    fastest: Counted
    smallest: Counted


class Counter:
    """Counts the traffic of the plans of one joint graph; equal plans are lowered once."""

    def __init__(self, model: str) -> None:
        self.judge = Judge(seeded(joint_graph(model)), fuses=True)
        self.known: dict[tuple[str, str, bool], int] = {}

    def row(self, budget: float) -> Row:
        halves, seconds = self.judge.peer(budget)
        plan = self.judge.judge(halves, seconds)
        return Row(
            self.judge.captured.name,
            budget,
            peer=self.counted(plan, halves, layouts_anew=True),
            same_bytes=self.ours(plan.kept),
            same_peak=self.ours(plan.peak, budget_of="peak"),
            anew=self.ours(plan.kept, layouts_anew=True) if self.has_layouts else None,
            fastest=self.ours(NO_LIMIT),
            smallest=self.ours(0),
        )

    @functools.cached_property
    def has_layouts(self) -> bool:
        """Whether Inductor may choose layouts, as it does for convolutions."""
        graph = self.judge.captured.module.graph
        return bool(graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default))

    def ours(self, memory_budget: int, layouts_anew: bool = False, **objective: Any) -> Counted:
        halves, seconds = self.judge.ours(memory_budget=memory_budget, **objective)
        return self.counted(self.judge.judge(halves, seconds), halves, layouts_anew)

    def counted(self, plan: Plan, halves: Partition, layouts_anew: bool) -> Counted:
        """Settings as in the peer, or as in our backend: the forward chooses the backward's layouts."""
        assert halves.backward is not None
        key = (str(halves.forward.module.graph), str(halves.backward.module.graph), layouts_anew)
        if key not in self.known:
            self.known[key] = traffic(halves) if layouts_anew else traffic(halves, layout_optimization=False)
        return Counted(plan.kept, self.known[key])


def seeded(captured: Captured) -> Captured:
    """The graph with random ops that read seeds, as Inductor makes them before any partitioner sees the graph."""
    from torch._inductor.fx_passes.replace_random import replace_random_passes
    from torch._inductor.virtualized import V

    with V.set_fake_mode(torch_compat.fake_mode_of(captured.module.graph)):
        replace_random_passes(captured.module)
    return captured


# --- Inductor's count ------------------------------------------------------------------------------------------------


def traffic(halves: Partition, **settings: Any) -> int:
    """Bytes that Inductor's kernels of both halves read and write, products as bytes; `settings` are for the backward."""
    assert halves.backward is not None
    forward, strides = kernel_bytes(halves.forward.module)
    apply_strides(halves, strides)
    with inductor_config.patch(settings):
        backward, _ = kernel_bytes(halves.backward.module)
    return forward + backward


def kernel_bytes(module: fx.GraphModule) -> tuple[int, list[tuple[int, ...] | None]]:
    """Lower and fuse a graph with Inductor, without generating code: its traffic, and the strides of its outputs."""
    from torch._inductor.compile_fx import _recursive_post_grad_passes
    from torch._inductor.debug import DebugContext
    from torch._inductor.fx_passes.post_grad import view_to_reshape
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    computed = sum(costs.flops(node) for node in module.graph.nodes if node.op == "call_function") // FLOPS_PER_BYTE
    inputs = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    mode = torch_compat.fake_mode_of(module.graph)
    with V.set_fake_mode(mode), V.set_debug_handler(DebugContext()), torch.no_grad():
        view_to_reshape(module)
        _recursive_post_grad_passes(module, False)
        graph = GraphLowering(module, example_inputs=inputs, shape_env=mode.shape_env)
        with V.set_graph_handler(graph), V.set_extern_kernel_nodes([]):
            graph.run(*inputs)
            graph._update_scheduler()
            moved, _, _ = graph.count_bytes()
            strides = [strides_of(out) for out in graph.graph_outputs]
    return moved + computed, strides


def strides_of(output: Any) -> tuple[int, ...] | None:
    """The strides of an output of Inductor; `None` for numbers."""
    return tuple(int(stride) for stride in output.get_stride()) if output.has_tensor_output() else None


# --- Bytes at equal traffic ------------------------------------------------------------------------------------------


def bytes_at(moved: int, plans: list[Counted]) -> float:
    """The fewest bytes at which a plan between two of `plans` moves at most `moved`; see the module's docstring."""
    by_size = sorted(plans, key=lambda plan: (plan.kept, plan.traffic))
    if by_size[0].traffic <= moved:
        return by_size[0].kept
    for below, above in itertools.pairwise(by_size):
        if above.traffic <= moved:
            share = (below.traffic - moved) / (below.traffic - above.traffic)
            return below.kept + share * (above.kept - below.kept)
    return by_size[-1].kept


def bytes_ratio(row: Row, rows: list[Row]) -> float | None:
    of_model = [each for each in rows if each.model == row.model]
    if 100 * row.peer.kept < max(each.peer.kept for each in of_model):
        return None
    plans = [row.fastest, row.smallest, *(each.same_bytes for each in of_model)]
    return bytes_at(row.peer.traffic, plans) / row.peer.kept


# --- Tables ----------------------------------------------------------------------------------------------------------


def summary(rows: list[Row]) -> str:
    """Ratios to the peer's: geometric means over the models, below 1 is better; overheads are plain means."""
    headers = ["budget", "traffic, equal bytes", "worst", "overhead %: peer", "ours", "ours / peer", "models: median"]
    headers += ["traffic, equal peak", "worst", "bytes, equal traffic"]
    return by_budget(headers, rows, lambda of_budget: summary_cells(of_budget, rows))


def summary_cells(of_budget: list[Row], rows: list[Row]) -> list[str]:
    at_bytes = [row.same_bytes.traffic / row.peer.traffic for row in of_budget]
    at_peak = [row.same_peak.traffic / row.peer.traffic for row in of_budget]
    pairs = [overheads(row, rows) for row in of_budget]
    peer, ours = (statistics.mean(side) for side in zip(*pairs, strict=True))
    each = [mine / its for its, mine in pairs if its > 0]
    return [
        f"{geometric_mean(at_bytes):.3f}",
        f"{max(at_bytes):.3f}",
        f"{100 * peer:.1f}",
        f"{100 * ours:.1f}",
        f"{ours / peer:.2f}" if peer else "",
        f"{statistics.median(each):.2f}" if each else "",
        f"{geometric_mean(at_peak):.3f}",
        f"{max(at_peak):.3f}",
        mean_of_bytes(of_budget, rows),
    ]


def overheads(row: Row, rows: list[Row]) -> tuple[float, float]:
    """For the peer's plan and ours with its bytes."""
    base = max((each for each in rows if each.model == row.model), key=lambda each: each.budget).peer.traffic
    return row.peer.traffic / base - 1, row.same_bytes.traffic / base - 1


def mean_of_bytes(of_budget: list[Row], rows: list[Row]) -> str:
    ratios = [ratio for row in of_budget if (ratio := bytes_ratio(row, rows)) is not None]
    return f"{geometric_mean(ratios):.3f}" if len(ratios) == len(of_budget) else ""


def details(rows: list[Row]) -> str:
    headers = ["model", "budget", "kept MB: peer", "ours", "traffic GB: peer", "ours, equal bytes", "ours, equal peak"]
    headers += ["ours, equal bytes, layouts chosen anew", "bytes, equal traffic"]
    return table(headers, [detail(row, rows) for row in rows])


def detail(row: Row, rows: list[Row]) -> list[str]:
    ratio = bytes_ratio(row, rows)
    plans = (row.peer, row.same_bytes, row.same_peak, row.anew)
    return [
        row.model,
        f"{row.budget}",
        *(f"{plan.kept / MEGABYTE:.0f}" for plan in plans[:2] if plan),
        *(f"{plan.traffic / GIGABYTE:.2f}" if plan else "" for plan in plans),
        "" if ratio is None else f"{ratio:.3f}",
    ]


def markdown(rows: list[Row]) -> str:
    title, models = "The partitioner's traffic, as Inductor counts it", (row.model for row in rows)
    return "\n\n".join(
        [
            *heading(title, models, "Ratios are to the peer's."),
            "## All models",
            summary(rows),
            "## Each model",
            details(rows),
            "",
        ]
    )


# --- One process per model -------------------------------------------------------------------------------------------


def count(model: str, budgets: list[float], kept: Path) -> None:
    """Append the rows of the budgets that `kept` does not have, each as soon as it is counted."""
    missing = [budget for budget in budgets if budget not in {row.budget for row in read_rows(kept)}]
    if not missing:
        return
    counter = Counter(model)
    gc.disable()  # lowering makes many objects and little garbage; `Judge` collects that before each plan
    for budget in missing:
        with kept.open("a") as file:
            print(json.dumps(asdict(counter.row(budget))), file=file)


def read_rows(kept: Path) -> list[Row]:
    return [read_row(json.loads(line)) for line in kept.read_text().splitlines()] if kept.exists() else []


def read_row(entry: dict[str, Any]) -> Row:
    values: dict[str, Any] = {key: Counted(**value) if isinstance(value, dict) else value for key, value in entry.items()}
    return Row(**values)


def rows_of(model: str, args: argparse.Namespace, folder: Path) -> list[Row]:
    """One process per model, so that memory and caches of one do not affect the next."""
    kept = folder / f"{model}.jsonl"
    command = [sys.executable, __file__, "--only", model, "--into", kept, "--budgets", *map(str, args.budgets)]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        print(f"{model} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
    rows = [row for row in read_rows(kept) if row.budget in args.budgets]
    return sorted(rows, key=lambda row: -row.budget)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--budgets", nargs="+", type=float, default=list(BUDGETS), help="the peer's budgets")
    parser.add_argument("--rows", type=Path, help="keep counted rows in this folder, and resume from them")
    parser.add_argument("--into", type=Path, help="append the rows of one model to this file, and print nothing")
    args = parser.parse_args()
    if args.into:
        count(args.only[0], args.budgets, args.into)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.rows or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows = [row for model in args.only for row in rows_of(model, args, folder)]
    text = markdown(rows)
    report(text, args.markdown)


if __name__ == "__main__":
    main()
