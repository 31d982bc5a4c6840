"""Counters of events in this process.

    >>> import aotgrad
    >>> aotgrad.counters["compilations"] >= 0
    True

`compilations`: plans compiled. `value_guards`: plans with guards on values of arguments. `small_graphs`: functions too small
to compile (option `min_graph_ops`). `graphs`: graphs given to backends. `hits`, `misses`: calls that found a plan, or did
not. `fallbacks`: calls without a plan that ran eagerly. `transformed`: calls inside a `torch.func` transform that ran
compiled. `inlined`: calls inside a transform that ran the original function, and derivatives of such functions.
`eager_on_error`: functions and backwards that failed to compile and run eagerly (option `on_error`). `shared_pieces`: pieces
of graphs that run the code of an equal one (option `share_layers`).

The cache on disk (`docs/cache.md`) counts: `cache_hits` and `cache_misses`: functions that it contained, or did not;
`artefact_hits` and `artefact_misses`: graphs whose Inductor code it contained, or did not; `cache_bypasses`: functions that
cannot be stored; `cache_failures`: files that could not be used.
"""

from __future__ import annotations

from collections import Counter


class FastCounter(Counter[str]):
    """A `Counter` as fast as a `dict`: the `__delitem__` of `Counter`, in Python, slows down every assignment."""

    __setitem__ = dict.__setitem__
    __delitem__ = dict.__delitem__  # pyright: ignore[reportAssignmentType]


counters = FastCounter()
