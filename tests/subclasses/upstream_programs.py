"""Programs of the kinds that PyTorch's own tests of subclasses have, beside those of `catalogue.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.testing._internal.custom_tensor import ConstantExtraMetadataTensor, CustomTensorPlainOut
from torch.testing._internal.subclasses import WrapperSubclass
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tests.subclasses.catalogue import Program, around, run_module, with_gradient
from tests.subclasses.programs import Seen, described, outcome, plain, two
from tests.subclasses.upstream_classes import (
    AddsItself,
    ClonesTwice,
    Constant,
    Deferred,
    FrozenOrigin,
    Halved,
    MakesTensors,
    MaybeScaled,
    Nibbles,
    Origin,
    OwnFunction,
    Passing,
    Quantized,
    SigmoidIsExp,
    Sized,
    Turned,
    WithMask,
    WithOrigin,
)

CLOSES_OVER = "it closes over a tensor that requires grad"


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.float64)


def parameter(*shape: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(ones(*shape))


def over(make: Callable[[Any], list[Any]], *values: Any) -> Callable:
    """A run with the arguments that `make` makes of each value."""
    return lambda function, arguments: [outcome(function, make(value)) for value in values]


def marked(dim: int) -> Callable:
    """A run with arguments marked as dynamic."""

    def run(function: Callable, arguments: list[Any]) -> Any:
        for argument in arguments:
            torch._dynamo.mark_dynamic(argument, dim)
        return outcome(function, arguments)

    return run


def at_static_address(function: Callable, arguments: list[Any]) -> Any:
    torch._dynamo.mark_static_address(arguments[0], guard=False)
    return outcome(function, arguments)


def with_history(make: Callable = lambda *some: [value * 1 for value in some]) -> Callable:
    """A run whose arguments are made from leaves, which get the gradients."""

    def run(function: Callable, arguments: list[Any]) -> Any:
        used = make(*arguments)
        results = pytree.tree_leaves(function(*used))
        for result in results:
            if result.requires_grad:
                result.sum().backward(retain_graph=True)
        gradients = [None if leaf.grad is None else described(leaf.grad).without_flags for leaf in arguments]
        return [list(map(described, results)), list(map(described, used)), gradients]

    return run


def marked_with_history(function: Callable, arguments: list[Any]) -> Any:
    return with_history(lambda x: [dynamic(x * 1)])(function, arguments)


def dynamic(tensor: torch.Tensor) -> torch.Tensor:
    torch._dynamo.mark_dynamic(tensor, 0)
    return tensor


def changed_by_the_caller(function: Callable, arguments: list[Any]) -> Any:
    """The caller changes the last result in place; what shares its memory changes, too."""
    results = list(function(*arguments))
    results[-1].mul_(2)
    sum(result.sum() for result in results).backward()
    return [list(map(described, results)), [described(leaf.grad) for leaf in arguments]]


def gradient_of_closure(held: torch.Tensor) -> Callable:
    def run(function: Callable, arguments: list[Any]) -> Any:
        held.grad = None
        return [outcome(function, arguments), described(held.grad)]

    return run


def sizes_of_others(x, a, b):
    (s0, s1), (s2, s3) = a.size(), b.size()
    return x * s0 * s1 * s2 * s3


def parts_and_views(x):
    y, z = x.clone(), x.clone()
    return y.a, y.view(y.shape[0] * y.shape[1]), y.b, z.view(-1)


def parts_around(x):
    y = x.clone()
    return y.a, y.view(-1), y.b


def three_sines(x, i, y):
    return (x.sin() + i.sin() + y.sin()) * (x.shape[0] * i.shape[1] * y.shape[0])


def nested(*shape: int, requires_grad: bool = True) -> TwoTensor:
    halves = two(*shape, requires_grad=False), two(*shape, requires_grad=False, seed=1)
    return TwoTensor(*halves).requires_grad_(requires_grad)


def uneven() -> list[torch.Tensor]:
    first = Sized(Sized(ones(3, 4), ones(5, 6, 7)), Sized(ones(4), ones(2, 3)))
    return [first, Sized(ones(2, 3, 4, 5), Sized(ones(3, 4), ones(5)))]


def switched(x):
    y = x.sin()
    torch.set_grad_enabled(False)
    z = x.cos()
    torch.set_grad_enabled(True)
    return y, z


def enabled_inside(x):
    y = x.sin()
    with torch.enable_grad():
        z = x.cos()
    return y, z


def gradient_inside(x):
    return torch.autograd.grad(torch.exp(x).sum(), x)


def pictures() -> TwoTensor:
    return TwoTensor(*(plain(2, 3, 5, 5, seed=k).detach().to(memory_format=torch.channels_last) for k in (1, 2)))


def sparsely_strided(y: torch.Tensor) -> TwoTensor:
    return TwoTensor(*[plain(4, 12, 8).detach().as_strided(y.shape, [2 * step for step in y.stride()])] * 2)


@torch.library.custom_op("subclass_programs::sine", mutates_args=())
def sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@torch.library.custom_op("subclass_programs::raise_by_one", mutates_args=("x",))
def raise_by_one(x: torch.Tensor) -> None:
    x.add_(1)


sine.register_fake(torch.empty_like)
sine.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def save_products(ctx, op, *args, **kwargs):
    is_product = op is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


def saves_products(x, w):
    contexts = functools.partial(create_selective_checkpoint_contexts, save_products)
    return checkpoint(lambda some: (some @ w).sin().exp() @ w, x, use_reentrant=False, context_fn=contexts)


class Wraps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return TwoTensor(x.detach().clone(), x.detach() * 2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.a + gradient.b


def plain_gradients(*sizes: int) -> Callable:
    """A run with plain tensors of these sizes, whose backwards get plain gradients."""
    run = with_gradient(lambda y: torch.ones(y.shape, dtype=y.dtype))
    return lambda function, arguments: [run(function, [plain(size)]) for size in sizes]


class Unwraps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.a + x.b

    @staticmethod
    def backward(ctx, gradient):
        return TwoTensor(gradient, gradient * 1)


def lists_in_place(x, y):
    torch._foreach_add_([x, y], 1.0)
    return x * y


def no_tensors(x, nothing, y, k, text):
    return x * k + (y if nothing is None else 1) if text == "a" else x


def hooked_inside(x):
    y = x.sin()
    y.register_hook(lambda gradient: gradient * 2)
    return y * x


def saved_in_halves(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda value: value * 2, lambda value: value / 2):
        return x.sin() * x.exp()


def packed_in_wrappers() -> Any:
    def pack(value):
        return TwoTensor(value.detach(), value.detach() * 1)

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value.a)


def middle(x):
    n = x.shape[0]
    return x[1 : n - 1] * 2, nn.functional.pad(x[: n // 2], (1, 2))


def draws(x):
    return nn.functional.dropout(x, 0.3) + torch.rand_like(x)


def from_a_seed(function: Callable, arguments: list[Any]) -> Any:
    torch.manual_seed(0)
    return [outcome(function, arguments), torch.rand(1).tolist()]


def from_first(function: Callable, arguments: list[Any]) -> Any:
    """A backward from the first of several results."""
    results = function(*arguments)
    results[0].sum().backward()
    return [list(map(described, results)), [described(argument.grad) for argument in arguments]]


def beside_rows(n: int) -> list[Any]:
    return [two(n, 2), two(n + 1, 2, seed=2)]


linear = nn.Linear(4, 3, bias=False, dtype=torch.float64)

TWO: dict[str, tuple] = {
    "a part beside its wrapper": (lambda x: (y := x * 2, y.a, y.b.view(-1, 1)), lambda: [two(3)]),
    "a part of an argument": (lambda x: (x.a, x * 2), lambda: [two(3)]),
    "backward from one of two": (lambda x: (x.sin(), x.cos()), lambda: [two(3)], from_first),
    "custom op": (lambda x: sine(x) * x, lambda: [two(3)]),
    "custom op that changes": (lambda x: (raise_by_one(x), x * 2)[1], lambda: [two(3, requires_grad=False)]),
    "selective checkpoint": (saves_products, lambda: [two(3, 3), two(3, 3, seed=2)]),
    "made by an autograd function": (lambda x: Wraps.apply(x) * 3, lambda: [plain(3)]),
    "taken apart by an autograd function": (lambda x: Unwraps.apply(x * 2).sin(), lambda: [two(3)]),
    "ops on lists": (lambda x, y: torch._foreach_mul([x, y], 2), lambda: [two(3), plain(3)]),
    "ops on lists, in place": (
        lists_in_place,
        lambda: [two(3, requires_grad=False), two(3, requires_grad=False, seed=2)],
    ),
    "lists": (lambda xs, ys: [x * y for x, y in zip(xs, ys, strict=True)], lambda: [[two(3), two(2)], [plain(3), plain(2)]]),
    "no tensors beside it": (no_tensors, list, over(lambda k: [two(3), None, plain(3), k, "a"], 2, 2, 3)),
    "hook inside": (hooked_inside, lambda: [two(3)]),
    "hooks of saved tensors inside": (saved_in_halves, lambda: [two(3)]),
    "saved in wrappers": (lambda x, w: (x @ w).sin(), lambda: [plain(3, 3), plain(3, 3)], around(packed_in_wrappers)),
    "functional call": (
        lambda w, x: torch.func.functional_call(linear, {"weight": w}, (x,)),
        lambda: [two(3, 4), plain(2, 4)],
    ),
    "convolution": (nn.functional.conv2d, lambda: [two(1, 2, 5, 5), two(3, 2, 3, 3, seed=2)]),
    "attention": (lambda x: nn.functional.scaled_dot_product_attention(x, x, x), lambda: [two(1, 2, 3, 4)]),
    "sorted": (lambda x: x.sort(0)[0] + x.cumsum(0) + x.topk(1, 0)[0], lambda: [two(4, 2)]),
    "put at an index": (
        lambda x, y: x.index_put((torch.tensor([0, 1]),), y),
        lambda: [two(3, 2), two(2, 2, seed=3)],
    ),
    "random numbers": (draws, lambda: [two(3)], from_a_seed),
    "requires grad in some calls": (
        lambda x: x.sin() * 2,
        list,
        over(lambda r: [two(3, requires_grad=r)], True, False, True),
    ),
    "symbolic sizes, cut": (middle, list, over(lambda n: [two(n, 4)], 4, 6, 9), True),
    "symbolic sizes, joined": (lambda x, y: torch.cat([x, y]) * x.shape[0], list, over(beside_rows, 3, 4), True),
    "symbolic sizes, none and one": (lambda x: x.sin().sum(0), list, over(lambda n: [two(n, 2)], 3, 1, 0, 4), True),
    "parts that require grad": (lambda x: x.sin() * x, lambda: [TwoTensor(plain(3, 4), plain(3, 4, seed=2))]),
    "sizes of plain tensors": (sizes_of_others, lambda: [two(3, 4), plain(3, 4), plain(3, 4)], outcome, True),
    "parts and views of clones": (parts_and_views, lambda: [two(3, 4)], outcome, True),
    "another size in each call": (parts_around, list, over(lambda n: [two(3, n)], 4, 5, 6)),
    "other sizes in each call": (lambda x: (x * 2).t() * x.shape[1], list, over(lambda n: [two(n, 8 - n)], 3, 5, 6)),
    "marked as dynamic": (lambda x: (x.view(-1), x * x.shape[1]), lambda: [two(3, 4)], marked(1)),
    "sizes and strides returned": (
        lambda x: (x * x.numel(), x.stride(0), x.shape[0] * 2),
        lambda: [two(3, 4)],
        outcome,
        True,
    ),
    "nested, sizes of all": (three_sines, lambda: [two(2, 2), plain(2, 2), nested(2, 2)], outcome, True),
    "nested three times": (
        lambda x: x.sin(),
        lambda: [TwoTensor(two(2, 3, requires_grad=False), nested(2, 3, requires_grad=False))],
        outcome,
        True,
    ),
    "halves of other sizes": (lambda x, y: (x.sin().sum(), y.sin().sum()), uneven, outcome, True),
    "one tensor in both halves": (lambda x: x.sin() + x.b, lambda: [TwoTensor(*[ones(4)] * 2)]),
    "one tensor in both halves, viewed": (lambda x: x + 1, lambda: [TwoTensor(*[ones(4)] * 2).view(2, 2)], outcome, False),
    "a static address": (lambda x, y: x + y + 2, lambda: [two(4, requires_grad=False), ones(4)], at_static_address, True),
    "a plain tensor after a wrapper": (lambda x: x.add(1.0), list, over(lambda make: [make(2, 2)], two, plain, two)),
    "a plain tensor alone requires grad": (lambda a, b: a * b, lambda: [plain(3), two(3, requires_grad=False)]),
    "a wrapper alone requires grad": (lambda a, b: a * b, lambda: [plain(3).detach(), two(3)]),
    "a gradient with gaps": (lambda x: (x + 1).transpose(1, 2), lambda: [two(2, 4, 6)], with_gradient(sparsely_strided)),
    "grad mode switched": (switched, lambda: [two(3)]),
    "enable_grad within no_grad": (enabled_inside, lambda: [two(3)], around(torch.no_grad)),
    "views within no_grad": (lambda x: (x.view(-1), x.sin()), lambda: [two(2, 3) * 1], around(torch.no_grad)),
    "a gradient inside": (gradient_inside, lambda: [two(3)]),
    "stacked choice": (lambda x, y: torch.stack([torch.where(x > y, x, y), x], 1), lambda: [two(3), two(3, seed=4)]),
    "einsum": (lambda x, y: torch.einsum("ij,kj->ik", x, y), lambda: [two(3, 4), plain(2, 4)], outcome, True),
    "made by an autograd function, plain gradients of several sizes": (
        lambda x: Wraps.apply(x).sin(),
        list,
        plain_gradients(2, 3, 5, 2),
    ),
    "a plain one with wrapped gradients of several sizes": (
        lambda x, y: x * y,
        list,
        over(lambda n: [plain(n, 3), two(3)], 2, 4, 5, 2),
    ),
    "made inside": (lambda x: TwoTensor(x, x.cos()) * x.shape[0], list, over(lambda n: [ones(n, 4)], 3, 5), True),
}


def change_both(a, b):
    a.mul_(2)
    b.mul_(3)
    return b.view(b.shape), a + b


def change_hidden(x):
    x.detach().mul_(2)
    x.data.add_(1)
    return x + 3


def change_under_no_grad(x):
    with torch.no_grad():
        x.mul_(3)
    return x + 1


def copy(a, b):
    a.copy_(b)
    return a * 2


def fill(a):
    a[0].fill_(3)
    a.narrow(1, 0, 2).mul_(2)
    return a + 1


def swap(a, b):
    t = a.clone()
    a.copy_(b)
    b.copy_(t)
    return a - b


def change_first(a, b):
    a.mul_(2)
    return b + 1


def change_a_part(x):
    x.a.mul_(2)
    return x + 1


CHANGES: dict[str, tuple] = {
    "a plain one and a wrapper": (change_both, lambda: [plain(3, 3), two(3, 3)], with_history()),
    "hidden": (change_hidden, lambda: [two(3)]),
    "under no_grad": (change_under_no_grad, lambda: [two(3)], with_history()),
    "copied": (copy, lambda: [two(3, requires_grad=False), two(3, seed=2)]),
    "copied from a plain one": (copy, lambda: [two(3, requires_grad=False), ones(3)]),
    "copied, with a history": (copy, lambda: [two(3), two(3, seed=2)], with_history()),
    "rows": (fill, lambda: [two(3, 4)], with_history()),
    "rows, symbolic sizes": (fill, lambda: [two(3, 4, requires_grad=False)], outcome, True),
    "swapped": (swap, lambda: [two(3, requires_grad=False), two(3, requires_grad=False, seed=2)]),
    "transposed": (lambda a: a.mul_(2) + 1, lambda: [two(3, 4)], with_history(lambda x: [(x * 1).t()])),
    "one of two views": (
        change_first,
        lambda: [two(2, 2, requires_grad=False)],
        with_history(lambda x: [(y := x + 1).view(-1), y.view(-1)]),
    ),
    "one of two rows": (change_first, lambda: [two(2, 2, requires_grad=False)], with_history(lambda x: [x[0], x[1]])),
    "nested": (lambda a: a.mul_(2) + 1, lambda: [nested(3)], with_history()),
    "a part of a nested one": (change_a_part, lambda: [nested(3, requires_grad=False)]),
    "by its own size": (lambda a: a.mul_(a.shape[0]) + 1, lambda: [two(3, 4)], marked_with_history),
    "by the caller": (lambda x: (y := x * 3, y.view(-1), y), lambda: [two(3, 3)], changed_by_the_caller),
}


class Adds(torch.autograd.Function):
    """The backward adds to an argument; so does the forward, if told so."""

    @staticmethod
    def forward(ctx, x, total, in_forward=False):
        ctx.total = total.add_(1) if in_forward else total
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.total.add_(1 if ctx.total.dim() == 0 else gradient)
        return gradient * 3, None, None


class Saves(torch.autograd.Function):
    """The backward changes what it has saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].mul_(2)


