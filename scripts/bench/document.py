"""Regenerate the tables of a document, each by the command above it; the rest of the document stays unchanged.

    python scripts/bench/document.py docs/performance.md                       all of them, which takes an hour
    python scripts/bench/document.py docs/performance.md --only overview.py guards.py

A table stands between `<!-- made by: COMMAND -->` and `<!-- end -->`, and is the output of the command. Each is written
as soon as it is finished.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

SECTION = re.compile(r"<!-- made by: (?P<command>.+?) -->\n.*?<!-- end -->", re.DOTALL)
ROOT = Path(__file__).resolve().parents[2]


def commands(text: str, only: Sequence[str] = ()) -> Iterator[str]:
    """The commands in a document; with `only`, those that contain one of its words."""
    found = (match["command"] for match in SECTION.finditer(text))
    return (command for command in found if not only or any(word in command for word in only))


def with_output(text: str, command: str, output: str) -> str:
    """The document with new output under a command."""

    def section(match: re.Match[str]) -> str:
        if match["command"] != command:
            return match[0]
        return f"<!-- made by: {command} -->\n`{command}`\n\n{output.strip()}\n\n<!-- end -->"

    return SECTION.sub(section, text)


def output_of(command: str) -> str:
    """The output of a command; its progress and errors go to stderr."""
    python, *arguments = shlex.split(command)
    assert python == "python", f"not a program of this project: {command}"
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("document", type=Path)
    parser.add_argument("--only", nargs="+", metavar="WORD", default=[], help="commands with one of these in them")
    arguments = parser.parse_args()
    for command in commands(arguments.document.read_text(), arguments.only):
        print(command, file=sys.stderr, flush=True)
        output = output_of(command)
        arguments.document.write_text(with_output(arguments.document.read_text(), command, output))


if __name__ == "__main__":
    main()
