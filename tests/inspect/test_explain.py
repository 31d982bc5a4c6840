"""`aotgrad.explain` describes what was compiled."""

from __future__ import annotations

import contextlib
import io
import json
import sys

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.inspect.command_line import main
from aotgrad.inspect.explanation import SourceLine
from aotgrad.plan_cache.binding import tensor_names
from tests.golden.harness import REPOSITORY
from tests.golden.test_golden import CASES


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.tied = nn.Linear(4, 8, bias=False)
        self.tied.weight = self.first.weight

    def forward(self, batch, *more, scale=None):
        hidden = self.norm(self.first(batch["x"])).sigmoid() + self.tied(more[0])
        return {"hidden": hidden, "x": batch["x"].T, "scaled": (scale * 2, hidden[0])}


def net_report(**settings):
    x = torch.ones(3, 4)
    return aotgrad.explain(Net(), **settings)({"x": x}, x.clone(), scale=torch.ones(2, requires_grad=True))


def by_name(rows):
    return {row.name: row for row in rows}


def test_inputs_have_the_users_names():
    rows = by_name(net_report().inputs)
    weight = "first.weight = tied.weight"
    assert list(rows) == [weight, "first.bias", "norm.weight", "norm.bias", *BUFFERS, "batch['x']", "more[0]", "scale"]
    assert (rows[weight].kind, rows[weight].type, rows[weight].bytes) == ("parameter", "f32[8, 4]", 128)
    assert rows["norm.running_mean"].kind == "buffer"
    assert rows["norm.running_mean"].happened == "data mutated; copied back after the forward"
    assert rows["more[0]"].gradient == "none: it does not require grad"
    assert rows["scale"].gradient == rows[weight].gradient == "computed"


BUFFERS = ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")


def test_outputs_have_the_users_names_and_say_what_they_are():
    rows = by_name(net_report().outputs)
    assert list(rows) == ["output['hidden']", "output['x']", "output['scaled'][0]", "output['scaled'][1]"]
    assert rows["output['hidden']"].what == "a new tensor"
    assert rows["output['x']"].what.startswith("a view of batch['x'], replayed on it: -> aten.")
    assert rows["output['scaled'][1]"].what.startswith("a view of output 0, replayed on it: -> aten.select.int(0, 0)")
    assert rows["output['hidden']"].backward != rows["output['scaled'][0]"].backward


def test_why_an_input_has_no_gradient():
    x, unused = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    report = aotgrad.explain(lambda x, unused: x.sin() + unused.detach())(x, unused)
    assert [row.gradient for row in report.inputs] == ["computed", "none: no differentiable output depends on it"]
    with torch.no_grad():
        report = aotgrad.explain(torch.sin)(x)
    assert [row.gradient for row in report.inputs] == ["none: no output has a gradient"]
    assert [row.name for row in report.graphs] == ["inference"]


def test_what_is_saved_is_what_autograd_saves():
    x, w = torch.ones(3, 4), torch.ones(4, 2, requires_grad=True)

    def f(x, w):
        return (x @ w).tanh().square().sum()

    sizes = []
    compiled = aotgrad.aot_function(f, aotgrad.nop)
    report = aotgrad.explain(compiled)(x, w)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.nbytes) or t, lambda t: t):
        compiled(x, w)
    assert sorted(row.bytes for row in report.saved) == sorted(sizes)
    assert sum(sizes) == report.saved_bytes
    (product,) = [row for row in report.saved if row.where is not None]
    assert (product.name, product.where.code) == ("mm", "return (x @ w).tanh().square().sum()")
    assert product.where.file == __file__


def test_parameters_are_saved_for_nothing():
    own = [row for row in net_report().saved if row.is_own]
    assert own and {row.bytes for row in own} == {0}


def test_what_runs_again_has_its_cost():
    x, w = torch.ones(8, 16, requires_grad=True), torch.ones(16, 32, requires_grad=True)
    report = aotgrad.explain(lambda x, w: (x @ w).sin().exp().sum(), options={"memory_budget": 0.0})(x, w)
    rows = by_name(report.recomputed)
    assert rows["mm"].flops == 2 * 8 * 16 * 32 == report.recomputed_flops
    assert rows["mm"].traffic_bytes == 4 * (8 * 16 + 16 * 32 + 8 * 32)
    assert rows["sin"].traffic_bytes == 4 * 2 * 8 * 32
    assert report.recomputed_bytes == sum(row.traffic_bytes for row in report.recomputed)
    assert report.saved_bytes < aotgrad.explain(lambda x, w: (x @ w).sin().exp().sum())(x, w).saved_bytes


def test_what_waits_on_the_host_has_its_times():
    def layers(x, *weights):
        for w in weights:
            x = torch.tanh(x @ w)
        return x.sum()

    args = [torch.randn(192, 192, requires_grad=True) for _ in range(6)]
    report = aotgrad.explain(layers, options={"offload": True, "memory_budget": 0.0})(*args)
    rows = by_name(report.offloaded)
    assert rows["tanh"].bytes == 4 * 192 * 192 and rows["tanh"].where.code == "x = torch.tanh(x @ w)"
    assert report.host_bytes == sum(row.bytes for row in report.offloaded) and "tanh" not in by_name(report.saved)
    assert all(0 <= row.exposed_seconds <= row.transfer_seconds for row in report.offloaded)
    assert all(row.transfer_seconds == pytest.approx(2 * (1e-6 + row.bytes / 2.5e9)) for row in report.offloaded)
    lines = str(report).splitlines()
    (title,) = (line for line in lines if line.startswith("on the host until the backward: "))
    assert "us on the link are estimated" in title and any("needed by mm" in line and "tanh" in line for line in lines)
    assert json.loads(report.to_json())["host_bytes"] == report.host_bytes


