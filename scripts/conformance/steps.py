"""Compares random training steps with eager: python scripts/conformance/steps.py --examples 500 --jobs 2

Prints the number of equal ones, the refused ones with reasons, and every program that differs, reduced. Exit status 1 if
there is one.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import functools
import multiprocessing
import random
import sys
import traceback
from pathlib import Path

import torch
from tabulate import tabulate
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.in_pieces import IN_PIECES
from tests.islands import ISLANDS
from tests.training_step.programs import compare, draw, fails, reduced

BACKENDS = {"eager": "eager", "inductor": "inductor", "pieces": IN_PIECES, "islands": ISLANDS}


def main() -> int:
    arguments = parse_arguments()
    first = arguments.seed * 1_000_000
    numbers = range(first, first + arguments.examples)
    run = functools.partial(run_one, backend=arguments.backend)
    differing, refused = 0, collections.Counter[str]()
    with concurrent.futures.ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        outcomes = pool.map(run, numbers)
        for refusal, difference in tqdm(outcomes, total=len(numbers), unit="program", disable=arguments.quiet):
            refused.update(filter(None, [refusal]))
            if difference is not None:
                differing += 1
                tqdm.write(f"{'-' * 100}\n{difference}")
    rows = [["seed", arguments.seed], ["programs", len(numbers)], ["that differ", differing]]
    print(tabulate([*rows, ["refused with an error", sum(refused.values())]], tablefmt="github"), end="\n\n")
    print(
        tabulate([[count, text] for text, count in refused.most_common()], headers=["programs", "error"], tablefmt="github")
    )
    return 1 if differing else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=200, help="how many programs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="where they start; random by default")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--backend", choices=BACKENDS, default="eager")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser.parse_args()


def run_one(number: int, backend: str) -> tuple[str | None, str | None]:
    """Why a program was refused, and the text of a difference."""
    torch.set_num_threads(1)
    torch._dynamo.reset()
    program = draw(number)
    try:
        return compare(program, BACKENDS[backend]), None
    except Exception:
        if not fails(program, BACKENDS[backend]):
            return "eager raises, too", None
        error = traceback.format_exc(limit=-3)
        smallest = reduced(program, functools.partial(fails, backend=BACKENDS[backend])) if backend == "eager" else program
        return None, f"# program {number}\n{smallest}\n\n{error}"


if __name__ == "__main__":
    sys.exit(main())
