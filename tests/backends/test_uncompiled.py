"""Graphs with ops that are not compiled: which nodes are, and in what order they run."""

from __future__ import annotations

import operator

import torch
import torch.fx as fx
from torch.fx.experimental.proxy_tensor import make_fx

from aotgrad.backends.uncompiled import must_be_cut, stages_of, uncompiled_nodes


def traced(function, *args: torch.Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*args)


def between(x, y):
    sparse = (x * 2).to_sparse()
    return torch.sparse.mm(sparse * 3, y.sin()).exp()


def names(nodes) -> set[str]:
    return {node.name for node in nodes}


def test_dense_nodes_are_in_even_stages() -> None:
    module = traced(between, torch.eye(3), torch.ones(3, 2))
    stages = {node.name: stage for node, stage in stages_of(module.graph, uncompiled_nodes(module.graph)).items()}
    assert must_be_cut(module.graph) and not must_be_cut(traced(torch.sin, torch.ones(2)).graph)
    assert stages["mul"] == stages["sin"] == 0 and stages["_to_sparse"] == stages["mul_1"] == 1 and stages["exp"] == 2


def test_what_parts_of_sparse_tensors_lead_to_is_not_compiled() -> None:
    module = traced(lambda x: torch.sparse.sum(x.to_sparse()).sin() + x.cos(), torch.eye(3))
    assert {"sin", "add"} <= names(uncompiled_nodes(module.graph)) and "cos" not in names(uncompiled_nodes(module.graph))


def test_an_op_without_a_shape_function_is_not_compiled_and_what_reads_its_results_is() -> None:
    module = make_fx(lambda x: torch.linalg.lstsq(x * 2, x).solution.sin())(torch.eye(3))
    apart = {node.target for node in uncompiled_nodes(module.graph)}
    assert must_be_cut(module.graph) and apart == {torch.ops.aten.linalg_lstsq.default, operator.getitem}


def test_writes_into_views_of_complex_tensors_are_not_compiled() -> None:
    def written(x):
        y = x * 2
        y.diagonal().zero_()
        y[0] = 1
        return y

    apart = names(uncompiled_nodes(make_fx(torch.func.functionalize(written))(torch.ones(2, 2) + 1j).graph))
    assert {"diagonal_scatter", "select_scatter"} <= apart and "mul" not in apart
    assert not must_be_cut(make_fx(torch.func.functionalize(written))(torch.ones(2, 2)).graph)


def test_readers_of_negated_inputs_are_not_compiled() -> None:
    negated = (torch.ones(2, 3) * 2j).conj().imag
    graph = traced(lambda x, y: (x.t().sin().exp() + y).cos(), torch.ones(2, 3), torch.ones(3, 2)).graph
    assert not must_be_cut(graph)
    for name in ("x_1", "t"):
        node = next(node for node in graph.nodes if node.name == name)
        node.meta["val"] = negated if name == "x_1" else negated.t()
    assert must_be_cut(graph) and names(uncompiled_nodes(graph)) == {"t", "sin"}


def test_effects_stay_between_what_is_around_them() -> None:
    def draws(x):
        first = torch.rand_like(x.to_sparse().to_dense())
        return first + torch.rand(3) + x.sin()

    graph = traced(draws, torch.eye(3)).graph
    stages = {node.name: stage for node, stage in stages_of(graph, uncompiled_nodes(graph)).items()}
    assert stages["rand_like"] == stages["rand"] == 2 > stages["_to_sparse"]
