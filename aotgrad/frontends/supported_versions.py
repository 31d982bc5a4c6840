"""The versions of torch and Python that aotgrad was tested with. No other module names them.

untested("2.13.0+cpu", (3, 11))        None
untested("2.16.0", (3, 11))            a sentence for a warning
"""

from __future__ import annotations

import re
import sys
import warnings

import torch

Version = tuple[int, int]

TESTED: dict[str, tuple[Version, Version]] = {"torch": ((2, 11), (2, 15)), "Python": ((3, 10), (3, 13))}
"""The first and the last version; docs/versions.md lists the runs."""


def warn_if_untested() -> None:
    """Warn if this torch or this Python is none of `TESTED`."""
    if message := untested(torch.__version__, sys.version_info[:2]):
        warnings.warn(message, stacklevel=3)


def untested(torch_version: str, python_version: Version) -> str | None:
    """The text of a warning about untested versions; `None` if both were tested."""
    found = {"torch": version_numbers(torch_version), "Python": python_version}
    others = [
        f"{name} {version_text(found[name])}" for name, (first, last) in TESTED.items() if not first <= found[name] <= last
    ]
    if not others:
        return None
    tested = " and ".join(f"{name} {version_text(first)} to {version_text(last)}" for name, (first, last) in TESTED.items())
    return (
        f"aotgrad was not tested with {' and '.join(others)}, but with {tested}: it relies on internals of torch and Python "
        "that may differ there; compare with eager before you rely on it, or install a tested version"
    )


def version_numbers(text: str) -> Version:
    """The first two numbers of a version; (0, 0) if it has none."""
    numbers = re.match(r"(\d+)\.(\d+)", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def version_text(version: Version) -> str:
    return ".".join(map(str, version))
