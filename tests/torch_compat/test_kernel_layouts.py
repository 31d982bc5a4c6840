"""Feature tests of `aotgrad/torch_compat/kernel_layouts.py`."""

from __future__ import annotations

import itertools

import pytest
import torch

from aotgrad import torch_compat as compat

aten = torch.ops.aten
STATISTICS = [torch.ones(3) for _ in range(4)]


def image(seed: int = 0) -> torch.Tensor:
    return torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(seed)) + 0.1


def norm(x, *flags):
    return (x, *STATISTICS, *flags, 0.1, 1e-5)


def norm_backward(op, grad, x):
    if op is aten.batch_norm_backward.default:
        return grad, x, *STATISTICS[:1], *STATISTICS[1:3], *STATISTICS[:2], True, 1e-5, [True] * 3, torch.empty(0)
    return grad, x, *STATISTICS[:1], *STATISTICS[1:3], *STATISTICS[:2], True, 1e-5, [True] * 3


ARGUMENTS = {
    aten._log_softmax_backward_data.default: lambda a, b: (a, b, 1, torch.float32),
    aten._batch_norm_with_update.default: lambda a, b: (*norm(a)[:5], 0.1, 1e-5),
    aten._batch_norm_with_update_functional.default: lambda a, b: (*norm(a)[:5], 0.1, 1e-5),
    aten._native_batch_norm_legit.default: lambda a, b: norm(a, True),
    aten._native_batch_norm_legit.no_stats: lambda a, b: (a, *STATISTICS[:2], True, 0.1, 1e-5),
    aten._native_batch_norm_legit_functional.default: lambda a, b: norm(a, True),
    aten._native_batch_norm_legit_no_training.default: lambda a, b: norm(a),
    aten.batch_norm_backward.default: lambda a, b: norm_backward(aten.batch_norm_backward.default, a, b),
    aten.binary_cross_entropy.default: lambda a, b: (a * 0.5, b * 0.5, None, 0),
    aten.channel_shuffle.default: lambda a, b: (a, 3),
    aten.copysign.Tensor: lambda a, b: (a, b),
    aten.floor_divide.default: lambda a, b: (a, b),
    aten.hardswish_backward.default: lambda a, b: (a, b),
    aten.hardtanh_backward.default: lambda a, b: (a, b, -1.0, 1.0),
    aten.huber_loss_backward.default: lambda a, b: (a, b, image(2), 0, 1.0),
    aten.lerp.Scalar: lambda a, b: (a, b, 0.5),
    aten.lerp.Tensor: lambda a, b: (a, b, image(2)),
    aten.log_sigmoid_forward.default: lambda a, b: (a,),
    aten.logit_backward.default: lambda a, b: (a, b, 1e-6),
    aten.max_unpool2d.default: lambda a, b: (a, torch.arange(20).reshape(4, 5).expand(2, 3, 4, 5).clone(), [8, 10]),
    aten.mse_loss_backward.default: lambda a, b: (a, b, image(2), 0),
    aten.native_batch_norm.default: lambda a, b: norm(a, True),
    aten.native_batch_norm_backward.default: lambda a, b: norm_backward(aten.native_batch_norm_backward.default, a, b),
    aten.native_dropout_backward.default: lambda a, b: (a, b > 0.5, 2.0),
    aten.native_group_norm_backward.default: lambda a, b: (
        a[..., 0], b[..., 0], torch.ones(2, 1), torch.ones(2, 1), torch.ones(3), 2, 3, 4, 1, [True] * 3,
    ),
    aten.native_layer_norm_backward.default: lambda a, b: (
        a, b, [5], torch.ones(2, 3, 4, 1), torch.ones(2, 3, 4, 1), torch.ones(5), torch.ones(5), [True] * 3,
    ),
    aten.pow.Scalar: lambda a, b: (2.0, a),
    aten.replication_pad2d_backward.default: lambda a, b: (torch.nn.functional.pad(a, [1, 1, 1, 1]), b, [1, 1, 1, 1]),
    aten.smooth_l1_loss_backward.default: lambda a, b: (a, b, image(2), 0, 1.0),
    aten.softplus_backward.default: lambda a, b: (a, b, 1.0, 20.0),
    aten.special_xlog1py.default: lambda a, b: (a, b),
    aten.xlogy.Tensor: lambda a, b: (a, b),
}  # fmt: skip

ORDERS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
    "reversed": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
}


def strides_of(result) -> list[int]:
    first = result[0] if isinstance(result, (tuple, list)) else result
    return [stride for stride, size in zip(first.stride(), first.shape, strict=True) if size != 1]


