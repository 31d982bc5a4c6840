"""Passes that users add: where they run, that plans notice, and what is said of one that breaks the graph."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
import torch.fx as fx

import aotgrad
from aotgrad.errors import ContractError, OptionError, PassError
from aotgrad.ir import GraphHalf, JointGraph
from aotgrad.passes import CheckFunctional, CommonSubexpressionElimination
from aotgrad.passes.base import Pipeline
from tests.executables import executable_of
from tests.numerics.against_eager import assert_like_eager, leaf
from tests.passes.graphs import aten, inference_graph, names


@dataclass(frozen=True)
class Note:
    """Changes nothing and notes what it saw."""

    name: str = "note"
    seen: list[Any] = field(default_factory=list, compare=False)

    def apply(self, graph):
        self.seen.append((type(graph), names(graph)))
        return graph


@dataclass(frozen=True)
class ReplaceOp:
    """Calls another op in place of one."""

    old: Any
    new: Any
    name: ClassVar[str] = "replace_op"

    def apply(self, graph):
        for node in graph.module.graph.nodes:
            if node.target is self.old:
                node.target = self.new
        return graph


@pytest.fixture
def registry():
    """Whatever a test registers is gone afterwards."""
    before = {place: aotgrad.passes.registered(place) for place in ("joint", "forward", "backward")}
    yield
    for place, passes in before.items():
        for each in aotgrad.passes.registered(place):
            aotgrad.passes.unregister(each.name, place=place)
        for each in passes:
            aotgrad.passes.register(each, place=place)


def loss(x):
    return (x.sin() * x).sum()


def run(function=loss, **options):
    x = torch.randn(3, requires_grad=True)
    compiled = aotgrad.aot_function(function, aotgrad.nop, options=options)
    compiled(x).backward()
    return compiled, x


def test_each_place_gets_its_graph():
    notes = {place: Note() for place in ("joint_passes", "forward_passes", "backward_passes")}
    run(**{place: [note] for place, note in notes.items()})
    kinds = [[kind for kind, _ in note.seen] for note in notes.values()]
    assert kinds == [[JointGraph], [GraphHalf], [GraphHalf]]
    joint, forward, backward = (note.seen[0][1] for note in notes.values())
    assert "sin" in forward and "cos" not in forward
    assert "cos" in backward and "sum" not in backward
    assert {*forward, *backward} <= {*joint}


def test_a_backward_pass_sees_each_variant_and_changes_no_other():
    note = Note()
    cut = ReplaceOp(aten.cos.default, aten.sin.default)
    compiled = aotgrad.aot_function(lambda x, y: x.sin() + y.sin(), aotgrad.nop, options={"backward_passes": [note, cut]})
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    torch.autograd.grad(compiled(x, y).sum(), x)
    compiled(x, y).sum().backward()
    assert [graph.count("cos") for _, graph in note.seen] == [1, 2]
    assert torch.equal(y.grad, y.sin())


def test_a_pass_runs_after_the_built_in_ones_and_is_tidied_up_after():
    @dataclass(frozen=True)
    class Leave:
        """Leaves an op behind that nobody needs."""

        name: ClassVar[str] = "leave"

        def apply(self, graph):
            (output,) = graph.module.graph.find_nodes(op="output")
            first = next(iter(graph.module.graph.nodes))
            with graph.module.graph.inserting_before(output):
                graph.module.graph.call_function(aten.exp.default, (first,))
            return graph

    note = Note()
    joint = executable_of(lambda x: x.sin().detach() * x.sin(), "f32[3]", options={"joint_passes": [note, Leave()]}).joint
    assert note.seen == [(JointGraph, ["sin", "mul"])]
    assert names(joint) == ["sin", "mul"]


def test_what_a_pass_adds_gets_its_traced_value():
    @dataclass(frozen=True)
    class Fuse:
        """`sin` becomes `cos` of a shifted argument."""

        name: ClassVar[str] = "shift"

        def apply(self, graph):
            for node in graph.module.graph.find_nodes(op="call_function", target=aten.sin.default):
                with graph.module.graph.inserting_before(node):
                    shifted = graph.module.graph.call_function(aten.sub.Tensor, (node.args[0], torch.pi / 2))
                    moved = graph.module.graph.call_function(aten.cos.default, (shifted,))
                node.replace_all_uses_with(moved)
            return graph

    assert_like_eager(
        lambda x: x.sin(),
        lambda: (leaf(3),),
        "interpreter",
        values_close="another formula",
        options={"joint_passes": [Fuse()]},
    )


def test_a_pass_may_add_a_constant():
    @dataclass(frozen=True)
    class AddOne:
        name: ClassVar[str] = "add_one"

        def apply(self, graph):
            graph.module.register_buffer("one", torch.ones(()))
            (sin,) = graph.module.graph.find_nodes(op="call_function", target=aten.sin.default)
            with graph.module.graph.inserting_before(sin):
                one = graph.module.graph.get_attr("one")
                sin.args = (graph.module.graph.call_function(aten.add.Tensor, (sin.args[0], one)),)
            return graph

    x = torch.randn(3)
    function = aotgrad.aot_function(torch.sin, aotgrad.nop, options={"joint_passes": [AddOne()]})
    assert torch.equal(function(x), (x + 1).sin())


def test_registered_passes_run_before_those_of_the_options(registry):
    order: list[str] = []

    @dataclass(frozen=True)
    class Named:
        name: str

        def apply(self, graph):
            order.append(self.name)
            return graph

    aotgrad.passes.register(Named("first"))
    aotgrad.passes.register(Named("second"))
    run(joint_passes=[Named("third")])
    assert order == ["first", "second", "third"]


def test_plans_notice_a_registration(registry):
    compiled = aotgrad.aot_function(lambda x: x.sin(), aotgrad.nop)
    x = torch.randn(3)
    assert torch.equal(compiled(x), x.sin())
    aotgrad.passes.register(ReplaceOp(aten.sin.default, aten.cos.default), place="forward")
    assert torch.equal(compiled(x), x.cos())
    aotgrad.passes.unregister("replace_op", place="forward")
    assert torch.equal(compiled(x), x.sin())


def test_a_pass_of_the_same_name_is_replaced(registry):
    aotgrad.passes.register(Note(), place="backward")
    assert aotgrad.passes.register(new := Note(), place="backward") is new
    assert aotgrad.passes.registered("backward") == (new,)
    assert aotgrad.passes.registered("joint") == ()


def test_passes_through_torch_compile():
    note = Note()
    x = torch.randn(3, requires_grad=True)
    torch._dynamo.reset()
    torch.compile(loss, backend="aotgrad_eager", options={"joint_passes": [note], "backward_passes": [note]})(x).backward()
    assert [kind for kind, _ in note.seen] == [JointGraph, GraphHalf]


def test_gradients_of_gradients_go_through_the_passes_too():
    note = Note()
    x = torch.randn(3, requires_grad=True)
    compiled = aotgrad.aot_function(lambda x: x.sin().sum(), aotgrad.nop, options={"joint_passes": [note]})
    (gradient,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(gradient.sum(), x)[0], -x.sin())
    assert len(note.seen) == 2


# --- passes that break the graph -------------------------------------------------------------------------------------


def output_of(graph) -> fx.Node:
    return graph.module.graph.find_nodes(op="output")[0]


def raises(graph):
    raise KeyError("oops")


def returns_nothing(graph):
    pass


def drops_an_output(graph):
    output_of(graph).args = (output_of(graph).args[0][1:],)
    return graph


def changes_the_signature(graph):
    return replace(graph, signature=replace(graph.signature, outputs=graph.signature.outputs[1:]))


def changes_a_dtype(graph):
    with graph.module.graph.inserting_before(output_of(graph)):
        first, *rest = output_of(graph).args[0]
        wide = graph.module.graph.call_function(aten.to.dtype, (first, torch.float64))
    output_of(graph).args = ((wide, *rest),)
    return graph


def changes_strides(graph):
    ops, (first, *rest) = graph.module.graph, output_of(graph).args[0]
    with ops.inserting_before(output_of(graph)):
        transposed = ops.call_function(aten.t.default, (first,))
        copied = ops.call_function(aten.clone.default, (transposed,), {"memory_format": torch.contiguous_format})
        back = ops.call_function(aten.t.default, (copied,))
    output_of(graph).args = ((back, *rest),)
    return graph


def returns_an_input(graph):
    rest = output_of(graph).args[0][1:]
    output_of(graph).args = ((next(iter(graph.module.graph.nodes)), *rest),)
    return graph


def writes(graph):
    (node,) = graph.module.graph.find_nodes(op="call_function", target=aten.sin.default)
    node.target = aten.sin_.default
    return graph


def adds_an_input(graph):
    last = graph.module.graph.find_nodes(op="placeholder")[-1]
    with graph.module.graph.inserting_after(last):
        graph.module.graph.placeholder("more").meta["val"] = last.meta["val"]
    return graph


def uses_before_it_is_made(graph):
    nodes = list(graph.module.graph.nodes)
    nodes[1].prepend(nodes[-2])
    return graph


def calls_with_wrong_arguments(graph):
    (node,) = graph.module.graph.find_nodes(op="call_function", target=aten.sin.default)
    with graph.module.graph.inserting_before(node):
        node.replace_input_with(node.args[0], graph.module.graph.call_function(aten.mm.default, (node.args[0],)))
    return graph


@dataclass(frozen=True)
class Broken:
    how: Any
    name: ClassVar[str] = "broken"

    def apply(self, graph):
        return self.how(graph)


BROKEN = {
    raises: "raised KeyError: 'oops'",
    returns_nothing: "returned a NoneType, not a ",
    drops_an_output: "broke the graph: it returns . values; it returned ",
    changes_the_signature: "broke the graph: its signature changed",
    changes_a_dtype: r"broke the graph: output 0 is float64\[2, 2\] with strides \[2, 1\]; it was float32\[2, 2\] with",
    changes_strides: r"broke the graph: output 0 is float32\[2, 2\] with strides \[.*\]; it was",
    returns_an_input: "broke the graph: output 0 shares memory with other inputs or outputs than before",
    writes: "broke the graph: node sin writes to its arguments",
    adds_an_input: "broke the graph: its placeholders are primals_1, (tangents_1, )?more; they were primals_1",
    uses_before_it_is_made: "broke the graph: it is not well formed: ",
    calls_with_wrong_arguments: "broke the graph: it is not well formed: ",
}


@pytest.mark.parametrize("place", ["joint", "forward"])
@pytest.mark.parametrize("how", BROKEN, ids=lambda how: how.__name__)
def test_a_pass_that_breaks_the_graph_is_named(how, place):
    compiled = aotgrad.aot_function(lambda x: x.sin() * 2, aotgrad.nop, options={f"{place}_passes": [Broken(how)]})
    with pytest.raises(PassError, match=f"^{place} pass 'broken' {BROKEN[how]}"):
        compiled(torch.randn(2, 2, requires_grad=True))


def test_a_backward_pass_that_breaks_the_graph_is_named():
    x = torch.randn(3, requires_grad=True)
    compiled = aotgrad.aot_function(loss, aotgrad.nop, options={"backward_passes": [Broken(returns_nothing)]})
    with pytest.raises(PassError, match=r"^backward pass 'broken' returned a NoneType, not a GraphHalf"):
        compiled(x).backward()


def test_what_is_not_functional_is_named():
    def build(graph, x):
        return graph.call_function(aten.sin_.default, (x,))

    with pytest.raises(PassError, match=r"node sin__default \(aten.sin_.default\) writes"):
        CheckFunctional().apply(inference_graph(build))


# --- what is no pass -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (CommonSubexpressionElimination, "CommonSubexpressionElimination is a class; a pass is an instance of it"),
        (len, r"is no pass: it needs a name and apply\(graph\) -> graph"),
    ],
)
def test_what_is_no_pass_is_refused(value, message):
    with pytest.raises(OptionError, match=message):
        aotgrad.passes.register(value)
    with pytest.raises(OptionError, match=f"option 'joint_passes': .*{message}"):
        aotgrad.Options(joint_passes=[value])


def test_a_lone_pass_is_refused():
    with pytest.raises(OptionError, match=r"option 'forward_passes' is Note.*; legal is a list of passes"):
        aotgrad.Options(forward_passes=Note())


def test_an_unknown_place_is_refused():
    with pytest.raises(OptionError, match="place is 'middle'; passes run at 'joint', 'forward', 'backward'"):
        aotgrad.passes.register(Note(), place="middle")


def test_options_are_compared_by_their_passes():
    one, other = (aotgrad.Options(joint_passes=[aotgrad.passes.BatchMM(max_flops=n)]) for n in (1, 2))
    assert one != other
    assert one == dataclasses.replace(one, joint_passes=(aotgrad.passes.BatchMM(max_flops=1),))
    assert hash(one) != hash(other)


# --- the hook --------------------------------------------------------------------------------------------------------


def test_the_hook_is_called_after_every_pass():
    calls = []
    joint = inference_graph(lambda graph, x: graph.call_function(aten.sin.default, (x,)))
    Pipeline("joint", (Note("a"), Note("b"))).run(joint, lambda *call: calls.append(call))
    assert [(place, done.name) for place, done, _, _ in calls] == [("joint", "a"), ("joint", "b")]
    assert all(graph is joint and elapsed_ns >= 0 for _, _, graph, elapsed_ns in calls)


def test_graphs_between_passes_are_logged(caplog):
    with caplog.at_level("DEBUG", logger="aotgrad.passes"):
        run(backward_passes=[Note()])
    lines = [record.getMessage().splitlines()[0] for record in caplog.records if record.name == "aotgrad.passes"]
    assert [line.split(",")[0] for line in lines] == [
        *(f"joint pass {each.name}" for each in aotgrad.passes.JOINT),
        "backward pass note",
    ]


def test_a_built_in_pass_that_breaks_the_graph_is_named(monkeypatch):
    monkeypatch.setattr(aotgrad.passes, "JOINT", (Broken(drops_an_output),))
    with pytest.raises(ContractError, match="joint pass broken: 1 outputs for 2 output slots"):
        aotgrad.aot_function(loss, aotgrad.nop)(torch.randn(3, requires_grad=True))