class Keeps(torch.autograd.Function):
    """The backward counts in what it keeps, and uses it."""

    @staticmethod
    def forward(ctx, x, kept):
        ctx.kept = kept
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.kept.add_(1), None


def without_versions(function: Callable, arguments: list[Any]) -> Any:
    """A run that ignores the versions of wrappers, which a backward leaves as they are."""
    return pytree.tree_map_only(Seen, lambda seen: seen.without_flags, outcome(function, arguments))


def twice_through(x):
    y = Keeps.apply(x * 1, x.detach() * 2)
    return y, y.sin()


def total() -> TwoTensor:
    return two(3, requires_grad=False)


BACKWARDS: dict[str, tuple] = {  # that change memory, between others
    "forward too": (lambda x, y: Adds.apply(x, y, True), lambda: [two(3), total()], without_versions),
    "a plain one": (lambda x, n: Adds.apply(x * 2, n).exp(), lambda: [two(3), ones(1)[0]]),
    "a wrapper": (lambda x, y: Adds.apply(x.sin(), y).exp(), lambda: [two(3), total()], without_versions),
    "beside another result": (
        lambda x, y: (Adds.apply(x.sin(), y).exp(), x.cos() * x),
        lambda: [two(3), total()],
        without_versions,
    ),
    "a plain gradient": (lambda x, w, n: (Adds.apply(w.sin(), n) * x).exp(), lambda: [two(3), plain(3), ones(1)[0]]),
    "an intermediate": (twice_through, lambda: [two(3)]),
    "what they saved": (lambda x, n: Saves.apply(Adds.apply(x, n) + 1), lambda: [two(3), ones(1)[0]]),
    "what they saved, later": (lambda x, n: Adds.apply(Saves.apply(x + 1), n), lambda: [two(3), ones(1)[0]]),
    "a saved argument": (lambda x, y: Saves.apply(y * 1) + x, lambda: [two(3), two(3, seed=2)]),
}


