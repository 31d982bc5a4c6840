"""A progress bar, where tqdm is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def progress_bar(items: Iterable[T], total: int, title: str, quiet: bool) -> Iterable[T]:
    """The items, as they pass; no bar for none."""
    if quiet or not total or importlib.util.find_spec("tqdm") is None:
        return items
    from tqdm import tqdm

    return tqdm(items, total=total, desc=title, unit="check")
