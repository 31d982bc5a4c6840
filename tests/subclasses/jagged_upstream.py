"""Programs with jagged nested tensors of the kinds that PyTorch's own tests have, beside those of `jagged_programs.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nested import nested_tensor_from_jagged as from_jagged
from torch.nested._internal.nested_tensor import nested_from_padded
from torch.nested._internal.nested_tensor import nested_view_from_values_offsets as view_from_offsets
from torch.utils.checkpoint import checkpoint

from tests.subclasses.catalogue import Program
from tests.subclasses.jagged_programs import beside, from_a_seed, jagged, with_given_maximum, with_one_backward
from tests.subclasses.programs import described, plain


def rows() -> list[torch.Tensor]:
    return [plain(n, 3, seed=n) for n in (2, 3, 4)]


def of_rows(function: Callable, arguments: list[Any]) -> Any:
    """A run with a nested tensor of the rows, and another one with its offsets; the rows get the gradients."""
    nested = torch.nested.as_nested_tensor(list(arguments), layout=torch.jagged)
    result = function(nested, from_jagged(plain(9, 3).detach(), nested.offsets()))
    result.values().sum().backward()
    return [described(result), [described(row.grad) for row in arguments]]


def of_view(make: Callable[[], torch.Tensor]) -> Callable:
    """A run whose argument is a view."""

    def run(function: Callable, arguments: list[Any]) -> Any:
        view = make()
        return [described(function(view)), described(view)]

    return run


def base(is_nested: bool, requires_grad: bool) -> torch.Tensor:
    """A nested tensor that is a view of its values, or not."""
    found = torch.nested.as_nested_tensor(
        [row.detach().requires_grad_(requires_grad) for row in rows()], layout=torch.jagged
    )
    return found.clone() if is_nested else found


def leaf_view(is_nested: bool, first: bool, second: bool) -> torch.Tensor:
    nested = base(is_nested, first)
    with torch.no_grad():
        return nested.unsqueeze(-1).requires_grad_(second)


def dense_and_nested_twice() -> torch.Tensor:
    values, offsets = plain(10, 5).detach(), torch.tensor([0, 3, 6, 10])
    return view_from_offsets(view_from_offsets(values, offsets).values(), offsets)


VIEWS: dict[str, Callable[[], torch.Tensor]] = {
    "view": lambda: base(False, True).unsqueeze(-1),
    "view of a nested one": lambda: base(True, True).unsqueeze(-1),
    "leaf view": lambda: leaf_view(False, False, True),
    "leaf view of a nested one": lambda: leaf_view(True, True, True),
    "view of a leaf view": lambda: leaf_view(True, False, True).unsqueeze(-1),
    "values": lambda: base(True, True).values(),
    "views of views": dense_and_nested_twice,
}


def with_lengths() -> Any:
    """Rows with holes between them."""
    values = plain(3, 5, 4).detach()
    nested = torch.nested.narrow(values, 1, torch.tensor([0, 1, 0]), torch.tensor([3, 2, 4]), layout=torch.jagged)
    return nested.detach().requires_grad_()


def offsets() -> torch.Tensor:
    return torch.tensor([0, 2, 6, 10])


def known_maximum(values, offsets):
    nested = from_jagged(values, offsets, min_seqlen=2, max_seqlen=4)
    return from_jagged(values * 2, nested.offsets(), max_seqlen=nested._maybe_max_seqlen)


def change_beside(x, y):
    z = x.sin()
    y.sin_()
    return z.cos(), y.cos()


def widths(function: Callable, arguments: list[Any]) -> Any:
    pairs = (((2, 3, 4), 4), ((3, 4, 5), 6), ((2, 2, 2), 5))
    return [with_one_backward(function, [jagged(lengths, (width,))]) for lengths, width in pairs]


@torch.inference_mode()
def of_inference(function: Callable, arguments: list[Any]) -> Any:
    return with_one_backward(function, [jagged(requires_grad=False)])


def beside_ones(x):
    y = from_jagged(torch.ones(9, 4, dtype=torch.float64), x.offsets())
    z = torch.cat([x, y], -1)
    return z.sin() * z.size(0)


def over_lengths(x):
    lengths = x.offsets().diff()
    return x.values() / lengths.repeat_interleave(lengths, output_size=x.values().shape[0]).unsqueeze(-1)


def padded_and_back(x):
    padded = torch.nested.to_padded_tensor(x, 0.0).sin()
    return nested_from_padded(padded, x.offsets(), ragged_idx=1, sum_S=x.values().shape[0])


def used_together(operation: Callable) -> Callable:
    """A run in which an eager op takes the results and the arguments: it finds whether they share their ragged size."""

    def run(function: Callable, arguments: list[Any]) -> Any:
        result = operation(function(*arguments), arguments)
        result.values().sum().backward()
        return [described(result), [described(leaf.grad) for leaf in arguments]]

    return run


def offsets_of(lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def two_of_lengths(values, lengths):
    offsets = offsets_of(lengths)
    return from_jagged(values * 2, offsets), from_jagged(values * 3, offsets)


def with_offsets(values, lengths):
    offsets = offsets_of(lengths)
    return from_jagged(values * 2, offsets), offsets


def of_known_lengths(function: Callable, arguments: list[Any]) -> Any:
    batches = [plain(sum(lengths), 4).detach().split(lengths) for lengths in ([2, 3, 4], [2, 3, 6], [3, 4, 2])]
    made = [torch.nested.nested_tensor(list(batch), layout=torch.jagged, requires_grad=True) for batch in batches]
    return [with_one_backward(function, [each]) for each in made]


def put(x):
    x[torch.tensor([0, 1, 2]), torch.tensor([0, 2, 1]), torch.tensor([0, 0, 0])] = 1.0
    return x * 2


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + 1, x * 2

    @staticmethod
    def backward(ctx, first, second):
        return first + second


def recomputed(x):
    return checkpoint(padded_and_back, x, use_reentrant=False)


def change_values(x):
    x.values().mul_(2)
    return x + 1


def with_bounds_in_some(function: Callable, arguments: list[Any]) -> Any:
    """A run with nested tensors, some of which know the bounds of their lengths: a call leaves the bounds as they are."""
    given = [with_given_maximum(), jagged(), with_given_maximum(), with_given_maximum()]
    found = [with_one_backward(function, [each]) for each in given]
    return [found, [getattr(each, name).requires_grad for each in given for name in each.__tensor_flatten__()[0]]]


def short_offsets(function: Callable, arguments: list[Any]) -> Any:
    offsets = torch.tensor([0, 2, 5, 9], dtype=torch.int32)
    return with_one_backward(function, [from_jagged(plain(9, 4).detach(), offsets).requires_grad_()])


MADE: dict[str, tuple] = {
    "two of one's offsets": (
        lambda v, o, p: from_jagged(v * 3, p) * from_jagged(v * 2, o),
        lambda: [plain(10, 5), shared := offsets(), shared],
    ),
    "two of clones of offsets": (
        lambda v, o: (from_jagged(v * 3, o.clone()), from_jagged(v * 2, o.clone())),
        lambda: [plain(10, 5), offsets()],
    ),
    "with offsets of another": (lambda x, v: x + from_jagged(v, x.offsets()), lambda: [jagged(), plain(9, 4)]),
    "of lengths": (lambda v, n: from_jagged(v, lengths=n).sin(), lambda: [plain(9, 5), torch.tensor([2, 4, 3])]),
    "of constant offsets": (lambda v: from_jagged(v, offsets()) * 2, lambda: [plain(10, 5)]),
    "with a maximum": (known_maximum, lambda: [plain(10, 5), offsets()], True),
    "of an intermediate, its values": (
        lambda v, o: (from_jagged(v.sin(), o).values(), v * 2),
        lambda: [plain(10, 5), offsets()],
    ),
    "of an argument, returned": (lambda v, o: (from_jagged(v, o), v * 2), lambda: [plain(10, 5), offsets()]),
    "of an intermediate, two": (
        lambda v, o: (from_jagged(y := v.sin(), o), from_jagged(y, o.clone())),
        lambda: [plain(10, 5), offsets()],
    ),
    "of a dense one": (lambda v: torch.nested.as_nested_tensor(v, layout=torch.jagged) * 2, lambda: [plain(3, 4, 2)]),
    "of pieces": (
        lambda v, starts, n: torch.nested.narrow(v, 1, starts, n, layout=torch.jagged) * 2,
        lambda: [plain(3, 5, 4).detach(), torch.tensor([0, 1, 0]), torch.tensor([3, 2, 4])],
    ),
    "with another ragged dimension": (
        lambda v, o: from_jagged(v * 2, o, jagged_dim=2).sin(),
        lambda: [plain(4, 10, 2), offsets()],
    ),
    "with holes": (
        lambda v, o, n: from_jagged(v * 2, o, n).sin(),
        lambda: [plain(10, 4), offsets(), torch.tensor([1, 3, 2])],
    ),
    "beside its values and offsets": (
        lambda x, v, o: from_jagged(v * 2, o) + from_jagged(v * 3, o) + x,
        lambda: [from_jagged(v := plain(10, 5), o := offsets()), v, o],
    ),
    "of its values": (lambda x: from_jagged(x.values() * 2, x.offsets()), lambda: [jagged()]),
}

OPS: dict[str, tuple] = {
    "put at an index": (put, lambda: [jagged(requires_grad=False)]),
    "one of two results of a function": (lambda x: Pair.apply(x)[0].sin(), lambda: [jagged()]),
    "padded and back, recomputed": (recomputed, lambda: [jagged()]),
    "attention within rows": (
        nn.functional.scaled_dot_product_attention,
        lambda: [(q := jagged(width=(3, 4))), beside(q, 1, requires_grad=False), beside(q, 2, requires_grad=False)],
    ),
    "permuted": (lambda x: x.permute(0, 2, 1, 3), lambda: [jagged(width=(2, 3))]),
    "beside ones": (beside_ones, lambda: [jagged()]),
    "over their lengths": (over_lengths, lambda: [jagged()]),
    "padded and summed": (lambda x: torch.nested.to_padded_tensor(x, 0.0, (3, 6, 4)).sin().sum(1), lambda: [jagged()]),
    "padded and back": (padded_and_back, lambda: [jagged()]),
    "rms norm": (lambda x, w: nn.functional.rms_norm(x, (4,), w), lambda: [jagged(), plain(4)]),
    "factories": (lambda x: x * torch.ones_like(x) + torch.full_like(x, 2), lambda: [jagged()]),
    "largest of the last": (lambda x: x.max(-1)[0], lambda: [jagged()]),
    "heads, softmax over rows": (lambda x: x.unflatten(-1, (2, 2)).softmax(1), lambda: [jagged()]),
    "turned around": (lambda x: x.transpose(1, 2).contiguous() * 2, lambda: [jagged()]),
    "product of two": (lambda x, y: torch.matmul(x.transpose(1, 2), y), lambda: [x := jagged(), beside(x, 1)]),
    "stacked": (lambda x: torch.stack([x, x * 2], -1), lambda: [jagged()]),
    "expanded": (lambda x: x.unsqueeze(2).expand(-1, -1, 3, -1) * 2, lambda: [jagged()]),
    "viewed": (lambda x: x.view(3, -1, 2, 2) * x.size(0), lambda: [jagged()]),
    "values changed": (change_values, lambda: [jagged(requires_grad=False)]),
    "copied": (
        lambda x, y: x.copy_(y),
        lambda: [x := jagged(requires_grad=False), beside(x, 1, requires_grad=False)],
    ),
    "halves": (lambda x: [y * 2 for y in x.chunk(2, -1)], lambda: [jagged()]),
    "halves returned": (lambda x: x.chunk(2, -1), lambda: [jagged()]),
    "halves of an intermediate": (lambda x: (x * 2).chunk(2, -1), lambda: [jagged()]),
    "heads": (lambda x: x.unflatten(-1, [2, 2]).transpose(1, 2), lambda: [jagged()]),
    "heads, symbolic sizes": (lambda x: x.unflatten(-1, [2, 2]).transpose(1, 2), lambda: [jagged()], True),
    "heads and back": (lambda x: x.unflatten(-1, [2, 2]).transpose(1, 2).transpose(1, 2).flatten(-2), lambda: [jagged()]),
    "unsqueezed": (lambda x: x.unsqueeze(-1), lambda: [jagged()]),
    "unsqueezed and itself": (lambda x: (y := x * 2, y.unsqueeze(-1)), lambda: [jagged()]),
    "squeezed": (lambda x: (x * 1).unsqueeze(-1).squeeze(-1), lambda: [jagged()]),
    "values of an intermediate": (lambda x: (x * 2).values(), lambda: [jagged()]),
    "values of an argument": (lambda x: x.values(), lambda: [jagged(requires_grad=False)]),
    "softmax over rows": (lambda x: x.softmax(1), lambda: [jagged()]),
    "layer norm": (lambda x: nn.functional.layer_norm(x, (4,)) * 2, lambda: [jagged()], True),
    "maximum over rows": (lambda x: x.amax(1), lambda: [jagged()]),
    "masked": (lambda x: torch.where(x > 0, x, torch.zeros_like(x)), lambda: [jagged()]),
    "products of batches": (lambda x, w: torch.matmul(nn.functional.gelu(x), w), lambda: [jagged(), plain(3, 4, 2)]),
    "dense ones": (lambda x, y, z: x * y * z + z, lambda: [jagged(), plain(3, 1, 4), plain(4)]),
    "a dense one is changed": (change_beside, lambda: [jagged(), ones_like_batch()]),
    "shapes compared": (lambda x, y: x + y if x.shape == y.shape else x.sin(), lambda: [(x := jagged()), beside(x, 1)]),
    "other shapes compared": (lambda x, y: x + y if x.shape == y.shape else x.sin(), lambda: [jagged(), jagged(seed=1)]),
    "values twice": (lambda x: (x.values(), x.values(), x * 2), lambda: [jagged()]),
    "values of an intermediate, twice": (lambda x: ((y := x * 2).values(), y.values()), lambda: [jagged()]),
    "rows of an argument": (lambda x: x.unbind(), lambda: [jagged(requires_grad=False)], True),
    "lengths": (lambda x: x.sin() + x, lambda: [with_lengths()]),
    "embedding": (
        lambda i, w: nn.functional.embedding(i, w),
        lambda: [from_jagged(torch.tensor([0, 1, 2, 1, 0]), torch.tensor([0, 2, 5])), plain(3, 4)],
    ),
    "list of rows": (lambda *some: torch.nested.as_nested_tensor(list(some), layout=torch.jagged) * 2, rows),
}


def ones_like_batch() -> torch.Tensor:
    return torch.ones(3, 4, dtype=torch.float64)


def jagged_upstream() -> Iterator[Program]:
    """All programs of this file."""
    make = functools.partial(Program, "jagged")
    made = {f"made {name}": program for name, program in MADE.items()}
    for name, (function, arguments, *dynamic) in (*made.items(), *OPS.items()):
        yield make(name, function, arguments, with_one_backward, *dynamic)
    of_lengths = lambda: [plain(9, 4), torch.tensor([2, 3, 4])]  # noqa: E731
    multiplied = used_together(lambda results, _: results[0] * results[1])
    yield make("two of made offsets, used together", two_of_lengths, of_lengths, multiplied)
    beside_result = used_together(lambda results, arguments: results[0] * from_jagged(arguments[0], results[1]))
    yield make("made offsets are a result", with_offsets, of_lengths, beside_result)
    yield make("the largest length asked", lambda x: x.sin() * x._get_max_seqlen(), list, of_known_lengths)
    for name, view in VIEWS.items():
        yield make(f"argument, a {name}", lambda x: x.sin(), list, of_view(view), True)
    yield make("of rows", lambda x, y: (x + y).sin().cos(), rows, of_rows)
    yield make("of rows, symbolic sizes", lambda x, y: (x + y).sin().cos(), rows, of_rows, True)
    yield make("bounds in some calls", lambda x: x.sin() * 2, list, with_bounds_in_some)
    yield make("short offsets", lambda x: x.sin() * 2, list, short_offsets)
    yield make("dropout", lambda x: nn.functional.dropout(x, 0.5), lambda: [jagged()], from_a_seed)
    yield make("another width in each call", lambda x: x.sin() * 2, list, widths)
    yield make("inference_mode around", lambda x: x * 2, list, of_inference)
