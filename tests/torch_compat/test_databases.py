"""Torch's databases have the entries and attributes that the conformance checks use."""

from __future__ import annotations

import torch

from aotgrad import torch_compat as compat


def test_operators_have_samples_dtypes_and_forms():
    operators = {info.formatted_name: info for info in compat.operator_database()}
    (sample, *_) = operators["mul"].sample_inputs("cpu", torch.float32, requires_grad=True)
    assert torch.equal(operators["mul"].op(sample.input, *sample.args), sample.input * sample.args[0])
    assert operators["mul"].supports_dtype(torch.bool, "cpu") and operators["mul"].inplace_variant is torch.Tensor.mul_
    assert operators["mul"].aten_name == "mul" and operators["mul"].supports_out


def test_random_operators_do_not_seed():
    (info,) = [info for info in compat.operator_database() if info.formatted_name == "randn_like"]
    torch.manual_seed(5)
    assert not torch.equal(info.op(torch.ones(3)), info.op(torch.ones(3)))


def test_modules_have_samples():
    (info,) = [info for info in compat.module_database() if info.name == "nn.Linear"]
    samples = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=True)
    assert samples[0].constructor_input is not None and info.module_cls is torch.nn.Linear


def test_higher_order_operators():
    assert "map_simple" in {info.formatted_name for info in compat.higher_order_database()}


def test_a_tensor_with_gaps():
    tensor = torch.rand(3, 4)
    other = compat.noncontiguous_like(tensor)
    assert torch.equal(tensor, other) and not other.is_contiguous()


def test_ops_that_traces_contain():
    assert compat.has_own_kernel(torch.ops.aten.sin) and compat.has_own_kernel(torch.ops.aten.index_put)
    assert not compat.has_own_kernel(torch.ops.aten.vstack)


def test_allowed_errors():
    assert compat.tolerances_of(torch.ones(1), torch.ones(1)) == (1.3e-6, 1e-5)
    assert compat.tolerances_of(torch.ones(1, dtype=torch.int64)) == (0, 0)
