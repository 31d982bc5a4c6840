"""Run the tests with every Python that this machine has and every torch that aotgrad supports, and write docs/versions.md.

    python scripts/versions.py                                        everything, which takes a day
    python scripts/versions.py --torch 2.15 --python 3.11,3.13 tests/numerics tests/torch_compat
    python scripts/versions.py --every 10                             each tenth test, one run a combination
    python scripts/versions.py --table                                the results so far, as a table

Each combination gets its own environment in --folder (by default .versions), created on first use. Each part of the tests
is one run; a part that ran at this commit is skipped, so that the same command resumes a stopped run. A part that takes
longer than --minutes is stopped and counts as not finished.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from aotgrad.frontends.supported_versions import TESTED, Version, version_text

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "versions.md"
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed")
LIBRARIES = re.compile(r"nvidia|cuda|triton")
"""What torch asks for and no test needs: GPU libraries, which are links to one copy, and the compiler for GPUs."""


@dataclass(frozen=True)
class Combination:
    python: str
    torch: str
    interpreter: Path

    @property
    def name(self) -> str:
        return f"py{self.python}-torch{self.torch}"


@dataclass(frozen=True)
class Result:
    """The result of one part of the tests: counts by outcome, none if it did not finish, and the failures."""

    torch: str
    python: str
    part: str
    commit: str
    counts: dict[str, int] | None
    failed: list[str]
    seconds: int


# --- Pythons and torches


def interpreters() -> dict[str, Path]:
    """The newest Python of each version on PATH or in pyenv that torch could support."""
    found: dict[str, Path] = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(10, 20):
        candidates = sorted(pyenv.glob(f"3.{minor}.*/bin/python"), key=lambda path: len(str(path)))
        on_path = shutil.which(f"python3.{minor}")
        chosen = [*([Path(on_path)] if on_path else []), *candidates]
        if chosen:
            found[f"3.{minor}"] = chosen[-1]
    return found


def versions_of_torch() -> list[str]:
    (major, first), (_, last) = TESTED["torch"]
    return [version_text((major, minor)) for minor in range(first, last + 1)]


def combinations(pythons: Sequence[str], torches: Sequence[str]) -> Iterator[Combination]:
    """The newest torch first, each with all Pythons."""
    here = interpreters()
    for python in pythons:
        if python not in here:
            print(f"Python {python}: there is none on PATH, nor in pyenv", file=sys.stderr)
    for torch in sorted(torches or versions_of_torch(), key=numbers, reverse=True):
        for python, interpreter in here.items():
            if python in pythons or not pythons:
                yield Combination(python, torch, interpreter)


def numbers(version: str) -> Version:
    major, minor = version.split(".")
    return int(major), int(minor)


# --- Environments


def environment_of(combination: Combination, folder: Path) -> Path | None:
    """The Python of a combination's environment, created on demand; `None` and the reason if pip finds no such torch."""
    place = folder / combination.name
    python, stamp = place / "bin" / "python", place / "made"
    if not stamp.exists():
        stamp.write_text(make_environment(combination, place, folder) or "")
    if why := stamp.read_text():
        print(f"{combination.name}: no environment: {why}", file=sys.stderr, flush=True)
    return None if why else python


def make_environment(combination: Combination, place: Path, folder: Path) -> str | None:
    """The message of pip if it cannot create one."""
    python = place / "bin" / "python"
    print(f"{combination.name}: making the environment ...", file=sys.stderr, flush=True)
    subprocess.run([combination.interpreter, "-m", "venv", "--clear", place], check=True)
    said = pip(python, "--no-deps", f"torch=={combination.torch}.*")
    if said is None:
        link_libraries(python, folder / f"libraries-{combination.torch}")
        install_aotgrad(python)
        wanted = [*requirements(python, "torch"), *requirements(python, "aotgrad")]
        said = pip(python, "--constraint", str(constraints(place, wanted)), *wanted)
    return said


def pip(python: Path, *arguments: str) -> str | None:
    """The message of pip if it fails."""
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", *arguments], capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else None


def install_aotgrad(python: Path) -> None:
    pip(python, "setuptools>=77")
    pip(python, "--no-deps", "--no-build-isolation", "--editable", str(ROOT))


