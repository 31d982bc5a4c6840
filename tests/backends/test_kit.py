"""Backends as classes: what `compile` learns of each graph, ops that it does not support, and mistakes of authors."""

from __future__ import annotations

import contextlib
import operator
import os
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.backends import Backend, graph_outputs, graph_part
from aotgrad.errors import BackendError
from tests.training_step.comparing import Training, assert_trains_like_eager, batches, plain_step

aten = torch.ops.aten


class Noting(Backend):
    """Runs graphs as they are, and notes what it gets."""

    name = "noting"

    def __init__(self, unsupported=()):
        self.unsupported, self.graphs, self.asked, self.open = set(unsupported), [], [], 0

    def supports(self, node):
        self.asked.append(node)
        return node.target not in self.unsupported

    @contextlib.contextmanager
    def context(self):
        self.open += 1
        yield
        self.open -= 1

    def compile(self, graph, inputs, role):
        assert self.open == 1
        assert [each.name for each in inputs] == [node.name for node in graph.graph.find_nodes(op="placeholder")]
        assert self.unsupported.isdisjoint(node.target for node in graph.graph.nodes)
        self.graphs.append((role, [str(each) for each in inputs], [str(each.slot) for each in graph_outputs(graph)]))
        return aotgrad.make_boxed_func(graph.forward)


def test_each_input_and_output_says_what_it_is():
    backend, model = Noting(), nn.Sequential(nn.Linear(4, 2, bias=False), nn.Tanh())
    aotgrad.aot_module(model, backend)(torch.ones(3, 4)).sum().backward()
    with torch.no_grad():
        aotgrad.aot_module(model, backend)(torch.ones(3, 4))
    assert backend.graphs == [
        ("forward", ["primal 0, static", "primal 1"], ["output 0", "saved primals_2", "saved tanh"]),
        (
            "backward",
            ["saved primals_2", "saved tanh", "tangent of output 0"],
            ["gradient of primal 0", "gradient of primal 1"],
        ),
        ("inference", ["primal 0, static", "primal 1"], ["output 0"]),
    ]


def test_sources_are_lines_of_the_user():
    sources = []

    class Reading(Backend):
        def compile(self, graph, inputs, role):
            sources.extend(each.source for each in graph_outputs(graph))
            return graph.forward

    aotgrad.aot_function(lambda x: x.sin() * 2, Reading())(torch.ones(2))
    assert len(sources) == 1 and "x.sin() * 2" in sources[0]


def test_a_value_that_may_be_overwritten():
    found = []

    class Overwriting(Backend):
        writes_over = True

        def compile(self, graph, inputs, role):
            found.extend(each.name for each in inputs if each.may_be_overwritten)
            return graph.forward

    weight, x = torch.randn(64, 4096, requires_grad=True), torch.randn(64, 64)
    aotgrad.aot_function(lambda x, w: torch.tanh(x @ w).sum(), Overwriting())(x, weight).backward()
    assert found == ["mm"]


def test_a_training_step_is_a_role():
    backend = Noting()

    def make():
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return Training(plain_step(model, optimizer), [model, optimizer])

    assert_trains_like_eager(make, batches(2), backend)
    assert {role for role, _, _ in backend.graphs} == {"step"}
    assert backend.role_without_backward == "inference"


# --- Ops that are not supported --------------------------------------------------------------------------------------


def between(x, w):
    values, order = torch.sort(torch.tanh(x @ w), dim=1)
    weighted = values * order
    return weighted.cumsum(1).exp() + x.sum()


def assert_like_eager(function, backend, *shapes):
    torch.manual_seed(0)
    args = [torch.randn(shape, requires_grad=True) for shape in shapes]
    found, wanted = aotgrad.aot_function(function, backend)(*args), function(*args)
    torch.testing.assert_close(found, wanted)
    gradients = [torch.autograd.grad(each.square().sum(), args) for each in (found, wanted)]
    torch.testing.assert_close(*gradients)


