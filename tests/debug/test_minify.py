"""A failing backend is reduced to a script with the same failure."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.fx as fx
import torch.nn.functional as F
from torch import nn

import aotgrad
from aotgrad.debug import check_backend, failure_of, minify
from aotgrad.errors import NothingToMinify
from tests.golden.harness import REPOSITORY
from tests.numerics.against_eager import leaf, plain

aten = torch.ops.aten


class Unsupported(Exception):
    pass


def targets(graph):
    return [node.target for node in graph.graph.nodes]


def no_tanh_backward(graph, example_inputs):
    if torch.ops.aten.tanh_backward.default in targets(graph):
        raise Unsupported("tanh_backward")
    return graph


def exp_is_off(graph, example_inputs):
    """A compiler with results wrong by a factor."""
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default):
        node.target = torch.ops.aten.exp2.default
    graph.recompile()
    return graph


def no_pair(graph, example_inputs):
    found = targets(graph)
    if torch.ops.aten.mm.default in found and torch.ops.aten.relu.default in found:
        raise Unsupported("mm with relu")
    return graph


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(6, 8), nn.Linear(8, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.second(self.first(x).tanh()).exp()).square().mean()


def ops_of(repro):
    return [str(node.target) for node in repro.module.graph.nodes if node.op == "call_function"]


def test_a_compiler_that_raises_on_a_backward():
    repro = minify(Net(), (plain(5, 6),), no_tanh_backward)
    assert (repro.role, repro.failure.kind, repro.failure.text) == ("backward", "Unsupported", "tanh_backward")
    assert ops_of(repro) == ["aten.tanh_backward.default"]
    assert {tuple(value.shape) for value in repro.inputs} == {(1, 1)}


def test_a_compiler_that_is_inaccurate():
    repro = minify(Net(), (plain(5, 6),), exp_is_off)
    assert (repro.role, repro.failure.kind) == ("forward", "differs")
    assert re.fullmatch(r"output 0 is off by [\d.]+, its largest number is [\d.]+", repro.failure.text)
    assert ops_of(repro) == ["aten.exp.default"]


def test_ops_that_fail_together():
    repro = minify(lambda x, w: (x.sin() @ w).relu().cos().sum(), (plain(3, 4), plain(4, 5)), no_pair)
    assert (repro.role, ops_of(repro)) == ("inference", ["aten.mm.default", "aten.relu.default"])


def test_a_backend_that_is_right():
    with pytest.raises(NothingToMinify, match="the backend agrees with eager on each graph"):
        minify(Net(), (plain(5, 6),), "eager")


def test_nothing_of_the_users_changes():
    model, x = Net(), leaf(5, 6)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    minify(model, (x,), exp_is_off)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert x.grad is None and all(parameter.grad is None for parameter in model.parameters())


def test_random_ops_draw_the_same_numbers_on_both_sides():
    with pytest.raises(NothingToMinify):
        minify(lambda x: F.dropout(x, 0.5).exp(), (leaf(50),), aotgrad.nop)


def test_several_results_of_one_op():
    def wrong_indices(graph, example_inputs):
        for node in graph.graph.find_nodes(op="call_function", target=aten.max.dim):
            node.args = (node.args[0], 1 - node.args[1])
        graph.recompile()
        return graph

    repro = minify(lambda x: x.cos().max(dim=0)[1] * 2, (plain(4, 4),), wrong_indices)
    assert ops_of(repro)[0] == "aten.max.dim"
    assert "COMPILER = ..." in repro.script or "def wrong_indices" in repro.script


def test_constants_are_inputs():
    def no_view(graph, example_inputs):
        if aten.view.default in targets(graph) and aten.add.Tensor in targets(graph):
            raise Unsupported("view")
        return graph

    constant = torch.arange(24.0)
    repro = minify(lambda x: (x.view(24) + constant).sin(), (plain(4, 6),), no_view)
    assert ops_of(repro) == ["aten.view.default", "aten.add.Tensor"]


def no_symbolic_cos(graph, example_inputs):
    """Fails for symbolic sizes only."""
    for node in graph.graph.find_nodes(op="call_function", target=aten.cos.default):
        if any(isinstance(size, torch.SymInt) for size in node.meta["val"].shape):
            raise Unsupported("a size that is not a number")
    return graph


def heads(x, w):
    """Sizes are read, and computed with."""
    return (x @ w).view(x.size(0), 2, -1).cos().sin().flatten(1).expand(3, x.size(0), w.size(1)).sum()


def test_symbolic_sizes(tmp_path):
    args = leaf(5, 6), leaf(6, 8)
    with pytest.raises(NothingToMinify):
        minify(heads, args, no_symbolic_cos)
    repro = minify(heads, args, no_symbolic_cos, dynamic=True, path=tmp_path / "repro.py")
    assert ops_of(repro) == ["aten.cos.default"] and repro.script.strip().endswith("dynamic=True)")
    assert max(value.numel() for value in repro.inputs if isinstance(value, torch.Tensor)) <= 4
    assert "Unsupported: a size that is not a number" in run(tmp_path / "repro.py").stderr


def test_symbolic_sizes_that_are_right():
    with pytest.raises(NothingToMinify):
        minify(heads, (leaf(5, 6), leaf(6, 8)), "eager", dynamic=True)


def test_an_op_that_is_wrong_about_a_computed_size():
    """The size argument of the op becomes an input of the small graph, a plain number."""

    def too_many(graph, example_inputs):
        for node in graph.graph.find_nodes(op="call_function", target=aten.expand.default):
            if any(isinstance(size, fx.Node) for size in node.args[1]):
                raise Unsupported("expand")
        return graph

    repro = minify(heads, (plain(5, 6), plain(6, 8)), too_many, dynamic=True)
    assert ops_of(repro) == ["aten.expand.default"]
    assert sorted(value for value in repro.inputs if isinstance(value, int))


# --- The script ------------------------------------------------------------------------------------------------------


def run(script):
    settings = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=settings, check=False)


def test_the_script_runs_alone_and_fails_as_the_backend_does(tmp_path, golden):
    path = tmp_path / "repro.py"
    repro = minify(Net(), (plain(5, 6),), exp_is_off, path=path)
    assert path.read_text() == repro.script == str(repro)
    golden("debug/repro", re.sub(r"\d+\.\d+", "N", repro.script))
    done = run(path)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == f"AssertionError: differs: {repro.failure.text}"


def test_the_script_shows_the_backends_own_error(tmp_path):
    minify(Net(), (plain(5, 6),), no_tanh_backward, path=tmp_path / "repro.py")
    with pytest.raises(AssertionError, match=r"^Unsupported: tanh_backward$") as raised:
        runpy.run_path(str(tmp_path / "repro.py"), run_name="__main__")
    assert isinstance(raised.value.__cause__, Unsupported)


def test_a_compiler_of_a_script_is_copied(tmp_path):
    """A compiler defined in `__main__` cannot be imported."""
    program = """
    import torch, aotgrad

    def broken(graph, example_inputs):
        raise ValueError("broken")

    aotgrad.debug.minify(torch.sin, (torch.ones(3),), broken, path="repro.py")
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program).replace("repro.py", str(tmp_path / "repro.py")))
    runpy.run_path(str(tmp_path / "program.py"), run_name="__main__")
    assert "def broken(graph, example_inputs):" in (tmp_path / "repro.py").read_text()
    with pytest.raises(AssertionError, match=r"^ValueError: broken$"):
        runpy.run_path(str(tmp_path / "repro.py"), run_name="__main__")