def requirements(python: Path, package: str) -> list[str]:
    """The requirements of a package and its tests, without GPU libraries and torch."""
    lines = answer(python, f"importlib.metadata.requires({package!r}) or []")
    extra = {"extra": "test" if package == "aotgrad" else ""}
    needed = [each for each in map(Requirement, lines) if each.marker is None or each.marker.evaluate(extra)]
    return [str(each).split(";")[0] for each in needed if not LIBRARIES.match(each.name) and each.name != "torch"]


def answer(python: Path, question: str) -> Any:
    """The value of an expression in an environment."""
    program = f"import importlib.metadata, json, sysconfig; print(json.dumps({question}))"
    return json.loads(subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout)


def constraints(place: Path, wanted: Sequence[str]) -> Path:
    """The versions that CI installs, but for torch, and for what this torch wants in another version."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    needed = [Requirement(each) for each in wanted]
    path = place / "constraints.txt"
    path.write_text("\n".join(line for line in lines if line and is_possible(Requirement(line), needed)))
    return path


def is_possible(pinned: Requirement, needed: Sequence[Requirement]) -> bool:
    (version,) = (each.version for each in pinned.specifier)
    others = [each for each in needed if each.name == pinned.name]
    return pinned.name != "torch" and all(each.specifier.contains(version) for each in others)


def link_libraries(python: Path, shared: Path) -> None:
    """The GPU libraries that torch is linked to, one copy per version of torch."""
    lines = answer(python, "importlib.metadata.requires('torch')")
    wanted = [line.split(";")[0] for line in lines if line.startswith(("nvidia", "cuda-toolkit"))]
    if wanted and not shared.exists():
        pip(python, "--target", str(shared), *wanted, "nvidia-curand")
    if wanted:
        (Path(answer(python, "sysconfig.get_path('purelib')")) / "nvidia").symlink_to(shared.resolve() / "nvidia")


# --- Running


def run_part(python: Path, combination: Combination, part: str, minutes: int) -> Result:
    """Run one part of the tests, one test at a time."""
    start = time.monotonic()
    options = ["-q", "-n", "0", "-rfE", "-p", "no:cacheprovider", "--show-capture=no", "--tb=no"]
    said = output_of([str(python), "-m", "pytest", *options, *files(part)], every(part), minutes)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+::\w+(?:\[.*?\])?)(?= - |$)", said, re.MULTILINE)
    seconds = int(time.monotonic() - start)
    return Result(combination.torch, combination.python, part, commit(), counts(said), failed, seconds)


def output_of(command: list[str], every: int, minutes: int) -> str:
    """The output of a run of every n-th test; empty if it takes too long."""
    alone = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environment, limit = {**os.environ, **alone, "AOTGRAD_TEST_EVERY": str(every)}, 60 * minutes
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout


def counts(said: str) -> dict[str, int] | None:
    """The numbers in pytest's last line: `3 failed, 40 passed in 1.20s`."""
    last = said.strip().splitlines()[-1] if said.strip() else ""
    if not re.search(r" in [\d.]+s", last):
        return None
    found = re.findall(r"(\d+) (passed|failed|error|skipped|xfailed)", last)
    return {outcome: int(number) for number, outcome in found}


def files(part: str) -> list[str]:
    """A folder or file; `tests` alone is the files at its top, except in a sample, which covers all tests."""
    if every(part) > 1:
        return [part.split()[-1]]
    return sorted(map(str, (ROOT / part).glob("test_*.py"))) if part == "tests" else [part]


def every(part: str) -> int:
    """10 for `every 10th of tests`, 1 for all tests of a folder or file."""
    sample = re.match(r"every (\d+)", part)
    return int(sample[1]) if sample else 1


