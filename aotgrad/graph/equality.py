"""Which nodes compute the same: equal keys for equal calls, equal numbers for equal values.

    a = sin(x); b = sin(x); c = sin(y)      call_key(a) == call_key(b) != call_key(c)

Two calls are equal if the op is, and the arguments that it reads: numbers with their types and bits, so that `1`, `1.0` and
`True` differ, and so do `0.0` and `-0.0`. Lists and tuples are alike. Only `value_numbers` considers that equal calls may
have other results (randomness).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
import torch.fx as fx

from aotgrad.graph import op_table


def call_key(node: fx.Node, key_of_node: Callable[[fx.Node], Hashable] = lambda node: node) -> Hashable | None:
    """Equal for two nodes that call one op with equal arguments; `None` if an argument cannot be compared by value.

    Args:
        key_of_node: equal for nodes that are equal as arguments; by default, a node equals only itself.
    """
    return key_of_arguments(node.target, op_table.arguments_read(node), node.kwargs, key_of_node)


def key_of_arguments(
    target: Any, args: Any, kwargs: Any, key_of_node: Callable[[fx.Node], Hashable] = lambda node: node
) -> Hashable | None:
    """Equal for calls of one op with equal arguments; see `call_key`."""
    key = (target, argument_key(args, key_of_node), argument_key(kwargs, key_of_node))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def argument_key(value: Any, key_of_node: Callable[[fx.Node], Hashable] = lambda node: node) -> Any:
    """Equal for equal arguments."""
    match value:
        case fx.Node():
            return (fx.Node, key_of_node(value))
        case list() | tuple():
            return tuple(argument_key(item, key_of_node) for item in value)
        case dict():
            return tuple((name, argument_key(value[name], key_of_node)) for name in sorted(value))
        case slice():
            return (slice, argument_key((value.start, value.stop, value.step), key_of_node))
        case float():
            return (float, value.hex())
        case complex():
            return (complex, value.real.hex(), value.imag.hex())
    return (type(value), value)


def value_numbers(
    module: fx.GraphModule, inputs: Mapping[fx.Node, Hashable], known: dict[Hashable, int]
) -> dict[fx.Node, int]:
    """A number for each node; nodes of one or several graphs that compute the same have the same number.

    The n-th call with an effect or random numbers equals the n-th one of another graph. Constants are equal if they are one
    tensor, or small and of equal content.

    Args:
        inputs: what each placeholder is.
        known: the numbers so far, shared by the graphs that are compared; it gets the new ones.
    """
    numbers: dict[fx.Node, int] = {}
    calls = itertools.count()
    for node in module.graph.nodes:
        match node.op:
            case "placeholder":
                key: Hashable = inputs[node]
            case "get_attr":
                key = constant_key(functools.reduce(getattr, node.target.split("."), module))
            case "output":
                continue
            case _:
                key = call_key(node, numbers.__getitem__) or node
                key = (key, next(calls)) if op_table.is_kept_when_dead(node.target) else key
        numbers[node] = known.setdefault(key, len(known))
    return numbers


SMALL_CONSTANT = 2**12
"""Elements of a constant up to which its content is compared: a literal in the code of the function."""


def constant_key(value: Any) -> Hashable:
    """Equal for the same object, and for small tensors of equal content."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel() <= SMALL_CONSTANT:
        return (value.dtype, value.device, value.shape, value.stride(), argument_key(value.flatten().tolist()))
    return (type(value), id(value))
