"""Measure how the time of partitioning grows with the joint graph, beside the peer's: one model with more and more layers.

    python scripts/bench/partition_scaling.py --markdown docs/partition_scaling.md

Seconds are CPU time of a partition function, everything included, the minimum of some rounds. Our limit is the bytes that
the peer's partition keeps (`bytes`), or its peak memory (`peak`). The exponent is the slope of log(seconds) over
log(nodes).
"""

import json
import math
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from partition import Judge, table
from partition_models import joint_graph, parser_of, report
from timing import environment

DEPTHS = ("gpt6", "gpt24", "gpt48", "gpt96", "gpt120")
BUDGETS = (1.0, 0.5)
SIDES = ("peer", "bytes", "peak")


@dataclass(frozen=True)
class Timed:
    """CPU seconds of the partition functions on one joint graph at one budget of the peer."""

    nodes: int
    budget: float
    peer: float
    bytes: float
    peak: float


def measure(model: str, rounds: int) -> list[Timed]:
    judge = Judge(joint_graph(model))
    return [timed(judge, budget, rounds) for budget in BUDGETS]


def timed(judge: Judge, budget: float, rounds: int) -> Timed:
    samples: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        halves, seconds = judge.peer(budget)
        plan = judge.judge(halves, seconds)
        samples["peer"].append(seconds)
        samples["bytes"].append(judge.ours(memory_budget=plan.kept)[1])
        samples["peak"].append(judge.ours(memory_budget=plan.peak, budget_of="peak", fuses=False)[1])
    return Timed(len(judge.analysis.nodes), budget, **{side: min(seconds) for side, seconds in samples.items()})


def measured_alone(model: str, rounds: int) -> list[Timed]:
    """One process per model, so that memory and caches of one do not affect the next."""
    command = [sys.executable, __file__, "--json", "--only", model, "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [Timed(**entry) for entry in json.loads(done.stdout.splitlines()[-1])]


def scaling_table(times: list[Timed]) -> str:
    headers = ["budget", "nodes", "seconds: peer", "ours, bytes", "ours, peak", "ratio, bytes", "ratio, peak"]
    rows = []
    for budget in BUDGETS:
        of_budget = [each for each in times if each.budget == budget]
        rows += [[f"{budget}", str(each.nodes), *cells(each)] for each in of_budget]
        rows.append([f"{budget}", "exponent", *(f"{exponent(of_budget, side):.2f}" for side in SIDES), "", ""])
    return table(headers, rows)


def cells(each: Timed) -> list[str]:
    seconds = [f"{getattr(each, side):.2f}" for side in SIDES]
    return [*seconds, f"{each.bytes / each.peer:.3f}", f"{each.peak / each.peer:.3f}"]


def exponent(times: list[Timed], side: str) -> float:
    """The exponent of a power of the nodes, fitted to the times."""
    nodes, seconds = ([math.log(getattr(each, name)) for each in times] for name in ("nodes", side))
    return statistics.linear_regression(nodes, seconds).slope


def markdown(times: list[Timed], command: str) -> str:
    about = "The docstring of `scripts/bench/partition_scaling.py` explains the columns. Ratios are to the peer's."
    made = f"Made by `{command}` ({environment()})."
    return "\n\n".join(["# Partitioning time as graphs grow", made, about, scaling_table(times), ""])


def main() -> None:
    parser = parser_of(__doc__, DEPTHS)
    parser.add_argument("--rounds", type=int, default=2, help="number of rounds; the minimum time counts")
    parser.add_argument("--json", action="store_true", help="print one line of JSON, for one model")
    args = parser.parse_args()
    if args.json:
        print(json.dumps([asdict(each) for each in measure(args.only[0], args.rounds)]))
        return
    times = [each for model in args.only for each in measured_alone(model, args.rounds)]
    text = markdown(times, f"python scripts/bench/{Path(__file__).name} {' '.join(sys.argv[1:])}".strip())
    report(text, args.markdown)


if __name__ == "__main__":
    main()
