"""Programs that are hard to trace: each is as in eager, or refused with an error of ours; never silently different."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from aotgrad.errors import AOTGradError
from tests.device import new_generator

from .against_eager import assert_like_eager, leaf, non_leaf, plain
from .cases import Case, Cases, known

CASES = Cases()


# --- Autograd state changed inside -----------------------------------------------------------------------------------


@CASES.add(lambda: (plain(3),))
def input_that_is_told_to_require_grad(x):
    return x.requires_grad_() * 2


@CASES.add(lambda: (leaf(3),))
def detached_alias_that_requires_grad(x):
    y = x.detach().requires_grad_()
    return y * 2, y


@CASES.add(lambda: (leaf(3),))
def new_leaf(x):
    w = torch.ones(3, requires_grad=True)
    return x * w


@CASES.add(lambda: (leaf(3),))
def new_leaf_returned(x):
    return x * 2, torch.ones(3, requires_grad=True)


@CASES.add(lambda: (leaf(3),))
def new_parameter_returned(x):
    return x * 2, nn.Parameter(torch.ones(3))


@CASES.add(lambda: (leaf(3),))
def intermediate_detached_in_place(x):
    y = (x * 2).detach_()
    return y, x * 3


@CASES.add(lambda: (non_leaf(3),))
def input_detached_in_place(x):
    x.detach_()
    return x * 2


@CASES.add(lambda: (leaf(3),))
def backward_inside(x):
    (x * x).sum().backward()
    return x * 2


@CASES.add(lambda: (leaf(3),))
def hook_on_an_intermediate(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * 10)
    return y.sin()


@CASES.add(lambda: (leaf(3),))
def hook_on_an_input(x):
    x.register_hook(lambda gradient: gradient * 10)
    return x.sin()


@CASES.add(lambda: (leaf(3),))
def saved_tensor_hooks_inside(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved * 2, lambda saved: saved):
        return x.sin()


@CASES.add(lambda: (leaf(3),))
def gradient_of_a_gradient_inside(x):
    (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return (gradient**2).sum()


# --- Differences between a trace and eager ---------------------------------------------------------------------------


@CASES.add(lambda: (leaf(3),), known_difference="a traced tensor is of another class")
def asks_for_the_type(x):
    return x * (2 if type(x) is torch.Tensor else 3)


@CASES.add(lambda: (nn.Parameter(torch.ones(3)),))
def asks_whether_it_is_a_parameter(x):
    return x * (2 if isinstance(x, nn.Parameter) else 3)


@CASES.add(lambda: (non_leaf(3)[1:],))
def asks_whether_it_is_a_view(x):
    return x * (2 if x._is_view() else 3)


@CASES.add(lambda: (plain(3).add_(1),))
def asks_for_the_version(x):
    return x * (x._version + 1)


@CASES.add(lambda: (leaf(3),))
def asks_for_requires_grad(x):
    return x * (2 if x.requires_grad else 3)


@CASES.add(lambda: (non_leaf(3),))
def asks_whether_it_is_a_leaf(x):
    return x * (2 if x.is_leaf else 3)


@CASES.add(lambda: (leaf(3),))
def asks_for_the_gradient(x):
    return x * (2 if x.grad is None else 3)


@CASES.add(lambda: (leaf(6)[1::2],))
def asks_for_the_geometry(x):
    return x * x.stride(0) + x.storage_offset() * (2 if x.is_contiguous() else 3)


@CASES.add(lambda: (leaf(3),))
def asks_for_the_address(x):
    return x * (x.data_ptr() > 0)


@CASES.add(lambda: (leaf(3),))
def deep_copy(x):
    return copy.deepcopy(x.detach()) * x


# --- Random numbers --------------------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(30),))
def checkpoint_with_dropout(x):
    return checkpoint(lambda y: nn.functional.dropout(y.sin(), 0.5).exp(), x, use_reentrant=False)


@CASES.add(lambda: (leaf(30),))
def checkpoint_without_random_numbers(x):
    return checkpoint(lambda y: y.sin().exp(), x, use_reentrant=False)


@CASES.add(lambda: (leaf(3),))
def own_generator(x):
    return x * torch.rand(3, generator=new_generator().manual_seed(3))


@CASES.add(lambda: (leaf(3),))
def seeded_inside(x):
    torch.manual_seed(3)
    return x * torch.rand(3)


@CASES.add(lambda: (leaf(3),))
def random_state_restored_inside(x):
    state = torch.get_rng_state()
    y = torch.rand(3)
    torch.set_rng_state(state)
    return x * y, x * torch.rand(3)


# --- Rare operations -------------------------------------------------------------------------------------------------


@CASES.add(lambda: (non_leaf(3), non_leaf(3)))
def several_tensors_at_once(x, y):
    torch._foreach_mul_([x, y], 2.0)
    return x + y


@CASES.add(lambda: (non_leaf(3), non_leaf(3)))
def two_inputs_exchanged(x, y):
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return x - y


@CASES.add(lambda: (leaf(3),))
def result_written_into_out(x):
    result = torch.empty(3)
    torch.sin(x.detach(), out=result)
    return result * x


@CASES.add(lambda: (leaf(4),))
def unsafe_chunks(x):
    y = x * 1
    first, _ = y.unsafe_chunk(2)
    first.mul_(2)
    return y


@CASES.add(lambda: (plain(3),))
def written_through_an_expanded_view(x):
    x.expand(2, 3).zero_()
    return x


@CASES.add(lambda: (leaf(3),))
def sparse_result(x):
    return x.to_sparse()


@CASES.add(lambda: (leaf(3),))
def sparse_on_the_way(x):
    return torch.sparse.mm(torch.eye(3).to_sparse(), x.unsqueeze(1))


@CASES.add(lambda: (leaf(3),))
def branch_as_an_operation(x):
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))


@CASES.add(lambda: (leaf(3),))
def profiler_range(x):
    with torch.profiler.record_function("range"):
        return x.sin()


@CASES.add(lambda: (plain(3),))
def smaller_result(x):
    return x.clone().resize_(2)


@CASES.add(lambda: (leaf(3, 2),))
def mapped_over_rows(x):
    return torch.vmap(lambda row: row.sin().sum())(x)


@CASES.add(lambda: (leaf(3),))
def functional_gradient(x):
    return torch.func.grad(lambda y: (y**3).sum())(x)


@CASES.add(lambda: (leaf(3),))
def functional_jacobian(x):
    return torch.func.jacrev(torch.sin)(x)


@CASES.add(lambda: (leaf(3),))
def forward_mode(x):
    return torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=known(case.known_difference)) for case in CASES.cases]
)
def test_as_eager_or_refused(case: Case) -> None:
    """With one compiler: these concern the trace, which is the same for all."""
    try:
        case.check("nop", compilations=None)
    except AOTGradError as error:
        assert str(error)


def test_default_dtype_is_part_of_the_plan() -> None:
    def function(x):
        return x * torch.tensor(1.5), torch.zeros(2)

    before = torch.get_default_dtype()
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            assert_like_eager(function, lambda: (leaf(3),), "nop")
        finally:
            torch.set_default_dtype(before)