def test_each_op_is_tested():
    assert set(ARGUMENTS) == {*compat.LAYOUTS} > {*compat.LAYOUTS_ON_CPU}
    rules = (compat.contiguous, compat.as_first, compat.as_operands, compat.in_format_of_first, compat.in_format_of_second)
    assert set(compat.LAYOUTS.values()) == set(rules)
    assert compat.LayoutRule and compat.Strides


@pytest.mark.parametrize("op", ARGUMENTS, ids=str)
def test_a_fake_is_laid_out_as_the_kernel_does(op, fake_mode):
    for one, other in itertools.product(ORDERS.values(), repeat=2):
        args = ARGUMENTS[op](one(image()), other(image(1)))
        fakes = torch.utils._pytree.tree_map_only(torch.Tensor, fake_mode.from_tensor, args)
        with fake_mode, compat.eager_layouts(fake_mode):
            fake = op(*fakes)
        assert strides_of(fake) == strides_of(op(*args))


@pytest.mark.parametrize("op", [aten.xlogy.Tensor, aten.native_batch_norm.default])
def test_results_of_a_decomposition_are_laid_out_as_the_kernels(op, fake_mode):
    args = ARGUMENTS[op](ORDERS["transposed"](image()), image(1))
    expected, decomposed = (
        op(*args),
        torch.utils._pytree.tree_map(lambda each: each.mT.contiguous().mT if each.dim() > 1 else each, op(*args)),
    )
    found = compat.in_kernel_layout(op, decomposed, args, lambda each, strides: each.clone().as_strided(each.shape, strides))
    assert strides_of(found) == strides_of(expected) != strides_of(decomposed)


OFFSETS = torch.tensor([4, 4, 8], dtype=torch.int32)
MATRICES = {
    "rows of groups": lambda columns: ((8, 16), (3, 16, columns)),
    "one matrix a group": lambda columns: ((16, 8), (8, columns)),
    "as bmm": lambda columns: ((3, 8, 16), (3, 16, columns)),
    "columns of groups": lambda columns: ((3, 8, 16), (16, 8)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shapes", MATRICES)
def test_a_fake_grouped_product_is_as_the_kernel(shapes, dtype, fake_mode):
    assert {*compat.FAKES.values()} == {compat.grouped_product}
    op = aten._grouped_mm.default
    for columns, out_dtype in itertools.product([4, 5, 8], [None, dtype]):
        a, b = (torch.ones(shape, dtype=dtype) for shape in MATRICES[shapes](columns))
        b = b if columns == 8 else torch.nn.functional.pad(b, (0, -b.shape[-1] % 8))[..., : b.shape[-1]]
        given = (a, b, None if shapes == "as bmm" else OFFSETS, None, out_dtype)
        result = op(*given)
        with fake_mode, compat.eager_layouts(fake_mode):
            fake = op(*(fake_mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in given))
        assert (fake.shape, fake.stride(), fake.dtype) == (result.shape, result.stride(), result.dtype)


def test_torch_refuses_a_fake_grouped_product_of_float32(fake_mode):
    """If this fails, torch's fake is right, and `FAKES` may go."""
    graph = torch.fx.Graph()
    fakes = [fake_mode.from_tensor(each) for each in (torch.ones(8, 16), torch.ones(3, 16, 8), OFFSETS)]
    inputs = [graph.placeholder(name) for name in "abc"]
    for node, fake in zip(inputs, fakes, strict=True):
        node.meta["val"] = fake
    node, other = (
        graph.call_function(aten._grouped_mm.default, tuple(inputs)),
        graph.call_function(aten.sin.default, (inputs[0],)),
    )
    with fake_mode, compat.eager_layouts(fake_mode):
        node.meta["val"], other.meta["val"] = node.target(*fakes), other.target(fakes[0])
    assert compat.has_fake_of_torch(other) and not compat.has_fake_of_torch(node)


def test_strides_of_single_elements_do_not_matter(fake_mode):
    fake = fake_mode.from_tensor(torch.ones(2, 1).as_strided((2, 1), (1, 7)))
    assert compat.is_laid_out(fake, (1, 1)) and not compat.is_laid_out(fake, (2, 1))
    with fake_mode:
        assert compat.with_strides(fake, (1, 2)).stride() == (1, 2)
    assert compat.laid_out(fake_mode, aten.pow.Scalar, fake, ((fake,), {})) is fake


def test_torch_alone_lays_out_a_gradient_otherwise(fake_mode):
    """If this fails, torch's fake is right, and a row of the table can go."""
    args = (ORDERS["transposed"](image()), image(1), 1.0, 20.0)
    with fake_mode:
        fake = aten.softplus_backward.default(*map(fake_mode.from_tensor, args[:2]), *args[2:])
    assert strides_of(fake) != strides_of(aten.softplus_backward.default(*args))
