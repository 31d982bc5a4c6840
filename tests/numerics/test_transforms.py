"""Compiled functions inside `torch.func` transforms: as in eager, compiled where a plan applies, and cached."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils import _pytree as pytree

import aotgrad
from aotgrad.errors import CaptureError
from tests.device import TYPE, default_generator

from .against_eager import assert_matches

DOUBLE = torch.float64
Compile = Callable[[Callable], Callable]


@pytest.fixture
def compiled(halves: Any, eagers_numbers: None) -> Compile:
    def compile(function: Callable) -> Callable:
        return (aotgrad.aot_module if isinstance(function, nn.Module) else aotgrad.aot_function)(function, halves)

    return compile


def vector() -> torch.Tensor:
    return torch.linspace(0.3, 1.2, 4, dtype=DOUBLE)


def batch() -> torch.Tensor:
    return torch.linspace(-1, 1.3, 12, dtype=DOUBLE).view(3, 4)


def matrix() -> torch.Tensor:
    return torch.linspace(-0.7, 0.9, 16, dtype=DOUBLE).view(4, 4).sin()


def scalar(x: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(x @ matrix()) ** 2).sum()


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.sin(x @ w) * x


def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sin(), x.detach().cos(), x.argmax(), (x - x).sqrt()


@functools.cache
def mlp(number: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(number)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


class AsksForParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(matrix())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight * (2 if isinstance(self.weight, nn.Parameter) else 1)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.weight = nn.Parameter(matrix()), nn.Parameter(vector())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = (x @ self.trunk).tanh()
        return hidden * self.weight, hidden.sin()


@functools.cache
def heads() -> nn.Module:
    return Heads()


def to_parameters(compile: Compile, differentiate: Callable) -> list[Any]:
    """Gradients that reach the parameters outside the transform."""
    model = mlp()
    model.zero_grad()
    result = differentiate(compile(model))
    result.square().sum().backward()
    return [result, *(parameter.grad for parameter in model.parameters())]


def of_each_sample(compile: Compile) -> Any:
    model = mlp()
    call, parameters = compile(model), {name: p.detach() for name, p in model.named_parameters()}
    return vmap(grad(lambda p, x: functional_call(call, p, (x,)).sum()), (None, 0))(parameters, batch())


def of_an_ensemble(compile: Compile) -> Any:
    models = [mlp(number) for number in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    call = compile(mlp())
    return vmap(lambda p, b: functional_call(call, (p, b), (batch(),)))(parameters, buffers)


def written_outputs(compile: Compile) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        one, other = compile(lambda x: (x * 2, x.sin()))(x)
        one.add_(1)
        return other.mul_(one).sum()

    return vmap(grad(function))(batch())


def without_gradients(compile: Compile) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            factor = compile(lambda x: x.sin() * x)(x)
        return (factor * x).sum()

    return grad(function)(vector())


def outside_too(compile: Compile) -> Any:
    x = vector().requires_grad_()
    first = grad(compile(lambda x: (x**3).sum()))(x)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    return first, second, torch.autograd.grad(second.sum(), x)[0]


def an_argument_changed_later(compile: Compile) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        result = compile(lambda x: x + 1)(x)
        x.mul_(2)
        return (result * 2).sum() + x.sum()

    return grad(function)(vector())


def noisy(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(x.sin()) * torch.rand(4, dtype=DOUBLE)


def loss(x: torch.Tensor) -> torch.Tensor:
    return noisy(x).pow(2).sum()


def products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).tanh() @ w


def singles() -> tuple[torch.Tensor, torch.Tensor]:
    return batch().float(), matrix().float()


def bfloat16() -> torch.autocast:
    return torch.autocast(TYPE, torch.bfloat16)


def under_autocast(compile: Compile, differentiate: Callable, factor: int | None = None) -> Any:
    """A derivative outside of autocast; with a factor, the arguments are computed."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with bfloat16():
            result = compile(products)(*((x, w) if factor is None else (x * factor, w * factor)))
        return result.float().sum()

    return differentiate(function)(*singles())