def constant(c: int) -> list[torch.Tensor]:
    return [Constant(ones(2), c).requires_grad_()]


def made_from(kind: Callable) -> Callable:
    def function(x):
        y = WithOrigin(x, kind(x.shape, x.device, kind(x.shape, x.device, None)))
        return y * y

    return function


def by_size(x):
    return x * x if x.shape[0] < 13 else x / x


halved = over(lambda n: [Halved(ones(n, 4))], 2, 4, 5, 7)
optional = over(lambda size: [MaybeScaled(ones(*size), ones(2, 4) * 3 if size == (2, 4) else None)], (3, 4), (2, 4), (3, 5))

OTHERS: dict[str, tuple] = {
    "ops that make tensors": (lambda x: (x * x).sin() * 3, list, over(lambda n: [MakesTensors(ones(n, 4))], 3, 5), True),
    "a turned part": (lambda x: (x.sin() @ x.t()).t(), list, over(lambda n: [Turned.of(ones(n, 4))], 3, 5)),
    "a turned part, symbolic sizes": (lambda x: x.sin() @ x.t(), list, over(lambda n: [Turned.of(ones(n, 4))], 3, 5), True),
    "two numbers in a byte": (lambda w, x: nn.functional.linear(x, w), lambda: [Nibbles.of(3, 4), plain(2, 4)]),
    "a mask beside values": (
        lambda x: x * x.mask,
        lambda: [WithMask(ones(2), torch.tensor([True, False])).requires_grad_()],
    ),
    "contexts that differ": (lambda x: x * x, list, over(constant, 3, 3, 4)),
    "contexts that differ, nested": (
        lambda x: x * x,
        list,
        over(lambda c: [TwoTensor(ones(2), Constant(ones(2), c))], 2, 3),
    ),
    "two contexts": (lambda x, y: x * y, lambda: [*constant(3), *constant(5)]),
    "a context is read": (lambda x: x + x.constant, list, over(constant, 3, 4)),
    "changed in place": (lambda x: x.mul_(2) + 1, lambda: [Constant(ones(2), 3)]),
    "an absent part": (lambda x: x + 1, list, optional),
    "an absent part, symbolic sizes": (lambda x: x + 1, list, optional, True),
    "the size of the part is asked": (by_size, list, halved),
    "the size of the part is asked, marked": (by_size, lambda: [Halved(ones(4, 4))], marked(0)),
    "the size of the part is asked, symbolic sizes": (by_size, list, halved, True),
    "late attributes": (lambda x: Deferred(x.part, 2.0) * 2 + 1, lambda: [Deferred(ones(3), 2.0)]),
    "a context made inside": (made_from(Origin), lambda: [ones(3, 3)], outcome, True),
    "a frozen context made inside": (made_from(FrozenOrigin), lambda: [ones(3, 3)]),
    "made of its parts": (lambda x, a, b: x * 2 + TwoTensor(a, b), lambda: [two(2, 3), parameter(2, 3), parameter(2, 3)]),
    "own rules": (lambda x: x.unflatten(-1, [2, 5]) * 2, lambda: [OwnFunction(ones(3, 10)).requires_grad_()]),
    "own rules, symbolic sizes": (lambda x: x.unflatten(-1, [2, 5]), lambda: [OwnFunction(ones(3, 10))], outcome, True),
    "one part": (lambda x: x.clone() * 2, lambda: [WrapperSubclass(ones(2, 3)).requires_grad_()]),
    "an integer as context": (lambda x: x + 1, lambda: [ConstantExtraMetadataTensor(ones(3))]),
    "plain results": (lambda x: x.sin() * x, lambda: [CustomTensorPlainOut(ones(3), ones(3) * 2).requires_grad_()]),
    "within TwoTensor": (lambda x: x * 2, lambda: [TwoTensor(Constant(ones(3), 2), Constant(ones(3), 4)).requires_grad_()]),
    "around TwoTensor": (lambda x: x * 2, lambda: [Constant(two(3, requires_grad=False), 2).requires_grad_()]),
    "a gradient of another class": (
        lambda x: x.clone(),
        lambda: [two(2, 3)],
        with_gradient(lambda y: WrapperSubclass(ones(*y.shape))),
    ),
    "a wrapper as gradient of a plain result": (
        lambda x: x.sin(),
        lambda: [plain(2, 3)],
        with_gradient(lambda y: two(2, 3, requires_grad=False)),
    ),
}


