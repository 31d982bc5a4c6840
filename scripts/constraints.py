"""Print the constraints for installing aotgrad into the environment of the running Python.

A package that the environment already has is pinned at the version it has, so that pip never replaces it: a user's own
torch stays. Every other one keeps its line of constraints.txt. Our own .venv was installed from that file and follows
it.
"""

import re
import sys
from importlib import metadata
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def is_our_environment() -> bool:
    return Path(sys.prefix).resolve() == REPOSITORY / ".venv"


def keep_installed(line: str) -> str:
    """The constraint with the installed version, or the line itself where it names nothing installed."""
    name = re.match(r"[\w.-]+", line)
    if name is None:
        return line
    try:
        return f"{name[0]}=={metadata.version(name[0])}"
    except metadata.PackageNotFoundError:
        return line


def main() -> None:
    for line in (REPOSITORY / "constraints.txt").read_text().splitlines():
        print(line if is_our_environment() else keep_installed(line))


if __name__ == "__main__":
    main()
