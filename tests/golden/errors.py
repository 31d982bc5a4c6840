"""What users read when something cannot be compiled."""

from __future__ import annotations

import torch
from torch import nn

import aotgrad
from tests.golden.cases import error_case


@error_case
def unknown_option():
    """An option that does not exist."""
    aotgrad.aot_function(torch.sin, aotgrad.nop, options={"partitoner": "min_cut"})


@error_case
def illegal_option_value():
    """An option with a value that is not legal."""
    aotgrad.Options(partitioner="greedy")


@error_case
def data_dependent_branch():
    """Python control flow that depends on the value of a tensor."""

    def clipped(x):
        if x.sum() > 1:
            return x / x.sum()
        return x

    aotgrad.aot_function(clipped, aotgrad.nop)(torch.ones(3))


@error_case
def unsupported_output():
    """An output that cannot be made again on every call."""
    aotgrad.aot_function(lambda x: (x, object()), aotgrad.nop)(torch.ones(3))


@error_case
def overlap_of_two_histories():
    """Two inputs share memory that is changed, and each of them has a gradient history of its own."""
    add = aotgrad.aot_function(lambda x, y: x.mul_(2) + y, aotgrad.nop)
    x = torch.ones(3, requires_grad=True) * 1
    add(x, x.detach().requires_grad_())


@error_case
def mutated_closure():
    """A tensor that is no argument is changed in place."""
    total = torch.zeros(3)
    aotgrad.aot_function(lambda x: total.add_(x), aotgrad.nop)(torch.ones(3))


@error_case
def gradient_of_a_closure():
    """A tensor that requires grad comes from a closure."""
    weight = torch.ones(3, requires_grad=True)
    aotgrad.aot_function(lambda x: x * weight, aotgrad.nop)(torch.ones(3))


@error_case
def mutated_leaf():
    """A leaf that requires grad is changed while grad mode is on: eager's own error."""
    aotgrad.aot_function(lambda x: x.mul_(2), aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def replaced_storage():
    """An input is given another storage."""

    def swap(x, y):
        x.data = y

    aotgrad.aot_function(swap, aotgrad.nop)(torch.ones(3), torch.zeros(3))


@error_case
def reassigned_buffer():
    """A module binds its buffer to a new tensor."""

    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count = self.count + 1
            return x * self.count

    aotgrad.aot_module(Counter(), aotgrad.nop)(torch.ones(3))


@error_case
def compiler_returns_no_callable():
    """A backend's compiler returns something else than a callable."""
    aotgrad.aot_function(torch.sin, lambda graph, inputs: 42)(torch.ones(3))


@error_case
def wrong_number_of_results():
    """A backend's callable returns a wrong number of values."""

    def compiler(graph, inputs):
        return lambda *args: (args[0], args[0])

    aotgrad.aot_function(torch.sin, compiler)(torch.ones(3))


@error_case
def unknown_backend():
    """A backend that nobody registered."""
    aotgrad.backends.get("tpu")


@error_case
def compiler_is_no_function():
    """A registered backend must be callable."""
    aotgrad.backends.register("mine", fw_compiler="inductor")


@error_case
def user_error():
    """An error of the function itself passes through unchanged."""

    def broken(x):
        raise KeyError("temperature")

    aotgrad.aot_function(broken, aotgrad.nop)(torch.ones(3))
