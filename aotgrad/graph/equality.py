"""Which nodes compute the same: equal keys for equal calls.

    a = sin(x); b = sin(x); c = sin(y)      call_key(a) == call_key(b) != call_key(c)

Two calls are equal if op and arguments are, numbers with their types and bits: `1`, `1.0` and `True` differ, and so do `0.0`
and `-0.0`. Lists and tuples are alike. Whether equal calls have equal results (randomness, effects) is not considered.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch.fx as fx


def call_key(node: fx.Node, key_of_node: Callable[[fx.Node], Hashable] = lambda node: node) -> Hashable | None:
    """Equal for two nodes that call one op with equal arguments; `None` if an argument cannot be compared by value.

    Args:
        key_of_node: equal for nodes that are equal as arguments; by default, a node equals only itself.
    """
    key = (node.target, argument_key(node.args, key_of_node), argument_key(node.kwargs, key_of_node))
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
