"""The operators of a call in a graph."""

from __future__ import annotations

import torch
import torch.fx as fx

import aotgrad
from aotgrad.eager_calls.ops import CALL, CALL_BACKWARD, CALL_RESULTS, is_eager_call, reasons_of_eager_calls
from aotgrad.graph import op_table
from tests.eager_calls.functions import ISLANDS, exponential, leaf


def test_a_call_has_an_effect_and_its_other_ops_have_none():
    assert op_table.has_effect(CALL) and op_table.is_kept_when_dead(CALL)
    assert not op_table.has_effect(CALL_RESULTS) and not op_table.has_effect(CALL_BACKWARD)
    assert not is_eager_call(torch.ops.aten.sin.default)


def test_the_ops_of_a_call_have_a_reason():
    run = aotgrad.aot_function(lambda x: exponential(x.cos()), "eager", options=ISLANDS)
    run(leaf())
    graph = run.plans()[0].executable.joint.module.graph
    reasons = reasons_of_eager_calls(graph)
    assert [node.target for node in reasons] == [CALL, CALL_RESULTS, CALL_BACKWARD]
    assert set(reasons.values()) == {"exponential is not traced: it is marked as an island"}
    assert reasons_of_eager_calls(fx.Graph()) == {}


def test_a_call_whose_result_is_unused_runs():
    calls = []
    noted = aotgrad.island(lambda x: calls.append(float(x.sum())))
    run = aotgrad.aot_function(lambda x: (noted(x), x.cos())[1], "eager", options=ISLANDS)
    run(torch.ones(2))
    calls.clear()
    run(torch.ones(2))
    assert calls == [2.0]