def of(cls: type, *shape: int, requires_grad: bool = False) -> Any:
    return plain(*shape).detach().as_subclass(cls).requires_grad_(requires_grad)


def past_rules(x):
    with torch._C.DisableTorchFunctionSubclass():
        return x.sin() * 2, torch._C._is_torch_function_enabled()


def passing(*shape: int) -> Any:
    return of(Passing, *shape, requires_grad=True)


FUNCTIONS: dict[str, tuple] = {
    "passed on": (lambda x: (x, x.sin() * x), lambda: [passing(2, 2)]),
    "returned beside plain ones": (lambda x: (x.sin(), x.cos().as_subclass(Passing), x.exp()), lambda: [plain(2, 2)]),
    "replaced": (lambda x: x.sigmoid() + x.exp(), lambda: [of(SigmoidIsExp, 2, 2, requires_grad=True)]),
    "off inside": (lambda x: torch.clone(x), lambda: [of(ClonesTwice, 4, 4)], marked(0)),
    "with an attribute": (lambda x: ((y := x * 2) + y.kind).as_tensor() * 3, lambda: [Quantized(ones(2), kind=42)]),
    "viewed": (lambda x: (x.view(-1), x.t()), lambda: [passing(2, 3)]),
    "changed in place": (lambda x: x.add_(1) * 2, lambda: [of(Passing, 3)]),
    "beside a wrapper": (lambda x, y: (x * 2, y * 2), lambda: [passing(3), two(3)]),
    "off inside, of every op": (past_rules, lambda: [of(AddsItself, 3, requires_grad=True)]),
    "another size in each call": (lambda x: x * x.shape[0], list, over(lambda n: [passing(n, 2)], 3, 4, 5)),
}


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(3, 3, 3, dtype=torch.float64).to(memory_format=torch.channels_last)

    def forward(self, x, y):
        return self.layer(x), y + 1