def all_under_autocast(compile: Compile, transform: Callable) -> Any:
    with bfloat16():
        return transform(lambda x, w: compile(products)(x, w).float().sum())(*singles())


def autocast_off_inside(compile: Compile) -> Any:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first = x @ w
        with torch.autocast(TYPE, enabled=False):
            return first.float() @ w

    with bfloat16():
        return grad(lambda x, w: compile(function)(x, w).sum(), (0, 1))(*singles())


def autocast_in_one_direction(compile: Compile) -> Any:
    x, w = (tensor.requires_grad_() for tensor in singles())
    with bfloat16():
        y, pull = vjp(compile(products), x, w)
    gradients = pull(torch.ones_like(y))
    with bfloat16():
        again = vjp(compile(products), x, w)[1](x)
    return y, gradients, again, torch.autograd.grad(gradients[0].square().sum(), (x, w))


def flags_inside(compile: Compile) -> Any:
    flags = []

    def function(x: torch.Tensor) -> torch.Tensor:
        for inner in (lambda x: (3 * x).sum(), lambda x: (x * x).sum()):
            flags.append(grad(compile(inner))(x).requires_grad)
        return x.sum()

    return grad(function)(vector()), flags


def constant_gradients(compile: Compile) -> Any:
    x, y = vector().requires_grad_(), vector().requires_grad_()
    first = grad(compile(lambda x, y: (2 * x + y * y).sum()), (0, 1))(x, y)
    return first, torch.autograd.grad(first[1].sum(), y, create_graph=True)


def views_of_an_input(compile: Compile) -> Any:
    flags = []

    def function(x: torch.Tensor) -> torch.Tensor:
        result = x.exp()
        with torch.no_grad():
            still = x.view(-1)
        return x, x.view(2, 2), x.chunk(2), x.detach(), still, result

    def differentiated(x: torch.Tensor) -> torch.Tensor:
        same, square, (left, right), detached, still, result = compile(function)(x)
        flags.extend([same is x, detached.requires_grad, still.requires_grad])
        return (same * result).sum() + (square @ square).sum() + (left * right * detached[:2] * still[2:]).sum()

    return vmap(grad(differentiated))(batch()), flags


def a_written_view(compile: Compile) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        view, _ = compile(lambda x: (x.view(2, 2), x.sin()))(x)
        view.mul_(3)
        return x.square().sum()

    return grad(function)(vector())


def one_after_another(compile: Compile) -> Any:
    x = batch().requires_grad_()
    one, other = vmap(compile(lambda x: (x.exp(), x.sin())))(x)
    one.sum().backward()
    other.sum().backward()
    return x.grad


def with_respect_to_a_result(compile: Compile) -> Any:
    x = batch().requires_grad_()
    sines, doubles = vmap(compile(lambda x: ((y := x * 2).sin(), y)))(x)
    doubles.retain_grad()
    sines.sum().backward()
    return doubles.grad, x.grad


def through_a_result(compile: Compile, hook: bool = False) -> Any:
    gradients = []

    def function(x: torch.Tensor) -> torch.Tensor:
        y, z = compile(lambda x: ((y := x.exp()), y.sin() * x))(x)
        if hook:
            y.register_hook(lambda gradient: gradient * 3)
        gradients.append(torch.autograd.grad(z.sum(), y, create_graph=True)[0])
        return z.sum() + y.prod() + gradients[-1].sum()

    return grad(function)(vector())


