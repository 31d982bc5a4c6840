"""What one process saves computes the same in another one, which has no tracer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad import pipeline
from aotgrad.cache import graphs
from aotgrad.errors import CaptureError, ShippingError

from .programs import PROGRAMS, Net, in_a_fresh_process, make_step, outcome_of, refuse, train

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")

OF_INDUCTOR = ("kinds", "dynamic", "writes", "dropout", "closes_over", "lone", "lazily", "sparse")


def same(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return one == other


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_loaded_plans_compute_what_the_saved_ones_did(backend, tmp_path):
    names = ",".join([*(PROGRAMS if backend == "eager" else OF_INDUCTOR), "net", "step"])
    expected, _ = in_a_fresh_process("save", names, backend, tmp_path / "plans")
    found, counters = in_a_fresh_process("load", names, backend, tmp_path / "plans")
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        assert len(found[name]) == len(values)
        assert [k for k, pair in enumerate(zip(found[name], values, strict=True)) if not same(*pair)] == [], name
    assert not counters.get("compilations") and not counters.get("misses")
    assert not counters.get("artefact_misses") and (backend == "eager" or counters["artefact_hits"] > 10)
    parsed = {name for name in names.split(",") if counters.get(f"parsed for {name}")}
    assert backend == "eager" or parsed <= {"lazily", "lone", "sparse"}  # some of their ops run one by one


def test_a_step_with_its_code_parses_no_graph(tmp_path, monkeypatch):
    def parse(*args):
        raise AssertionError("a graph was parsed")

    step, state = make_step()
    compiled = aotgrad.train_step(step, state, backend="inductor", keep_gradients=False)
    train(compiled, state, range(2))
    aotgrad.save(compiled, tmp_path / "plans")
    _, other = make_step()
    for one, each in zip(state, other, strict=True):
        each.load_state_dict(copy.deepcopy(one.state_dict()))
    loaded = aotgrad.load(tmp_path / "plans", state=other, trust=True)
    monkeypatch.setattr(graphs, "decode_graph", parse)
    found = train(loaded, other, range(2, 4))
    assert all(map(torch.equal, found, train(compiled, state, range(2, 4))))


SMALL = {
    "lone op": (torch.sin, (torch.ones(3, requires_grad=True),)),
    "nothing": (lambda x: x, (torch.ones(3),)),
    "view": (lambda x: (x.t(), x.sin()), (torch.ones(2, 3, requires_grad=True),)),
    "value": (lambda x: x.sin() if x.sum() > 0 else x + 1, (torch.ones(3, requires_grad=True),)),
    "mask": (lambda x: x[x > 0] * 2, (torch.ones(3, requires_grad=True),)),
}


@pytest.mark.parametrize("name", SMALL)
def test_what_is_too_small_to_be_compiled_has_graphs_in_the_file(name, tmp_path, monkeypatch):
    function, args = SMALL[name]
    compiled = aotgrad.aot_function(function, "inductor", options={"min_graph_ops": 9})
    compiled(*args)
    for path in ("plans", "again"):
        aotgrad.save(compiled, tmp_path / path)
    assert isinstance(compiled.plans()[0].executable, pipeline.SmallGraph)
    for stage in ("capture_function", "build_joint", "partition_joint"):
        monkeypatch.setattr(pipeline, stage, refuse)
    loaded = aotgrad.load(tmp_path / "again", trust=True)
    found, wanted = (outcome_of(each, args) for each in (loaded, function))
    assert all(map(same, found, wanted)) and len(found) == len(wanted)


def test_a_small_function_that_has_no_graph_says_why(tmp_path, monkeypatch):
    def fail(*args):
        raise CaptureError("it has no gradient")

    compiled = aotgrad.aot_function(torch.sin, "inductor")
    compiled(torch.ones(3))
    monkeypatch.setattr(pipeline, "build_joint", fail)
    with pytest.raises(ShippingError, match=r"plan 0 of .* its function is small .* it has no gradient"):
        aotgrad.save(compiled, tmp_path / "plans")


@pytest.mark.parametrize("compile", [aotgrad.aot_module, aotgrad.aot_function])
def test_an_exported_program(compile, tmp_path):
    torch.manual_seed(0)
    exported = torch.export.export(Net().eval(), (torch.randn(6, 4),))
    module = exported.module()
    x = torch.randn(6, 4)
    compiled = compile(module, "eager")
    expected = compiled(x)
    torch.testing.assert_close(expected, module(x))
    found, wanted = (torch.autograd.grad(each(x).sum(), [*module.parameters()]) for each in (compiled, module))
    torch.testing.assert_close(found, wanted)
    aotgrad.save(compiled, tmp_path / "plans")
    loaded = aotgrad.load(tmp_path / "plans", exported.module())
    assert torch.equal(loaded(x), expected)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_closed_over_tensors_have_the_values_of_the_save(backend, tmp_path):
    table = torch.arange(3.0)
    function = lambda x: (x * table).sin() if (x + table).sum() > 0 else (x * table).cos() + 1  # noqa: E731
    compiled = aotgrad.aot_function(function, backend)
    for sign in (1.0, -3.0):
        compiled(torch.full((3,), sign))
    table.add_(0.5)
    expected = [function(torch.full((3,), sign)) for sign in (1.0, -3.0)]
    aotgrad.save(compiled, tmp_path / "plans", constants=True)
    table.zero_()
    loaded = aotgrad.load(tmp_path / "plans", trust=True)
    torch.testing.assert_close([loaded(torch.full((3,), sign)) for sign in (1.0, -3.0)], expected)


def test_an_exported_function():
    class Plain(nn.Module):
        def forward(self, x):
            return torch.sin(x) * torch.tensor([1.0, 2.0]) + 1

    exported = torch.export.export(Plain(), (torch.ones(2),))
    compiled = aotgrad.aot_function(exported.module(), "eager")
    expected = compiled(torch.ones(2))
    torch.testing.assert_close(expected, Plain()(torch.ones(2)))


def test_graphs_are_compiled_where_code_is_not_trusted(tmp_path):
    function = aotgrad.aot_function(lambda x: x.sin().cos() * 2, "inductor")
    expected = function(torch.ones(3))
    aotgrad.save(function, tmp_path / "plans")
    before = dict(aotgrad.counters)
    torch.testing.assert_close(aotgrad.load(tmp_path / "plans")(torch.ones(3)), expected)
    assert aotgrad.counters.get("artefact_hits", 0) == before.get("artefact_hits", 0)


def test_a_copy_of_a_loaded_module_has_the_plans(tmp_path):
    compiled = aotgrad.aot_module(nn.Linear(2, 2), "eager")
    compiled(torch.ones(2))
    aotgrad.save(compiled, tmp_path / "plans")
    loaded = aotgrad.load(tmp_path / "plans", nn.Linear(2, 2))
    copied = copy.deepcopy(loaded)
    assert torch.equal(copied(torch.ones(2)), loaded(torch.ones(2)))
    assert copied.weight is not loaded.weight and len(copied.plans()) == 1
