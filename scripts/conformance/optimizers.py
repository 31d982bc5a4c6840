"""Trains models with every configuration of torch's optimizers, beside eager: bit for bit, after each step.

    python scripts/conformance/optimizers.py --jobs 2
    python scripts/conformance/optimizers.py --models vae gpt2 --optimizers AdamW --steps 5 --backend inductor

Prints a table, and each training that differs. Exit status 1 if there is one. Where eager raises, nothing is compared.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import functools
import itertools
import multiprocessing
import sys
import traceback
import warnings
from pathlib import Path

import torch
from tabulate import tabulate
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.training_step.comparing import assert_trains_like_eager, build, run
from tests.training_step.configurations import CONFIGURATIONS, MODELS, batches_of, training_of

EQUAL, RAISES = "equal", "raises in eager"


def main() -> int:
    arguments = parse_arguments()
    kinds = arguments.optimizers or sorted({configuration.kind.__name__ for configuration in CONFIGURATIONS})
    places = [k for k, configuration in enumerate(CONFIGURATIONS) if configuration.kind.__name__ in kinds]
    cases = [*itertools.product(arguments.models, places)]
    train = functools.partial(train_one, steps=arguments.steps, backend=arguments.backend)
    found: dict[str, collections.Counter[str]] = {kind: collections.Counter() for kind in kinds}
    with concurrent.futures.ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        outcomes = zip(cases, pool.map(train, *zip(*cases, strict=True)), strict=True)
        for (name, place), outcome in tqdm(outcomes, total=len(cases), unit="training", disable=arguments.quiet):
            configuration = CONFIGURATIONS[place]
            found[configuration.kind.__name__][outcome if outcome in (EQUAL, RAISES) else "different"] += 1
            if outcome not in (EQUAL, RAISES):
                tqdm.write(f"{'-' * 100}\n{name}, {configuration}\n{outcome}")
    headers = (EQUAL, RAISES, "different")
    rows = [[kind, counts.total(), *(counts[header] for header in headers)] for kind, counts in found.items()]
    total = [sum(column) for column in list(zip(*rows, strict=True))[1:]]
    print(f"{len(arguments.models)} models, {len(places)} configurations, {arguments.steps} steps\n")
    print(tabulate([*rows, ["all", *total]], headers=["optimizer", "trainings", *headers], tablefmt="github"))
    return 1 if total[-1] else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS], metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--optimizers", nargs="+", metavar="OPTIMIZER", help="names of classes (default: all)")
    parser.add_argument("--steps", type=int, default=20, help="of each training (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--backend", choices=("eager", "inductor"), default="eager")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser.parse_args()


def train_one(name: str, place: int, steps: int, backend: str) -> str:
    """`EQUAL`, `RAISES`, or the text of a difference."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    case, configuration = MODELS[name], CONFIGURATIONS[place]
    make, data = functools.partial(training_of, case, configuration), batches_of(case, steps)
    try:
        training = build(make)
        for batch in data[:2]:
            run(training.step, *batch)
    except Exception:
        return RAISES
    try:
        assert_trains_like_eager(make, data, backend)
    except Exception:
        return traceback.format_exc(limit=-3)
    return EQUAL


if __name__ == "__main__":
    sys.exit(main())
