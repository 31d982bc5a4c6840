"""Make the tables of a document again, each by the command that it stands under; the rest of the document is left alone.

    python scripts/bench/document.py docs/performance.md                       all of them, which takes an hour
    python scripts/bench/document.py docs/performance.md --only overview.py guards.py

A table stands between `<!-- made by: COMMAND -->` and `<!-- end -->`, and is what the command prints. Each is written as
soon as it is there.
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
    """The commands in a document in which one of the words of `only` is, if there are any."""
    found = (match["command"] for match in SECTION.finditer(text))
    return (command for command in found if not only or any(word in command for word in only))


def with_output(text: str, command: str, output: str) -> str:
    """A document with other output under a command."""

    def section(match: re.Match[str]) -> str:
        if match["command"] != command:
            return match[0]
        return f"<!-- made by: {command} -->\n`{command}`\n\n{output.strip()}\n\n<!-- end -->"

    return SECTION.sub(section, text)


def output_of(command: str) -> str:
    """What a command prints; what it says on the way goes to stderr, as its errors do."""
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
