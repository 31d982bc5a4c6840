"""Pytrees taken apart and put together."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import torch
from hypothesis import given
from hypothesis import strategies as st

from aotgrad.plan_cache.arguments import Arguments, FlatOutput

Point = namedtuple("Point", ["x", "y"])
LEAVES = st.sampled_from([torch.ones(1), torch.zeros(2), None, 3, "text"])
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=8,
)


def same(one, other) -> bool:
    """Equal structure and the same leaf objects."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one is other


@given(st.lists(TREES, max_size=3).map(tuple), st.dictionaries(st.sampled_from("pq"), TREES, max_size=2))
def test_arguments_are_put_together_as_they_were(args, kwargs):
    arguments = Arguments.of(args, kwargs)
    assert all(isinstance(tensor, torch.Tensor) for tensor in arguments.tensors)
    assert not any(isinstance(value, torch.Tensor) for _, value in arguments.constants)
    rebuilt_args, rebuilt_kwargs = arguments.rebuild(arguments.tensors)
    assert same(tuple(rebuilt_args), args)
    assert same(rebuilt_kwargs, kwargs)


def test_tensors_alone_need_no_tree():
    x, y = torch.ones(1), torch.ones(2)
    arguments = Arguments.of((x, y), {})
    assert (arguments.spec, arguments.constants) == (2, ())
    assert arguments.rebuild([y, x]) == ((y, x), {})


@given(TREES)
def test_outputs_are_put_together_as_they_were(tree):
    output = FlatOutput()
    assert same(output.unflatten(output.flatten(tree, ())), tree)


def test_types_of_containers_survive():
    output = FlatOutput()
    tree = OrderedDict(b=Point(torch.ones(1), None), a=[])
    rebuilt = output.unflatten(output.flatten(tree, ()))
    assert type(rebuilt) is OrderedDict
    assert list(rebuilt) == ["b", "a"]
    assert type(rebuilt["b"]) is Point


def test_a_size_is_one_value():
    output = FlatOutput()
    leaves = output.flatten((torch.ones(2, 3).shape, 1), ())
    assert leaves == [torch.Size([2, 3]), 1]
    assert output.unflatten(leaves) == (torch.Size([2, 3]), 1)
