"""Updates of inputs in place: which copies are left out; values are compared with the original graph."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.fx as fx

from aotgrad.backends.in_place_updates import update_in_place
from aotgrad.graph import op_table
from tests.backends.test_buffer_reuse import traced

aten = torch.ops.aten


def written_after(function: Callable, *args: torch.Tensor) -> list[str]:
    """The ops that write in the changed graph; checks its results, and what it leaves in the arguments."""
    module = traced(function, *args)
    wanted, found = ([arg.clone() for arg in args] for _ in range(2))
    changed = update_in_place(module)
    pairs = zip(changed(*found), copy.deepcopy(module)(*wanted), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert all(map(torch.equal, found, wanted))
    return [node.target._opname for node in changed.graph.nodes if node.op == "call_function" and is_write(node)]


def is_write(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def writes(p: torch.Tensor, value: torch.Tensor, *results: torch.Tensor) -> list[torch.Tensor]:
    aten.copy_(p, value)
    return list(results)


def chain(p, g):
    return writes(p, aten.mul(aten.add(p, g), 2.0))


def read_before(p, g):
    product = aten.mm(p, g)
    return writes(p, aten.add(p, g), product)


def read_after(p, g):
    value = aten.add(p, g)
    return writes(p, value, aten.mm(p, g))


def a_view_read_after(p, g):
    view, value = aten.t(p), aten.add(p, g)
    return writes(p, value, aten.mm(view, g))


def new_value_read_after(p, g):
    value = aten.add(p, g)
    return writes(p, value, aten.mm(value, g))


def new_value_returned(p, g):
    value = aten.add(p, g)
    return writes(p, value, value)


def intermediate_returned(p, g):
    between = aten.add(p, g)
    return writes(p, aten.mul(between, 2.0), between)


def read_twice(p, g):
    return writes(p, aten.mul(p, p))


def transposed(p, g):
    return writes(p, aten.add(p, aten.t(p)))


def of_another_value(p, g):
    return writes(p, aten.add(g, p))


def no_pointwise_op(p, g):
    return writes(p, aten.addmm(p, g, g))


def of_another_dtype(p, g):
    return writes(p, aten.add(p, aten._to_copy(g, dtype=torch.float64)))


def lists(p, g):
    first, second = aten._foreach_add([p, g], [g, p])
    aten.copy_(p, first)
    aten.copy_(g, second)
    return []


def scaled_lists(p, g):
    first, second = aten._foreach_mul(aten._foreach_add([p, g], 1.0), 3.0)
    aten.copy_(p, first)
    aten.copy_(g, second)
    return []


def half_of_a_list(p, g):
    first, second = aten._foreach_mul([p, g], 3.0)
    return writes(p, first, second)


CASES: dict[Callable, list[str]] = {
    chain: ["add_", "mul_"],
    read_before: ["add_"],
    read_after: ["copy_"],
    a_view_read_after: ["copy_"],
    new_value_read_after: ["add_"],
    new_value_returned: ["copy_"],
    intermediate_returned: ["copy_"],
    read_twice: ["copy_"],
    transposed: ["copy_"],
    of_another_value: ["copy_"],
    no_pointwise_op: ["copy_"],
    of_another_dtype: ["copy_"],
    lists: ["copy_", "copy_"],
    scaled_lists: ["_foreach_add_", "_foreach_mul_"],
    half_of_a_list: ["copy_"],
}


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_what_is_updated_in_place(function):
    assert written_after(function, torch.rand(3, 3), torch.rand(3, 3)) == CASES[function]


def test_an_input_of_other_strides_is_copied_to():
    assert written_after(chain, torch.rand(3, 2).t(), torch.rand(2, 3)) == ["add_", "mul_"]
    assert written_after(lambda p, g: writes(p, aten.mul(aten.t(p), g)), torch.rand(3, 3), torch.rand(3, 3)) == ["copy_"]


def test_a_fused_update_writes_in_place():
    def step(p, g, average, square, count):
        result = aten._fused_adam(
            *([p], [g], [average], [square], [], [count]),
            **dict(lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False),
        )
        for target, values in zip((p, average, square), (result[0], result[2], result[3]), strict=True):
            aten.copy_(target, values[0])
        return []

    arguments = (*(torch.rand(3, 3) for _ in range(4)), torch.ones(()))
    assert written_after(step, *arguments) == ["_fused_adam_"]


def test_a_variant_in_place_takes_the_same_arguments():
    assert op_table.in_place_variant(aten.add.Tensor) is aten.add_.Tensor
    assert op_table.written_in_place(aten._fused_adam.default)[:3] == ("self", "grads", "exp_avgs")
    for op in (aten.mm.default, aten.add.out, aten.add_.Tensor, aten.sum.default, torch.add):
        assert op_table.in_place_variant(op) is None and op_table.written_in_place(op) == ()