def loss_and_logits(compile: Compile) -> Any:
    def function(x: torch.Tensor, w: torch.Tensor) -> dict[str, Any]:
        logits = x @ w
        return {"loss": (loss := logits.square().sum(-1).mean()), "logits": logits, "size": len(x), "double": loss * 2}

    model = compile(function)

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        result = model(x, w)
        return result["loss"] * result["size"] + result["double"]

    x, w = batch(), matrix()
    of_each = vmap(grad(lambda w, x: loss(w, x[None])), (None, 0))(w, x)
    return grad(loss)(w, x), of_each, hessian(loss)(w, x), jvp(loss, (w, x), (w.cos(), x.cos()))


def a_shared_trunk(compile: Compile) -> Any:
    x = batch().requires_grad_()
    one, other, third = vmap(compile(lambda x: ((y := x.exp()).sin(), y.cos(), x.sin())))(x)
    third.sum().backward()
    one.sum().backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        other.sum().backward()
    return x.grad


def views_beside_chained_results(compile: Compile) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        (y, view), z = compile(lambda x: (((y := x * 2), x.view(2, 2)), y.cos()))(x)
        return (y * z).sum() + torch.autograd.grad(z.sum(), y, create_graph=True)[0].sum() + view.trace()

    return vmap(grad(function))(batch())


def heads_and_parameters(compile: Compile) -> Any:
    model = heads()
    model.zero_grad()
    call = compile(model)
    jacobians = vmap(jacrev(lambda x: call(x)))(batch())
    sum(jacobian.square().sum() for jacobian in jacobians).backward()
    return jacobians, [rounded(parameter.grad) for parameter in model.parameters()]


def rounded(gradient: torch.Tensor) -> torch.Tensor:
    """Up to the last bits, which may differ in gradients of gradients: see docs/gradients.md."""
    return gradient.round(decimals=12)