def test_unsupported_ops_run_between_compiled_parts():
    backend = Noting([aten.sort.default, aten.cumsum.default])
    assert_like_eager(between, backend, (3, 4), (4, 5))
    assert [role for role, _, _ in backend.graphs].count("forward") == 3
    (first, *_) = backend.graphs
    assert first[1] == ["primal 0", "primal 1"] and first[2][0] == "saved tanh"


class Parts(Noting):
    def compile(self, graph, inputs, role):
        shown = [str(each) for each in inputs], [str(each) for each in graph_outputs(graph)]
        self.graphs.append((role, graph_part(graph), *shown))
        return graph.forward


def test_parts_say_where_values_come_from_and_go_to():
    backend = Parts([aten.sort.default])
    assert_like_eager(lambda x: torch.sort(x.sin())[0].cos() * x.sin(), backend, (4,))
    assert backend.graphs[:2] == [
        ("forward", 0, ["primal 0"], ["sin, for parts 1, 2"]),
        ("forward", 2, ["getitem, from part 1", "sin, from part 0"], ["output 0"]),
    ]
    whole = Parts()
    assert_like_eager(lambda x: x.sin(), whole, (4,))
    assert whole.graphs[0] == ("forward", None, ["primal 0"], ["output 0", "saved primals_1"])


def test_a_value_of_a_part_that_leaves_the_graph_has_its_slot_and_its_readers():
    backend = Parts([aten.sort.default])
    assert_like_eager(lambda x: (y := (x * 2).exp(), torch.sort(y)[0].exp())[1], backend, (4,))
    assert backend.graphs[0] == ("forward", 0, ["primal 0"], ["saved exp, for part 1"])
    (last,) = [outputs for _, part, _, outputs in backend.graphs if part == 2][:1]
    assert last == ["output 0"]


def test_a_part_writes_over_no_value_that_another_part_reads():
    class WritesOver(Noting):
        writes_over = True

        def compile(self, graph, inputs, role):
            run, marked = graph.forward, [k for k, each in enumerate(inputs) if each.may_be_overwritten]
            self.graphs.append((role, marked))

            def overwriting(*args):
                results = run(*args)
                for k in marked:
                    args[k].fill_(7)
                return results

            return overwriting

    def function(x):
        y = (x * 2).exp()
        return (torch.sort(y)[0] * y).sin().cumsum(0) * y

    backend = WritesOver([aten.sort.default, aten.cumsum.default, aten.flip.default])
    x = torch.randn(2**18, requires_grad=True)
    found, wanted = aotgrad.aot_function(function, backend), function
    gradients = [torch.autograd.grad(run(x).sum(), x)[0] for run in (found, found, wanted)]
    torch.testing.assert_close(gradients[0], gradients[2])
    torch.testing.assert_close(gradients[1], gradients[2])
    assert any(marked for role, marked in backend.graphs if role == "backward")


# --- Numbers ---------------------------------------------------------------------------------------------------------

FLOATS = {aten.mul.Tensor, aten.sin.default, aten.cos.default, aten.add.Tensor, aten.view.default, aten.neg.default}
FLOATS |= {aten.sum.default, aten.expand.default}


class OnlyFloats(Backend):
    """Knows a few ops on tensors, and nothing about numbers."""

    name = "floats"

    def __init__(self):
        self.compiled = []

    def supports(self, node):
        return node.target in FLOATS

    def compile(self, graph, inputs, role):
        self.compiled += [node.target for node in graph.graph.nodes if node.op == "call_function"]
        assert FLOATS.issuperset(self.compiled)
        return torch.fx.Interpreter(graph).run


