"""Measure the partitioner beside its peer, torch's min-cut partitioner, on the same joint graphs.

    python scripts/bench/partition.py --markdown docs/partition_benchmark.md
    python scripts/bench/partition.py --only gpt6 unet

For each model and budget of the peer, our limit is the bytes that the peer's partition really keeps, and then its real peak
memory. Both partitions are judged alike:

    kept        bytes of the distinct storages that the forward hands to the backward, parameters not counted
    recompute   time of what runs in both halves, each op by itself, in percent of the forward
    peak        most bytes alive at any moment of both halves, simulated
    seconds     CPU time of the partition function, everything included
    gap         time above the lower bound (the convex front, and branches of it), in points of a full recomputation

Times of products are in bytes too: floating point operations divided by `FLOPS_PER_BYTE`. What Inductor's kernels move is in
`partition_traffic.py`.
"""

import argparse
import functools
import gc
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.fx as fx
from partition_models import Captured, joint_graph, parser_of
from tabulate import tabulate
from torch._functorch import config as peer_config
from torch._functorch.partitioners import min_cut_rematerialization_partition as peer_partition

from aotgrad.graph import op_table
from aotgrad.ir import JointGraph, Partition
from aotgrad.partition import Objective, costs, min_cut_rematerialization_partition, partition
from aotgrad.partition.adapt import read_halves, read_joint_module
from aotgrad.partition.frontier import Frontier
from aotgrad.partition.graphs import analyze_joint
from aotgrad.partition.items import Costed, Items
from aotgrad.partition.liveness import Simulator
from aotgrad.partition.min_cut import cost_model, peak_frontiers
from aotgrad.partition.peak import PeakFrontier
from aotgrad.partition.policy import FREE_HAND
from aotgrad.partition.program import program_of

BUDGETS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.1, 0.0)
FLOPS_PER_BYTE = 100
MEGABYTE = 1e6
BRANCHES_OF_BOUND = 3
LIMITS = 20  # on the peak, between the lowest and the fastest plan's


@dataclass(frozen=True)
class Plan:
    """The quality of one partition."""

    kept: int
    recompute: float
    peak: int
    seconds: float


class HasBudget(Protocol):
    @property
    def budget(self) -> float: ...


AnyRow = TypeVar("AnyRow", bound=HasBudget)


@dataclass(frozen=True)
class Row:
    """One model at one budget of the peer's: the peer's plan, ours with its bytes, ours with its peak."""

    model: str
    budget: float
    peer: Plan
    same_bytes: Plan
    same_bytes_unfused: Plan
    same_peak: Plan
    gap: float
    gap_to_front: float
    lowest_peak: int
    peaks_out_of_order: int
    bytes_at_equal_time: float


def measure(model: str, budgets: Sequence[float]) -> list[Row]:
    judge = Judge(joint_graph(model))
    return [judge.row(budget) for budget in budgets]