COMPILED: dict[str, Callable[[Compile], Any]] = {
    "grad": lambda c: grad(c(scalar))(vector()),
    "vjp": lambda c: vjp(c(product), vector(), matrix())[1](vector()),
    "a vjp that is called twice": lambda c: (lambda pull: (pull(vector()), pull(-vector())))(vjp(c(torch.sin), vector())[1]),
    "vmap": lambda c: vmap(c(product), (0, None))(batch(), matrix()),
    "vmap along other dimensions": lambda c: vmap(c(torch.matmul), (1, None), out_dims=1)(batch().t(), matrix()),
    "vmap of vmap": lambda c: vmap(vmap(c(torch.sin)))(torch.stack([batch(), -batch()])),
    "vmap in chunks": lambda c: vmap(c(torch.sin), chunk_size=2)(batch()),
    "results that are not batched": lambda c: vmap(lambda x: c(lambda x, y: (x * 2, y * 2, x + y))(x, vector()))(batch()),
    "grad of vmap": lambda c: grad(lambda x: vmap(c(scalar))(x).sum())(batch()),
    "vmap of grad": lambda c: vmap(grad(c(scalar)))(batch()),
    "grad of grad": lambda c: grad(lambda x: grad(c(scalar))(x).sum())(vector()),
    "jacrev": lambda c: jacrev(c(product), (0, 1))(vector(), matrix()),
    "jacrev in chunks": lambda c: jacrev(c(product), chunk_size=2)(vector(), matrix()),
    "jacfwd": lambda c: jacfwd(c(product))(vector(), matrix()),
    "hessian": lambda c: hessian(c(scalar))(vector()),
    "jacrev of jacrev": lambda c: jacrev(jacrev(c(scalar)))(vector()),
    "hessian of one of several results": lambda c: hessian(lambda x: c(several)(x)[0].sum())(vector()),
    "hessian with an expanded gradient": lambda c: hessian(c(lambda x: (x.sum() * 2).exp() + x.sum()))(vector()),
    "third derivative": lambda c: jacfwd(hessian(c(scalar)))(vector()),
    "hessians of a batch": lambda c: vmap(hessian(c(scalar)))(batch()),
    "jvp of grad": lambda c: jvp(grad(c(scalar)), (vector(),), (vector(),)),
    "grad of jvp": lambda c: grad(lambda x: jvp(c(torch.sin), (x,), (x,))[1].sum())(vector()),
    "has_aux": lambda c: grad(c(lambda x: (x.sin().sum(), x.cos())), has_aux=True)(vector()),
    "complex": lambda c: vjp(c(lambda z: z * z.conj() * z), vector() * 1j)[1](vector() + 1j),
    "Python values": lambda c: list(map(grad(c(torch.pow)), vector(), (2, 3, 2, 3))),
    "several results, one used": lambda c: grad(lambda x: c(several)(x)[0].sum())(vector()),
    "several results, batched": lambda c: vmap(c(several))(batch()),
    "one parameter is not tracked": lambda c: grad(lambda x: c(product)(x, matrix()).sum())(vector()),
    "control flow": lambda c: grad(c(lambda x: (x * x).sum() if x.sum() > 0 else (x * 3).sum()))(vector()),
    "no gradients inside": without_gradients,
    "results that are written to": written_outputs,
    "gradients of each sample": of_each_sample,
    "an ensemble": of_an_ensemble,
    "an autograd function": lambda c: vmap(grad(c(lambda x: Doubles.apply(x).sin().sum())))(batch()),
    "an argument that is changed later": an_argument_changed_later,
    "grad, and autograd around it": outside_too,
    "a parameter that is one": lambda c: (lambda f: (vmap(f)(batch()), grad(lambda x: f(x).sum())(vector())))(
        c(AsksForParameters())
    ),
    "grad to parameters": lambda c: to_parameters(c, lambda f: grad(lambda x: f(x).sum())(vector())),
    "vmap to parameters": lambda c: to_parameters(c, lambda f: vmap(f)(batch())),
    "random numbers": lambda c: grad(c(loss))(vector()),
    "random numbers, a batch": lambda c: vmap(c(noisy), randomness="different")(batch()),
    "random numbers, the same for each of a batch": lambda c: vmap(c(noisy), randomness="same")(batch()),
    "random numbers, a batch of gradients": lambda c: vmap(grad(c(loss)), randomness="different")(batch()),
    "random numbers, gradients of a batch": lambda c: grad(lambda x: vmap(c(loss), randomness="same")(x).sum())(batch()),
    "random numbers, second order": lambda c: grad(lambda x: grad(c(loss))(x).pow(2).sum())(vector()),
    "random numbers, jacrev": lambda c: jacrev(c(noisy))(vector()),
    "random numbers, jacobians of a batch": lambda c: vmap(jacrev(c(noisy)), randomness="different")(batch()),
    "random numbers, jvp of grad": lambda c: jvp(grad(c(loss)), (vector(),), (vector(),)),
    "random numbers, batches of batches": lambda c: vmap(vmap(c(noisy), randomness="same"), randomness="different")(
        torch.stack([batch(), -batch()])
    ),
    "autocast": lambda c: under_autocast(c, lambda f: grad(f, (0, 1))),
    "autocast, computed arguments": lambda c: under_autocast(c, lambda f: grad(f, (0, 1)), factor=2),
    "autocast, second order": lambda c: under_autocast(c, hessian),
    "autocast around everything": lambda c: all_under_autocast(c, lambda f: grad(f, (0, 1))),
    "autocast around gradients of a batch": lambda c: all_under_autocast(c, lambda f: vmap(grad(f, (0, 1)), (0, None))),
    "autocast around forward mode": lambda c: all_under_autocast(c, jacfwd),
    "autocast that is off inside": autocast_off_inside,
    "autocast in one direction": autocast_in_one_direction,
    "constant gradients": constant_gradients,
    "a constant gradient of a batch": lambda c: vmap(grad(c(lambda x: (2 * x).sum())))(batch().requires_grad_()),
    "flags inside of a transform": flags_inside,
    "views of an input": views_of_an_input,
    "a view of an input that is written to": a_written_view,
    "the jacobian of a view of an input": lambda c: jacfwd(c(lambda x: (x.view(2, 2), x.sin())))(vector()),
    "results that are differentiated one after another": one_after_another,
    "results that have something in common": a_shared_trunk,
    "a result that another one is computed from": with_respect_to_a_result,
    "a gradient of a result": through_a_result,
    "a hook of a result": lambda c: through_a_result(c, hook=True),
    "a loss and what it is computed from": loss_and_logits,
    "views of an input beside results that are computed from each other": views_beside_chained_results,
    "heads, to parameters": heads_and_parameters,
    "hessians to parameters": lambda c: to_parameters(c, lambda f: vmap(hessian(lambda x: f(x).sum()))(batch())),
}


