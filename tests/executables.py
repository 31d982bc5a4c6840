"""Stage results for tests: the output of the pipeline for a small function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch.fx as fx

import aotgrad
from aotgrad.backends.eager import compile_eager
from aotgrad.inspect.specs import parse_arguments
from aotgrad.ir import GraphHalf, JointGraph
from aotgrad.pipeline import Executable


def executable_of(function: Callable[..., Any], *specs: str, **options: Any) -> Executable:
    """The executable of a function called with arguments such as `"f32[3] requires_grad"`."""
    compiled = aotgrad.aot_function(function, compile_eager, **options)
    compiled(*parse_arguments(specs))
    (plan,) = compiled.plans()
    return plan.executable


def with_copied_graph(stage: JointGraph | GraphHalf) -> Any:
    """A copy of the stage with its own graph, which a test may change."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(stage.module.graph, {}))
    return replace(stage, module=fx.GraphModule(stage.module, graph))


def node_named(stage: Any, name: str) -> fx.Node:
    return next(node for node in stage.module.graph.nodes if node.name == name)


def results_of(stage: Any) -> list[Any]:
    (output,) = stage.module.graph.find_nodes(op="output")
    return list(output.args[0])


def set_results(stage: Any, results: list[Any]) -> None:
    (output,) = stage.module.graph.find_nodes(op="output")
    output.args = (tuple(results),)
