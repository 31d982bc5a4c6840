"""Leaves out tests that were collected, so that pytest counts them as deselected."""

from __future__ import annotations

from collections.abc import Collection

import pytest


def deselect(config: pytest.Config, items: list[pytest.Item], left_out: Collection[pytest.Item]) -> None:
    """Take the tests that are left out from `items`."""
    gone = set(left_out)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in gone]