def counted(case: Callable[[Compile], Any], compile: Compile) -> tuple[list[Any], Counter[str]]:
    before = Counter(aotgrad.counters)
    torch.manual_seed(1)
    leaves = [*pytree.tree_leaves(case(compile)), default_generator().get_state()]
    return leaves, Counter(aotgrad.counters) - before


def facts(value: Any) -> tuple[Any, ...]:
    """The properties of a tensor that are compared, besides its values."""
    if not isinstance(value, torch.Tensor):
        return ()
    return type(value), value.dtype, value.stride(), value.requires_grad, value.is_leaf


def assert_eagers(case: Callable[[Compile], Any], compile: Compile, halves: Any, **tolerance: Any) -> Counter[str]:
    expected, _ = counted(case, lambda function: function)
    found, counts = counted(case, compile)
    assert_matches(found, expected, halves, **tolerance)
    assert [facts(each) for each in found] == [facts(each) for each in expected]
    return counts


@pytest.mark.parametrize("name", COMPILED)
def test_a_transform_of_a_compiled_function_is_compiled(compiled: Compile, halves, name: str) -> None:
    made: dict[Any, Callable] = {}
    tolerance = {"inductor_rtol": 0.05} if name.startswith("autocast") else {}  # eager rounds to bfloat16 after each op
    for position in range(2):
        order = iter(range(100))
        compile = lambda f, order=order: made.setdefault(next(order), compiled(f))  # noqa: E731
        counts = assert_eagers(COMPILED[name], compile, halves, **tolerance)
        assert counts["transformed"] > 0 and counts["inlined"] == counts["fallbacks"] == 0
        assert (counts["misses"] > 0) == (position == 0)
    assert any(function.transformed.plans.cache.plans() for function in made.values())


