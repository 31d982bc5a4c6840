"""Transforms of `torch.func` around functions of wrapper subclasses: compiled, and as eager computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import func
from torch.distributed.tensor import DTensor, Shard
from torch.nested import nested_tensor_from_jagged
from torch.testing._internal.two_tensor import TwoTensor

import aotgrad
from aotgrad.errors import CaptureError
from tests.subclasses.catalogue import mixed, pair
from tests.subclasses.dtensor_programs import four_processes, line
from tests.subclasses.programs import Raised, compiled, described, eight_bits, plain, two


def values(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x


def total(function: Callable) -> Callable:
    return lambda x: function(x).sum()


def vjp(function: Callable, x: torch.Tensor) -> Any:
    result, pull_back = func.vjp(function, x)
    return result, pull_back(result.detach() * 2)


def dual(function: Callable, x: torch.Tensor) -> Any:
    with torch.autograd.forward_ad.dual_level():
        result = function(torch.autograd.forward_ad.make_dual(x, x * 2))
        return torch.autograd.forward_ad.unpack_dual(result).tangent


def batched(function: Callable, x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    result = function(x)
    return torch.autograd.grad(result, x, torch.stack([result.detach(), result.detach() * 2]), is_grads_batched=True)


def batched_by_vmap(function: Callable, x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    result = function(x)
    rows = torch.stack([result.detach(), result.detach() * 2])
    return func.vmap(lambda row: torch.autograd.grad(result, x, row)[0])(rows)


def outside(function: Callable, x: torch.Tensor) -> Any:
    """A gradient of the transform's result, by a backward outside of it."""
    x = x.detach().requires_grad_()
    inner = func.grad(total(function))(x)
    inner.sum().backward()
    return inner, x.grad


TRANSFORMS: dict[str, Callable[[Callable, torch.Tensor], Any]] = {
    "grad": lambda function, x: func.grad(total(function))(x),
    "grad_and_value": lambda function, x: func.grad_and_value(total(function))(x),
    "grad, closed over": lambda function, x: func.grad(lambda y: (function(x) * y).sum())(torch.ones(x.shape).double()),
    "vjp": vjp,
    "jvp": lambda function, x: func.jvp(function, (x,), (x * 2,)),
    "vmap": lambda function, x: func.vmap(function)(x),
    "vmap, closed over": lambda function, x: func.vmap(lambda y: function(x) * y)(torch.ones(2, *x.shape).double()),
    "grad of grad": lambda function, x: func.grad(total(func.grad(total(function))))(x),
    "vmap of grad": lambda function, x: func.vmap(func.grad(total(function)))(x),
    "jvp of grad": lambda function, x: func.jvp(func.grad(total(function)), (x,), (x,)),
    "jacrev": lambda function, x: func.jacrev(function)(x),
    "jacfwd": lambda function, x: func.jacfwd(function)(x),
    "outside": outside,
    "dual numbers": dual,
    "batched gradients": batched,
    "batched gradients by vmap": batched_by_vmap,
}
NOT_OF_THE_FUNCTION = ("dual numbers", "batched gradients", "batched gradients by vmap", "jvp")
"""These do not call the function under a transform that is counted."""

ARGUMENTS: dict[str, Callable[[], torch.Tensor]] = {
    "two": lambda: two(3, 3, requires_grad=False),
    "nested": lambda: mixed().detach(),
    "other strides": lambda: pair(False),
    "8 bits": lambda: eight_bits(False),
}


def run(transform: Callable, function: Callable, make: Callable) -> Any:
    """What a transform returns, or the type of the error."""
    torch.manual_seed(0)
    try:
        return pytree.tree_map(described, transform(function, make()))
    except (RuntimeError, NotImplementedError) as error:
        return Raised(RuntimeError, str(error))


def check(name: str, function: Callable, make: Callable, backend: str = "eager", transformed: int = 1) -> None:
    """Compare a transform of the compiled function with that of the function: compiled, unless eager raises."""
    expected = run(TRANSFORMS[name], function, make)
    before = dict(aotgrad.counters)
    ours = aotgrad.aot_function(function, backend)
    for _ in range(2):
        found = run(TRANSFORMS[name], ours, make)
        assert isinstance(expected, Raised) or found == expected, found
    calls = {key: aotgrad.counters[key] - before.get(key, 0) for key in ("transformed", "inlined")}
    assert isinstance(expected, Raised) or calls["inlined"] == 0 or not transformed
    assert isinstance(expected, Raised) or name in NOT_OF_THE_FUNCTION or (calls["transformed"] > 0) == bool(transformed)