NUMBERS = {
    "sizes": lambda x: (x.sin().view(x.shape[0] * 2, -1) * x.shape[0]).cos() + x.shape[1],
    "item": lambda x: x.sin() * x.sum().item(),
    "size_after_an_op": lambda x: x.sin().view(-1).cos() * (x.sin().view(-1).shape[0] + 1),
    "size_behind_an_island": lambda x: torch.sort(x.sin())[0].view(x.shape[0] * 2, -1).cos(),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_not_supported_are_computed_in_python(name, dynamic):
    function, backend = NUMBERS[name], OnlyFloats()
    compiled = aotgrad.aot_function(function, backend, dynamic=dynamic)
    for shape in ((4, 6), (6, 8)):
        x = torch.randn(shape, requires_grad=True)
        found, wanted = compiled(x), function(x)
        torch.testing.assert_close(found, wanted)
        gradients = [torch.autograd.grad(each.square().sum(), x) for each in (found, wanted)]
        torch.testing.assert_close(*gradients)
    assert aten.sin.default in backend.compiled and len(compiled.plans()) == (1 if dynamic else 2)


def test_supports_is_asked_about_numbers():
    backend = Noting()
    x = torch.ones(4, 6)
    aotgrad.aot_function(NUMBERS["sizes"], backend, dynamic=True)(x)
    aotgrad.aot_function(NUMBERS["item"], backend)(x)
    asked = {node.target for node in backend.asked}
    assert {operator.mul, aten._local_scalar_dense.default} <= asked
    (row,) = aotgrad.explain(NUMBERS["item"], backend=OnlyFloats())(x).islands
    assert (row.name, row.reason) == ("_local_scalar_dense", "floats does not support it")


def test_parts_are_as_few_as_possible():
    """Each sort needs nothing of the other, so both run between the same two parts."""
    backend = Noting([aten.sort.default])
    assert_like_eager(lambda x, y: torch.sort(x.sin())[0].cos() + torch.sort(y.cos())[0].sin(), backend, (4,), (4,))
    assert [role for role, _, _ in backend.graphs].count("forward") == 2


@pytest.mark.parametrize("unsupported", [aten.mm.default, aten.tanh.default, aten.t.default, aten.sum.default])
def test_any_op_may_be_unsupported(unsupported):
    assert_like_eager(lambda x, w: (torch.tanh(x @ w) @ w.t()).sum(1), Noting([unsupported]), (3, 4), (4, 5))


def test_a_backend_that_supports_nothing():
    class Refusing(Noting):
        def supports(self, node):
            return False

    backend = Refusing()
    assert_like_eager(between, backend, (3, 4), (4, 5))
    assert backend.graphs == []


def test_unsupported_ops_with_symbolic_sizes():
    backend = Noting([aten.sort.default])
    compiled = torch.compile(between, backend=aotgrad.DynamoBackend(backend), dynamic=True, fullgraph=True)
    for rows in (3, 5):
        x, w = torch.randn(rows, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
        torch.testing.assert_close(compiled(x, w), between(x, w))
        torch.testing.assert_close(*(torch.autograd.grad(run(x, w).sum(), (x, w)) for run in (compiled, between)))
    assert {role for role, _, _ in backend.graphs} == {"forward", "backward"}


def test_the_trace_decides_gradients_and_writes_with_unsupported_ops():
    def f(x, y):
        y.add_(torch.sort(x)[0])
        return y * 2

    backend = Noting([aten.sort.default])
    compiled = aotgrad.aot_function(f, backend, options={"keep_input_mutations": True})
    x, (y, z) = torch.randn(4), torch.ones(2, 4)
    assert torch.equal(compiled(x, y), f(x, z)) and torch.equal(y, z)


def test_a_step_with_unsupported_ops_trains_like_eager():
    def make():
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        return Training(plain_step(model, optimizer, max_norm=0.1), [model, optimizer])

    assert_trains_like_eager(make, batches(3), Noting([aten.addcdiv.default, aten.tanh.default, aten.sqrt.default]))


def test_explain_names_what_is_not_supported():
    backend = Noting([aten.sort.default, aten.gather.default])
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5)
    report = aotgrad.explain(between, backend=backend)(x, w)
    (row,) = (row for row in report.islands if row.graph == "forward")
    assert row.reason == "noting does not support it" and "torch.sort" in row.where.code
    assert "ops that run in eager between compiled graphs" in str(report)
    sparse = aotgrad.explain(lambda x: torch.sparse.mm(x.sin().to_sparse(), x), backend="inductor")(torch.eye(3))
    assert {row.reason for row in sparse.islands} == {"it computes with a sparse tensor, or with parts of one"}


# --- Mistakes --------------------------------------------------------------------------------------------------------


def test_a_class_is_no_backend():
    with pytest.raises(BackendError, match="Noting is a class; a backend is an instance of it"):
        aotgrad.aot_function(torch.sin, Noting)


@pytest.mark.parametrize(("result", "message"), [(None, "returned a NoneType"), (lambda *_: (1, 2, 3), "returned 3 values")])
def test_a_bad_result_names_the_backend_and_the_graph(result, message):
    class Broken(Backend):
        name = "broken"

        def compile(self, graph, inputs, role):
            return result

    with pytest.raises(BackendError, match=f"backend 'broken' {message} f.* the inference graph"):
        aotgrad.aot_function(torch.sin, Broken())(torch.ones(2))


def test_a_backend_without_compile():
    with pytest.raises(NotImplementedError, match=r"Empty does not define compile\(graph, inputs, role\)"):
        aotgrad.aot_function(torch.sin, type("Empty", (Backend,), {})())(torch.ones(2))


def test_after_an_error_the_next_call_compiles():
    class Failing(Noting):
        def compile(self, graph, inputs, role):
            if not self.graphs:
                self.graphs.append(None)
                raise OSError("no device")
            return graph.forward

    compiled = aotgrad.aot_function(torch.sin, Failing())
    with pytest.raises(OSError, match="no device"):
        compiled(torch.ones(2))
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2).sin())


