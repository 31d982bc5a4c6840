"""Counts of what aotgrad did in this process.

    >>> import aotgrad
    >>> aotgrad.counters["compilations"] >= 0
    True

`compilations`: plans made. `value_guards`: those that hold for some values of their arguments only.
`small_graphs`: functions that run as they are (option `min_graph_ops`). `graphs`: graphs handed to backends. `hits`,
`misses`: calls that found a plan, or did not. `fallbacks`: calls that could have none, and ran eagerly. `transformed`:
calls inside of a `torch.func` transform that ran compiled. `inlined`: those that ran the original function, and
derivatives of functions that did. `eager_on_error`: functions and backwards that could not be compiled and run eagerly,
as the option `on_error` said.

Of the cache on disk (`docs/cache.md`): `cache_hits` and `cache_misses` are functions that it had or not, `artefact_hits` and
`artefact_misses` graphs of which it had Inductor's code or not, `cache_bypasses` functions that cannot be stored,
`cache_failures` files that could not be used.
"""

from __future__ import annotations

from collections import Counter


class FastCounter(Counter[str]):
    """A `Counter` that is changed as fast as a `dict`: its own `__delitem__`, in Python, makes every assignment slow."""

    __setitem__ = dict.__setitem__
    __delitem__ = dict.__delitem__  # pyright: ignore[reportAssignmentType]


counters = FastCounter()
