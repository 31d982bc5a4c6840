"""Each pass on a graph made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.fx as fx

from aotgrad.ir import JointGraph
from aotgrad.passes import JOINT, DeadCodeElimination, Pipeline, RemoveLeftovers, keep_input_mutations
from aotgrad.slots import GraphSignature, Primal, UserOutput
from tests.executables import executable_of

aten = torch.ops.aten


def joint_of(build) -> JointGraph:
    """The inference graph of one input that `build(graph, x)` writes; it returns the result node."""
    graph = fx.Graph()
    x = graph.placeholder("primals_1")
    graph.output((build(graph, x),))
    signature = GraphSignature((Primal(0),), (UserOutput(0),))
    return JointGraph(fx.GraphModule({}, graph), signature, frozenset(), frozenset())


def tidy(joint: JointGraph, *passes) -> JointGraph:
    return Pipeline("joint", passes).run(joint, lambda *_: None)


def targets(joint: JointGraph) -> list:
    return [node.target for node in joint.module.graph.nodes if node.op == "call_function"]


def test_dead_code_goes_with_all_that_only_it_needed():
    def build(graph, x):
        graph.call_function(aten.cos.default, (graph.call_function(aten.exp.default, (x,)),))
        return graph.call_function(aten.sin.default, (x,))

    assert targets(tidy(joint_of(build), DeadCodeElimination())) == [aten.sin.default]


@pytest.mark.parametrize("op", [aten.bernoulli.default, aten._assert_async.msg])
def test_random_ops_and_checks_stay(op):
    def build(graph, x):
        graph.call_function(op, (x,) if op is aten.bernoulli.default else (x, "message"))
        return graph.call_function(aten.sin.default, (x,))

    assert targets(tidy(joint_of(build), DeadCodeElimination())) == [op, aten.sin.default]


def test_detach_is_the_identity():
    def build(graph, x):
        return graph.call_function(aten.sin.default, (graph.call_function(aten.detach.default, (x,)),))

    assert targets(tidy(joint_of(build), RemoveLeftovers(), DeadCodeElimination())) == [aten.sin.default]


def test_tidy_leaves_a_runnable_module():
    def build(graph, x):
        graph.call_function(aten.exp.default, (x,))
        return graph.call_function(aten.detach.default, (graph.call_function(aten.sin.default, (x,)),))

    x = torch.randn(3)
    assert torch.equal(tidy(joint_of(build), *JOINT).module(x)[0], x.sin())


def updates(x, y):
    x.mul_(2)
    y.t_()
    y.add_(1)
    return x + 1


def test_kept_mutations_end_the_graph():
    executable = executable_of(updates, "f32[3]", "f32[2, 2]")
    joint = keep_input_mutations(executable.joint, executable.meta)
    copies = [node for node in joint.module.graph.nodes if node.target is aten.copy_.default]
    assert [node.args[0].name for node in copies] == ["primals_1"], "an input with new metadata is copied after the call"
    assert [str(slot) for slot in joint.signature.outputs] == ["updated input 1", "output 0"]


def test_a_graph_that_mutates_nothing_is_left_alone():
    executable = executable_of(lambda x: x + 1, "f32[3]")
    joint = replace(executable.joint)
    assert keep_input_mutations(joint, executable.meta) == joint