def test_the_toy_device_trains(capsys):
    example = Path(__file__).parents[2] / "examples" / "toy_backend.py"
    runpy.run_path(os.fspath(example))["main"]()
    printed = capsys.readouterr().out
    assert printed.count("backward: ") == 2 and "tanh_backward" in printed
    assert float(printed.rpartition("loss ")[2]) < 0.1
    assert len(example.read_text().splitlines()) <= 60


# --- Paths -----------------------------------------------------------------------------------------------------------


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).sin()
        return x * self.scale


@pytest.mark.parametrize("dynamo", [False, True], ids=["aot_module", "dynamo"])
def test_inputs_and_outputs_say_which_module_they_belong_to(dynamo):
    paths = {}

    class Reading(Backend):
        def compile(self, graph, inputs, role):
            paths[role] = [each.path for each in inputs], [each.path for each in graph_outputs(graph)]
            return graph.forward

    model = Named()
    compiled = (
        torch.compile(model, backend=aotgrad.DynamoBackend(Reading())) if dynamo else aotgrad.aot_module(model, Reading())
    )
    compiled(torch.randn(2, 4)).sum().backward()
    inputs, _ = paths["forward"]
    names = {"layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "scale"}
    assert {path for path in inputs if path} == names
    saved, gradients = paths["backward"]
    assert {"layers.0", "layers.1", "layers.1.weight", "scale"} <= set(saved)
    assert {"layers.0", "layers.1"} <= set(gradients)


def test_the_state_of_a_step_has_names():
    found = []

    class Reading(Backend):
        def compile(self, graph, inputs, role):
            found.extend(each.path for each in inputs)
            return graph.forward

    model = nn.Sequential(nn.Linear(4, 2, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    compiled = aotgrad.train_step(step, [model, optimizer], backend=Reading())
    for _ in range(2):
        compiled(torch.ones(3, 4))
    assert {"0.weight", "momentum_buffer of 0.weight"} <= set(found)
