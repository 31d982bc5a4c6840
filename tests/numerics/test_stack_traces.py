"""Every node records its line of the user's code; a backward node records the line of its forward op."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.printing import text

from .against_eager import leaf


def graphs_of(function, args, *, through_dynamo: bool = False):
    """The forward and the backward graph that the compiler receives for a call and its backward."""
    graphs = []

    def keep(module, inputs):
        graphs.append(module.graph)
        return aotgrad.nop(module, inputs)

    if through_dynamo:
        torch._dynamo.reset()
        aotgrad.backends.register("keeping", fw_compiler=keep)
        compiled = torch.compile(function, backend=aotgrad.DynamoBackend("keeping"))
    else:
        compiled = aotgrad.aot_function(function, keep, partition_fn=aotgrad.default_partition)
    compiled(*args).sum().backward()
    return graphs


def nodes_of(graph, name: str):
    return [node for node in graph.nodes if node.op == "call_function" and name in str(node.target)]


def last_line(node) -> str:
    """The user's line, without the carets that Dynamo puts under it."""
    lines = [line.strip() for line in node.meta["stack_trace"].splitlines()]
    return [line for line in lines if line.strip("^~")][-1]


def three_lines(x, w):
    y = x @ w
    z = y.sigmoid()
    return z.tanh()


def arguments():
    return leaf(3, 4), leaf(4, 2)


@pytest.mark.parametrize("through_dynamo", [False, True], ids=["aot_function", "dynamo"])
def test_forward_nodes_carry_their_line(through_dynamo: bool) -> None:
    forward, _ = graphs_of(three_lines, arguments(), through_dynamo=through_dynamo)
    lines = {name: last_line(nodes_of(forward, name)[0]) for name in ("mm", "sigmoid", "tanh")}
    assert lines == {"mm": "y = x @ w", "sigmoid": "z = y.sigmoid()", "tanh": "return z.tanh()"}


@pytest.mark.parametrize("through_dynamo", [False, True], ids=["aot_function", "dynamo"])
def test_backward_nodes_carry_the_line_of_the_forward(through_dynamo: bool) -> None:
    _, backward = graphs_of(three_lines, arguments(), through_dynamo=through_dynamo)
    expected = {"tanh_backward": "return z.tanh()", "sigmoid_backward": "z = y.sigmoid()", "mm": "y = x @ w"}
    for name, line in expected.items():
        found = nodes_of(backward, name)
        assert found, name
        assert [last_line(node) for node in found] == [line] * len(found)


def test_every_call_of_the_backward_has_a_line() -> None:
    _, backward = graphs_of(three_lines, arguments())
    without = [node.name for node in backward.nodes if node.op == "call_function" and not node.meta.get("stack_trace")]
    assert without == []


def test_file_and_line_number_are_the_users() -> None:
    forward, backward = graphs_of(three_lines, arguments())
    first_line = inspect.getsourcelines(three_lines)[1]
    for graph, name in ((forward, "sigmoid"), (backward, "sigmoid_backward")):
        (node,) = nodes_of(graph, name)
        assert f'File "{__file__}", line {first_line + 2}, in three_lines' in node.meta["stack_trace"]


def test_forward_and_backward_share_their_sequence_number() -> None:
    forward, backward = graphs_of(three_lines, arguments())
    for name in ("sigmoid", "tanh"):
        (node,), (gradient,) = nodes_of(forward, name), nodes_of(backward, f"{name}_backward")
        assert node.meta["seq_nr"] == gradient.meta["seq_nr"]


def test_the_line_inside_of_a_module_is_the_users_call() -> None:
    class Model(nn.Module):
        def forward(self, x):
            return nn.functional.softplus(x)

    forward, backward = graphs_of(Model(), (leaf(3),))
    assert last_line(nodes_of(forward, "softplus")[0]) == "return nn.functional.softplus(x)"
    assert last_line(nodes_of(backward, "softplus_backward")[0]) == "return nn.functional.softplus(x)"


def test_module_names_reach_the_backward() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid())
    forward, backward = graphs_of(model, (leaf(2, 3),), through_dynamo=True)
    for graph, name, key in ((forward, "sigmoid", "nn_module_stack"), (backward, "sigmoid_backward", "fwd_nn_module_stack")):
        (node,) = nodes_of(graph, name)
        _, innermost = list(node.meta[key].values())[-1]
        assert "Sigmoid" in str(innermost)


def test_an_error_of_the_interpreter_names_the_line() -> None:
    compiled = []

    def interpret(module, inputs):
        compiled.append(module.graph)
        return aotgrad.backends.get("interpreter").fw_compiler(module, inputs)

    function = aotgrad.aot_function(three_lines, interpret)
    function(*arguments())
    node = nodes_of(compiled[0], "sigmoid")[0]
    node.meta["val"] = node.meta["val"].new_empty(7)
    with pytest.raises(aotgrad.errors.GraphCheckError, match=r"(?s)sigmoid.*z = y\.sigmoid\(\)"):
        function(*arguments())


# --- Where every module is torch's own -------------------------------------------------------------------------------


def of_torch() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 2), nn.Softplus()))


