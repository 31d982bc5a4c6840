"""Joint graphs: exported, changed and recompiled; the simple form is compared with torch's own."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_simple as peer_export

import aotgrad
from aotgrad.errors import CaptureError, ExportError, PassError
from tests.numerics.against_eager import leaf, plain

aten = torch.ops.aten


# --- aot_export_joint_simple -----------------------------------------------------------------------------------------

FUNCTIONS = {
    "matmul": (lambda x, y: [(x @ y).relu()], lambda: (leaf(2, 3), plain(3, 2))),
    "two_outputs": (lambda x, y: [x * y, x.exp()], lambda: (leaf(3), leaf(3))),
    "integer_output": (lambda x: [x.sin(), x.argmax()], lambda: (leaf(3),)),
    "layer_norm": (lambda x, w: [F.layer_norm(x, (4,), w)], lambda: (leaf(2, 4), leaf(4))),
    "unused": (lambda x, y: [x.cos()], lambda: (leaf(3), leaf(3))),
    "attention": (lambda q, k, v: [F.scaled_dot_product_attention(q, k, v)], lambda: tuple(leaf(1, 2, 4, 8) for _ in "qkv")),
}
EVERY = pytest.mark.parametrize("name", FUNCTIONS)


@EVERY
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
def test_the_simple_form_is_the_peers(name):
    function, make_args = FUNCTIONS[name]
    args = make_args()
    ours, theirs = (export(function, args, trace_joint=True) for export in (aotgrad.aot_export_joint_simple, peer_export))
    primals = [arg.detach() for arg in args]
    tangents = [torch.randn_like(value) for value in function(*args) if value.requires_grad]
    (outputs, gradients), (other_outputs, other_gradients) = ours(primals, tangents), theirs(primals, tangents)
    torch.testing.assert_close(list(outputs), list(other_outputs))
    assert [value is None for value in gradients] == [value is None for value in other_gradients]
    for value, other in zip(gradients, other_gradients, strict=True):
        torch.testing.assert_close(value, other)
    again = pickle.loads(pickle.dumps(ours))
    torch.testing.assert_close(list(again(primals, tangents)[0]), list(outputs))


@EVERY
def test_the_simple_form_without_a_backward(name):
    function, make_args = FUNCTIONS[name]
    args = make_args()
    for trace_joint, inputs in ((False, args), (True, [arg.detach() for arg in args])):
        ours, theirs = (
            export(function, tuple(inputs), trace_joint=trace_joint)
            for export in (aotgrad.aot_export_joint_simple, peer_export)
        )
        names = [[node.name for node in graph.graph.find_nodes(op="placeholder")] for graph in (ours, theirs)]
        assert names[0] == names[1]
        torch.testing.assert_close(list(ours(*args)), list(theirs(*args)))


def test_one_tensor_twice():
    graph = aotgrad.aot_export_joint_simple(lambda x, y: [x * y], (x := leaf(3), x), trace_joint=True)
    _, gradients = graph([x.detach(), x.detach()], [torch.ones(3)])
    assert torch.equal(gradients[0], 2 * x.detach()) and gradients[1] is None


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: [x.mul_(2) + 1], "exports functions that change no input"),
        (lambda x: [x.view(-1)], r"whose outputs share no memory; clone\(\) the views"),
        (lambda x: [x], r"whose outputs share no memory; clone\(\) the views"),
        (lambda x: x * 2, "that return a flat list or tuple of tensors"),
        (lambda x: [[x * 2]], "that return a flat list or tuple of tensors"),
    ],
)
def test_what_has_no_simple_form(function, message):
    with pytest.raises(ExportError, match=message):
        aotgrad.aot_export_joint_simple(function, (plain(2, 3),), trace_joint=False)
    with pytest.raises(ExportError, match="takes tensors; flatten the arguments first"):
        aotgrad.aot_export_joint_simple(function, ([plain(2)],), trace_joint=False)


# --- export_joint and compile_joint ----------------------------------------------------------------------------------


def f(x, *, scale):
    return {"y": (x * scale).sin().sum(), "x": x.t()}


def test_every_input_and_output_says_what_it_is(golden):
    joint = aotgrad.export_joint(f, (leaf(2, 3),), {"scale": leaf(3)})
    assert joint.names == ("x", "scale")
    assert list(map(str, joint.signature.inputs)) == ["primal 0", "primal 1", "tangent of output 0"]
    golden("export/joint", f"{joint}\n")


def test_a_joint_graph_that_was_not_changed():
    x, scale = leaf(2, 3), leaf(3)
    compiled = aotgrad.compile_joint(aotgrad.export_joint(f, (x,), {"scale": scale}), aotgrad.nop)
    for _ in range(2):
        result, expected = compiled(x, scale=scale), f(x, scale=scale)
        assert torch.equal(result["y"], expected["y"])
        assert result["x"]._base is x and torch.equal(result["x"], x.t())
        gradients = [torch.autograd.grad(each["y"], (x, scale)) for each in (result, expected)]
        torch.testing.assert_close(*gradients)


def clipped(joint):
    """Gradients of parameters are clipped inside the graph."""
    graph = joint.module.graph
    (output,) = graph.find_nodes(op="output")
    results = list(output.args[0])
    for position, slot in enumerate(joint.signature.outputs):
        if str(slot).startswith("gradient of") and results[position] is not None:
            with graph.inserting_before(output):
                results[position] = graph.call_function(aten.clamp.default, (results[position], -0.1, 0.1))
    output.args = (tuple(results),)
    joint.module.recompile()


def test_a_changed_joint_graph():
    model, x = nn.Linear(3, 2), plain(4, 3)
    joint = aotgrad.export_joint(model, (x,))
    assert joint.names == ("weight", "bias", "input")
    clipped(joint)
    compiled = aotgrad.compile_joint(joint, aotgrad.nop, partition_fn=aotgrad.default_partition)
    assert torch.equal(compiled(x), model(x))
    compiled(x).sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    for gradient, other in zip(found, expected, strict=True):
        assert torch.equal(gradient, other.clamp(-0.1, 0.1))
        assert gradient.abs().max() == 0.1


def test_the_exported_graph_stays_as_it_was():
    joint = aotgrad.export_joint(lambda x: x.sin(), (leaf(3),))
    compiled = aotgrad.compile_joint(joint, aotgrad.nop)
    clipped(joint)
    changed, x = aotgrad.compile_joint(joint, aotgrad.nop), leaf(3)
    compiled(x).sum().backward()
    assert torch.equal(x.grad, x.detach().cos())
    assert changed(x).grad_fn is not None


def test_with_another_module():
    joint = aotgrad.export_joint(lambda x: x.sin(), (plain(3),))
    other = aotgrad.export_joint(lambda x: x.cos(), (plain(3),))
    compiled = aotgrad.compile_joint(joint.with_module(other.module), aotgrad.nop)
    x = plain(3)
    assert torch.equal(compiled(x), x.cos())


def test_a_graph_with_other_outputs_is_an_error():
    joint = aotgrad.export_joint(lambda x: x.sin(), (leaf(3),))
    (output,) = joint.module.graph.find_nodes(op="output")
    output.args = ((output.args[0][0],),)
    with pytest.raises(PassError, match="joint pass 'changed by hand' broke the graph: it returns 1 values; it returned 2"):
        aotgrad.compile_joint(joint, aotgrad.nop)


def test_other_arguments_are_an_error():
    compiled = aotgrad.compile_joint(aotgrad.export_joint(lambda x: x.sin(), (plain(3),)), aotgrad.nop)
    with pytest.raises(CaptureError, match=r"the joint graph was exported for other arguments: .*size mismatch"):
        compiled(plain(4))
    with pytest.raises(CaptureError, match="the joint graph was exported for other arguments"):
        compiled(leaf(3))


def test_gradients_of_gradients_are_an_error():
    x = leaf(3)
    compiled = aotgrad.compile_joint(aotgrad.export_joint(lambda x: x.sin(), (x,)), aotgrad.nop)
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
    assert torch.equal(gradient, x.detach().cos())
    with pytest.raises(ExportError, match="has no gradient of a gradient"):
        torch.autograd.grad(compiled(x).sum(), x, create_graph=True)


def test_under_autocast_and_vmap_in_the_backward():
    x = leaf(3)
    compiled = aotgrad.compile_joint(aotgrad.export_joint(lambda x: x.sin(), (x,)), aotgrad.nop)
    basis = torch.eye(3)
    rows = torch.autograd.grad(compiled(x), x, basis, is_grads_batched=True)[0]
    torch.testing.assert_close(rows, torch.diag(x.detach().cos()))
