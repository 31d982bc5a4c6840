"""Results of functions: tensors with and without gradients, containers and other values."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.utils import _pytree as pytree

from .against_eager import leaf, plain
from .cases import Case, Cases

CASES = Cases()


class Point(NamedTuple):
    x: torch.Tensor
    label: str


Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Prediction:
    """A container that is registered as a pytree."""

    scores: torch.Tensor
    name: str


pytree.register_dataclass(Prediction)


# --- Containers ------------------------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(3),))
def nothing(x):
    x.sin()


@CASES.add(lambda: (leaf(3),))
def one_tensor(x):
    return x.sin()


@CASES.add(lambda: (leaf(3),))
def a_tuple_of_one(x):
    return (x.sin(),)


@CASES.add(lambda: (leaf(3),), without_dynamo="Dynamo has no graph to compile")
def an_empty_tuple(x):
    return ()


@CASES.add(lambda: (leaf(3),))
def a_list(x):
    return [x.sin(), x.cos()]


@CASES.add(lambda: (leaf(3),))
def a_dict(x):
    return {"sin": x.sin(), "deep": {"cos": x.cos(), "nothing": None}}


@CASES.add(lambda: (leaf(3),))
def an_ordered_dict(x):
    return OrderedDict(b=x.sin(), a=x.cos())


@CASES.add(lambda: (leaf(3),))
def a_named_tuple(x):
    return Point(x.sin(), "here"), Pair(x.cos(), (x + 1, None))


@CASES.add(lambda: (leaf(3),), without_dynamo="Dynamo rebuilds only the containers that it knows")
def a_registered_dataclass(x):
    return Prediction(x.sin(), "sin")


@CASES.add(lambda: (leaf(4, 3),))
def a_named_tuple_of_torch(x):
    return x.max(dim=0)


@CASES.add(lambda: (leaf(4, 3),))
def a_shape(x):
    return x.sin(), x.shape


# --- Constants -------------------------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(3),))
def a_tensor_and_none(x):
    return None, x.sin(), None


@CASES.add(lambda: (leaf(3),))
def numbers_and_strings(x):
    return 1, 2.5, True, "text", x.sin(), float("inf"), 3


@CASES.add(lambda: (leaf(3),))
def a_not_a_number_comes_back(x):
    return x.sin(), str(float("nan"))


@CASES.add(lambda: (leaf(3),), without_dynamo="Dynamo has no complex constants and no bytes")
def rare_constants(x):
    return x.sin(), 1 + 2j, b"bytes", range(3), slice(1, 2), ...


@CASES.add(lambda: (leaf(3),))
def types_of_torch(x):
    return x.dtype, x.device, x.sin()


@CASES.add(lambda: (leaf(3),), without_dynamo="Dynamo has no graph to compile")
def only_constants(x):
    return 1, "two", None


@CASES.add(lambda: (leaf(4, 3),))
def sizes_and_sums(x):
    return x.size(0) * 2, len(x), x.sum()


@CASES.add(lambda: ({"x": leaf(3), "scale": 2.0}, [1, "name"]))
def arguments_that_are_returned(tensors, others):
    return tensors["x"] * tensors["scale"], tensors, others


# --- Without a gradient ----------------------------------------------------------------------------------------------


@CASES.add(lambda: (leaf(4, 3),))
def integers_beside_a_gradient(x):
    return x.argmax(dim=1), x.sin()


@CASES.add(lambda: (leaf(4, 3),))
def only_integers(x):
    return x.argmax(dim=1)


@CASES.add(lambda: (leaf(4, 3),))
def a_comparison(x):
    return x > 0, x * 2


@CASES.add(lambda: (leaf(4, 3),))
def sorted_with_indices(x):
    return torch.sort(x, dim=1)


@CASES.add(lambda: (leaf(4, 3),))
def best_two(x):
    return torch.topk(x, 2)


@CASES.add(lambda: (leaf(3),))
def a_detached_result(x):
    y = x * 2
    return y.detach().sin(), y.sin()


@CASES.add(lambda: (leaf(3), plain(3)))
def a_result_that_depends_on_constants_only(x, c):
    return x.sin(), c.sin()


@CASES.add(lambda: (leaf(3),))
def a_new_constant(x):
    return torch.zeros(3), torch.arange(3), x.sin()


@CASES.add(lambda: ())
def no_arguments():
    return torch.arange(3.0) * 2


@CASES.add(lambda: (plain(3), torch.arange(3)))
def nothing_requires_grad(x, n):
    return x.sin(), n + 1


@CASES.add(lambda: (leaf(3), leaf(3)))
def an_unused_input(x, y):
    return x.sin()


@CASES.add(lambda: (leaf(3), leaf(3)))
def an_input_used_without_a_gradient(x, y):
    return x * y.detach()


@CASES.add(lambda: (leaf(3),))
def a_zero_gradient(x):
    return x * 0, torch.sign(x), x.round()


@CASES.add(lambda: (leaf(),))
def a_scalar(x):
    return x * x, x.unsqueeze(0)


@CASES.add(lambda: (leaf(0, 3),))
def an_empty_tensor(x):
    return x * 2, x.sum(dim=0), x.sum()


@CASES.add(lambda: (leaf(4, 3),))
def a_transposed_result(x):
    return (x * 2).t(), (x * 2).t().contiguous(), x.t() * 2


@CASES.add(lambda: (leaf(4, 3),))
def an_expanded_result(x):
    return (x.sum(0, keepdim=True)).expand(4, 3), torch.ones(1).expand(3)


@CASES.add(lambda: (leaf(3),))
def a_new_leaf_without_a_gradient(x):
    return torch.ones(3), x.sin()


@CASES.add(lambda: (leaf(3),))
def everything_at_once(x):
    y = x * 2
    return {"y": y, "view": y[1:], "in": x, "n": [1, None, y.argmax()], "detached": y.detach()}


# --- Copies of saved values that the caller mutates -----------------------------------------------------------------------


@CASES.add(lambda: (leaf(3),), caller=lambda outputs, args: outputs[1].mul_(2))
def a_copy(x):
    z = x.sin()
    return z**2, z.clone()


@CASES.add(lambda: (leaf(3),), caller=lambda outputs, args: outputs[1].mul_(2))
def a_copy_by_its_dtype(x):
    z = x.sin()
    return z**2, z.to(z.dtype, copy=True)


@CASES.add(lambda: (leaf(2, 3),), caller=lambda outputs, args: outputs[1].mul_(2))
def a_view_of_a_copy(x):
    z = x.sin()
    return z**2, z.t().clone().t()


@CASES.add(lambda: (leaf(3),), caller=lambda outputs, args: outputs[1].mul_(2))
def a_product_with_one(x):
    z = x.sin()
    return z**2, z * 1


@CASES.parametrize()
def test_outputs(case: Case, backend: str) -> None:
    case.check(backend)
