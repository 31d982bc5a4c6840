"""Differences from eager that are known, each with the strict expected failure or the document that says so.

As narrow as it can be told: a predicate of one line of difference.
"""

from __future__ import annotations

import re

NOT_SAVED = (
    r"raised nothing; eager: RuntimeError: one of the variables needed for gradient computation has been modified by an",
)
"""A partition recomputes what eager saves: the gradient is that of the forward as it was, where eager raises."""

FREED_TOGETHER = (r"raised RuntimeError: Trying to backward through the graph a second time .*; eager: nothing",)
"""A second backward without `retain_graph`: what a segment saves is freed together."""

KNOWN = (*NOT_SAVED, *FREED_TOGETHER)


def is_known(line: str) -> bool:
    """Whether a line that `compare` found is a known difference."""
    return any(re.match(pattern, line) for pattern in KNOWN)