def test_nothing_runs():
    runs = []

    def f(x):
        runs.append(isinstance(x, torch.nn.Parameter))
        return x.mul_(2).sin()

    x = torch.ones(2)
    report = aotgrad.explain(f)(x)
    assert len(runs) == 1 and x._version == 0 and torch.equal(x, torch.ones(2))
    assert report.variants == () and report.plans[0].hits == 0


def test_what_is_compiled_is_explained_with_its_plans_and_variants():
    compiled = aotgrad.aot_function(lambda x, w: (x * w).sin(), aotgrad.nop)
    for size in (2, 3, 3):
        x, w = torch.ones(size, requires_grad=True), torch.ones(size, requires_grad=True)
        compiled(x, w).sum().backward()
    torch.autograd.grad(compiled(x, w).sum(), w)
    report = aotgrad.explain(compiled)(x, w)
    assert [(row.explained, row.hits) for row in report.plans] == [(True, 2), (False, 0)]
    assert [row.name for row in report.variants] == ["backward", "backward without gradient 0"]
    assert report.variants[1].ops < report.variants[0].ops
    assert compiled.plans()[0].hits == 2
    assert "-> 0" in str(report)


def test_a_call_finds_the_plan_that_was_made_to_be_explained():
    module = aotgrad.aot_module(nn.Linear(2, 2), aotgrad.nop)
    report = aotgrad.explain(module)(torch.ones(1, 2))
    assert [row.name for row in report.inputs] == ["weight", "bias", "input"]
    module(torch.ones(1, 2))
    assert [plan.hits for plan in module.plans()] == [1]


def test_what_torch_compile_returned_is_explained_as_what_it_was_given():
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Tanh()), torch.ones(1, 2)
    report = aotgrad.explain(torch.compile(model, backend=aotgrad.eager))(x)
    assert report.name == "Sequential"
    assert [row.name for row in report.inputs] == ["0.weight", "0.bias", "input"]
    with torch.no_grad():
        report = aotgrad.explain(torch.compile(lambda x: x.sin(), backend=aotgrad.eager))(x)
    assert report.note is None and [row.name for row in report.inputs] == ["x"]


def test_functions_without_a_plan():
    def broken(x):
        raise ValueError("no")

    small = aotgrad.explain(torch.sin, options={"min_graph_ops": 5})(torch.ones(1))
    assert small.note == "1 op computes something, min_graph_ops is 5: the original function runs eagerly"
    assert aotgrad.explain(broken)(torch.ones(1)).note.endswith("raises while it is traced (ValueError: no)")
    off = aotgrad.explain(nn.ReLU(), options={"enabled": False})(torch.ones(1))
    assert str(off) == "ReLU with backend eager: the function runs eagerly: the option `enabled` is off"


def test_bad_settings_are_errors_at_once():
    with pytest.raises(aotgrad.errors.BackendError, match="no backend 'fast'; registered are"):
        aotgrad.explain(torch.sin, backend="fast")
    with pytest.raises(aotgrad.errors.OptionError, match="unknown option 'speed'"):
        aotgrad.explain(torch.sin, options={"speed": 9})


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_inductor_shapes_the_graphs_and_compiles_none(monkeypatch):
    monkeypatch.setattr("aotgrad.torch_compat.inductor_compile", None)
    report = net_report(backend="inductor")
    assert report.backend == "inductor" and report.saved


def test_json_is_the_same_as_the_report():
    report = net_report()
    data = json.loads(report.to_json())
    assert data["saved_bytes"] == report.saved_bytes == sum(row["bytes"] for row in data["saved"])
    assert [row["name"] for row in data["inputs"]] == [row.name for row in report.inputs]
    assert SourceLine(**next(row["where"] for row in data["saved"] if row["where"])).code


FUNCTIONS = [name for name, case in CASES.items() if not case.is_module]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_golden_case_can_be_explained(name):
    case = CASES[name]
    with case.around():
        report = aotgrad.explain(aotgrad.aot_function(case.function, aotgrad.nop, **case.options))(*case.make_args())
    assert report.note is None
    assert [row.name for row in report.outputs if f"\n  {row.name} " not in str(report)] == []
    assert "primals_" not in "\n".join(row.name for row in report.inputs if row.kind != "synthetic base")


def test_names_of_arguments():
    x = torch.ones(1)
    assert tensor_names(lambda a, *more, b: None, (x, [x, 2], x), {"b": {"key": x}}) == [
        "a",
        "more[0][0]",
        "more[1]",
        "b['key']",
    ]
    assert tensor_names(torch.add, (x, x), {"out": x}) == ["args[0]", "args[1]", "out"]


COMMAND = "explain examples/small_gpt.py:model --option memory_budget=0.7"


def test_the_report_of_a_gpt(golden, monkeypatch):
    """The golden file is what the command of README prints."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("gpt", "small_gpt"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(COMMAND.split()) == 0
    report = f"$ python -m aotgrad {COMMAND}\n\n{printed.getvalue()}"
    golden("explain/gpt", report)
    readme = (REPOSITORY / "README.md").read_text()
    assert COMMAND in readme and "expect/explain/gpt.expect" in readme