class Nested(nn.Module):
    """Parameters that are nested wrappers."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Parameter(ones(3, 4))
        self.nested = nn.Parameter(nested(3, 4, requires_grad=False))

    def forward(self, x):
        return x + 2 * self.plain + self.nested


class PartOfNested(Nested):
    def forward(self, x):
        return x + 2 * self.plain + self.nested.a.b


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(of(Passing, 3, 4))

    def forward(self, x):
        return x @ self.weight


def upstream_programs() -> Iterator[Program]:
    """All programs of this file."""
    changes = {"changes": CHANGES, "backwards": BACKWARDS}
    for group, found in {"TwoTensor": TWO, **changes, "other classes": OTHERS, "own functions": FUNCTIONS}.items():
        why = "a trace does not call its __torch_function__" if found is FUNCTIONS else ""
        for name, (function, arguments, *rest) in found.items():
            run, dynamic = (*rest, *(outcome, None)[len(rest) :])
            yield Program(group, name, function, arguments, run, dynamic, why)
    make = functools.partial(Program, "modules", run=run_module)
    yield make("channels last", Convolution(), lambda: [pictures(), plain(3, 2)])
    yield make("nested parameters", Nested(), lambda: [plain(3, 4)])
    yield make("part of a nested parameter", PartOfNested(), lambda: [plain(3, 4)])
    yield make("own functions", Weighted(), lambda: [ones(2, 3)], behind_dynamo_only="a trace does not call its rules")
    held = two(3, 4, seed=5)
    function = lambda x: (x * held, held.shape[0])  # noqa: E731
    run = gradient_of_closure(held)
    yield Program("modules", "closed over", function, lambda: [two(3, 4)], run, behind_dynamo_only=CLOSES_OVER)
