"""Graphs written by hand, and passes run over them."""

from __future__ import annotations

import torch
import torch.fx as fx

from aotgrad.ir import JointGraph
from aotgrad.passes import Pass
from aotgrad.passes.base import Pipeline
from aotgrad.passes.rewrite import fill_in_values
from aotgrad.slots import Primal, SlotSignature, UserOutput
from aotgrad.torch_compat import new_fake_mode

aten = torch.ops.aten


def inference_graph(build, like: torch.Tensor | None = None, submodules: dict | None = None) -> JointGraph:
    """The graph of one input that `build(graph, x)` writes; it returns the result node."""
    module = fx.GraphModule({}, fx.Graph())
    for name, submodule in (submodules or {}).items():
        module.add_module(name, submodule)
    graph = module.graph
    x = graph.placeholder("primals_1")
    x.meta["val"] = new_fake_mode().from_tensor(torch.ones(2, 3) if like is None else like)
    graph.output((build(graph, x),))
    signature = SlotSignature((Primal(0),), (UserOutput(0),))
    fill_in_values(module)
    return JointGraph(module, signature, frozenset(), frozenset())


def tidied(joint: JointGraph, *passes: Pass) -> JointGraph:
    return Pipeline("joint", passes).run(joint, lambda *_: None)


def targets(joint: JointGraph) -> list:
    return [node.target for node in joint.module.graph.nodes if node.op == "call_function"]


def names(joint: JointGraph) -> list[str]:
    """The ops of a graph: `["sin", "mul"]`."""
    return [str(target).split(".")[-2] if "." in str(target) else target.__name__ for target in targets(joint)]
