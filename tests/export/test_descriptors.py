"""Joint graphs with descriptors, compared with torch's own: what inputs and outputs are, and what is compiled."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch._functorch import aot_autograd as peer

import aotgrad
from aotgrad.errors import ExportError, OptionError
from aotgrad.export import descriptors
from tests.numerics.against_eager import leaf, plain

aten = torch.ops.aten


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x, scale, *, bias):
        hidden = self.norm(self.linear(x))
        return {"loss": (hidden * scale).sum() + bias.sum(), "views": (hidden.t(), hidden[0])}


def call():
    return (leaf(4, 3), 2.0), {"bias": leaf(3)}


def exported(api, module, args, kwargs=None):
    stack = contextlib.ExitStack()
    return stack, api.aot_export_joint_with_descriptors(stack, module, args, kwargs)


def placeholders(joint):
    return joint.graph_module.graph.find_nodes(op="placeholder")


def described(joint) -> tuple[list[str], list[str]]:
    """The descriptors as text: of the placeholders, and of the outputs that are no `None`."""
    (output,) = joint.graph_module.graph.find_nodes(op="output")
    values = torch.utils._pytree.tree_leaves(output.args[0])
    outputs = [desc.expr() for value, desc in zip(values, output.meta["desc"], strict=True) if value is not None]
    return [node.meta["desc"].expr() for node in placeholders(joint)], outputs


class Changed(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x, y):
        self.count.add_(x.detach().sum(0))
        y.mul_(2)
        return x * self.weight + self.count, y.exp()


MODULES = {
    "linear": (lambda: nn.Linear(3, 2), lambda: (plain(4, 3),)),
    "changed": (Changed, lambda: (leaf(4, 3), plain(4, 3))),
}


@pytest.mark.parametrize("name", MODULES)
def test_the_descriptors_are_the_peers(name):
    make, args = MODULES[name]
    stack, theirs = exported(peer, make(), args())
    stack.close()  # it holds the fake mode of the trace
    _, ours = exported(aotgrad, make(), args())
    assert described(ours) == described(theirs)
    assert (ours.params_spec, ours.buffers_spec) == (theirs.params_spec, theirs.buffers_spec)
    assert ours.out_spec == theirs.out_spec


def test_the_descriptors_of_a_module_with_views_and_keywords():
    module, (args, kwargs) = Net(), call()
    _, joint = exported(aotgrad, module, args, kwargs)
    inputs, outputs = described(joint)
    assert inputs[:4] == [f"self.get_parameter({name!r})" for name in joint.params_spec]
    assert inputs[4:7] == [f"self.get_buffer({name!r})" for name in joint.buffers_spec]
    assert inputs[7:9] == ["args[0]", "args[2]"]  # the number between them is no tensor
    assert inputs[9:] == ["__output_tangent(output[0])", "__output_tangent(__intermediate_base(output[1]))"]
    assert outputs[:3] == [f"__input_mutation(self.get_buffer({name!r}))" for name in joint.buffers_spec]
    assert outputs[3:5] == ["output[0]", "__intermediate_base(output[1])"]
    gradients = {text.removesuffix("[1]") for text in outputs[5:] if text.startswith("__grad")}
    assert gradients == {f"__grad({name})" for name in [*inputs[:4], "args[0]", "args[2]"]}
    assert "__slot('gradient of intermediate base 0 from segment 0')" in outputs, "the loss has a backward of its own"


def test_the_compiled_graph_takes_parameters_and_buffers():
    module, (args, kwargs) = Net(), call()
    stack, joint = exported(aotgrad, module, args, kwargs)
    with stack:
        compiled = aotgrad.aot_compile_joint_with_descriptors(joint)
    other, expected = copy.deepcopy(module), copy.deepcopy(module)
    (x, scale), expected_args = args, copy.deepcopy(args)
    found = compiled(*other.parameters(), *other.buffers(), x, scale, **kwargs)
    wanted = expected(*expected_args, **kwargs)
    torch.testing.assert_close(found, wanted)
    for result in (found, wanted):
        (result["loss"] + result["views"][0].sum()).backward()
    torch.testing.assert_close(x.grad, expected_args[0].grad)
    for tensor, reference in zip(other.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(tensor.grad, reference.grad)
    torch.testing.assert_close(list(other.buffers()), list(expected.buffers()))
    assert all(parameter.grad is None for parameter in module.parameters()), "its own tensors are not used"


def test_a_pass_finds_gradients_by_their_descriptors():
    module, x = nn.Linear(3, 2), plain(4, 3)
    _, joint = exported(aotgrad, module, (x,))
    graph = joint.graph_module.graph
    (output,) = graph.find_nodes(op="output")
    results = list(output.args[0])
    for position, described in enumerate(output.meta["desc"]):
        if described == descriptors.GradAOTOutput(descriptors.ParamAOTInput("weight")):
            with graph.inserting_before(output):
                results[position] = graph.call_function(aten.mul.Tensor, (results[position], 10.0))
    output.args = (tuple(results),)
    joint.graph_module.recompile()
    compiled = aotgrad.aot_compile_joint_with_descriptors(joint, fw_compiler=aotgrad.nop)
    compiled(*module.parameters(), x).sum().backward()
    weight, bias = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    torch.testing.assert_close([module.weight.grad, module.bias.grad], [10 * weight, bias])


def test_what_torch_has_and_aotgrad_does_not():
    _, joint = exported(aotgrad, nn.Linear(3, 2), (plain(4, 3),))
    with pytest.raises(ExportError, match=r"use aotgrad\.save of the compiled module"):
        aotgrad.aot_compile_joint_with_descriptors(joint, serializable=True)
    with pytest.raises(
        OptionError, match="has no disable_functionalization=True: mutations and aliases are always analyzed"
    ):
        aotgrad.aot_export_joint_with_descriptors(
            contextlib.ExitStack(), nn.Linear(3, 2), (plain(4, 3),), disable_functionalization=True
        )
