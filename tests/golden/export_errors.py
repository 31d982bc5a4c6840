"""Error messages for programs that cannot be exported."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

import aotgrad
from tests.golden.cases import error_case


class Body(nn.Module):
    """A module with one parameter."""

    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.ones(3)), function

    def forward(self, x):
        return self.function(self.weight, x)


def export(function, **settings):
    settings = {"output_loss_index": 0, **settings}
    aotgrad.aot_export_module(Body(function), (torch.ones(3, 3),), trace_joint=True, **settings)


def export_before(function):
    aotgrad.aot_export_module(Body(function), (torch.ones(3, 3),), trace_joint=False, pre_dispatch=True)


def export_simple(function, *args):
    aotgrad.aot_export_joint_simple(function, args or (torch.ones(2, 3),), trace_joint=False)


@error_case
def export_without_a_loss():
    """No output is named as the loss."""
    export(lambda weight, x: (weight.sum(),), output_loss_index=None)


@error_case
def generator_in_an_export():
    """The function draws from a generator that is an argument."""
    function = lambda x, generator: x * torch.rand(3, generator=generator)  # noqa: E731
    aotgrad.export_joint(function, (torch.ones(3, requires_grad=True), torch.Generator()))


@error_case
def loss_that_is_not_returned():
    """The loss is an output that does not exist."""
    export(lambda weight, x: (weight.sum(),), output_loss_index=1)


@error_case
def loss_without_a_gradient():
    """The loss depends on no parameter."""
    export(lambda weight, x: (x.sum(),))


@error_case
def loss_of_several_elements():
    """The loss is no scalar."""
    export(lambda weight, x: (weight * x,))


@error_case
def output_with_a_gradient_beside_the_loss():
    """An output beside the loss requires grad."""
    export(lambda weight, x: (weight.sum(), weight * x))


@error_case
def export_before_autograd():
    """The export requests ops before autograd and gradients."""
    export(lambda weight, x: (weight.sum(),), pre_dispatch=True)


@error_case
def question_before_autograd():
    """A module branches on a fact that is not known before autograd."""

    def forward(weight, x):
        y = weight * x
        return y if y.requires_grad else -y

    export_before(forward)


@error_case
def transform_before_autograd():
    """A module calls a transform, whose ops torch cannot record before autograd."""
    export_before(lambda weight, x: torch.vmap(lambda row: row * weight)(x))


@error_case
def serializable_joint():
    """A joint graph is to be compiled to a function that can be saved."""
    joint = aotgrad.aot_export_joint_with_descriptors(contextlib.ExitStack(), nn.Linear(2, 2), (torch.ones(3, 2),))
    aotgrad.aot_compile_joint_with_descriptors(joint, serializable=True)


@error_case
def transposed_in_an_export():
    """An exported module transposes an argument in place."""

    def forward(weight, x):
        x.t_()
        return ((x * weight).sum(),)

    export(forward)


@error_case
def changed_with_a_gradient_in_an_export():
    """An exported module writes a value that requires grad to an argument."""
    export(lambda weight, x: (weight.sum() + x.mul_(weight).sum().detach(),))


@error_case
def shared_memory_in_an_export():
    """An exported function changes an argument that overlaps another."""
    memory = torch.ones(6)
    export_simple(lambda x, y: [x.mul_(2) + y], memory[:4], memory[2:])


class Counting(torch.autograd.Function):
    """Counts its backwards in a tensor."""

    @staticmethod
    def forward(ctx, weight, count):
        ctx.count = count
        return weight * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.count.add_(1)
        return gradient * 2, None


@error_case
def assignment_in_an_export():
    """An exported function gives an argument other memory."""

    def forward(weight, x):
        x.data = x * 2
        return ((weight * x).sum(),)

    export(forward)


@error_case
def new_leaf_in_an_export():
    """An exported function sets its argument to require grad."""
    export(lambda weight, x: ((weight * x.requires_grad_()).sum(),))


@error_case
def backward_with_an_effect_in_an_export():
    """An exported function has a backward that changes an argument."""
    export(lambda weight, x: (Counting.apply(weight, x).sum(),))


@error_case
def simple_export_of_nested_arguments():
    """The simple form of a function that takes a list."""
    export_simple(lambda xs: [xs[0] * 2], [torch.ones(2)])


@error_case
def simple_export_of_a_change():
    """The simple form of a function that mutates its argument."""
    export_simple(lambda x: [x.mul_(2) + 1])


@error_case
def simple_export_of_one_tensor():
    """The simple form of a function that returns no list."""
    export_simple(lambda x: x * 2)


@error_case
def simple_export_of_a_view():
    """The simple form of a function that returns a view of its argument."""
    export_simple(lambda x: [x.view(-1)])


@error_case
def joint_for_other_arguments():
    """A compiled joint graph is called with another shape."""
    joint = aotgrad.export_joint(torch.sin, (torch.ones(3),))
    aotgrad.compile_joint(joint, aotgrad.nop)(torch.ones(4))


@error_case
def joint_of_what_is_disabled():
    """The joint graph of a function is requested while aotgrad is off."""
    aotgrad.export_joint(torch.sin, (torch.ones(3),), options={"enabled": False})


@error_case
def second_derivative_of_a_joint():
    """A compiled joint graph is differentiated twice."""
    x = torch.ones(3, requires_grad=True)
    compiled = aotgrad.compile_joint(aotgrad.export_joint(torch.sin, (x,)), aotgrad.nop)
    torch.autograd.grad(compiled(x).sum(), x, create_graph=True)


@error_case
def assigned_buffer_in_an_export():
    """The module binds its buffer to a new tensor."""
    module = Body(lambda weight, x: setattr(module, "count", module.count + 1) or x * weight)
    module.register_buffer("count", torch.zeros(()))
    aotgrad.aot_export_module(module, (torch.ones(3),), trace_joint=False)
