"""Which versions of torch and Python aotgrad was tested with: the only place that says so.

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
"""The first and the last version; docs/versions.md says what was run with which."""


def warn_if_untested() -> None:
    """One warning, if this torch or this Python is none of `TESTED`."""
    if message := untested(torch.__version__, sys.version_info[:2]):
        warnings.warn(message, stacklevel=3)


def untested(torch_version: str, python_version: Version) -> str | None:
    """What a warning says of versions that nobody has tested; `None` for those that were."""
    found = {"torch": version_of(torch_version), "Python": python_version}
    others = [f"{name} {written(found[name])}" for name, (first, last) in TESTED.items() if not first <= found[name] <= last]
    if not others:
        return None
    tested = " and ".join(f"{name} {written(first)} to {written(last)}" for name, (first, last) in TESTED.items())
    return (
        f"aotgrad was not tested with {' and '.join(others)}, but with {tested}: what it knows of torch's and Python's own "
        "ways may be wrong there; compare with eager before you rely on it, or install a tested version"
    )


def version_of(text: str) -> Version:
    """The first two numbers of a version; (0, 0) where there are none."""
    numbers = re.match(r"(\d+)\.(\d+)", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def written(version: Version) -> str:
    return ".".join(map(str, version))