def changes_its_input(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x.sin()


def returns_its_changed_input(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x


def returns_a_view_of_its_changed_input(x: torch.Tensor) -> torch.Tensor:
    first = x[:1]
    torch.relu_(input=x)
    torch._foreach_add_([x], 2)
    return first


def written_inside(compile: Compile) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        return (compile(changes_its_input)(x) * x).sum()

    return vmap(grad(function))(batch())


def written_through_a_view(compile: Compile) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        compile(lambda x: x.view(2, 2))(x).mul_(3)
        return x.square().sum()

    return grad(function)(vector())


def through_a_view(compile: Compile) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        view, squares = compile(lambda x: ((v := x.view(2, 2)), v * v))(x)
        return torch.autograd.grad(squares.sum(), view, create_graph=True)[0].sum()

    return grad(function)(vector())


def through_a_changed_result(compile: Compile) -> Any:
    def double(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        nn.functional.relu(y.view(2, 2), inplace=True)
        return y, y.sin()

    def function(x: torch.Tensor) -> torch.Tensor:
        y, sines = compile(double)(x)
        return torch.autograd.grad(sines.sum(), y, create_graph=True)[0].sum()

    return grad(function)(vector())


def chained_pairs(compile: Compile) -> Any:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, other = x.exp(), x.sin()
        return one.cos(), one * other, other.cos()

    x = batch().requires_grad_()
    first, _, last = vmap(compile(function))(x)
    first.sum().backward()
    last.sum().backward()
    return x.grad


def through_an_autograd_function(compile: Compile) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        y, sines = compile(lambda x: ((y := Doubles.apply(x)), y.sin()))(x)
        return torch.autograd.grad(sines.sum(), y, create_graph=True)[0].sum()

    return grad(function)(vector())


INLINED: dict[str, Callable[[Compile], Any]] = {
    "a list of tensors in the closure": lambda c: grad(lambda w: c(lambda x, ws=[w]: x * ws[0])(vector()).sum())(vector()),
    "an input that is changed": lambda c: vmap(c(changes_its_input))(batch()),
    "an input that is changed, differentiated": written_inside,
    "an input that is changed and returned": lambda c: vmap(c(returns_its_changed_input))(batch()),
    "an input that is changed and returned, in forward mode": lambda c: jvp(
        lambda x: c(returns_its_changed_input)(x * 1), (vector(),), (vector(),)
    ),
    "an input that is changed by lists and keywords, and a view of it": lambda c: jvp(
        lambda x: c(returns_a_view_of_its_changed_input)(x * 1), (vector(),), (vector(),)
    ),
    "a result that is a view of an input": written_through_a_view,
    "nothing but a view of an input": lambda c: vmap(c(lambda x: x.view(2, 2)))(batch()),
    "a view of an input that another result is computed from": through_a_view,
    "a view of an input that changes its shape": lambda c: vmap(c(lambda x: (x.view(2, 2).t_(), x.sin())))(batch()),
    "random numbers in a vmap over something else": lambda c: vmap(
        lambda x: x * c(lambda y: nn.functional.dropout(y))(vector()), randomness="different"
    )(batch()),
    "random numbers in a jacfwd": lambda c: jacfwd(c(noisy), randomness="same")(vector()),
    "a result that is changed before another one is computed from it": through_a_changed_result,
    "a result of an autograd function that another one is computed from": through_an_autograd_function,
    "results of which only neighbours have something in common": chained_pairs,
    "random numbers in results that are computed from each other": lambda c: grad(
        lambda x: sum(map(torch.sum, c(lambda x: ((y := nn.functional.dropout(x)), y * y))(x)))
    )(vector()),
    "functionalize": lambda c: torch.func.functionalize(c(torch.sin))(vector()),
}


@pytest.mark.parametrize("name", INLINED)
def test_what_no_plan_can_do_runs_as_it_is(compiled: Compile, halves, name: str) -> None:
    counts = assert_eagers(INLINED[name], compiled, halves)
    assert counts["inlined"] > 0 and counts["transformed"] == 0


def in_the_closure_of_a_function(compile: Compile) -> Any:
    def function(w: torch.Tensor) -> torch.Tensor:
        def power(x: torch.Tensor, exponent: int) -> torch.Tensor:
            return x if exponent == 0 else power(x * w, exponent - 1)

        call = compile(lambda x, *, exponent: power(x, exponent).sin().sum())
        return grad(lambda x: call(x, exponent=2))(vector()).sum() + call(vector(), exponent=1)

    return rounded(grad(function)(vector()))


def a_parameter_in_the_closure(compile: Compile) -> Any:
    w = vector().requires_grad_()
    result = vmap(compile(lambda x: (x * w).sin()))(batch())
    result.sum().backward()
    return result, w.grad


CLOSURES: dict[str, Callable[[Compile], Any]] = {
    "a tensor of grad": lambda c: grad(lambda w: c(lambda x: x * w)(vector()).sum())(vector()),
    "a tensor of vmap": lambda c: vmap(lambda w: c(lambda x: x * w)(vector()))(batch()),
    "a tensor of an outer grad": lambda c: grad(lambda w: grad(lambda x: c(lambda x: (x * w * x).sum())(x))(vector()).sum())(
        vector()
    ),
    "a dual tensor": lambda c: jvp(lambda w: c(lambda x: x * w)(w.sin()), (vector(),), (vector(),)),
    "second order": lambda c: hessian(lambda w: c(lambda x: (x * w).sin().sum())(vector()))(vector()),
    "in a function that is called": in_the_closure_of_a_function,
    "a parameter": a_parameter_in_the_closure,
}


@pytest.mark.parametrize("name", CLOSURES)
def test_what_a_function_closed_over_is_an_argument(compiled: Compile, halves, name: str) -> None:
    counts = assert_eagers(CLOSURES[name], compiled, halves)
    assert counts["inlined"] == counts["fallbacks"] == 0 < counts["misses"]


def test_what_a_function_closed_over_is_read_at_every_call(compiled: Compile) -> None:
    w = None

    def with_weight(value: torch.Tensor) -> torch.Tensor:
        nonlocal w
        w = value
        return function(vector())

    function = compiled(lambda x: (x * w).sin().sum())
    before = Counter(aotgrad.counters)
    for factor in (1, 2, 3):
        expected = vector() * (vector() ** 2 * factor).cos()
        assert torch.allclose(grad(with_weight)(vector() * factor), expected)
    assert (Counter(aotgrad.counters) - before)["misses"] == 1


def test_a_derivative_that_runs_as_it_is_leaves_out_views(compiled: Compile, halves) -> None:
    def function(compile: Compile) -> Any:
        _, pull = vjp(compile(lambda x: (x.t(), x.clone().t())), matrix())
        return pull((matrix().sin().t(), matrix().cos().t()))

    assert assert_eagers(function, compiled, halves)["inlined"] == 1


def test_the_first_order_runs_no_product_twice() -> None:
    products = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            products.append(func is torch.ops.aten.mm.default)
            return func(*args, **(kwargs or {}))

    def counting(graph: torch.fx.GraphModule, _: Any) -> Callable:
        def run(*args: Any) -> Any:
            with Count():
                return graph.forward(*args)

        return aotgrad.make_boxed_func(run)

    function = aotgrad.aot_function(lambda x, w: (x @ w).tanh().sum(), counting)
    grad(function, (0, 1))(batch(), matrix())
    assert sum(products) == 3


def test_a_cleared_cache_forgets_what_transforms_made(compiled: Compile) -> None:
    function = compiled(scalar)
    for transform in (lambda: grad(function)(vector()), lambda: jvp(function, (vector(),), (vector(),))):
        for _ in range(2):
            before = aotgrad.counters["compilations"]
            transform()
            assert aotgrad.counters["compilations"] > before
            aotgrad.clear_cache(function)


def test_an_error_of_the_function_is_eagers(compiled: Compile) -> None:
    function = compiled(lambda x: x @ torch.ones(7, dtype=DOUBLE))
    errors = []
    for call in (function, lambda x: x @ torch.ones(7, dtype=DOUBLE)):
        with pytest.raises(RuntimeError) as error:
            vmap(call)(batch())
        errors.append(str(error.value))
    assert errors[0] == errors[1]


class TakesContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class Doubles(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


@pytest.mark.parametrize("transform", [lambda f: grad(lambda x: f(x).sum()), vmap])
def test_an_autograd_function_that_torch_refuses_inside_of_transforms(compiled: Compile, transform: Callable) -> None:
    function = compiled(lambda x: TakesContext.apply(x).sin())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="it must override the setup_context staticmethod"):
            transform(function)(vector())


def test_a_changed_argument_that_a_second_derivative_would_start_from_is_an_error(compiled: Compile) -> None:
    function = compiled(lambda x: (x + 1) ** 2)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        def inner(x: torch.Tensor) -> torch.Tensor:
            x = x * 1
            result = function(x).sum()
            x.mul_(2)
            return result

        return grad(inner)(x).sum()

    assert torch.allclose(gradient(vector()), 2 * (vector() + 1).sum())
    with pytest.raises(RuntimeError, match="modified by an inplace operation: an argument of a compiled function"):
        grad(gradient)(vector())


def test_attributes_that_the_function_changes_are_changed_at_every_call(compiled: Compile) -> None:
    class Counts(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x.sin() * self.calls

    results = []
    for compile in (lambda model: model, compiled):
        model = Counts()
        call = compile(model)
        gradients = [grad(lambda x, call=call: call(x).sum())(vector()) for _ in range(3)]
        model.calls = 0
        results.append((torch.stack([*gradients, vmap(call)(batch())[0]]), model.calls))
    assert torch.equal(results[0][0], results[1][0]) and results[0][1] == results[1][1]


class Counted:
    calls = 0


def count(x: torch.Tensor, counted: Counted) -> torch.Tensor:
    counted.calls += 1
    return x.sin() * counted.calls


@pytest.mark.parametrize(
    "transform", [grad, lambda f: vmap(f, (0, None)), lambda f: lambda x, c: jvp(lambda x: f(x, c), (x,), (x,))]
)
def test_an_object_that_the_function_changes_is_changed_at_every_call(compiled: Compile, transform: Callable) -> None:
    counted, call = Counted(), transform(compiled(lambda x, counted: count(x, counted).sum()))
    for calls in range(1, 4):
        counted.calls = 0 if calls == 3 else counted.calls
        call(vector(), counted)
        assert counted.calls == calls % 3 + calls // 3


def test_a_derivative_that_would_change_an_object_twice_is_an_error(compiled: Compile) -> None:
    counted, function = Counted(), compiled(lambda x, counted: count(x, counted).sum())
    for differentiate in (
        lambda: vmap(grad(function), (0, None))(batch(), counted),
        lambda: grad(function)(vector().requires_grad_(), counted).sum().backward(),
        lambda: grad(lambda x: grad(function)(x, counted).sum())(vector()),
    ):
        counted.calls = 0
        with pytest.raises(CaptureError, match="runs the function a second time"):
            differentiate()
        assert counted.calls == 1


@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
def test_behind_dynamo(backend: str) -> None:
    torch._dynamo.reset()
    function = torch.compile(scalar, backend=backend)
    for transform in (grad, lambda f: vmap(f), lambda f: vmap(grad(f)), hessian):
        x = batch() if transform is not grad and transform is not hessian else vector()
        assert torch.allclose(transform(function)(x), transform(scalar)(x))


def test_a_gradient_that_is_the_cotangent_may_be_written_to(compiled: Compile, halves) -> None:
    def function(compile: Compile) -> Any:
        def inner(x: torch.Tensor) -> torch.Tensor:
            _, pull = vjp(compile(lambda x: x + 1), x)
            cotangent = x * 2
            (gradient,) = pull(cotangent)
            gradient.mul_(3)
            return (gradient * cotangent).sum()

        return grad(inner)(vector())

    assert_eagers(function, compiled, halves)


def test_a_derivative_that_is_a_view_of_the_cotangent_runs_as_it_is(compiled: Compile, halves) -> None:
    def function(compile: Compile) -> Any:
        _, pull = vjp(compile(lambda x: x.clone().t()), matrix())
        cotangent = matrix().cos().t()
        (gradient,) = pull(cotangent)
        gradient.mul_(3)
        return gradient, cotangent

    assert assert_eagers(function, compiled, halves)["inlined"] == 1


def test_a_constant_derivative_requires_no_grad(compiled: Compile) -> None:
    x = vector().requires_grad_()
    constant = grad(compiled(lambda x: (2 * x).sum()))(x)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(constant.sum(), x, allow_unused=True)


def test_random_numbers_where_vmap_allows_none_are_eagers_error(compiled: Compile) -> None:
    function = compiled(noisy)
    for call in (lambda: vmap(function)(batch()), lambda: vmap(lambda x: x * function(vector()))(batch())):
        with pytest.raises(RuntimeError, match="vmap: called random operation while in randomness error mode"):
            call()
