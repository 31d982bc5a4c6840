"""Attention on jagged nested tensors as an op, which does what torch does row by row."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._pytree import tree_leaves, tree_map

from aotgrad import torch_compat as compat

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")  # torch uses it
OFFSETS = torch.tensor([0, 2, 2, 5])


def nested(seed: int, width: int = 4, heads: int = 2) -> torch.Tensor:
    values = torch.randn(5, heads, width, generator=torch.Generator().manual_seed(seed))
    return torch.nested.nested_tensor_from_jagged(values, OFFSETS).detach().requires_grad_()


def outcome(call, dropout: float) -> list[torch.Tensor]:
    torch.manual_seed(0)
    leaves = [nested(0), nested(1), nested(2, width=3)]
    result = call(*(leaf.transpose(1, 2) for leaf in leaves), dropout_p=dropout, scale=0.7).transpose(1, 2)
    gradients = torch.autograd.grad((result * result).sum(), leaves)
    return [*(each.values() for each in (result, *gradients)), torch.rand(1)]


def by_op(*args, **kwargs) -> torch.Tensor:
    return compat.JaggedAttention().handle(scaled_dot_product_attention, refuse, *args, **kwargs)


def refuse(*args, **kwargs) -> None:
    raise AssertionError("torch computes it")


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_an_op_computes_what_torch_computes(dropout: float) -> None:
    expected, found = (outcome(call, dropout) for call in (scaled_dot_product_attention, by_op))
    assert len(found) == 5 and all(map(torch.equal, found, expected))


def test_a_gradient_is_computed_below_autograd() -> None:
    expected = derivative([*values(), values()[0]], 1)
    with torch.no_grad(), compat.below_autograd():
        found = derivative([*values(), values()[0]], 1)
    assert all(map(torch.equal, found, expected)) and not any(each.requires_grad for each in found)


def derivative(tensors: list[torch.Tensor], order: int) -> list[torch.Tensor]:
    return torch.ops.aotgrad_jagged.attention_derivative(tensors, order, [OFFSETS] * 3, 0.0, None, None)


def values() -> list[torch.Tensor]:
    return [nested(seed).values().detach() for seed in range(3)]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradients_of_all_orders(dropout: float) -> None:
    """Those of dense rows; dropout draws the same numbers each time."""

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        operands = tensors, [OFFSETS] * 3, dropout, 0.7
        ops = torch.ops.aotgrad_jagged
        return ops.attention(*operands) if dropout == 0 else ops.attention_with_dropout(*operands)[0]

    leaves = [each.double().requires_grad_() for each in values()]
    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


def test_what_torch_computes_otherwise_is_left_to_torch() -> None:
    dense, heads, rows = torch.ones(2, 2, 3, 4), nested(0).transpose(1, 2), nested(0)
    for args, settings in (([dense] * 3, {}), ([heads] * 3, {"attn_mask": heads}), ([rows] * 3, {}), ([heads] * 3, CAUSAL)):
        with pytest.raises(AssertionError, match="torch computes it"):
            by_op(*args, **settings)


CAUSAL = {"is_causal": True}


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_shapes_of_a_trace_are_those_of_a_call(fake_mode, dropout: float) -> None:
    call = torch.ops.aotgrad_jagged.attention if dropout == 0 else torch.ops.aotgrad_jagged.attention_with_dropout
    real = [call(values(), [OFFSETS] * 3, dropout, None), derivative([*values(), values()[0]], 1)]
    with fake_mode:
        fakes, offsets = tree_map(fake_mode.from_tensor, (values(), [OFFSETS] * 3))
        fake = [call(fakes, offsets, dropout, None), derivative([*fakes, fakes[0]], 1)]
    found, expected = ([(x.shape, x.stride(), x.dtype) for x in tree_leaves(each)] for each in (fake, real))
    assert found == expected
