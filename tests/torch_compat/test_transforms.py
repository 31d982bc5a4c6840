"""Feature tests of `aotgrad/torch_compat/transforms.py`."""

from __future__ import annotations

import pytest
import torch

from aotgrad import torch_compat as compat


def test_open_transforms_are_seen_from_inside():
    seen = []

    def note(x):
        seen.append((compat.transform_is_open(), compat.open_transforms(), compat.is_wrapped(x), compat.is_batched(x)))
        return x.sum()

    torch.func.vmap(note)(torch.ones(2, 3))
    torch.func.vmap(torch.func.grad(note))(torch.ones(2, 3))
    assert seen == [(True, ("vmap",), True, True), (True, ("vmap", "grad"), True, False)]
    assert not compat.transform_is_open()
    assert compat.open_transforms() == ()


def test_what_is_not_transformed_takes_the_usual_way():
    call = compat.dispatch_transformed(
        lambda values: ("usual", len(values)), lambda *values: len(values), compat.in_vmap_mode
    )
    x, seen = torch.ones(2, requires_grad=True), []
    assert call() == ("usual", 0) and call(x, x) == ("usual", 2)
    with torch.autograd.forward_ad.dual_level():
        assert call(x, x) == 2
    torch.func.vmap(lambda row: seen.append(call(row)) or row)(torch.ones(2))
    y = x * 2
    y.register_hook(lambda gradient: seen.append((call(gradient), compat.in_vmap_mode())))
    torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True, retain_graph=True)
    torch.autograd.grad(y.sum(), x)
    assert seen == [1, (1, True), (("usual", 1), False)]