def all_parts() -> list[str]:
    folders = (path.parent.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py"))
    return sorted({str(folder) for folder in folders})


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


# --- Results


def results(folder: Path) -> list[Result]:
    """The results so far, the latest of each part."""
    path = folder / "results.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = [Result(**json.loads(line)) for line in lines]
    return list({(each.torch, each.python, each.part): each for each in found}.values())


def keep(result: Result, folder: Path) -> None:
    with (folder / "results.jsonl").open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def table(found: Sequence[Result]) -> str:
    """A row for each combination with all tests run, and for each part of the others; then the failures."""
    head = ("torch", "Python", "tests", *OUTCOMES[:2], "errors", *OUTCOMES[3:], "seconds", "commit")
    rows = [head, ["---"] * len(head)]
    for combination, results in grouped(found):
        whole = {each.part for each in results} >= set(all_parts()) and all(each.counts is not None for each in results)
        for each in [summed(results)] if whole else results:
            numbered = ["not finished", *[""] * 4] if each.counts is None else [str(each.counts.get(o, 0)) for o in OUTCOMES]
            rows.append([*combination, f"`{each.part}`", *numbered, str(each.seconds), each.commit])
    failed = [f"- {torch}, Python {python}: {files_of(each)}" for (torch, python), each in grouped(found) if names(each)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, *(["", "What failed:", "", *failed] if failed else [])])


def grouped(found: Sequence[Result]) -> Iterator[tuple[tuple[str, str], list[Result]]]:
    """The results of each combination, oldest versions first."""
    in_order = sorted(found, key=lambda each: (numbers(each.torch), numbers(each.python), each.part))
    for combination, results in itertools.groupby(in_order, key=lambda each: (each.torch, each.python)):
        yield combination, list(results)


def summed(results: Sequence[Result]) -> Result:
    """The results of all parts as one; they may be of several commits."""
    parts = [each for each in results if each.part in all_parts()]
    total = sum((Counter(each.counts) for each in parts), Counter())
    commits, failed = sorted({each.commit for each in parts}), [name for each in parts for name in each.failed]
    return replace(
        parts[0], part="all of tests", commit=" ".join(commits), counts=dict(total), failed=failed, seconds=seconds(parts)
    )


def seconds(results: Sequence[Result]) -> int:
    return sum(each.seconds for each in results)


def files_of(results: Sequence[Result]) -> str:
    """The files with failed tests, and the number of each."""
    failed = Counter(name.partition("::")[0] for name in names(results))
    return ", ".join(f"`{file}` {number}" for file, number in sorted(failed.items()))


def names(results: Sequence[Result]) -> list[str]:
    return sorted({name for each in results for name in each.failed})


def write_table(found: Sequence[Result]) -> None:
    before, _, rest = DOCUMENT.read_text().partition("<!-- table -->\n")
    DOCUMENT.write_text(f"{before}<!-- table -->\n{table(found)}\n<!-- end -->{rest.partition('<!-- end -->')[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="folders or files of tests; all if there are none")
    parser.add_argument("--python", type=listed, default=[], metavar="3.10,3.11")
    parser.add_argument("--torch", type=listed, default=[], metavar="2.14,2.15")
    parser.add_argument("--folder", type=Path, default=ROOT / ".versions")
    parser.add_argument("--every", type=int, metavar="N", help="run each N-th test alone")
    parser.add_argument("--minutes", type=int, default=120, help="for one part with one combination")
    parser.add_argument("--table", action="store_true", help="run nothing, write the table")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if not arguments.table:
        run_all(arguments)
    write_table(results(arguments.folder))


def listed(text: str) -> list[str]:
    return text.split(",")


def run_all(arguments: argparse.Namespace) -> None:
    chosen = list(combinations(arguments.python, arguments.torch))
    known = {(each.torch, each.python, each.part) for each in results(arguments.folder) if each.commit == commit()}
    parts = arguments.parts or all_parts()
    if arguments.every:
        parts = [f"every {arguments.every}th of {part}" for part in arguments.parts or ["tests"]]
    steps = [(each, part) for each in chosen for part in parts]
    for k, (each, part) in enumerate(steps, 1):
        if (each.torch, each.python, part) in known:
            continue
        if python := environment_of(each, arguments.folder):
            result = run_part(python, each, part, arguments.minutes)
            keep(result, arguments.folder)
            said = f"{result.counts or 'not finished'}, {result.seconds} s"
            print(f"[{k}/{len(steps)}] {each.name} {part}: {said}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
