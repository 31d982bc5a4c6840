"""The counters."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import aotgrad


def counted(run) -> dict[str, int]:
    before = Counter(aotgrad.counters)
    run()
    return {name: count - before[name] for name, count in aotgrad.counters.items() if count != before[name]}


def test_a_first_call_misses_and_compiles_and_a_second_hits():
    function = aotgrad.aot_function(torch.sin, aotgrad.nop)
    first = counted(lambda: function(torch.ones(2)))
    assert (first["misses"], first["compilations"]) == (1, 1)
    assert counted(lambda: function(torch.zeros(2))) == {"hits": 1}


def test_calls_beyond_the_limit_are_counted_as_fallbacks():
    function = aotgrad.aot_function(torch.sin, aotgrad.nop, options={"plan_limit": 1})
    function(torch.ones(1))
    with pytest.warns(UserWarning, match="has 1 plans, the limit"):
        assert counted(lambda: function(torch.ones(2)))["fallbacks"] == 1
