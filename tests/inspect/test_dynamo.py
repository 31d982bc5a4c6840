"""`aotgrad.explain(fn, dynamo=True)`: each of Dynamo's graphs, and the graph breaks."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.errors import CaptureError

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # Dynamo reads it of every tensor
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]


class Talking(nn.Module):
    """Prints in the middle, so Dynamo makes two graphs."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(2, 3), nn.BatchNorm1d(3)

    def forward(self, x, batch):
        hidden = self.norm(self.first(x)) + batch["shift"]
        print("between")
        return helper(hidden)


def helper(hidden):
    return hidden.sin()


def arguments():
    return torch.ones(4, 2), {"shift": torch.ones(3, requires_grad=True)}


def test_each_graph_and_what_broke_them(capsys):
    model = Talking()
    report = aotgrad.explain(torch.compile(model), dynamo=True)(*arguments())
    first, second = report.graphs
    assert [row.name for row in first.inputs if row.kind == "argument"] == ["x", "batch['shift']"]
    assert {row.name: row.happened for row in first.inputs}["norm.running_mean"].startswith("data mutated")
    assert [(row.name, row.kind) for row in first.inputs if row.name == "first.weight"] == [("first.weight", "parameter")]
    assert [row.name for row in second.saved] == ["hidden"]
    (broken,) = report.breaks
    assert broken.where.code == 'print("between")' and "print" in broken.reason
    assert capsys.readouterr().out == "between\n"


def test_nothing_of_the_users_changes():
    model, (x, batch) = Talking(), arguments()
    aotgrad.explain(model, dynamo=True)(x, batch)
    assert model.norm.num_batches_tracked == 0
    written = torch.zeros(2)
    aotgrad.explain(lambda x: x.add_(1), dynamo=True)(written)
    assert torch.equal(written, torch.zeros(2))


def test_a_function_without_a_break():
    x = torch.ones(2, requires_grad=True) * 1
    report = aotgrad.explain(lambda x: x.exp(), dynamo=True)(x)
    assert report.breaks == () and [row.gradient for row in report.graphs[0].inputs] == ["computed"]
    assert str(report).splitlines()[0].endswith(": Dynamo makes 1 graph of it")


def test_a_graph_that_runs_twice_is_explained_once():
    """Dynamo leaves a loop with a graph break to Python; the helper is one graph for all its calls."""

    def function(x):
        for _ in range(2):
            x = helper(x)
            torch._dynamo.graph_break()
        return x

    assert len(aotgrad.explain(function, dynamo=True)(torch.ones(2)).graphs) == 1


def test_the_report(golden):
    report = aotgrad.explain(Talking(), dynamo=True)(*arguments())
    (broken,) = report.breaks
    broken = replace(broken, where=replace(broken.where, line=1), reason=broken.reason.splitlines()[0])
    golden("inspect/dynamo", re.sub(r"test_dynamo.py:\d+", "test_dynamo.py:LINE", str(replace(report, breaks=(broken,)))))


def test_for_programs():
    report = aotgrad.explain(Talking(), dynamo=True)(*arguments())
    data = json.loads(report.to_json())
    assert [len(graph["inputs"]) for graph in data["graphs"]] == [9, 1]
    assert data["breaks"][0]["where"]["code"] == 'print("between")'


def test_dynamo_forgets_what_was_compiled_before_and_what_is_compiled_here():
    compiled = torch.compile(helper, backend="aotgrad_eager")
    compiled(torch.ones(2))
    aotgrad.explain(compiled, dynamo=True)(torch.ones(2))
    assert torch.equal(compiled(torch.ones(3)), torch.ones(3).sin())


def test_what_is_refused_is_said():
    with pytest.raises(CaptureError, match="an expanded tensor is changed in place"):
        aotgrad.explain(lambda x: x.expand(2, 3).fill_(1.0), dynamo=True)(torch.ones(3))
