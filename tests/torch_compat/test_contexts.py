"""Feature tests of `aotgrad/torch_compat/contexts.py`."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import in_kernel_invocation_manager
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor

from aotgrad import torch_compat as compat

aten = torch.ops.aten


def test_running_below_autograd_nests_and_ends_with_an_error():
    x = torch.ones(2, requires_grad=True)

    def double(values):
        values.append(x * 2)
        return values

    def twice(values):
        compat.run_below_autograd(double, values)
        return double(values)

    assert [value.requires_grad for value in compat.run_below_autograd(twice, [])] == [False, False]
    with pytest.raises(ZeroDivisionError):
        compat.run_below_autograd(lambda _: 1 / 0, [])
    assert (x * 2).requires_grad


def test_below_autograd_neither_tracks_gradients_nor_views_nor_versions():
    x = torch.ones(2, requires_grad=True)
    plain = torch.ones(2)
    with compat.below_autograd():
        product, view = x * 2, plain.view(1, 2)
        plain.add_(1)
    assert not product.requires_grad
    assert view._base is None
    assert plain._version == 0


def test_above_autograd():
    x = torch.ones(2, requires_grad=True)
    with compat.below_autograd(), compat.above_autograd():
        product = x * 2
        assert x.detach()._base is None and x[:1]._base is x
        (gradient,) = torch.autograd.grad(product.sum(), x)
    assert gradient.tolist() == [2, 2]
    with compat.below_autograd():
        with compat.above_autograd():
            pass
        assert not (x * 2).requires_grad


def test_disable_autocast_holds_for_every_device():
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16), compat.disable_autocast():
        assert (x @ x).dtype == torch.float32
        assert not compat.any_autocast_enabled()


def test_any_autocast_enabled():
    assert not compat.any_autocast_enabled()
    with torch.autocast("cpu", torch.bfloat16):
        assert compat.any_autocast_enabled()


def test_classes_of_tensors_with_rules_of_their_own():
    class Plain(torch.Tensor):
        pass

    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs)

    classes = (torch.Tensor, nn.Parameter, Plain, Own)
    assert [compat.has_own_function_rules(kind) for kind in classes] == [False, False, False, True]
    assert [compat.has_own_dispatch_rules(kind) for kind in (*classes, TwoTensor)] == [False, False, False, False, True]
    assert not compat.has_own_dispatch_rules(compat.FakeTensor)


def test_as_inference_is_the_same_memory():
    x = torch.arange(4.0).view(2, 2).t()
    inference = compat.as_inference(x)
    assert inference.is_inference()
    assert inference.stride() == x.stride()
    x.zero_()
    assert inference.sum() == 0


def test_nothing_observes_what_runs_unobserved():
    class Refusing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            raise AssertionError(function)

    x = torch.ones(2)
    with Refusing(), compat.unobserved():
        assert x._version == 0


def test_a_bare_evaluation_is_real_and_exact(fake_mode):
    a, b = torch.randn(2, 2, requires_grad=True), torch.randn(2, 2)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), fake_mode, compat.bare_evaluation():
        product = aten.mm.default(a, b)
    assert (type(product), product.dtype, product.requires_grad) == (torch.Tensor, torch.float32, False)
    assert not product.is_inference()


def test_modes_that_make_tensors_elsewhere():
    assert compat.default_devices() == ()
    with torch.device("meta"), torch.device("cpu"):
        assert compat.default_devices() == ("meta", "cpu")
        assert len(compat.function_modes()) == 2


def test_normal_mode_makes_tensors_with_versions():
    with torch.inference_mode(), compat.normal_mode():
        assert not torch.is_grad_enabled()
        assert torch.ones(1)._version == 0
    with compat.normal_mode():
        assert torch.is_grad_enabled()


def test_torchscript_runs_without_autocast_of_its_own():
    before = torch._C._jit_set_autocast_mode(True)
    try:
        with compat.no_jit_autocast():
            assert torch._C._jit_set_autocast_mode(False) is False
        assert torch._C._jit_set_autocast_mode(True) is True
    finally:
        torch._C._jit_set_autocast_mode(before)


def test_what_autocast_keeps():
    weight = torch.ones(2, 2, requires_grad=True)
    kept = [compat.autocast_keeps(tensor) for tensor in (weight, weight * 1, weight.detach())]
    assert kept == [True, False, False]
    with torch.autocast("cpu", torch.bfloat16):
        for tensor, is_kept in zip((weight, weight * 1), kept, strict=False):
            casts = [torch.mm(tensor, tensor).grad_fn.next_functions[0][0] for _ in range(2)]
            assert (casts[0] is casts[1]) is is_kept


def test_autocast_as_an_earlier_state():
    x = torch.ones(2, 2)
    off: compat.AutocastState = compat.autocast_state()
    with torch.autocast("cpu", torch.bfloat16):
        on = compat.autocast_state()
        with compat.autocast_as(off):
            assert (x @ x).dtype == torch.float32
            assert compat.autocast_state() == off
        assert (x @ x).dtype == torch.bfloat16
    with compat.autocast_as(on):
        assert (x @ x).dtype == torch.bfloat16
        assert compat.autocast_state() == on
    assert compat.autocast_state() == off


def test_a_mode_of_the_users_own_is_no_default():
    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    assert compat.function_modes_are_defaults()
    with torch.device("cpu"):
        assert compat.function_modes_are_defaults()
    with Mode():
        assert not compat.function_modes_are_defaults()


def test_own_rules_are_off():
    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            raise AssertionError

    x = torch.ones(2).as_subclass(Refusing)
    with compat.without_own_rules():
        assert (x + 1).tolist() == [2, 2]


def test_tensors_have_memory_outside_of_the_kernels_of_fakes(fake_mode):
    included = torch._C._meta_in_tls_dispatch_include()
    with in_kernel_invocation_manager(fake_mode), compat.outside_of_fake_kernels():
        assert torch.ones(2).sum().item() == 2
    assert torch._C._meta_in_tls_dispatch_include() is included