def test_inputs_that_matter_go_into_a_file(tmp_path):
    def only_in_range(graph, example_inputs):
        def compiled(*args):
            indices = next(arg for arg in args if arg.dtype is torch.int64)
            if indices.numel() > 70 and indices.unique().numel() > 70:
                raise Unsupported("indices")
            return graph(*args)

        return compiled

    path = tmp_path / "repro.py"
    indices = torch.randperm(80)
    repro = minify(lambda w, i: F.embedding(i, w), (plain(80, 2), indices), only_in_range, path=path)
    assert "torch.load(" in repro.script
    assert any(torch.equal(value, indices) for value in torch.load(path.with_suffix(".pt")))


def test_a_registered_backend_by_name():
    aotgrad.backends.register("off", fw_compiler=exp_is_off)
    repro = minify(lambda x: x.exp().sum(), (leaf(3),), "off")
    assert "check_backend(Repro(), inputs, backend='off')" in repro.script


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_inductor_is_right_about_a_small_net():
    with pytest.raises(NothingToMinify):
        minify(Net(), (plain(5, 6),), "inductor")


# --- check -----------------------------------------------------------------------------------------------------------


def module_of(op):
    class Module(nn.Module):
        def forward(self, x):
            return (op(x),)

    return Module()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: x.double(), "output 0 of the inference graph has dtype torch.float64 and not torch.float32"),
        (lambda x: x[:2], "output 0 of the inference graph has shape (2,) and not (3,)"),
        (lambda x: x / 0, "output 0 has infinities or NaNs elsewhere"),
        (lambda x: x + 1, "output 0 is off by 1, its largest number is 2"),
        (lambda x: None, "output 0 of the inference graph has the type NoneType and not Tensor"),
    ],
)
def test_how_a_result_differs(result, message):
    module = module_of(lambda x: aten.mul.Tensor(x, 2))
    with pytest.raises(AssertionError, match=re.escape(message)):
        check_backend(module, [torch.ones(3)], lambda graph, inputs: lambda x: (result(x * 2),))