def compiled_with(module: nn.Module, through_dynamo: bool, **options):
    """The compiled module, and the list that collects its graphs."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph.graph)
        return aotgrad.nop(graph, inputs)

    if not through_dynamo:
        return aotgrad.aot_module(module, keep, options={"partitioner": "save_all", **options}), graphs
    torch._dynamo.reset()
    aotgrad.backends.register("keeping", fw_compiler=keep)
    return torch.compile(module, backend=aotgrad.DynamoBackend("keeping"), options=options), graphs


either = pytest.mark.parametrize("through_dynamo", [False, True], ids=["aot_module", "dynamo"])
MODULE_OF = {"tanh": "1 (Tanh)", "softplus": "2.1 (Softplus)", "addmm": "0 (Linear)"}


@either
def test_the_line_of_the_call_stands_for_modules_of_torchs(through_dynamo: bool) -> None:
    compiled, graphs = compiled_with(of_torch(), through_dynamo)
    result = compiled(leaf(2, 3))  # the call
    result.sum().backward()
    for graph in graphs:
        calls = [node for node in graph.nodes if node.op == "call_function"]
        assert {last_line(node) for node in calls} == {"result = compiled(leaf(2, 3))  # the call"}
        assert all(
            ", inside " in node.meta["stack_trace"] and f'File "{__file__}"' in node.meta["stack_trace"] for node in calls
        )
    forward, backward = graphs
    for name, module in MODULE_OF.items():
        assert f", inside {module}\n" in nodes_of(forward, name)[0].meta["stack_trace"]
    for name in ("tanh", "softplus"):
        (node,) = nodes_of(backward, f"{name}_backward")
        assert f", inside {MODULE_OF[name]}\n" in node.meta["stack_trace"]
    first = nodes_of(backward, "mm")[-1]
    assert ", inside 0 (Linear)\n" in first.meta["stack_trace"]


@either
def test_module_stacks_of_modules_of_torchs(through_dynamo: bool) -> None:
    compiled, graphs = compiled_with(of_torch(), through_dynamo)
    compiled(leaf(2, 3)).sum().backward()
    for graph, key in zip(graphs, ("nn_module_stack", "fwd_nn_module_stack"), strict=True):
        (node,) = [node for node in nodes_of(graph, "softplus")]
        path, kind = list(node.meta[key].values())[-1]
        assert path.endswith("2.1") and kind is nn.Softplus


@either
def test_a_lone_module_of_torchs(through_dynamo: bool) -> None:
    compiled, graphs = compiled_with(nn.Softplus(), through_dynamo)
    compiled(leaf(3)).sum().backward()
    assert len(graphs) == 2
    for graph in graphs:
        assert all(", inside Softplus" in node.meta["stack_trace"] for node in graph.nodes if node.op == "call_function")


def test_a_module_of_ones_own_says_its_own_line() -> None:
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return self.linear(x).tanh()

    compiled, graphs = compiled_with(nn.Sequential(Own(), nn.Sigmoid()), False)
    compiled(leaf(2, 3)).sum().backward()
    forward, backward = graphs
    for graph, name in ((forward, "addmm"), (forward, "tanh"), (backward, "tanh_backward")):
        assert last_line(nodes_of(graph, name)[0]) == "return self.linear(x).tanh()"
    assert ", inside 1 (Sigmoid)" in nodes_of(backward, "sigmoid_backward")[0].meta["stack_trace"]


def test_printed_graphs_say_which_module_and_which_call(golden) -> None:
    compiled = aotgrad.aot_module(of_torch(), aotgrad.nop, options={"partitioner": "save_all"})
    compiled(leaf(2, 3))
    golden("partition/modules_of_torchs", text(compiled.plans()[0].executable.partition))


def test_explain_says_which_module_and_which_call() -> None:
    compiled = aotgrad.aot_module(of_torch(), aotgrad.nop, options={"partitioner": "save_all"})
    report = str(aotgrad.explain(compiled)(leaf(2, 3)))
    assert "report = str(aotgrad.explain(compiled)(leaf(2, 3))), inside 1 (Tanh)" in report


def test_anomaly_mode_says_which_module_and_which_call() -> None:
    compiled = aotgrad.aot_module(nn.Sequential(nn.Linear(2, 2), nn.Softplus()), aotgrad.nop)
    with torch.no_grad():
        compiled[0].weight.fill_(float("nan"))
    with (
        pytest.warns(UserWarning, match="Anomaly Detection"),
        torch.autograd.detect_anomaly(),
        pytest.warns(UserWarning, match="inside 1 .Softplus."),
        pytest.raises(RuntimeError, match=r"inside 1 \(Softplus\)"),
    ):
        compiled(leaf(1, 2)).sum().backward()


@either
def test_lines_from_the_disk_are_those_of_this_call(through_dynamo: bool, tmp_path, monkeypatch) -> None:
    """The cached graphs may come from another process or another line."""
    monkeypatch.setenv("AOTGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("AOTGRAD_VERIFY", "0")
    compiled, graphs = compiled_with(of_torch(), through_dynamo, cache=True)
    compiled(leaf(2, 3)).sum().backward()  # there
    compiled, graphs = compiled_with(of_torch(), through_dynamo, cache=True)
    here = compiled(leaf(2, 3))
    here.sum().backward()
    lines = {last_line(node) for graph in graphs for node in graph.nodes if node.op == "call_function"}
    assert lines == {"here = compiled(leaf(2, 3))"}


class WritesARow(nn.Module):
    def forward(self, x):
        x[0].mul_(2)
        return (x + 1,)


def test_a_write_to_an_argument_has_the_line_of_the_change() -> None:
    graphs = []

    def keep(module, _):
        graphs.append(module)
        return module

    function = aotgrad.aot_module_simplified(WritesARow(), (torch.ones(2),), keep, keep_inference_input_mutations=True)
    function(torch.ones(2))
    (write,) = graphs[0].graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert write.meta["stack_trace"].endswith("x[0].mul_(2)")