@pytest.mark.parametrize("kind", ARGUMENTS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_as_eager(name, kind) -> None:
    check(name, values, ARGUMENTS[kind])


@pytest.mark.parametrize("name", ["grad", "vmap of grad", "jvp", "batched gradients"])
def test_through_inductor(name) -> None:
    check(name, values, ARGUMENTS["two"], "inductor")


@pytest.mark.parametrize("name", ["grad", "vjp", "vmap", "grad of grad", "vmap of grad", "jacrev", "batched gradients"])
def test_distributed(name) -> None:
    with four_processes():
        mesh = line()
        check(name, values, lambda: DTensor.from_local(plain(3, 3).detach(), mesh, [Shard(0)]))


@pytest.mark.parametrize("way", ["dynamo, eager halves", "dynamo, inductor halves"])
@pytest.mark.parametrize("name", ["grad", "vmap", "batched gradients"])
def test_behind_dynamo(name, way) -> None:
    expected = run(TRANSFORMS[name], values, ARGUMENTS["two"])
    assert run(TRANSFORMS[name], compiled(values, way), ARGUMENTS["two"]) == expected


FUNCTIONS: dict[str, tuple[Callable, int]] = {
    "one of another": (lambda x: (h := x.exp(), h.sin()), 0),
    "independent": (lambda x: (x.sin() * x, x.cos()), 0),
    "one without a gradient": (lambda x: (x.detach() * 2, x.sin() * x), 1),
    "an argument": (lambda x: (x, x.sin() * 2), 1),
    "a view of it": (lambda x: (x.view(-1), x.sin() * 2), 1),
    "random numbers": (lambda x: (torch.nn.functional.dropout(x, 0.5) * x,), 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_several_results(name) -> None:
    """Gradients with respect to one result from another. Where a segment does not show the way, it runs op by op."""

    def of_last(function: Callable, x: torch.Tensor) -> Any:
        def inner(y: torch.Tensor) -> tuple[torch.Tensor, Any]:
            *first, last = function(y)
            through = first and first[0].requires_grad and first[0] is not y
            found = torch.autograd.grad(last.sum(), first[0], allow_unused=True, create_graph=True) if through else ()
            return last.sum(), (*first, *found)

        return func.grad(inner, has_aux=True)(x)

    function, transformed = FUNCTIONS[name]
    before = aotgrad.counters["transformed"]
    ours = aotgrad.aot_function(function, "eager")
    assert run(of_last, ours, ARGUMENTS["two"]) == run(of_last, function, ARGUMENTS["two"])
    assert aotgrad.counters["transformed"] - before == transformed


def test_another_class_finds_another_plan() -> None:
    ours = aotgrad.aot_function(values, "eager")
    for make in (*ARGUMENTS.values(), lambda: plain(3, 3).detach()):
        assert run(TRANSFORMS["grad"], ours, make) == run(TRANSFORMS["grad"], values, make)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # eager's own batching
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_jagged_tensors_run_op_by_op() -> None:
    """Eager has few rules for them: it batches pointwise ops, and differentiates nothing."""
    rows = nested_tensor_from_jagged(plain(3, 4).detach(), torch.tensor([0, 2, 3]))
    for name in ("vmap", "grad", "vjp"):
        found, expected = (
            run(TRANSFORMS[name], function, lambda: rows) for function in (aotgrad.aot_function(values, "eager"), values)
        )
        assert isinstance(expected, Raised) == isinstance(found, Raised)


def test_a_gradient_that_another_transform_has_wrapped() -> None:
    result = aotgrad.aot_function(values, "eager")(x := two(3))
    with pytest.raises(CaptureError, match="under several transforms"):
        func.grad(lambda row: torch.autograd.grad(result, x, row)[0].sum())(torch.ones_like(result))


def test_gradients_of_batched_gradients() -> None:
    def second(function: Callable) -> Any:
        x = two(3)
        rows = TwoTensor(*(torch.eye(3, dtype=torch.float64) for _ in range(2)))
        (found,) = torch.autograd.grad(function(x), x, rows, is_grads_batched=True, create_graph=True)
        return described(found), described(torch.autograd.grad(found.sum(), x)[0])

    assert second(aotgrad.aot_function(values, "eager")) == second(values)
