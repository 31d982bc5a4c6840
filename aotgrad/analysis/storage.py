"""Groups positions by key, for values that share memory. No torch."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence


def group_by_key(keys: Mapping[int, Hashable]) -> list[tuple[int, ...]]:
    """Positions with equal keys, as tuples in order of first appearance.

    >>> group_by_key({0: "a", 2: "b", 3: "a"})
    [(0, 3), (2,)]
    """
    groups: dict[Hashable, list[int]] = {}
    for position, key in keys.items():
        groups.setdefault(key, []).append(position)
    return [tuple(group) for group in groups.values()]


def first_positions(keys: Sequence[Hashable]) -> dict[Hashable, int]:
    """The first position of each key; `None` keys are skipped.

    >>> first_positions(["a", None, "b", "a"])
    {'a': 0, 'b': 2}
    """
    positions: dict[Hashable, int] = {}
    for position, key in enumerate(keys):
        if key is not None:
            positions.setdefault(key, position)
    return positions
