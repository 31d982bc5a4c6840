"""Gradients that pass through a result from which another result was computed, against eager."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Partial
from torch.testing._internal.two_tensor import TwoTensor

import aotgrad
from aotgrad.errors import HigherOrderError
from aotgrad.subclasses.bridge import OtherGradientForm
from tests.subclasses.dtensor_programs import P, R, four_processes, placed, redistributed
from tests.subclasses.programs import WAYS, compiled, described, eight_bits, plain, two

every_way = pytest.mark.parametrize("way", WAYS)
with_eager_halves = pytest.mark.parametrize("way", [way for way in WAYS if "eager" in way])
reads_gradients = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
"""Dynamo reads `.grad` of an argument."""


def nested(*shape: int) -> TwoTensor:
    return TwoTensor(two(*shape, requires_grad=False), two(*shape, requires_grad=False, seed=1)).requires_grad_()


def chain(x):
    y = x.exp()
    z = y.sin() * x + y.cos() * y
    return y, z, z.tanh() * y


def two_of_one(x):
    y = x * 2
    return y, y.sin(), y.cos()


def piece_of_several(x):
    first, second = torch.var_mean(x)
    return first, first.sin() * x, second * 2


def plain_beside(x, w):
    y, p = x.exp(), w.exp()
    return y, y.sin() * x, p, p.sin()


def view_between(x):
    y = x.exp()
    return y, y.view(-1, 1).sin()


def in_place(x):
    y = x * 3
    y.mul_(2)
    return y, y.sin()


def in_8_bits(w, x):
    y = x @ w
    return y, y.sin()


def drawn(x):
    y = x * torch.rand(3, dtype=torch.float64)
    return y, y.sin()


def trunk(x, w):
    h = x @ w
    y = h.sin()
    return y, h.cos() * y


def branches(x):
    h = x * 2
    y = h.sin()
    return y, h.cos() * y


def residual(x):
    y = x * 2
    return y, y.sin() * x


def projected(x, w):
    y = x @ w
    return y, y.sin()


def ragged(width: int = 0, requires_grad: bool = True) -> torch.Tensor:
    rows = [plain(count, *([width] if width else [])).detach() for count in (2, 3)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=requires_grad)


def changed(x):
    x.mul_(2)
    return x, x.sin()


def changed_twice(x, w):
    x.mul_(w)
    y = x.sigmoid()
    x.add_(y)
    return y, x.sin() * y, x


def filled(x, w):
    x.copy_(w * 2)
    return x.sin(), x


def view_of_argument(x):
    y = x.view(-1, 1)
    return y, y.sin()


def views_of_result(x):
    y = x.exp()
    first, second = y.view(-1, 1), y[1:]
    return y, first, first.sin() * 2, second, second.tanh(), y.cos()


def view_of_changed(x):
    x.mul_(2)
    y = x[1:]
    return y, y.sin()


def views_of_intermediate(x):
    y = x * 2
    first, second = y[:2], y[1:]
    return first, second, first.sin() * second.sum(), second.cos()


PROGRAMS: dict[str, tuple[Callable, Callable[[], list[Any]]]] = {
    "a chain": (chain, lambda: [two(3)]),
    "a chain of nested ones": (chain, lambda: [nested(3)]),
    "two of one": (two_of_one, lambda: [two(3)]),
    "a piece of several": (piece_of_several, lambda: [two(4)]),
    "plain ones beside": (plain_beside, lambda: [two(3), plain(3)]),
    "a view between": (view_between, lambda: [two(3)]),
    "changed in place": (in_place, lambda: [two(3)]),
    "of a weight in 8 bits": (in_8_bits, lambda: [eight_bits(True), plain(2, 2)]),
    "no leaf": (chain, lambda: [two(3) * 1]),
    "a trunk": (trunk, lambda: [two(3, 2), plain(2, 2)]),
    "jagged": (residual, lambda: [ragged()]),
    "a jagged trunk": (branches, lambda: [ragged()]),
    "an argument that is changed": (changed, lambda: [two(3) * 1]),
    "arguments that are changed": (changed_twice, lambda: [two(3) * 1, two(3, requires_grad=False)]),
    "a changed one without a gradient": (filled, lambda: [two(3, requires_grad=False), two(3)]),
}
VIEWS: dict[str, tuple[Callable, Callable[[], list[Any]]]] = {
    "a view of an argument": (view_of_argument, lambda: [two(3)]),
    "a view of an argument with a history": (view_of_argument, lambda: [two(3) * 1]),
    "views of a result": (views_of_result, lambda: [two(3)]),
    "a view of a changed argument": (view_of_changed, lambda: [two(3) * 1]),
    "views of an intermediate": (views_of_intermediate, lambda: [two(3)]),
    "a view of a nested one": (view_of_argument, lambda: [nested(3)]),
}
SIZED: dict[str, tuple[Callable, Callable[[], list[Any]]]] = {
    "a chain": (chain, lambda: [two(3)]),
    "a residual": (residual, lambda: [two(4)]),
    "a chain of nested ones": (chain, lambda: [nested(3)]),
    "plain ones beside": (plain_beside, lambda: [two(3), plain(3)]),
    "projected": (projected, lambda: [two(3, 2), plain(2, 2)]),
    "a trunk": (trunk, lambda: [two(4, 3), plain(3, 2)]),
    "jagged": (residual, lambda: [ragged()]),
    "a jagged trunk": (branches, lambda: [ragged()]),
}
PLACED: dict[str, tuple[Callable, Callable[[], list[Any]]]] = {
    "a chain": (chain, lambda: [placed(4, 4)]),
    "redistributed": (lambda x: (y := x.exp(), redistributed(y, *R).sin()), lambda: [placed(4, 4)]),
    "of a custom function": (lambda x: (y := redistributed(x, *R), y.sin()), lambda: [placed(4, 4)]),
    "local": (lambda x: (y := x.exp(), y.to_local().sin()), lambda: [placed(4, 4)]),
    "with a gradient of other placements": (
        lambda x: (y := x.exp(), y.to_local(grad_placements=[Partial()]).sin()),
        lambda: [placed(4, 4, on=R)],
    ),
    "a view": (lambda x: (y := x.view(-1), y.sin()), lambda: [placed(4, 4)]),
    "partial": (lambda x: (y := x * 2, redistributed(y, *R).sin()), lambda: [placed(4, 4, on=P)]),
}


def seen(value: Any) -> Any:
    return None if value is None else described(value.detach()).without_flags


def watched(results: Sequence[torch.Tensor]) -> list[tuple[int, Any]]:
    """What hooks of results see. In eager they also see `None`, for an unused output of an op with several."""
    found: list[tuple[int, Any]] = []
    for k, result in enumerate(results):
        result.register_hook(lambda gradient, k=k: None if gradient is None else found.append((k, seen(gradient))))
    return found


def with_hooks(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor], root: int) -> list[Any]:
    """What hooks of all results see in a backward from one, and what is kept."""
    results = [result for result in results if result.requires_grad]
    found = watched(results)
    for result in results:
        result.retain_grad()
    leaves = [argument for argument in arguments if argument.is_leaf]
    results[root].sum().backward(retain_graph=True)
    for leaf in leaves:
        if leaf.is_nested:  # eager cannot add up its gradients
            leaf.grad = None
    results[root].sum().backward()
    return [*found, *(seen(each.grad) for each in (*results, *leaves))]


def with_changes(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor], root: int) -> list[Any]:
    """The gradients of arguments, where a hook of each result changes what passes."""
    results = [result for result in results if result.requires_grad]
    for result in results:
        result.register_hook(lambda gradient: None if gradient is None else gradient * 3)
    return list(map(seen, torch.autograd.grad(results[root].sum(), arguments, allow_unused=True)))


def with_respect_to_results(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor], root: int) -> list[Any]:
    """The gradients of one result with respect to all of them, together and one by one."""
    results = [result for result in results if result.requires_grad]
    wanted = [[result] for result in results] + [[*results, *arguments]]
    gradients = [torch.autograd.grad(results[root].sum(), each, retain_graph=True, allow_unused=True) for each in wanted]
    return [[seen(gradient) for gradient in each] for each in gradients]


def of_all(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor], root: int) -> list[Any]:
    """What hooks see in a backward from all results but one."""
    results = [result for result in results if result.requires_grad]
    found = watched(results)
    roots = [result for k, result in enumerate(results) if k != root]
    torch.autograd.backward([result.sum() for result in roots])
    found.sort(key=lambda pair: pair[0])  # the nodes that assemble results run before others
    return [*found, *(seen(argument.grad) for argument in arguments if argument.is_leaf)]


def differentiated_twice(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor], root: int) -> list[Any]:
    results = [result for result in results if result.requires_grad]
    gradients = torch.autograd.grad(results[root].sum(), [*results, *arguments], create_graph=True, allow_unused=True)
    known = [gradient for gradient in gradients if gradient is not None and gradient.requires_grad]
    second = torch.autograd.grad([(each * each).sum() for each in known], arguments, allow_unused=True) if known else ()
    return [seen(gradient) for gradient in (*gradients, *second)]


def with_hooks_of_both_orders(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor], root: int) -> list[Any]:
    """What hooks of results see in the backward of a gradient, one result at a time: their order may differ."""
    results = [result for result in results if result.requires_grad]
    found = watched(results)
    gradients = torch.autograd.grad(results[root].sum(), arguments, create_graph=True, allow_unused=True)
    first, known = len(found), [each for each in gradients if each is not None and each.requires_grad]
    if known:
        torch.autograd.backward([(each * each).sum() for each in known])
    second = sorted(found[first:], key=lambda pair: pair[0])
    return [*found[:first], *second, *(seen(argument.grad) for argument in arguments if argument.is_leaf)]


USES = {
    use.__name__: use
    for use in (with_hooks, with_hooks_of_both_orders, with_changes, with_respect_to_results, of_all, differentiated_twice)
}


def check_passages(
    programs: dict[str, tuple[Callable, Callable[[], list[Any]]]], name: str, use: str, way: str, dynamic: bool = False
) -> None:
    function, arguments = programs[name]
    ours, count = compiled(function, way, dynamic), len(function(*arguments()))
    for root in range(count):

        def run(function: Callable, root: int = root) -> list[Any]:
            given = arguments()
            differentiable = [argument for argument in given if argument.requires_grad]
            return USES[use](function(*given), differentiable, root)

        assert run(ours) == run(function), root


@every_way
@reads_gradients
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name, use, way) -> None:
    check_passages(PROGRAMS, name, use, way)


@every_way
@reads_gradients
@pytest.mark.parametrize("use", ["with_hooks", "with_changes", "of_all"])
def test_a_trunk_of_a_constant(use, way) -> None:
    """Eager has no second derivative of this product."""
    programs = {"a jagged trunk": (trunk, lambda: [ragged(2, requires_grad=False), plain(2, 2)])}
    check_passages(programs, "a jagged trunk", use, way)


FIRST_ORDER = [use for use in USES if use != "with_hooks_of_both_orders"]


@every_way
@reads_gradients
@pytest.mark.parametrize("use", FIRST_ORDER)
@pytest.mark.parametrize("name", VIEWS)
def test_views(name, use, way) -> None:
    check_passages(VIEWS, name, use, way)


@pytest.mark.parametrize("way", ["dynamo, eager halves", "dynamo, inductor halves"])
@reads_gradients
@pytest.mark.parametrize("use", FIRST_ORDER)
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_symbolic_sizes(name, use, way) -> None:
    check_passages(VIEWS, name, use, way, dynamic=True)


@pytest.mark.parametrize("way", ["dynamo, eager halves", "dynamo, inductor halves"])
@reads_gradients
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", SIZED)
def test_symbolic_sizes(name, use, way) -> None:
    check_passages(SIZED, name, use, way, dynamic=True)


OTHER_FORM_OF_SECOND_ORDER = ("of a custom function", "with a gradient of other placements")


@with_eager_halves
@pytest.mark.filterwarnings("ignore:.*_functional_collectives:FutureWarning")  # the other names are new
@pytest.mark.filterwarnings("ignore:.* has 8 plans, the limit")  # each use has gradients of other placements
@pytest.mark.parametrize("use", FIRST_ORDER)
@pytest.mark.parametrize("name", PLACED)
def test_dtensors(name, use, way) -> None:
    fails = use == "differentiated_twice" and name in OTHER_FORM_OF_SECOND_ORDER
    with four_processes(), pytest.raises(OtherGradientForm) if fails else contextlib.nullcontext():
        check_passages(PLACED, name, use, way)


@pytest.mark.filterwarnings("ignore:DTensor random operators may not have complete support")
def test_a_function_that_draws_runs_once() -> None:
    """A gradient of another form than the result would take a detour, which runs the function again."""
    with four_processes():

        def function(x):
            y = x * torch.rand_like(x)
            return y, y.to_local(grad_placements=[Partial()]).sin()

        x = placed(4, 4, on=R)
        _, z = aotgrad.aot_function(function, "eager")(x)
        z.sum().backward()
        assert x.grad is not None


@with_eager_halves
def test_a_gradient_of_another_form_joins_one_that_passes(way) -> None:
    def run(function) -> list[Any]:
        x = two(3)
        y, z = function(x)
        torch.autograd.backward([y, z.sum()], [plain(3).detach(), None])
        return [seen(x.grad)]

    def function(x):
        y = x.exp()
        return y, y.sin()

    ours = compiled(function, way)
    assert [run(ours) for _ in range(3)] == [run(function)] * 3


@with_eager_halves
def test_nothing_is_kept(way) -> None:
    x = two(3)
    results = compiled(chain, way)(x)
    references = [weakref.ref(value) for value in (*results, x)]
    results[2].sum().backward()
    del results, x
    assert [reference() for reference in references] == [None] * 4


HAS_A_HOOK = "and has a hook \\(or retain_grad\\), which would not see its terms of second order"


def watched_and_differentiated_twice(function: Callable, index: int) -> int:
    """How often a hook of the first result runs in the second call, which knows the form of the gradient."""
    for _ in range(2):
        x = placed(4, 4)
        results = function(x)
        found = watched(results[:1])
        (gradient,) = torch.autograd.grad(results[index].sum(), x, create_graph=True)
        (gradient * gradient).sum().backward()
    return len(found)


def exponential(x):
    y = x.exp()
    return y, y.sin()


@pytest.mark.xfail(strict=True, reason="terms of second order do not pass a result with carriers (docs/limits.md)")
@with_eager_halves
def test_a_gradient_of_a_gradient_passes_a_result_with_carriers(way) -> None:
    with four_processes():
        assert watched_and_differentiated_twice(compiled(exponential, way), 0) == 2


@with_eager_halves
def test_a_gradient_of_a_gradient_and_a_hook_of_a_result_with_carriers(way) -> None:
    with four_processes(), pytest.raises(HigherOrderError, match=HAS_A_HOOK):
        function = compiled(exponential, way)
        watched_and_differentiated_twice(function, 0)
        watched_and_differentiated_twice(function, 1)


def gradient_through_a_view(function: Callable, watch: Callable) -> Any:
    x = two(3)
    y, z = function(x)
    watch(y)
    (gradient,) = torch.autograd.grad(z.sum(), x, create_graph=True)
    (gradient * gradient).sum().backward()
    return seen(x.grad)


@with_eager_halves
def test_a_gradient_of_a_gradient_and_a_view(way) -> None:
    found, expected = (gradient_through_a_view(f, seen) for f in (compiled(view_of_argument, way), view_of_argument))
    assert found == expected


@with_eager_halves
@pytest.mark.parametrize("watch", [lambda y: y.retain_grad(), lambda y: watched([y])], ids=["retained", "hook"])
def test_a_gradient_of_a_gradient_and_a_hook_of_a_view(way, watch) -> None:
    with pytest.raises(HigherOrderError, match=HAS_A_HOOK):
        gradient_through_a_view(compiled(view_of_argument, way), watch)


@pytest.mark.xfail(strict=True, reason="gradients do not pass a view of a plain tensor (docs/limits.md)")
@with_eager_halves
def test_a_view_of_a_plain_tensor_passes_a_gradient(way) -> None:
    def function(values, offsets):
        y = torch.nested.nested_tensor_from_jagged(values, offsets)
        return y, y.sin()

    y, z = compiled(function, way)(plain(5) * 1, torch.tensor([0, 2, 5]))
    found = watched([y])
    z.values().sum().backward()
    assert len(found) == 1


def test_independent_results_pass_nothing() -> None:
    ours = aotgrad.aot_function(lambda x: (x.sin(), x.cos()), "eager")
    ours(two(3))
    assert "through" not in ours.plans()[0].executable.source
