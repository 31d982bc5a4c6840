"""Forward-mode differentiation through compiled functions, and `torch.func` transforms around and inside them."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F

import aotgrad
from tests.device import new_generator

from .against_eager import EXACT, compiled

DOUBLE = torch.float64
# The first use of forward mode scripts functions, which torch itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")


def doubles(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = new_generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=DOUBLE) for shape in shapes]


def assert_equal(actual, expected) -> None:
    """Equal pytrees of tensors, `None` included."""
    actual, expected = (torch.utils._pytree.tree_flatten(tree) for tree in (actual, expected))
    assert actual[1] == expected[1]
    for one, other in zip(actual[0], expected[0], strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@functools.cache
def dynamo_takes_duals() -> bool:
    """Whether Dynamo traces a function with a dual number as argument. Newer versions run it eagerly."""
    traced = torch.compile(lambda x: x.sin(), backend="eager", fullgraph=True)
    with forward_ad.dual_level():
        try:
            traced(forward_ad.make_dual(torch.ones(2), torch.ones(2)))
        except torch._dynamo.exc.Unsupported:
            return False
    return True


def compiled_for_duals(function, backend: str, **options):
    return compiled(function, backend, fullgraph=dynamo_takes_duals(), **options)


SMOOTH = {
    "attention": (lambda q, k: (q @ k.mT).softmax(-1) @ k, (3, 4), (5, 4)),
    "convolution": (lambda x, w: F.conv1d(x, w).tanh(), (1, 2, 5), (3, 2, 2)),
    "dictionary": (lambda x, y: {"a": x * y, "b": (x.exp(), 3)}, (3,), (3,)),
    "inverse": (lambda x: torch.linalg.inv(x @ x.mT + torch.eye(3, dtype=x.dtype)), (3, 3)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w).sin(), (3, 4), (4,)),
    "linear": (lambda x, w: (x @ w).tanh(), (3, 4), (4, 2)),
    "log_softmax": (lambda x: F.log_softmax(x * x, -1), (3, 4)),
    "without_a_tangent": (lambda x, y: (x * y, y.sin(), (y > 0)), (3,), (3,)),
}
every_function = pytest.mark.parametrize("name", SMOOTH)


def tangents_of(function, primals, tangents):
    """The results of `function` and their tangents; the last primal is no dual number if there is more than one."""
    with forward_ad.dual_level():
        count = max(1, len(primals) - 1)
        pairs = zip(primals[:count], tangents[:count], strict=True)
        duals = [*(forward_ad.make_dual(primal, tangent) for primal, tangent in pairs), *primals[count:]]
        leaves = torch.utils._pytree.tree_leaves(function(*duals))
        return [tuple(forward_ad.unpack_dual(leaf)) for leaf in leaves if isinstance(leaf, torch.Tensor)]


@every_function
@pytest.mark.parametrize("backend", EXACT)
def test_tangents_are_those_of_eager(name: str, backend: str) -> None:
    function, *shapes = SMOOTH[name]
    under_test, inlined = compiled_for_duals(function, backend), aotgrad.counters["inlined"]
    for requires_grad in (False, True):
        primals = [x.requires_grad_(requires_grad) for x in doubles(*shapes)]
        tangents = [x.flip(0) for x in doubles(*shapes)]
        assert_equal(tangents_of(under_test, primals, tangents), tangents_of(function, primals, tangents))
    assert aotgrad.counters["inlined"] == inlined


def test_tangents_through_inductor() -> None:
    function, *shapes = SMOOTH["layer_norm"]
    primals, tangents = doubles(*shapes), doubles(*shapes)[::1]
    actual = tangents_of(compiled_for_duals(function, "inductor"), primals, tangents)
    assert_equal(actual, tangents_of(function, primals, tangents))


def test_a_second_call_runs_the_plan_of_the_first(halves) -> None:
    function = aotgrad.aot_function(lambda x: x.sin(), halves)
    primals, tangents = doubles((3,)), doubles((3,))
    tangents_of(function, primals, tangents)
    before = aotgrad.counters["compilations"]
    tangents_of(function, primals, tangents)
    assert aotgrad.counters["compilations"] == before


@every_function
def test_reverse_over_forward(halves, name: str) -> None:
    function, *shapes = SMOOTH[name]
    if name in ("attention", "log_softmax"):
        pytest.skip("eager computes the tangent of a softmax in place, so that it cannot be differentiated")

    def gradients(function):
        primals = [x.requires_grad_() for x in doubles(*shapes)]
        tangents = [(x * 2).requires_grad_() for x in doubles(*shapes)]
        found = [t for pair in tangents_of(function, primals, tangents) for t in pair if t is not None and t.requires_grad]
        return torch.autograd.grad(sum((t * t).sum() for t in found), [*primals, *tangents], allow_unused=True)

    under_test = aotgrad.aot_function(function, halves)
    assert_equal(gradients(under_test), gradients(function))


def unpacked(gradients) -> list:
    return [None if each is None else tuple(forward_ad.unpack_dual(each)) for each in gradients]


def of_a_result(function, x, w):
    result = function(forward_ad.make_dual(x, x.cos()), w)
    return unpacked(torch.autograd.grad(result[0].sum(), [x, w]))


def of_a_tangent(function, x, w):
    result, _ = function(forward_ad.make_dual(x, x.cos()), w)
    return unpacked(torch.autograd.grad(forward_ad.unpack_dual(result).tangent.sum(), [x, w], create_graph=True))


def of_both(function, x, w):
    result, other = map(forward_ad.unpack_dual, function(forward_ad.make_dual(x, x.cos()), w))
    found = unpacked(torch.autograd.grad((result.primal * result.tangent).sum(), [x, w], retain_graph=True))
    (result.primal.square() + other.primal * other.tangent).sum().backward()
    return found, x.grad, w.grad


def of_a_dual_gradient(function, x, w):
    gradient = forward_ad.make_dual(torch.ones_like(x), x.sin())
    return unpacked(torch.autograd.grad(function(x, w)[0], [x, w], gradient))


def of_a_dual_gradient_of_one(function, x, w):
    gradient = forward_ad.make_dual(torch.ones_like(x), x.sin())
    return unpacked(torch.autograd.grad(function(x, w)[1], [x, w], gradient, allow_unused=True, retain_graph=True))


def of_a_result_twice(function, x, w):
    result, _ = function(forward_ad.make_dual(x, x.cos()), w)
    found = unpacked(torch.autograd.grad(result.sum(), [x, w]))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(result.sum(), x)
    return found


INSIDE_OF_A_LEVEL = (of_a_result, of_a_tangent, of_both, of_a_dual_gradient, of_a_dual_gradient_of_one, of_a_result_twice)


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("differentiate", INSIDE_OF_A_LEVEL)
def test_a_backward_inside_of_a_forward_mode_level_has_tangents(differentiate, backend: str, segments: int) -> None:
    def function(x, w):
        hidden = (x * w).exp()
        return hidden.sin(), (x * x).cos()

    def run(function):
        with forward_ad.dual_level():
            return differentiate(function, *(tensor.requires_grad_() for tensor in doubles((3,), (3,))))

    assert_equal(run(compiled_for_duals(function, backend, options={"grad_segments": segments})), run(function))


def test_jvp_around_the_backward_of_an_earlier_call(halves) -> None:
    def run(function):
        (x,) = (tensor.requires_grad_() for tensor in doubles((3,)))
        result, ones = function(x), torch.ones(3, dtype=DOUBLE)
        return torch.func.jvp(lambda v: torch.autograd.grad(result, x, v, retain_graph=True)[0], (ones,), (ones * 2,))

    assert_equal(run(aotgrad.aot_function(lambda x: x.exp().sin(), halves)), run(lambda x: x.exp().sin()))


@every_function
def test_jvp_around_a_compiled_function(halves, name: str) -> None:
    function, *shapes = SMOOTH[name]
    if name in ("dictionary", "without_a_tangent"):
        pytest.skip("torch.func.jvp takes only functions with a tangent for every result")
    primals, tangents = tuple(doubles(*shapes)), tuple(doubles(*shapes))
    under_test, inlined = aotgrad.aot_function(function, halves), aotgrad.counters["inlined"]
    assert_equal(torch.func.jvp(under_test, primals, tangents), torch.func.jvp(function, primals, tangents))
    assert aotgrad.counters["inlined"] == inlined


def changes_its_input(x):
    x.mul_(2)
    return x.sin()


ALIASES = {
    "changes_its_input": changes_its_input,
    "returns_its_input": lambda x: (x, x * 2),
    "returns_a_view": lambda x: (x[1:], x.sin()),
    "two_views": lambda x: tuple((x * 2).split(1)),
}


@pytest.mark.parametrize("name", ALIASES)
def test_tangents_follow_changes_and_aliases(halves, name: str) -> None:
    """Later mutations of the results by the caller reach the tangents, too."""

    def run(function):
        with forward_ad.dual_level():
            x = forward_ad.make_dual(*doubles((3,), (3,)))
            leaves = torch.utils._pytree.tree_leaves(function(x))
            if name != "two_views":
                leaves[0].mul_(3)
            return [tuple(forward_ad.unpack_dual(value)) for value in (x, *leaves)]

    under_test = aotgrad.aot_function(ALIASES[name], halves)
    for _ in range(2):
        assert_equal(run(under_test), run(ALIASES[name]))


def test_a_function_without_a_forward_derivative_raises_as_in_eager(halves) -> None:
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    def function(x):
        return Reverse.apply(x * 1)

    for run in (function, aotgrad.aot_function(function, halves)):
        with pytest.raises(NotImplementedError, match="jvp"):
            tangents_of(run, [x.requires_grad_() for x in doubles((3,))], doubles((3,)))


def test_plans_do_not_keep_the_tensors_of_the_first_call_alive(halves) -> None:
    import weakref

    function = aotgrad.aot_function(lambda x: x.sin(), halves)
    primals, tangents = doubles((3,)), doubles((3,))
    watched = [weakref.ref(t) for t in (*primals, *tangents)]
    tangents_of(function, primals, tangents)
    del primals, tangents
    assert [reference() for reference in watched] == [None, None]


# --- torch.func ------------------------------------------------------------------------------------------------------


def scalar(x):
    return (1 - 2 * x.sin() ** 2 * x).sum()


def vector(x):
    return 1 - (2 * x.sin() ** 2).cumsum(0)


TRANSFORMS = {
    "grad": (torch.func.grad, scalar),
    "grad_of_grad": (lambda f: torch.func.grad(lambda x: torch.func.grad(f)(x).sum()), scalar),
    "hessian": (torch.func.hessian, scalar),
    "jacfwd": (torch.func.jacfwd, vector),
    "jacfwd_of_jacrev": (lambda f: torch.func.jacfwd(torch.func.jacrev(f)), vector),
    "jacrev": (torch.func.jacrev, vector),
    "jvp": (lambda f: lambda x: torch.func.jvp(f, (x,), (x.cos(),)), vector),
    "jvp_of_jvp": (
        lambda f: lambda x: torch.func.jvp(lambda y: torch.func.jvp(f, (y,), (x.cos(),))[1], (x,), (x,)),
        vector,
    ),
    "vjp": (lambda f: lambda x: torch.func.vjp(f, x)[1](x.cos()), vector),
    "vmap": (lambda f: lambda x: torch.func.vmap(f)(torch.stack([x, x.cos()])), vector),
    "vmap_of_grad": (lambda f: lambda x: torch.func.vmap(torch.func.grad(f))(torch.stack([x, x.cos()])), scalar),
}
every_transform = pytest.mark.parametrize("name", TRANSFORMS)


@every_transform
@pytest.mark.parametrize("backend", ["nop", "dynamo"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_transforms_around(name: str, backend: str, requires_grad: bool) -> None:
    transform, function = TRANSFORMS[name]

    def run(function):
        (x,) = doubles((3,))
        x.requires_grad_(requires_grad)
        result = transform(function)(x)
        tensors = [t for t in torch.utils._pytree.tree_leaves(result) if t.requires_grad]
        return result, torch.autograd.grad(sum(t.sum() for t in tensors), x) if tensors else None

    torch._dynamo.reset()
    under_test = torch.compile(function, backend="aotgrad_eager") if backend == "dynamo" else compiled(function, backend)
    assert_equal(run(under_test), run(function))


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, backend) for name in TRANSFORMS for backend in EXACT),
        *((name, "inductor") for name in ("hessian", "jacfwd")),
    ],
)
def test_transforms_inside(name: str, backend: str) -> None:
    transform, function = TRANSFORMS[name]

    def run(function):
        x = doubles((3,))[0].requires_grad_()
        result = function(x)
        (first,) = torch.autograd.grad(sum(t.sum() for t in torch.utils._pytree.tree_leaves(result)), x, create_graph=True)
        return result, first, torch.autograd.grad(first.sum(), x)

    transformed = transform(function)
    assert_equal(run(compiled(transformed, backend)), run(transformed))


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node with no underlying reference:UserWarning")
def test_linearize_around(halves) -> None:
    """It traces with `make_fx` what it differentiates: the function runs uncompiled in that trace."""
    (x,) = doubles((3,))
    actual = torch.func.linearize(aotgrad.aot_function(vector, halves), x)[1](x.cos())
    assert_equal(actual, torch.func.linearize(vector, x)[1](x.cos()))


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_vmap_around_random_numbers(halves, randomness: str) -> None:
    def run(function):
        torch.manual_seed(0)
        return torch.func.vmap(function, randomness=randomness)(torch.ones(4, 6))

    def dropout(x):
        return F.dropout(x, 0.5)

    assert_equal(run(aotgrad.aot_function(dropout, halves)), run(dropout))
