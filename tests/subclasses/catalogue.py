"""Programs with tensor subclasses of the kinds that torch's own tests have: each a function, and fresh arguments for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from tests.subclasses.classes import Doubling, Padded, Pair, Recipe, Scaled
from tests.subclasses.programs import described, eight_bits, outcome, plain, two


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        function: takes tensors, or a module.
        arguments: makes them.
        run: what is compared: takes the function, compiled or not, and fresh arguments.
        dynamic: for `torch.compile`, and for `aot_function`.
        behind_dynamo_only: the reason, if it has to be.
    """

    group: str
    name: str
    function: Callable
    arguments: Callable[[], list[Any]]
    run: Callable[[Callable, list[Any]], Any] = outcome
    dynamic: bool | None = None
    behind_dynamo_only: str = ""


def with_gradient(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable:
    """A run whose backward gets the gradient that `make` gives for the result."""

    def run(function: Callable, arguments: list[Any]) -> Any:
        return outcome(lambda *some: scaled_by(function(*some), make), arguments)

    def scaled_by(result: torch.Tensor, make: Callable) -> torch.Tensor:
        torch.autograd.backward(result, make(result.detach()), retain_graph=True)
        return result.detach()

    return run


def shared_nodes(function: Callable, arguments: list[Any]) -> Any:
    """The outcome, and which results have the same autograd node."""
    return [sharing(function(*arguments)), outcome(function, arguments)]


def sharing(results: Any) -> list[Any]:
    """For each result, the first one with the same autograd node, and which output of the node it is."""
    nodes = [result.grad_fn for result in results]
    return [node and (nodes.index(node), result.output_nr) for node, result in zip(nodes, results, strict=True)]


def nodes_and_gradients(function: Callable, arguments: list[Any]) -> Any:
    """The results, which of them have the same autograd node, and the gradients of one backward from all."""
    results = function(*arguments)
    found = [sharing(results), *map(described, results)]
    if roots := [result for result in results if result.grad_fn is not None]:
        gradients = torch.autograd.grad(roots, arguments, [torch.ones_like(root) for root in roots])
        found += [described(gradient).without_flags for gradient in gradients]
    return found


def around(context: Callable[[], Any]) -> Callable:
    """A run of the call inside of a context."""

    def run(function: Callable, arguments: list[Any]) -> Any:
        def called(*some: Any) -> Any:
            with context():
                return function(*some)

        return outcome(called, arguments)

    return run


def repeated(run: Callable, *sizes: int) -> Callable:
    return lambda function, arguments: [run(function, [two(size, 4)]) for size in sizes]


def under_saved_tensor_hooks() -> Any:
    return torch.autograd.graph.saved_tensors_hooks(lambda value: value.clone(), lambda value: value)


def gradient_of_transform(function: Callable, arguments: list[Any]) -> Any:
    gradient = torch.func.grad(lambda x: function(x).sum())(arguments[0].detach())
    return outcome(lambda: gradient, [])


def second_order(function: Callable, arguments: list[Any]) -> Any:
    (x,) = arguments
    (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (gradient * gradient).sum().backward()
    return outcome(lambda: (gradient.detach(), x.grad), [])


def noncontiguous(value: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(value).t().contiguous().t() * 2


def view_of_argument_first(view: Callable) -> Callable:
    def run(function: Callable, arguments: list[Any]) -> Any:
        return outcome(lambda x: function(view(x)), arguments)

    return run


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


def with_wrapped_weight(cls: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.Linear(4, 3, dtype=torch.float64)
    layer.weight = nn.Parameter(cls(layer.weight.detach()))
    return layer


def run_module(function: Callable, arguments: list[Any]) -> Any:
    function.zero_grad()
    result = outcome(function, arguments)
    return [result, [outcome(lambda p=p: p.grad, []) for p in function.parameters()]]


def change_inner(x):
    x.a.mul_(2)
    return x.a + x.b


def change_view(x):
    x[0].add_(1)
    return x * 2


def change_flat_view(x):
    x.view(-1).mul_(2)
    return x.sin()


def changed_between(x):
    y = x.sin()
    y.add_(1)
    return y * x


def sgd_step(p, g):
    with torch.no_grad():
        p.sub_(0.1 * g)


def momentum_step(p, m, g):
    with torch.no_grad():
        m.mul_(0.9).add_(g)
        p.add_(m, alpha=-0.1)
    return m.sum()


def autocast_inside(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ w).sin()


def no_grad_inside(x):
    with torch.no_grad():
        y = x.exp()
    return x * y


def in_two_steps(x, w):
    return checkpoint(lambda some: (some @ w).sin().exp(), x, use_reentrant=False)


def dropped(x):
    torch.manual_seed(3)
    return torch.nn.functional.dropout(x, 0.5)


def scaled(held: Any, requires_grad: bool = False) -> Scaled:
    return Scaled(plain(2, 4).detach(), plain(3, seed=2).detach(), held).requires_grad_(requires_grad)


def pair(requires_grad: bool = True) -> Pair:
    return Pair(plain(3, 3).detach(), plain(3, 3, seed=2).detach().t()).requires_grad_(requires_grad)


def padded(offset: bool) -> Padded:
    return Padded(plain(5).detach(), plain(1, seed=2).detach() if offset else None, (3,))


def mixed() -> TwoTensor:
    return TwoTensor(two(3, requires_grad=False), two(3, requires_grad=False, seed=3)).requires_grad_()


TWO: dict[str, tuple] = {
    "sine": (lambda x: x.sin() * x, lambda: [two(3, 4)]),
    "product with a plain tensor": (lambda x, y: x * y, lambda: [two(3), plain(3)]),
    "plain times wrapper under matmul": (lambda x, y: y @ x, lambda: [two(3, 3), plain(3, 3)]),
    "no gradient": (lambda x: x.sin(), lambda: [two(3, requires_grad=False)]),
    "nested": (lambda x: x.sin() * x, lambda: [mixed()]),
    "nested with a plain one": (lambda x, y: x.sin() * y, lambda: [mixed(), plain(3)]),
    "returned inner tensor": (lambda x: (x.a, x.b * 2), lambda: [two(3, requires_grad=False)]),
    "view of an inner tensor": (lambda x: x.a.view(-1), lambda: [two(3, 4, requires_grad=False)]),
    "inner tensor of an intermediate": (lambda x: (x * 2).a + 1, lambda: [two(3, requires_grad=False)]),
    "made inside, returned": (lambda x: TwoTensor(x.sin(), x.cos()), lambda: [plain(3).detach()]),
    "made inside, used": (lambda x: (TwoTensor(x.sin(), x.cos()) * 2).b, lambda: [plain(3).detach()]),
    "two made of the same part": (lambda x: (TwoTensor(x, x + 1), TwoTensor(x, x + 2)), lambda: [plain(3).detach()]),
    "argument returned": (lambda x: (x, x * 2), lambda: [two(3)]),
    "inner tensor changed": (change_inner, lambda: [two(3, requires_grad=False)]),
    "changed in place": (lambda x: x.mul_(2), lambda: [two(3, requires_grad=False)]),
    "changed in place, with history": (lambda x: x.mul_(2).sin(), lambda: [two(3) * 1]),
    "a view changed in place": (change_view, lambda: [two(3, 4, requires_grad=False)]),
    "a view changed, with history": (change_view, lambda: [two(3, 4) * 1]),
    "a flat view changed": (change_flat_view, lambda: [two(3, 4, requires_grad=False)]),
    "an intermediate changed": (changed_between, lambda: [two(3)]),
    "sgd step": (sgd_step, lambda: [two(3), two(3, requires_grad=False, seed=2)]),
    "momentum step": (momentum_step, lambda: [two(3), *(two(3, requires_grad=False, seed=k) for k in (1, 2))]),
    "detached": (lambda x: x.detach().sin(), lambda: [two(3)]),
    "detached and not": (lambda x: (x.detach(), x.sin()), lambda: [two(3)]),
    "several results": (lambda x: (x.sin(), [x.cos(), {"a": x.exp()}]), lambda: [two(3)]),
    "chunks of an intermediate": (lambda x: (x * 2).chunk(2), lambda: [two(4)]),
    "chunks of an argument": (lambda x: x.chunk(2), lambda: [two(4)]),
    "split and concatenated": (lambda x: torch.cat(x.split(2)[::-1]), lambda: [two(4)]),
    "maximum along a dimension": (lambda x: x.max(0)[0], lambda: [two(3, 4)]),
    "comparison": (lambda x: (x > 0, x * 2), lambda: [two(3)]),
    "converted": (lambda x: x.float().double(), lambda: [two(3)]),
    "layer norm": (lambda x: torch.nn.functional.layer_norm(x, (4,)), lambda: [two(3, 4)]),
    "linear": (torch.nn.functional.linear, lambda: [two(2, 4), two(3, 4, seed=2), two(3, seed=3)]),
    "softmax": (lambda x: x.softmax(-1), lambda: [two(3, 4)]),
    "embedding-like index": (lambda x: x[torch.tensor([0, 2, 0])], lambda: [two(3, 4)]),
    "factory like it": (lambda x: torch.zeros_like(x) + x, lambda: [two(3)]),
    "autograd function": (lambda x: Doubled.apply(x), lambda: [two(3)]),
    "autocast inside": (autocast_inside, lambda: [two(2, 4), two(4, 3)]),
    "no_grad inside": (no_grad_inside, lambda: [two(3)]),
    "checkpoint": (in_two_steps, lambda: [two(3, 3), two(3, 3, seed=2)]),
    "size as a result": (lambda x: (x * x.shape[0], x.shape[1]), lambda: [two(3, 4)]),
    "expanded argument": (lambda x: x * 2, lambda: [two(1, 4).expand(3, 4)]),
    "transposed argument": (lambda x: x.sin(), lambda: [two(3, 4).t()]),
    "one object twice": (lambda x, y: x * y, lambda: [two(3)] * 2),
    "an argument beside its part": (lambda x, y: x * 2 + y, lambda: [(x := two(3, requires_grad=False)), x.a]),
    "an argument and its view": (lambda x, y: x * 2 + y, lambda: [(x := two(3, 4)), x.view(3, 4)]),
    "an argument changed, and its view": (
        lambda x, y: (x.mul_(2), y * 3)[1],
        lambda: [(x := two(3, 4, requires_grad=False)), x.view(4, 3)],
    ),
    "an argument changed, and its part": (
        lambda x, y: (x.mul_(2), y * 3)[1],
        lambda: [(x := two(3, requires_grad=False)), x.a],
    ),
}

VIEWS: dict[str, tuple] = {
    "view of an argument": (lambda x: x.view(-1), lambda: [two(3, 4)]),
    "transposition of an argument": (lambda x: x.t(), lambda: [two(3, 4)]),
    "row of an argument": (lambda x: x[0], lambda: [two(3, 4)]),
    "view of an intermediate": (lambda x: (x * 2).view(-1), lambda: [two(3, 4)]),
    "intermediate and its view": (lambda x: (y := x * 2, y.view(-1)), lambda: [two(3, 4)]),
    "two views of an intermediate": (lambda x: (y := x * 2, y.view(-1), y.t())[1:], lambda: [two(3, 4)]),
    "two views of an argument": (lambda x: (x.view(-1), x.t()), lambda: [two(3, 4)]),
    "view of a view of an argument": (lambda x: x.t()[0], lambda: [two(3, 4)]),
    "view of a changed argument": (lambda x: x.mul_(2).view(-1), lambda: [two(3, 4, requires_grad=False)]),
    "view of a changed argument with history": (lambda x: x.mul_(2).view(-1), lambda: [two(3, 4) * 1]),
    "unbound": (lambda x: (x * 2).unbind(0), lambda: [two(3, 4)]),
    "alias of an argument": (lambda x: x.view_as(x), lambda: [two(3)]),
    "as_strided": (lambda x: x.as_strided((2, 2), (1, 2)), lambda: [two(3, 4)]),
    "detached view": (lambda x: x.detach().view(-1), lambda: [two(3, 4)]),
    "same data in two results": (lambda x: (y := x * 2, y), lambda: [two(3)]),
    "result detached and not": (lambda x: (y := x * 2, y.detach()), lambda: [two(3)]),
}

VIEWED_ARGUMENTS = {
    "narrowed": lambda x: x.narrow(-1, 3, 8),
    "split": lambda x: x.split(5, -1)[2],
    "unevenly split": lambda x: x.split_with_sizes([9, 6], -1)[1],
    "expanded": lambda x: x.unsqueeze(-1).expand(4, 15, 10),
    "selected": lambda x: x.select(-1, 6),
    "sliced": lambda x: x[1:3, 5:9],
    "viewed": lambda x: x.view(-1, 15),
}

PIECES: dict[str, Callable] = {
    "split": lambda x: x.split(2, -1),
    "unevenly split": lambda x: x.split_with_sizes([1, 3], -1),
    "chunks": lambda x: x.chunk(2, -1),
    "some of them": lambda x: x.split(1, -1)[1::2],
    "in another order": lambda x: x.split(2, -1)[::-1],
    "of an intermediate": lambda x: (x * 2).split(2, -1),
    "one piece": lambda x: x.split(4, -1),
    "a piece twice": lambda x: ((y := x.split(2, -1))[0], y[1], y[0].view_as(y[0])),
    "beside their base": lambda x: (y := x * 2, *y.split(2, -1)),
    "of a view": lambda x: x.unsqueeze(-1).split(2, -2),
    "a piece and a view of the other": lambda x: ((y := x.split(2, -1))[0], y[1].unsqueeze(-1)),
    "pieces of a piece": lambda x: x.split(2, -1)[1].split(1, -1),
    "pieces of all pieces": lambda x: [piece for half in x.split(2, -1) for piece in half.split(1, -1)],
    "by two calls": lambda x: (*x.split(2, -1), *x.split(2, -1)),
    "used, too": lambda x: ((y := x.split(2, -1))[0], y[1], y[0] * y[1]),
    "under no_grad": torch.no_grad()(lambda x: x.split(2, -1)),
}
"""Results that are pieces of one call of an op; the last dimension has four elements."""

OTHERS: dict[str, tuple] = {
    "a dict as context": (lambda x: x.sin(), lambda: [scaled({"constant": 2.0, "tags": ["a"]})]),
    "a dict as context, gradient": (lambda x: x.sin() * x, lambda: [scaled({"constant": 2.0}, True)]),
    "an object without hash as context": (lambda x: x.sin() * x, lambda: [scaled(Recipe(2.0, ["a"]), True)]),
    "a set as context": (lambda x: x.sin() * x, lambda: [scaled({"a", "b"}, True)]),
    "a slice and a dtype as context": (lambda x: x.sin() * x, lambda: [scaled((slice(1, 2), torch.int8), True)]),
    "the scale read": (lambda x: x.scale * 2, lambda: [scaled({"constant": 2.0})]),
    "the context read": (lambda x: x.scale * x.held["constant"], lambda: [scaled({"constant": 2.0})]),
    "of an intermediate read": (lambda x: x.sin().scale * 2, lambda: [scaled({"constant": 2.0})]),
    "an absent part": (lambda x, y: x * y, lambda: [padded(False), plain(3)]),
    "a present part": (lambda x, y: x * y, lambda: [padded(True), plain(3)]),
    "parts with other strides": (lambda x: x.sin() * x, lambda: [pair()]),
    "parts with other strides, transposed": (lambda x: (x @ x.t()).t(), lambda: [pair()]),
    "8 bits": (lambda w, x: x @ w, lambda: [eight_bits(False), plain(2, 2)]),
    "8 bits, plain gradient": (lambda w, x: x @ w, lambda: [eight_bits(True), plain(2, 2)]),
    "asynchronous argument": (lambda x: x.sin().sin(), lambda: [AsyncCollectiveTensor(plain(3).detach())]),
    "asynchronous argument viewed": (lambda x: x.view(-1, 1), lambda: [AsyncCollectiveTensor(plain(4).detach())]),
    "asynchronous argument passed on": (lambda x: (x, x + 1), lambda: [AsyncCollectiveTensor(plain(4).detach())]),
    "asynchronous beside a gradient": (lambda x, y: x * y, lambda: [AsyncCollectiveTensor(plain(3).detach()), plain(3)]),
}


def programs() -> Iterator[Program]:
    """All programs of this file."""
    for group, found in (("TwoTensor", TWO), ("views", VIEWS), ("other classes", OTHERS)):
        for name, (function, arguments) in found.items():
            yield Program(group, name, function, arguments)
    for name, view in VIEWED_ARGUMENTS.items():
        for dynamic in (None, True):
            title = f"{name} argument" + (", symbolic sizes" if dynamic else "")
            run = view_of_argument_first(view)
            yield Program("views", title, lambda x: x * 2, lambda: [two(4, 15)], run, dynamic)
    yield from with_pieces("pieces", lambda: [two(3, 4)])
    yield Program("pieces", "unbound", lambda x: x.unbind(), lambda: [two(3, 4)], nodes_and_gradients)
    halves = lambda x: x.split(x.shape[0] // 2)  # noqa: E731
    several = repeated(nodes_and_gradients, 4, 6, 10)
    yield Program("pieces", "halves, several sizes", halves, lambda: [two(4, 3)], several, dynamic=True)
    yield Program("pieces", "of a changed argument", lambda x: x.mul_(2).split(2, -1), lambda: [two(3, 4) * 1], shared_nodes)
    yield from runs()
    yield from modules()


def with_pieces(group: str, arguments: Callable[[], list[Any]], without: Sequence[str] = ()) -> Iterator[Program]:
    """Programs with pieces, also with symbolic sizes, apart from those that eager does not have."""
    known = {name: function for name, function in PIECES.items() if name not in without}
    for name, function in known.items():
        yield Program(group, name, function, arguments, nodes_and_gradients)
    for name in ("split", "chunks", "of an intermediate"):
        yield Program(group, f"{name}, symbolic sizes", known[name], arguments, nodes_and_gradients, dynamic=True)


def runs() -> Iterator[Program]:
    """Other things to do with a function than call it and its backward."""
    make = functools.partial(Program, "uses")
    square = ("", lambda x: x.sin() * x.exp(), lambda: [two(3, 3)])[1:]
    yield make("a transposed gradient arrives", *square, with_gradient(noncontiguous))
    yield make("a plain gradient arrives", *square, with_gradient(lambda y: torch.ones(y.shape, dtype=y.dtype)))
    yield make("an expanded gradient arrives", *square, with_gradient(lambda y: torch.ones_like(y[:1]).expand(y.shape)))
    yield make(
        "an asynchronous gradient arrives",
        *square,
        with_gradient(lambda y: TwoTensor(*(AsyncCollectiveTensor(torch.ones_like(y.a)) for _ in range(2)))),
    )
    yield make("no_grad around", *square, around(torch.no_grad))
    yield make(
        "inference_mode around", lambda x: x.sin() * 2, lambda: [two(3, requires_grad=False)], around(torch.inference_mode)
    )
    yield make("autocast around", *square, around(lambda: torch.autocast("cpu", torch.bfloat16)))
    yield make("hooks of saved tensors", *square, around(under_saved_tensor_hooks))
    yield make("torch.func.grad around", *square, gradient_of_transform)
    yield make("gradient of a gradient", *square, second_order)
    symbolic = functools.partial(make, dynamic=True)
    sizes = lambda: [two(3, 4)]  # noqa: E731
    yield symbolic("symbolic sizes", lambda x: x * x.size()[0], sizes)
    yield symbolic("symbolic sizes, several", lambda x: x * x.size()[0], sizes, repeated(outcome, 3, 5, 7))
    yield symbolic("symbolic sizes, view of a clone", lambda x: x.clone().view(x.shape[1], x.shape[0]), sizes)
    yield symbolic("symbolic sizes, flattened", lambda x: x.clone().view(x.shape[0] * x.shape[1]), sizes)
    yield symbolic("symbolic sizes, transposed", lambda x: x.t().contiguous().sin(), sizes, repeated(outcome, 3, 5))
    yield symbolic("symbolic sizes, view of an argument", lambda x: x.view(-1), sizes, repeated(outcome, 3, 5))
    yield symbolic("symbolic sizes, size returned", lambda x: (x * 2, x.shape[0]), sizes)
    yield symbolic("symbolic sizes, plain beside", lambda x, y: x * y, lambda: [two(3, 4), plain(3, 4)])


def modules() -> Iterator[Program]:
    """Modules with wrapped weights, and a class that is no wrapper."""
    halves = lambda weight: TwoTensor(weight, weight.clone() + 1)  # noqa: E731
    make = functools.partial(Program, "modules")
    yield make("wrapped weight, plain bias and input", with_wrapped_weight(halves), lambda: [plain(2, 4)])
    yield make("wrapped weight and input", with_wrapped_weight(halves), lambda: [two(2, 4)])
    function = lambda x: x.sin() + x  # noqa: E731
    why = "a trace does not call its __torch_function__"
    arguments = lambda: [plain(3).detach().as_subclass(Doubling)]  # noqa: E731
    yield make("a __torch_function__", function, arguments, behind_dynamo_only=why)