class Judge:
    """Runs the partition functions on one joint graph and judges their plans."""

    def __init__(self, captured: Captured, fuses: bool = False) -> None:
        self.captured = captured
        self.joint = read_joint_module(captured.copy(), captured.num_fwd_outputs, captured.static)
        self.analysis = analyze_joint(self.joint)
        program, self.number = program_of(self.analysis, fuses)
        self.simulator = Simulator(program)
        self.by_name = {node.name: node for node in self.analysis.nodes}
        runs = (node for node in self.analysis.forward if node.op == "call_function")
        self.time_alone = {node.name: costs.time_alone(node, FLOPS_PER_BYTE) for node in runs if self._counts(node)}
        self.forward_time = sum(self.time_alone.values())
        self.objective = Objective(flops_per_byte=FLOPS_PER_BYTE)

    def _counts(self, node: fx.Node) -> bool:
        return not self.analysis.is_view(node) and not op_table.is_getitem(node.target)

    def row(self, budget: float) -> Row:
        peer = self.judge(*self.peer(budget))
        kept, peak = {"memory_budget": peer.kept}, {"memory_budget": peer.peak, "budget_of": "peak"}
        return Row(
            self.captured.name,
            budget,
            peer,
            same_bytes=self.judge(*self.ours(**kept)),
            same_bytes_unfused=self.judge(*self.ours(**kept, fuses=False)),
            same_peak=self.judge(*self.ours(**peak, fuses=False)),
            gap=self._gap(peer.kept, BRANCHES_OF_BOUND),
            gap_to_front=self._gap(peer.kept, 0),
            lowest_peak=self.lowest_peak,
            peaks_out_of_order=self.peaks_out_of_order,
            bytes_at_equal_time=self._bytes_at(peer) / max(1, peer.kept),
        )

    @functools.cached_property
    def items(self) -> Items:
        objective = Objective(fuses=False, flops_per_byte=FLOPS_PER_BYTE)
        return Costed.of(self.analysis, cost_model(self.analysis, objective)).items(FREE_HAND)

    @functools.cached_property
    def front(self) -> Frontier:
        return Frontier(self.items.contraction.problem)

    @functools.cached_property
    def lowest_peak(self) -> int:
        return self.peak_front.lowest().peak

    @functools.cached_property
    def peak_front(self) -> PeakFrontier:
        return peak_frontiers(self.items)[0]

    @functools.cached_property
    def peaks_out_of_order(self) -> int:
        """For limits up to the fastest plan's peak: how many are exceeded, or take more time than a lower one."""
        lowest, highest = self.peak_front.lowest().peak, self.peak_front.fastest.peak
        limits = [lowest + (highest - lowest) * step // LIMITS for step in range(LIMITS + 1)]
        found = [self.peak_front.within(limit) for limit in limits]
        exceeded = sum(each.peak > limit for each, limit in zip(found, limits, strict=True))
        return exceeded + sum(more.solution.time > less.solution.time for less, more in itertools.pairwise(found))

    def _gap(self, limit: int, branches: int) -> float:
        """Our time above the lower bound, in percent of recomputing everything."""
        front = self.front
        found, most = front.within(limit), front.smallest()
        bound = min(front.bound(limit, branches), found.time)  # infinite where nothing fits
        return 100 * (found.time - bound) / max(1, most.time)

    def _bytes_at(self, peer: Plan) -> int:
        """The fewest bytes at which our time is at most that of the peer's plan, by bisection."""
        front = self.front
        wanted = peer.recompute / 100 * self.forward_time
        low, high = front.smallest().kept_bytes, max(peer.kept, front.fastest().kept_bytes)
        for _ in range(12):
            middle = (low + high) // 2
            low, high = (low, middle) if front.within(middle).time <= wanted else (middle, high)
        return high

    # -- the partition functions

    def peer(self, budget: float) -> tuple[Partition, float]:
        module = self.captured.copy()
        gc.collect()
        with peer_config.patch(activation_memory_budget=budget):
            start = time.process_time()
            halves = peer_partition(
                module,
                [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")],
                num_fwd_outputs=self.captured.num_fwd_outputs,
                static_lifetime_input_indices=list(self.captured.static),
            )
            seconds = time.process_time() - start
        return read_peer_halves(self.joint, *halves), seconds

    def ours(self, **objective: Any) -> tuple[Partition, float]:
        joint = read_joint_module(self.captured.copy(), self.captured.num_fwd_outputs, self.captured.static)
        gc.collect()
        start = time.process_time()
        given = Objective(**{**asdict(self.objective), **objective})
        halves = partition(joint, min_cut_rematerialization_partition, given)
        return halves, time.process_time() - start

    # -- quality

    def judge(self, halves: Partition, seconds: float) -> Plan:
        assert halves.backward is not None
        saved = {self.by_name[value.slot.name] for value in halves.saved if value.slot.name in self.by_name}
        bases = {self.analysis.base[node] for node in saved}
        ran = {node.name for node in halves.forward.module.graph.nodes}
        names = (node.name for node in halves.backward.module.graph.nodes if node.name in ran)
        again = sum(self.time_alone.get(name, 0) for name in names)
        return Plan(
            kept=sum(costs.held_bytes(self.analysis, base) for base in bases),
            recompute=100 * again / self.forward_time,
            peak=self.simulator.run({self.number[base] for base in bases}).peak,
            seconds=seconds,
        )


def read_peer_halves(joint: JointGraph, forward: fx.GraphModule, backward: fx.GraphModule) -> Partition:
    """The peer's halves; random ops that it wrongly runs twice are accepted, and counted."""
    from aotgrad.partition import adapt

    check, adapt._check_nothing_runs_twice = adapt._check_nothing_runs_twice, lambda *_: None
    try:
        return read_halves(joint, forward, backward)
    finally:
        adapt._check_nothing_runs_twice = check


# --- Tables ----------------------------------------------------------------------------------------------------------


def geometric_mean(ratios: Iterable[float]) -> float:
    logs = [math.log(max(ratio, 1e-6)) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def summary(rows: list[Row]) -> str:
    """Ratios to the peer at each of its budgets: geometric means over the models, below 1 is better."""
    headers = ["budget", "forward + recompute, equal bytes", "worst", "bytes, equal time", "forward + recompute, equal peak"]
    headers += ["gap, median (max)", "gap to the front", "seconds, bytes", "seconds, peak"]
    return by_budget(headers, rows, summary_cells)


def by_budget(headers: list[str], rows: list[AnyRow], cells: Callable[[list[AnyRow]], list[str]]) -> str:
    budgets = budgets_of(rows)
    return table(headers, [[f"{budget}", *cells([row for row in rows if row.budget == budget])] for budget in budgets])


def summary_cells(rows: list[Row]) -> list[str]:
    unfused = [(100 + row.same_bytes_unfused.recompute) / (100 + row.peer.recompute) for row in rows]
    return [
        f"{geometric_mean(unfused):.3f}",
        f"{max(unfused):.3f}",
        f"{geometric_mean(row.bytes_at_equal_time for row in rows):.3f}",
        f"{geometric_mean((100 + row.same_peak.recompute) / (100 + row.peer.recompute) for row in rows):.3f}",
        median_and_most([row.gap for row in rows]),
        median_and_most([row.gap_to_front for row in rows]),
        f"{geometric_mean(row.same_bytes.seconds / row.peer.seconds for row in rows):.3f}",
        f"{geometric_mean(row.same_peak.seconds / row.peer.seconds for row in rows):.3f}",
    ]


def median_and_most(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({max(values):.2f})"


def lowest_peaks(rows: list[Row]) -> float:
    models = dict.fromkeys(row.model for row in rows)
    pairs = [[(row.lowest_peak, row.peer.peak) for row in rows if row.model == model] for model in models]
    return geometric_mean(min(ours for ours, _ in of_model) / min(peer for _, peer in of_model) for of_model in pairs)


def out_of_order(rows: list[Row]) -> str:
    models = {row.model: [each for each in rows if each.model == row.model] for row in rows}
    peer = sum(is_out_of_order([row.peer.peak for row in of_model]) for of_model in models.values())
    ours = sum(of_model[0].peaks_out_of_order > 0 for of_model in models.values())
    return f"Models where a smaller budget raises the peak, of {len(models)}: {peer} with the peer, {ours} with ours."


def is_out_of_order(peaks: list[int]) -> bool:
    """Whether peaks rise somewhere from the largest budget to the smallest."""
    return any(smaller > larger for larger, smaller in itertools.pairwise(peaks))


def details(rows: list[Row]) -> str:
    headers = ["model", "budget", "kept MB: peer", "ours", "recompute %: peer", "ours, equal bytes", "ours, equal peak"]
    headers += ["peak MB: peer", "ours, equal bytes", "ours, equal peak", "lowest", "seconds: peer", "bytes", "peak"]
    return table(headers, [detail(row) for row in rows])


def detail(row: Row) -> list[str]:
    plans = (row.peer, row.same_bytes, row.same_peak)
    return [
        row.model,
        f"{row.budget}",
        *(f"{plan.kept / MEGABYTE:.0f}" for plan in plans[:2]),
        f"{row.peer.recompute:.1f}",
        f"{row.same_bytes_unfused.recompute:.1f}",
        f"{row.same_peak.recompute:.1f}",
        *(f"{plan.peak / MEGABYTE:.0f}" for plan in plans),
        f"{row.lowest_peak / MEGABYTE:.0f}",
        *(f"{plan.seconds:.2f}" for plan in plans),
    ]


def table(headers: list[str], rows: list[list[str]]) -> str:
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True, stralign="right")


def heading(title: str, models: Iterable[str], legend: str) -> list[str]:
    """The head of a benchmark document: its command, its models, and the place of the legend."""
    script = f"scripts/bench/{Path(sys.argv[0]).name}"
    command = f"python {script} {' '.join(sys.argv[1:])}".strip()
    return [
        f"# {title}",
        f"Made by `{command}` (torch {torch.__version__}). Models: {', '.join(dict.fromkeys(models))}.",
        f"The docstring of `{script}` explains the columns. {legend}",
    ]


def budgets_of(rows: Sequence[HasBudget]) -> list[float]:
    return sorted({row.budget for row in rows}, reverse=True)


def markdown(rows: list[Row]) -> str:
    return "\n\n".join(
        [
            *heading("The partitioner beside its peer", (row.model for row in rows), "Ratios are ours over the peer's."),
            "## Geometric means",
            summary(rows),
            f"Our lowest peak over the peer's lowest at any budget: {lowest_peaks(rows):.3f}.",
            out_of_order(rows),
            "## Each model",
            details(rows),
            "",
        ]
    )


def measured_alone(model: str, args: argparse.Namespace) -> list[Row]:
    """One process per model, so that memory and caches of one do not affect the next."""
    command = [sys.executable, __file__, "--only", model, "--json", "--budgets", *map(str, args.budgets)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{model} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
        return []
    return [read_row(entry) for entry in json.loads(done.stdout.splitlines()[-1])]


def read_row(entry: dict[str, Any]) -> Row:
    fields: dict[str, Any] = {key: Plan(**value) if isinstance(value, dict) else value for key, value in entry.items()}
    return Row(**fields)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--budgets", nargs="+", type=float, default=list(BUDGETS), help="the peer's budgets")
    parser.add_argument("--json", action="store_true", help="print one line of JSON, for one model")
    args = parser.parse_args()
    if args.json:
        print(json.dumps([asdict(row) for row in measure(args.only[0], args.budgets)]))
        return
    rows = []
    for model in args.only:
        rows += measured_alone(model, args)
        text = markdown(rows)
        if args.markdown:  # partial results, in case the next model takes too long
            args.markdown.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