def test_a_batched_backward_is_an_older_vmap():
    seen = []

    class Note(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            vmap = compat.only_vmap([gradient, 1, None])
            outer = vmap.unwrap(gradient)
            seen.append((vmap, compat.older_vmaps(), compat.open_transforms(), outer.shape))
            with compat.outside_transforms() as level:
                seen.append((level, compat.transform_is_open(), compat.older_vmaps()))
                outer = outer * 2
            return vmap.wrap(outer)

    x = torch.ones(3, requires_grad=True)
    rows = torch.autograd.grad(Note.apply(x), x, torch.eye(3), is_grads_batched=True)[0]
    assert torch.equal(rows, 2 * torch.eye(3))
    assert seen == [(compat.Vmap(1, is_older=True), 1, ("older vmap",), (3, 3)), (None, False, 0)]
    assert not torch._C._dispatch_tls_is_dispatch_key_included(compat.VMAP_MODE)


def test_vmap_wraps_and_unwraps():
    def double(x):
        vmap = compat.only_vmap([x])
        outer = vmap.unwrap(x)
        assert outer.shape == (3, 2)
        with compat.outside_transforms() as level:
            assert level == vmap.level and not compat.is_wrapped(outer)
            outer = outer * 2
        return vmap.wrap(outer)

    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(torch.func.vmap(double, in_dims=1, out_dims=1)(x), 2 * x)


def test_only_a_lone_vmap_is_one():
    seen = []
    torch.func.vmap(torch.func.vmap(lambda x: seen.append(compat.only_vmap([x])) or x))(torch.ones(2, 3))
    assert seen == [None]


def test_what_is_open_around_a_call():
    seen = []

    def look(x):
        seen.append((compat.only_transforms([x]), type(compat.innermost(x)), compat.is_tracked(x)))
        return x.sum()

    look(torch.ones(2))
    torch.func.vmap(look)(torch.ones(2, 3))
    torch.func.vmap(torch.func.grad(look))(torch.ones(2, 3))
    torch.func.functionalize(look)(torch.ones(2))
    with CountingMode():
        torch.func.vmap(look)(torch.ones(2, 3))
    plain = [(found, tracked) for found, kind, tracked in seen if kind is torch.Tensor]
    assert plain == [(False, False), (True, False), (True, True), (False, False), (False, False)]


def test_an_open_jvp():
    seen = []

    def look(x):
        seen.append(compat.jvp_is_open())
        return x

    torch.func.jvp(look, (torch.ones(2),), (torch.ones(2),))
    torch.func.vmap(look)(torch.ones(2))
    assert seen == [True, False] and not compat.jvp_is_open()


class CountingMode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_tensors_that_somebody_differentiates():
    x = torch.ones(2)
    assert not compat.is_differentiated(x) and not compat.is_differentiated(3)
    seen = []
    torch.func.grad(lambda y: (seen.append(compat.is_differentiated(y)) or y).sum())(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        seen += [compat.is_differentiated(dual), compat.is_differentiated(x)]
    assert seen == [True, True, False]


def test_tensors_as_they_are_outside_of_the_gradient_that_is_taken():
    seen = []

    def look(x, y):
        seen.append([tensor.requires_grad for tensor in compat.below_gradient([x, y], [0])])
        return (x * y).sum()

    x, y = torch.ones(2), torch.ones(2, requires_grad=True)
    torch.func.grad(look)(x, y)
    torch.func.grad(lambda y: torch.func.grad(look)(x, y).sum())(x)
    look(x, y)
    assert seen == [[False, True], [False, True], [False, True]]


def test_open_vmaps():
    seen = []
    torch.func.vmap(torch.func.vmap(lambda x: seen.append(compat.open_vmaps()) or x))(torch.ones(2, 3))
    torch.func.grad(lambda x: seen.append(compat.open_vmaps()) or x.sum())(torch.ones(2))
    assert seen == [2, 0]


def test_gradients_inside_are_none_where_there_are_none():
    x, y = torch.ones(2), torch.ones(2, requires_grad=True)
    found = compat.gradients_inside(lambda x, y: (x.detach(), y**3), [x, y], [x, x])
    assert found[0] is None and torch.equal(found[1], 3 * x)
    assert torch.equal(torch.autograd.grad(found[1].sum(), y)[0], 6 * x)
    assert compat.gradients_inside(lambda x: (x.detach(),), [x], [x]) == [None]


SCRIPTS = pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
"""The first use of forward mode scripts functions, which torch itself deprecates."""


@SCRIPTS
def test_dual_numbers_are_taken_apart_and_made():
    x, tangent = torch.ones(2), torch.arange(2.0)
    assert compat.unpack_dual(3) == compat.Dual(3, None)
    assert not compat.is_transformed([x])
    with compat.forward_mode_level(), compat.forward_mode_level():
        dual = compat.pack_dual(compat.Dual(x, tangent), None)
        assert compat.is_transformed([1, dual]) and not compat.is_transformed([x])
        assert compat.only_forward_mode()
        found = compat.unpack_dual(dual)
        assert torch.equal(found.primal, x) and torch.equal(found.tangent, tangent)
        assert compat.unpack_dual(x).tangent is None


@SCRIPTS
def test_dual_numbers_of_a_jvp_transform():
    def double(x):
        assert compat.only_forward_mode() and compat.is_transformed([])
        found = compat.unpack_dual(x)
        assert not compat.is_wrapped(found.primal) and not compat.is_wrapped(found.tangent)
        with compat.outside_transforms() as level:
            doubled = compat.Dual(found.primal * 2, found.tangent * 2)
        return compat.pack_dual(doubled, level)

    primal, tangent = torch.func.jvp(double, (torch.ones(2),), (torch.arange(2.0),))
    assert torch.equal(primal, torch.full((2,), 2.0)) and torch.equal(tangent, torch.arange(2.0) * 2)
    torch.func.grad(lambda x: x.sum() * (1 if compat.only_forward_mode() else 0))(torch.ones(2))


def test_below_jvp_makes_symbolic_zeros_real():
    zeros = torch._efficientzerotensor(3)
    assert zeros._is_zerotensor()
    assert not compat.below_jvp(zeros)._is_zerotensor()


@SCRIPTS
def test_forward_mode_is_open_inside_a_level():
    assert not compat.forward_mode_is_open()
    with compat.forward_mode_level():
        assert compat.forward_mode_is_open()


def test_a_thread_may_have_the_key_of_a_batched_backward_that_another_thread_opened():
    """As the device threads of autograd."""
    torch._C._dispatch_tls_set_dispatch_key_included(compat.VMAP_MODE, True)
    try:
        assert compat.older_vmaps() == 1 and compat.in_vmap_mode()
        with compat.outside_transforms():
            assert compat.older_vmaps() == 0 and not compat.in_vmap_mode()
        assert compat.older_vmaps() == 1 and compat.in_vmap_mode()
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(compat.VMAP_MODE, False)
    assert compat.older_vmaps() == 0
