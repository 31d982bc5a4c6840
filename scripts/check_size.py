"""Print the lengths of aotgrad's files and functions, beside those of its model codebases.

    python scripts/check_size.py            aotgrad/
    python scripts/check_size.py tests      another folder

A function counts from its `def` line to its last line, docstring included. Lines of code are those that are neither blank
nor comments, docstrings or imports. These are examples to follow, not limits: this program never fails.
"""

import ast
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

REPOSITORY = Path(__file__).resolve().parent.parent
LONG_FUNCTION_LINES = 100
LONGEST_SHOWN = 10

# Measured in the same way.
MODELS = (
    ("JAX docs/autodidax.py", "one file", "4 / 12 / 49", "0 of 254"),
    ("xDSL xdsl/", "148 / 833 / 5972", "7 / 29 / 811", "42 of 6453"),
    ("equinox", "133 / 509 / 1278", "7 / 40 / 428", "15 of 731"),
    ("tinygrad", "179 / 672 / 1984", "4 / 21 / 834", "10 of 3064"),
    ("torch/_functorch/_aot_autograd", "657 / 1554 / 3855", "12 / 71 / 718", "37 of 583"),
)


@dataclass(frozen=True)
class Function:
    place: str
    name: str
    lines: int


def functions_in(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            place = f"{path.relative_to(REPOSITORY)}:{node.lineno}"
            yield Function(place, node.name, (node.end_lineno or node.lineno) - node.lineno + 1)


def code_lines(source: str) -> int:
    """The number of code lines of a file."""
    others: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        is_import = isinstance(node, (ast.Import, ast.ImportFrom))
        if is_import or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            others.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(map(str.strip, source.splitlines()), 1)
    return sum(number not in others and bool(line) and not line.startswith("#") for number, line in lines)


def percentile_90(sizes: Sequence[int]) -> int:
    return sorted(sizes)[int(0.9 * (len(sizes) - 1))]


def spread(sizes: Sequence[int]) -> str:
    return f"{statistics.median(sizes):.0f} / {percentile_90(sizes)} / {max(sizes)}"


def comparison_table(folder: Path, file_lines: Sequence[int], functions: Sequence[Function]) -> str:
    lines = [function.lines for function in functions]
    long = sum(size > LONG_FUNCTION_LINES for size in lines)
    ours = (f"{folder.relative_to(REPOSITORY)}/", spread(file_lines), spread(lines), f"{long} of {len(lines)}")
    headers = ["tree", "file lines (median / p90 / max)", "function lines", f"over {LONG_FUNCTION_LINES} lines"]
    return tabulate([ours, *MODELS], headers=headers, tablefmt="github")


def longest_table(functions: Sequence[Function]) -> str:
    longest = sorted(functions, key=lambda function: function.lines, reverse=True)[:LONGEST_SHOWN]
    rows = [(function.lines, function.name, function.place) for function in longest]
    return tabulate(rows, headers=["lines", "longest functions", "place"], tablefmt="github")


def main() -> None:
    folder = REPOSITORY / (sys.argv[1] if len(sys.argv) > 1 else "aotgrad")
    paths = sorted(folder.rglob("*.py"))
    functions = [function for path in paths for function in functions_in(path)]
    if not functions:
        sys.exit(f"no Python functions under {folder}")
    texts = [path.read_text() for path in paths]
    file_lines = [len(text.splitlines()) for text in texts]
    print(f"{len(paths)} files, {sum(file_lines)} lines, {sum(map(code_lines, texts))} of them code\n")
    print(comparison_table(folder, file_lines, functions), longest_table(functions), sep="\n\n")


if __name__ == "__main__":
    main()
