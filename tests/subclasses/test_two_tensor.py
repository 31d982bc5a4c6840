"""Functions of wrapper subclasses, against eager: without Dynamo and behind it, through both backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import aotgrad
from aotgrad.errors import CaptureError, UnsupportedMutationError
from tests.subclasses.programs import WAYS, compiled, described, eight_bits, outcome, plain, two

every_way = pytest.mark.parametrize("way", WAYS)


def double_under_no_grad(x):
    with torch.no_grad():
        x.mul_(2)
    return x.sin()


PROGRAMS = {
    "an_argument": (lambda x: x.sin() * x.exp(), lambda: [two(3)]),
    "no_gradient": (lambda x: x.sin() * 2, lambda: [two(3, requires_grad=False)]),
    "products": (lambda x, w: (x @ w).relu(), lambda: [two(3, 3), two(3, 3, seed=1)]),
    "a_plain_argument_with_a_wrapped_gradient": (lambda x, w: (x @ w).relu(), lambda: [plain(3, 3), two(3, 3)]),
    "nested": (lambda x: x.exp() * x, lambda: [TwoTensor(two(3, requires_grad=False), two(3, requires_grad=False))]),
    "the_inner_tensors": (lambda x: x.a * 2 + x.b, lambda: [two(3, requires_grad=False)]),
    "in_a_dictionary": (lambda d: {"y": d["x"] * 2, "x": d["x"]}, lambda: [{"x": two(3)}]),
    "one_object_twice": (lambda x, y: x * y, lambda: [two(3)] * 2),
    "two_results": (lambda x: (x.sin(), x.cos()), lambda: [two(3)]),
    "one_result_twice": (lambda x: [x * 2] * 2, lambda: [two(3)]),
    "a_plain_result_beside_it": (lambda x, y: (x.sin(), y.cos()), lambda: [two(3), plain(3)]),
    "made_inside": (lambda x: TwoTensor(x, x + 1).sin(), lambda: [plain(3).detach()]),
    "detached": (lambda x: x.detach() * 2, lambda: [two(3)]),
    "a_view_of_an_argument": (lambda x: x.view(3, 1), lambda: [two(3)]),
    "a_view_inside": (lambda x: (x * 2).t() @ x, lambda: [two(3, 2)]),
    "changed": (lambda x: x.add_(1) * 2, lambda: [two(3, requires_grad=False)]),
    "changed_with_a_history": (lambda x: x.mul_(2).sin(), lambda: [two(3) * 1]),
    "changed_under_no_grad": (double_under_no_grad, lambda: [two(3)]),
    "an_inner_tensor_changed": (lambda x: x.a.add_(1) * 1, lambda: [two(3, requires_grad=False)]),
    "in_8_bits": (lambda w, x: x @ w, lambda: [eight_bits(False), plain(2, 2)]),
    "a_gradient_that_is_plain": (lambda w, x: x @ w, lambda: [eight_bits(True), plain(2, 2)]),
}


@every_way
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name, way) -> None:
    function, arguments = PROGRAMS[name]
    ours = compiled(function, way)
    expected = outcome(function, arguments())
    assert [outcome(ours, arguments()) for _ in range(3)] == [expected] * 3


@every_way
def test_a_tensor_that_the_function_closes_over(way) -> None:
    held = two(3, requires_grad=False, seed=5)

    def function(x):
        return held * x

    assert outcome(compiled(function, way), [two(3)]) == outcome(function, [two(3)])


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(two(3, 3, requires_grad=False))
        self.bias = nn.Parameter(plain(3).detach())
        self.register_buffer("calls", two(3, requires_grad=False, seed=2))

    def forward(self, x):
        self.calls.add_(1)
        return (x @ self.weight + self.bias).relu() * self.calls


@every_way
def test_a_module_is_trained(way) -> None:
    def trained(module, run) -> list:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for step in range(3):
            run(two(2, 3, requires_grad=False, seed=step)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [str(value) for value in (*module.parameters(), module.calls)]

    module, reference = Layer(), Layer()
    assert trained(module, compiled(module, way)) == trained(reference, reference)


def square(x):
    return x.sin() * x.exp()


@every_way
def test_a_gradient_of_a_gradient(way) -> None:
    def run(function) -> list:
        x = two(3)
        (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (gradient * gradient).sum().backward()
        return [str(gradient.detach()), str(x.grad)]

    assert run(compiled(square, way)) == run(square)


@every_way
def test_a_gradient_of_another_form_arrives(way) -> None:
    """The first one takes a detour; later calls expect it, and compile nothing."""

    def run(function, tangent) -> str:
        x = two(3)
        function(x).backward(tangent)
        return str(x.grad)

    ours = compiled(square, way)
    usual, other = two(3, requires_grad=False, seed=7), plain(3).detach()
    assert run(ours, usual) == run(square, usual)
    assert [run(ours, other) for _ in range(3)] == [run(square, other)] * 3
    assert run(ours, usual) == run(square, usual)


@every_way
def test_a_gradient_of_a_gradient_of_another_form(way) -> None:
    def run(function) -> list:
        x = two(3)
        (gradient,) = torch.autograd.grad(function(x), x, plain(3).detach(), create_graph=True)
        (gradient * gradient).sum().backward()
        return [str(gradient.detach()), str(x.grad)]

    ours = compiled(square, way)
    assert [run(ours) for _ in range(2)] == [run(square)] * 2


@every_way
def test_a_function_that_draws_draws_the_same_for_a_gradient_of_another_form(way) -> None:
    """It runs once more, and leaves the random state as it is."""

    def function(x, y):
        return torch.rand_like(y) * x

    ours = compiled(function, way)
    for _ in range(3):
        x, y = two(3), torch.zeros(3, dtype=torch.float64)
        result = ours(x, y)
        state = torch.get_rng_state()
        result.backward(torch.ones(3, dtype=torch.float64))
        assert torch.equal(torch.get_rng_state(), state)
        assert type(x.grad) is torch.Tensor  # as in eager: `y` and the gradient are plain
        assert torch.allclose(x.grad * x.a, result.a) and x.grad.unique().numel() == 3


def test_a_function_that_draws_from_a_generator_does_not_run_again_for_a_gradient_of_another_form() -> None:
    """The error names the reason; the next call expects the form."""
    ours = aotgrad.aot_function(lambda x, generator: torch.rand(3, generator=generator) * x, "eager")
    generator = torch.Generator()
    with pytest.raises(CaptureError, match=r"arrives as a plain tensor.* draws from a torch\.Generator"):
        ours(two(3), generator).backward(torch.ones(3, dtype=torch.float64))
    x = two(3)
    ours(x, generator).backward(torch.ones(3, dtype=torch.float64))
    assert type(x.grad) is torch.Tensor


@every_way
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.parametrize("is_leaf", [True, False])
def test_an_argument_is_a_leaf_as_in_eager(way, is_leaf) -> None:
    def function(x):
        return x * (2 if x.is_leaf else 3) * (5 if x.grad_fn is None else 7)

    x = two(3) if is_leaf else two(3) * 1
    assert str(compiled(function, way)(x)) == str(function(x))


READS = {".grad": lambda x: x if x.grad is None else x * 2, "._version": lambda x: x * x._version}


@pytest.mark.parametrize("name", READS)
def test_reads_of_what_a_trace_does_not_have_are_refused(name) -> None:
    x = two(3)
    x.grad = two(3, requires_grad=False)
    with pytest.raises(CaptureError, match=f"reads {name} of tensor argument 0, which a traced tensor does not have"):
        aotgrad.aot_function(READS[name], "eager")(x)


@every_way
@pytest.mark.parametrize("gradient", ["of ones", "kept by the caller"])
def test_gradients_of_two_leaves_are_accumulated_apart(gradient, way) -> None:
    """Both are the gradient that arrives; autograd adds the next one in place."""

    def run(function) -> list[str]:
        leaves = [two(3), two(3, seed=1)]
        kept = two(3, requires_grad=False, seed=9)
        for _ in range(3):
            result = function(*leaves)
            result.backward(torch.ones_like(result).detach() if gradient == "of ones" else kept)
        return [str(value) for value in (*(leaf.grad for leaf in leaves), kept)]

    def function(x, y):
        return x + y

    assert run(compiled(function, way)) == run(function)


@every_way
def test_a_change_of_what_is_saved_is_noticed(way) -> None:
    x = two(3)
    y = compiled(square, way)(x)
    with torch.no_grad():
        x.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@every_way
def test_a_change_of_a_result_that_is_saved_is_noticed(way) -> None:
    y = compiled(lambda x: x.exp(), way)(two(3))
    with torch.no_grad():
        y.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


SEVERAL = {
    "one of another": lambda x, w: (h := x.exp(), h * w),
    "a view of it": lambda x, w: (h := x.exp(), h.view(-1, 1) * w),
    "two views": lambda x, w: (h := x.exp(), h.view(-1, 1), h * w)[1:],
    "without a gradient": lambda x, w: (h := x.exp(), h * w, h.detach())[::-1],
    "independent": lambda x, w: (x.exp(), w.sin()),
}


@every_way
@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("changed", [0, 1])
def test_a_change_of_one_result_is_noticed_in_the_backward_of_another(name, changed, way) -> None:
    """It raises if eager raises, for gradients of each result with respect to each argument."""

    def run(function, root: int, wanted: int) -> Any:
        arguments = [two(3), two(3, seed=1)]
        results = function(*arguments)
        with torch.no_grad():
            results[changed].mul_(3)
        try:
            return str(torch.autograd.grad(results[root].sum(), arguments[wanted], allow_unused=True))
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error)

    for root, wanted in ((-1, 0), (-1, 1), (0, 0), (1, 0)):
        ours = compiled(SEVERAL[name], way)
        assert run(ours, root, wanted) == run(SEVERAL[name], root, wanted), (root, wanted)


@every_way
def test_a_result_that_is_saved_serves_several_backwards(way) -> None:
    def run(function) -> list:
        x, w = two(3), two(3, seed=1)
        h, y = function(x, w)
        found = [torch.autograd.grad(y.sum(), each, retain_graph=True) for each in (x, w)]
        found.append(torch.autograd.grad(h.sum() + y.sum(), [x, w]))
        with pytest.raises(RuntimeError, match="a second time"):
            y.sum().backward()
        return list(map(str, found))

    function = SEVERAL["one of another"]
    assert run(compiled(function, way)) == run(function)


CHANGES = {
    "the wrapper": lambda x: (x.add_(1), x * 2)[1],
    "an inner tensor": lambda x: (x.b.add_(1), x * 2)[1],
    "both": lambda x: (x.add_(1), x.b.mul_(2), x * 2)[2],
    "a view of an inner one": lambda x: (x.b[0].add_(1), x * 2)[1],
    "an inner one, detached": lambda x: (x.b.detach().add_(1), x * 2)[1],
    "data of an inner one": lambda x: (x.b.data.add_(1), x * 2)[1],
}


@pytest.mark.parametrize("way", [way for way in WAYS if "eager" in way])
@pytest.mark.parametrize("kind", ["one level", "two levels"])
@pytest.mark.parametrize("name", CHANGES)
def test_versions_after_a_change(name, kind, way) -> None:
    def run(function: Callable) -> list[int]:
        x = two(3, requires_grad=False)
        x = x if kind == "one level" else TwoTensor(x, two(3, requires_grad=False))
        for _ in range(2):
            function(x)
        deeper = [x.b.a, x.b.b] if kind == "two levels" else []
        return [each._version for each in (x, x.a, x.b, *deeper)]

    assert run(compiled(CHANGES[name], way)) == run(CHANGES[name])


@every_way
def test_hooks_see_wrappers(way) -> None:
    def run(function) -> list:
        seen = []
        x = two(3)
        x.register_hook(lambda gradient: seen.append(str(gradient)))
        y = function(x)
        y.register_hook(lambda gradient: seen.append(type(gradient).__name__))
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        return [*seen, str(x.grad)]

    assert run(compiled(square, way)) == run(square)


@every_way
def test_without_gradients(way) -> None:
    with torch.no_grad():
        y = compiled(square, way)(two(3))
    assert str(y) == str(square(two(3)).detach()) and not y.requires_grad


def test_one_plan_serves_wrappers_of_one_form() -> None:
    ours = aotgrad.aot_function(square, "eager")
    for value in (two(3), two(3, seed=1), two(3, requires_grad=False), two(4)):
        ours(value)
    assert len(ours.plans()) == 3


def test_a_backend_sees_plain_tensors() -> None:
    seen = []

    def backend(module, inputs):
        seen.extend(type(node.meta["val"]).__mro__ for node in module.graph.find_nodes(op="placeholder"))
        return module.forward

    x = two(3)
    aotgrad.aot_function(square, backend)(x).sum().backward()
    assert seen and not any(TwoTensor in classes for classes in seen)


def test_a_leaf_that_requires_grad_is_not_changed_in_place() -> None:
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        aotgrad.aot_function(lambda x: x.mul_(2), "eager")(two(3))


@every_way
def test_an_assignment_to_a_part_of_an_intermediate(way) -> None:
    def function(x):
        y = x * 2
        y.b = y.a + 1
        return y

    x = two(3, requires_grad=False)
    assert outcome(compiled(function, way), [x]) == outcome(function, [x])


@every_way
def test_a_view_and_its_base_share_changes(way) -> None:
    def run(function) -> list:
        base, view = function(two(2, 3))
        with torch.no_grad():
            base.mul_(2)
        return [view._base is base, view._version, str(view.detach())]

    def function(x):
        y = x * 2
        return y, y.t()

    assert run(compiled(function, way)) == run(function)


def under_no_grad(x):
    y = x * 2
    with torch.no_grad():
        return y, y.view(3, 1)


@every_way
def test_a_view_made_under_no_grad(way) -> None:
    assert outcome(compiled(under_no_grad, way), [two(3)]) == outcome(under_no_grad, [two(3)])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_a_strided_nested_tensor_is_refused_by_name() -> None:
    rows = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(CaptureError, match="tensor argument 0 is a nested tensor, which cannot be traced"):
        aotgrad.aot_function(lambda x: x * 2, "eager")(rows)


def test_results_are_explained_by_part() -> None:
    text = str(aotgrad.explain(square)(two(3)))
    assert "x.a" in text and "output.b" in text


CHANGED = {
    "one with a history": lambda x, y: (x.mul_(2), x.sin() * y)[1],
    "one without": lambda x, y: (y.mul_(2), x.sin() * y)[1],
    "both": lambda x, y: (y.mul_(2), x.add_(y), x.sin())[2],
    "a plain one": lambda x, y: (y.mul_(2), x.sin() * y)[1],
    "a plain one beside another": lambda x, y: (x.mul_(2), y.mul_(2), x.sin() * y)[2],
}


def plain_gradient_of(function: Callable, y: torch.Tensor) -> list[Any]:
    leaf = two(3)
    x = leaf * 1
    result = function(x, y)
    for _ in range(2):
        result.backward(torch.ones(3, dtype=torch.float64), retain_graph=True)
    return [described(x), described(y), described(leaf.grad).without_flags]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.parametrize("way", [way for way in WAYS if "eager" in way])
@pytest.mark.parametrize("name", CHANGED)
def test_a_gradient_of_another_form_after_a_change(name: str, way: str) -> None:
    """The first call keeps copies of what it changes, since the function runs once more for such a gradient."""
    ours = compiled(CHANGED[name], way)
    make = (lambda: plain(3).detach()) if "plain" in name else lambda: two(3, requires_grad=False, seed=2)
    for _ in range(2):
        assert plain_gradient_of(ours, make()) == plain_gradient_of(CHANGED[name], make())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.parametrize("way", [way for way in WAYS if "eager" in way])
def test_a_gradient_of_another_form_after_a_change_of_a_plain_one_with_a_history(way: str) -> None:
    """A symbolic number comes before the tensors behind Dynamo."""

    def function(n, x, y):
        y.mul_(2 * n)
        return x.sin() * n, y.sin()

    def run(function: Callable) -> list[Any]:
        x, leaf = two(3), plain(3)
        y = leaf * 1
        torch.autograd.backward(function(3, x, y), [torch.ones(3, dtype=torch.float64)] * 2)
        return [described(value) for value in (y, x.grad, leaf.grad)]

    ours = compiled(function, way, dynamic=True)
    assert [run(ours) for _ in range(2)] == [run(function)] * 2


def test_no_copies_are_kept_once_a_gradient_has_the_form_of_the_result() -> None:
    ours = aotgrad.aot_function(CHANGED["one without"], "eager")
    x, y = two(3), two(3, requires_grad=False)
    ours(x, y).sum().backward()
    with pytest.raises(CaptureError, match="so that it cannot run once more for this gradient"):
        ours(x, y).backward(torch.ones(3, dtype=torch.float64))


def assign(x):
    x.b = x.b * 2
    return x + 1


def assign_deeply(x):
    x.a.b = x.a.a
    return x + 1


def swap(x):
    x.a, x.b = x.b, x.a
    return x + 1


ASSIGNMENTS = {
    "a part": (assign, lambda: two(3, requires_grad=False)),
    "a part of a part": (assign_deeply, lambda: TwoTensor(*(two(3, requires_grad=False) for _ in range(2)))),
    "both parts": (swap, lambda: two(3, requires_grad=False)),
}


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_an_assignment_to_a_part_of_an_argument_is_refused(name) -> None:
    """A call would not make it."""
    function, argument = ASSIGNMENTS[name]
    with pytest.raises(UnsupportedMutationError, match="is a TwoTensor, and one of its inner tensors is assigned"):
        aotgrad.aot_function(function, "eager")(argument())