def test_small_differences_are_none_and_the_tolerance_can_be_given():
    module, x = module_of(lambda x: aten.mul.Tensor(x, 2)), [torch.ones(3)]

    def slightly_off(graph, example_inputs):
        return lambda x: (x * 2.0001,)

    check_backend(module, x, slightly_off)
    with pytest.raises(AssertionError, match="differs"):
        check_backend(module, x, slightly_off, tolerance=1e-6)
    assert failure_of(fx.symbolic_trace(module), x, slightly_off) is None


def test_integers_are_exact():
    module = module_of(lambda x: aten.mul.Tensor(x, 2))
    with pytest.raises(AssertionError, match="output 0 differs in 3 elements"):
        check_backend(module, [torch.arange(3)], lambda graph, inputs: lambda x: (x * 2 + 1,))


# --- functorch's minifier --------------------------------------------------------------------------------------------


def test_minifier():
    def f(x, y):
        z = (x.sin() + y).cos()
        return (z * y.exp()).tanh()

    def fails(module, inputs):
        module(*inputs)
        return "cos" in targets(module)

    states = []
    given = fx.symbolic_trace(f), [torch.ones(2), torch.ones(2)]
    graph, inputs = aotgrad.minifier(*given, fails, lambda *state: states.append(state))
    ops = [node for node in graph.graph.nodes if node.op not in ("placeholder", "output")]
    assert [node.target for node in ops] == ["cos"]
    assert len(inputs) == 1 and states


def test_minifier_prints_what_it_finds(capsys):
    graph = fx.symbolic_trace(lambda x: x.sin().cos())
    aotgrad.minifier(graph, [torch.ones(2)], lambda module, inputs: "cos" in targets(module))
    assert "# inputs: ['torch.float32 (1,)']" in capsys.readouterr().out


def test_a_graph_that_does_not_fail_is_an_error():
    with pytest.raises(NothingToMinify, match="the graph does not fail on these inputs"):
        aotgrad.minifier(fx.symbolic_trace(lambda x: x + 1), [torch.ones(2)], lambda module, inputs: False)
