"""Frozen and unfrozen parameters: as in eager, with a plan for each set of frozen ones.

Tests that compare counts of products, saved bytes or compiled graphs with eager use eager halves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import aotgrad

from .against_eager import COMPILERS, assert_matches


class Heads(nn.Module):
    """Two outputs, so a backward of several segments."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x).tanh()
        return self.one(hidden), self.other(hidden)


class Fold(nn.Module):
    """Eager multiplies by a matrix that requires grad in one product, by a frozen one in a batch of products."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.shift = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1) @ self.weight + self.shift


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def transformer() -> nn.Module:
    """Its forward does not depend on the frozen set; with `batch_first=True`, the first projection's does."""
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1), 2, enable_nested_tensor=False)


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4), nn.ReLU(), nn.Conv1d(4, 4, 2), nn.LayerNorm(2))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (5, 4)),
    "transformer": (transformer, (2, 3, 4)),
    "convolutions": (convolutions, (2, 3, 4)),
    "heads": (Heads, (5, 4)),
    "fold": (Fold, (3, 2, 4)),
}
each_model = pytest.mark.parametrize("name", MODELS)


class CountProducts(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.products += func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


def frozen_in_turn(model: nn.Module, x: Tensor) -> Iterator[str]:
    """Freezes parts of a model: single parameters, all before one, everything but the input, everything, nothing."""
    parameters = list(model.parameters())
    last = len(parameters) - 1
    for k in sorted({0, 1, last // 3, last // 2, last}):
        for chosen, of_input in (([k], k == 1), (range(k + 1), k % 2 == 0), (range(k + 1), k == last)):
            x.requires_grad_(of_input)
            for j, parameter in enumerate(parameters):
                parameter.requires_grad_(j not in chosen)
            yield f"frozen: {list(chosen)}, input: {x.requires_grad}"
    model.requires_grad_()
    yield "nothing is frozen"


def step(call: Callable, model: nn.Module, x: Tensor) -> tuple[list, int, int]:
    """Flags, values and gradients of one step; the bytes that its graph keeps alive, and the products of its backward."""
    leaves, kept = [x, *model.parameters()], {}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    owned = {leaf.untyped_storage().data_ptr() for leaf in leaves}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(3)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = call(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    with CountProducts() as counted:
        torch.autograd.backward([output.square().sum() for output in outputs if output.requires_grad])
    gradients = [leaf.grad for leaf in leaves]
    facts = [*outputs, *gradients, *(buffer.clone() for buffer in model.buffers())]
    flags = [(output.requires_grad, output.is_leaf) for output in outputs]
    for leaf in leaves:
        leaf.grad = None
    for name, buffer in model.named_buffers():
        buffer.data.copy_(buffers[name])
    return [*facts, *flags], sum(size for pointer, size in kept.items() if pointer not in owned), counted.products


def same(found: Any, expected: Any) -> bool:
    return torch.equal(found, expected) if isinstance(found, Tensor) and isinstance(expected, Tensor) else found == expected


@each_model
def test_a_model_of_which_parts_are_frozen_is_eagers(name: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    compiled = aotgrad.aot_module(model, aotgrad.nop, options={"plan_limit": 100})
    for frozen in frozen_in_turn(model, x):
        expected, bytes_kept, products = step(model, model, x)
        for _ in range(2):
            found, bytes_of_plan, products_of_plan = step(compiled, model, x)
            assert [k for k, pair in enumerate(zip(found, expected, strict=True)) if not same(*pair)] == [], frozen
            assert bytes_of_plan <= bytes_kept and products_of_plan <= products, frozen


def compilations(model: nn.Module) -> tuple[nn.Module, list[str]]:
    graphs: list[str] = []

    def compiler(half: str) -> Callable:
        return lambda graph, inputs: graphs.append(half) or aotgrad.make_boxed_func(graph.forward)

    return aotgrad.aot_module(model, compiler("forward"), compiler("backward"), options={"plan_limit": 100}), graphs


@pytest.mark.parametrize("name", ["mlp", "transformer", "heads"])
def test_each_set_of_frozen_parameters_is_compiled_once(name: str) -> None:
    make, shape = MODELS[name]
    model, x = make(), torch.randn(shape)
    compiled, graphs = compilations(model)
    patterns = 0
    step(compiled, model, x)
    for parameter in list(model.parameters())[:-1][:6]:
        parameter.requires_grad_(False)
        patterns += 1
        step(compiled, model, x)
    before = aotgrad.counters["compilations"]
    for parameter in model.parameters():
        parameter.requires_grad_()
    step(compiled, model, x)
    assert graphs.count("forward") == len(compiled.plans()) == patterns + 1
    assert aotgrad.counters["compilations"] == before


def test_a_generator_and_a_discriminator_in_turn() -> None:
    """Frozen with an input that requires grad, then trained with one that does not: neither backward contains the other."""
    model = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 1))
    compiled, _ = compilations(model)
    step(compiled, model, torch.randn(5, 4))
    model.requires_grad_(False)
    x = torch.randn(5, 4, requires_grad=True)
    expected, bytes_kept, products = step(model, model, x)
    found, bytes_of_plan, products_of_plan = step(compiled, model, x)
    assert all(map(same, found, expected)) and bytes_of_plan <= bytes_kept and products_of_plan == products


def test_a_forward_that_eager_computes_in_another_way() -> None:
    model, x = Fold(), torch.randn(3, 2, 4)
    compiled, graphs = compilations(model)
    for frozen in (False, True, False):
        model.weight.requires_grad_(not frozen)
        assert same(compiled(x), model(x))
    assert graphs == ["forward", "forward"]


def test_what_the_first_forward_did_not_keep_is_saved_by_the_second() -> None:
    """A GELU needs its argument, which is not saved while the layers before it are frozen."""
    model, x = mlp(), torch.randn(5, 4)
    model[:4].requires_grad_(False)
    compiled, graphs = compilations(model)
    step(compiled, model, x)
    model.requires_grad_()
    expected, _, products = step(model, model, x)
    found, _, products_of_plan = step(compiled, model, x)
    assert all(map(same, found, expected)) and products_of_plan == products
    assert graphs == ["forward", "backward", "forward", "backward"]


@pytest.mark.parametrize("later", [False, True])
def test_second_derivatives_of_a_part(halves, later: bool) -> None:
    model, x = mlp(), torch.randn(5, 4, requires_grad=True)
    compiled = aotgrad.aot_module(model, halves)

    def penalty(call: Callable) -> Sequence[Tensor | None]:
        (gradient,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return torch.autograd.grad(gradient.square().sum(), wanted, allow_unused=True)

    if later:
        penalty(compiled)
    model[2].requires_grad_(False)
    assert_matches(penalty(compiled), penalty(model), halves)


def test_an_input_that_the_call_overwrites(halves) -> None:
    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            result = self.other(self.one(x.clone()).tanh())
            x.mul_(2)
            return result * x

    model = Overwrites()
    compiled = aotgrad.aot_module(model, halves)
    for frozen in (False, True):
        model.one.requires_grad_(not frozen)
        found, expected = (call(torch.ones(3, 4) * 0.5) for call in (compiled, model))
        assert_matches(found, expected, halves)
        gradients = [torch.autograd.grad(result.sum(), list(model.other.parameters())) for result in (found, expected)]
        assert_matches(*gradients, halves)


def test_sizes_that_are_symbolic_are_partitioned_anew(halves) -> None:
    model = mlp()
    compiled = aotgrad.aot_module(model, halves, dynamic=True)
    for frozen in (False, True):
        model[0].requires_grad_(not frozen)
        for rows in (3, 5):
            x = torch.randn(rows, 4)
            assert_matches(step(compiled, model, x)[0], step(model, model, x)[0], halves)
    assert len(compiled.plans()) == 2


def test_a_forward_that_inductor_compiled() -> None:
    """Saved values have the layout that Inductor chose, also for another backward."""

    def function(x: Tensor, w: Tensor, kernel: Tensor, shift: Tensor) -> Tensor:
        hidden = nn.functional.gelu(x @ w + shift)
        return nn.functional.conv1d(hidden[None].transpose(0, 1), kernel).relu() * 2

    compiled = aotgrad.aot_function(function, "inductor", options={"verify": True})
    arguments = [torch.randn(4, 6), torch.randn(6, 8), torch.randn(3, 1, 2), torch.randn(8)]
    for wanted in ((0, 1, 2, 3), (1, 2), (2,), (0,)):
        for k, argument in enumerate(arguments):
            argument.requires_grad_(k in wanted)
        leaves = [arguments[k] for k in wanted]
        found, expected = (torch.autograd.grad(call(*arguments).sum(), leaves) for call in (compiled, function))
        torch.testing.assert_close(found, expected)


ONE = (torch.sin, torch.tanh, torch.relu, torch.t, nn.functional.gelu, lambda x: x.softmax(-1), lambda x: x.clone().mul_(3))
TWO = (torch.add, torch.mul, torch.matmul, lambda x, y: (x @ y).t(), lambda x, y: torch.cat([x, y])[1:4])


def random_function(choose: random.Random, count: int) -> Callable:
    """A function of `count` square matrices that returns up to three of its values."""
    total = count + choose.randint(4, 12)
    ops = [(choose.choice((*ONE, *TWO)), choose.randrange(k), choose.randrange(k)) for k in range(count, total)]
    returned = sorted({total - 1, choose.randrange(count, total), choose.randrange(count, total)})

    def function(*matrices: Tensor) -> tuple[Tensor, ...]:
        values = list(matrices)
        for op, one, other in ops:
            values.append(op(values[one], values[other]) if op in TWO else op(values[one]))
        return tuple(values[k] for k in returned)

    return function


def results(function: Callable, leaves: Sequence[Tensor], which: int, retain: bool) -> list:
    """Values, flags, gradients of one output and then of all, `None` for missing ones, and the resulting error."""
    outputs = function(*leaves)
    found: list = [*outputs, *(output.requires_grad for output in outputs)]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    try:
        for root in (outputs[which % len(outputs)], sum(output.sum() for output in outputs)):
            found += torch.autograd.grad(root.sum(), wanted, retain_graph=retain, allow_unused=True)
    except RuntimeError as error:
        found.append(str(error)[:40])
    return found


@pytest.mark.parametrize(("seed", "backend"), [*((s, "nop") for s in range(12)), *((s, "aot_inductor") for s in range(3))])
def test_random_functions_of_which_arguments_are_frozen(seed: int, backend: str) -> None:
    choose, count = random.Random(seed), 5
    function = random_function(choose, count)
    compiled = aotgrad.aot_function(function, COMPILERS[backend], options={"plan_limit": 20, "verify": True})
    torch.manual_seed(seed)
    matrices = [torch.randn(3, 3) for _ in range(count)]
    for number in range(6):
        flags = [number == 0 or choose.random() < 0.6 for _ in matrices]
        leaves = [matrix.clone().requires_grad_(flag) for matrix, flag in zip(matrices, flags, strict=True)]
        which, retain = choose.randrange(3), choose.random() < 0.5
        found, expected = (results(call, leaves, which, retain) for call in (compiled, function))
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert torch.allclose(one, other) if isinstance(other, Tensor) else one == other
