"""Calls of loaded functions do what eager does, or raise."""

from __future__ import annotations

import enum
from types import SimpleNamespace

import pytest
import torch
import torch.utils._pytree as pytree

import aotgrad
from aotgrad.errors import NoPlanError, ShippingError

from .programs import leaf


def pair(x, w):
    return ((x * w).sin() @ w.t(), (x + 1).exp())


def changed(x, y):
    x.mul_(2)
    return x + y, y.t()


def whole(f):
    x, w = leaf(3, 4), leaf(3, 4)
    one, other = f(x, w)
    (one.sum() + other.sum()).backward()
    return one.detach(), other.detach(), x.grad, w.grad


def without_grad(f):
    with torch.no_grad():
        one, other = f(leaf(3, 4), leaf(3, 4))
    return one, other, one.requires_grad


def of_one_result(f):
    """A variant of the backward that no call before the save has used."""
    x, w = leaf(3, 4), leaf(3, 4)
    x_gradient, w_gradient = torch.autograd.grad(f(x, w)[1].sum(), (x, w), allow_unused=True)
    return x_gradient, w_gradient is None


def twice(f):
    x, w = leaf(3, 4), leaf(3, 4)
    loss = sum(each.sum() for each in f(x, w))
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    return x.grad, w.grad


def hooked(f):
    seen, x, w = [], leaf(3, 4), leaf(3, 4)
    inner = x * 3
    x.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
    inner.register_hook(lambda gradient: seen.append(gradient.clone()))
    w.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.clone()))
    one, other = f(inner, w)
    one.register_hook(lambda gradient: gradient * 5)
    one.retain_grad()
    (one.sum() + other.sum()).backward()
    return *seen, x.grad, w.grad, one.grad


def separate(f):
    x, y = leaf(4, 4).detach(), leaf(4, 4).detach()
    return *f(x, y), x, y


def same(f):
    x = leaf(4, 4).detach()
    return *f(x, x), x


def overlapping(f):
    memory = leaf(20).detach()
    return *f(memory[:16].view(4, 4), memory[4:].view(4, 4)), memory


USES = {
    "two variants": (pair, (whole, without_grad)),
    "another variant": (pair, (whole, of_one_result)),
    "retain_graph": (pair, (twice,)),
    "hooks": (pair, (hooked,)),
    "changed": (changed, (separate, same)),
    "aliased": (changed, (separate, overlapping)),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", USES)
def test_uses_of_a_loaded_function(name, dynamic, backend, tmp_path):
    if dynamic and name == "aliased":
        pytest.skip("symbolic sizes of arguments that share memory are refused, see test_refusals.py")
    function, uses = USES[name]
    compiled = aotgrad.aot_function(function, backend, dynamic=dynamic)
    for use in uses if uses[-1] is not of_one_result else uses[:1]:
        use(compiled)
    aotgrad.save(compiled, tmp_path / "plans")
    loaded = aotgrad.load(tmp_path / "plans", trust=True)
    for use in uses:
        torch.testing.assert_close(use(loaded), use(function))


@pytest.mark.parametrize("function", [torch.sort, lambda x: [x.sin(), {"best": x.max(0)}]])
def test_named_results_of_ops(function, tmp_path):
    x, path = torch.randn(3, 4), tmp_path / "plans"
    compiled = aotgrad.aot_function(function, "eager")
    compiled(x)
    aotgrad.save(compiled, path)
    found, wanted = aotgrad.load(path)(x), function(x)
    assert pytree.tree_structure(found) == pytree.tree_structure(wanted)
    torch.testing.assert_close(pytree.tree_leaves(found), pytree.tree_leaves(wanted))


PLAIN_RESULTS = {
    "sizes": lambda x: (x.exp(), x.shape, x.size(0)),
    "properties": lambda x: (x.exp(), x.dtype, x.device, x.layout, torch.channels_last),
    "numbers": lambda x: (x.exp(), 2, 0.5, 1 + 2j, "text", True, None),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", PLAIN_RESULTS)
def test_results_that_are_no_tensors(name, backend, dynamic, tmp_path):
    function = PLAIN_RESULTS[name]
    compiled = aotgrad.aot_function(function, backend, dynamic=dynamic, options={"min_graph_ops": 0})
    compiled(torch.ones(3, 4))
    aotgrad.save(compiled, tmp_path / "plans")
    x = torch.ones(5 if dynamic else 3, 4)
    (found, *plain), (wanted, *others) = aotgrad.load(tmp_path / "plans", trust=True)(x), function(x)
    torch.testing.assert_close(found, wanted)
    assert plain == others and list(map(type, plain)) == list(map(type, others))


class Color(enum.Enum):
    RED = 1


def test_a_result_that_is_an_object_is_refused(tmp_path):
    compiled = aotgrad.aot_function(lambda x: (x.sin(), Color.RED), "eager", options={"min_graph_ops": 0})
    compiled(torch.ones(2))
    with pytest.raises(ShippingError, match="a result that is a Color, an object of this process"):
        aotgrad.save(compiled, tmp_path / "plans")


@pytest.mark.parametrize("use", [same, overlapping])
def test_arguments_that_share_memory_in_another_way_have_no_plan(use, tmp_path):
    compiled = aotgrad.aot_function(changed, "eager")
    separate(compiled)
    aotgrad.save(compiled, tmp_path / "plans")
    with pytest.raises(NoPlanError, match=r"share memory in another way|are the same tensor"):
        use(aotgrad.load(tmp_path / "plans"))


def test_a_file_has_the_plans_for_what_is_captured_when_it_is_saved(tmp_path):
    """A loaded function cannot read what the function has captured."""
    box = SimpleNamespace(scale=2.0)
    function = aotgrad.aot_function(lambda x: x.sin() * box.scale, "eager")
    x = torch.ones(3)
    for scale in (2.0, 3.0, 4.0, 3.0):
        box.scale = scale
        function(x)
    aotgrad.save(function, tmp_path / "f")
    loaded = aotgrad.load(tmp_path / "f")
    assert torch.equal(loaded(x), x.sin() * 3.0) and len(function.plans()) == 3
