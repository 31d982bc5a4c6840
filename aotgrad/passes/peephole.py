"""Small rewrites of one node and its arguments.

    t(t(x)), view(x, its own size), expand(x, its own size), alias(x)     ->  x
    view(view(x, a), b)                                                   ->  view(x, b)
    expand(expand(x, a), b)                                               ->  expand(x, b)
    permute(t(x), p)                                                      ->  one permute
    x * 1, x / 1, x ** 1, x - 0, x + 0 (integers), x + -0.0               ->  x
    f16 -> f32 -> f16, and every cast of a widening cast                  ->  one cast, or none

The bits are eager's: `x + 0` stays for floating point, since it turns -0.0 into 0.0, and `x * 1` stays for complex numbers,
where an infinite part makes the other one NaN. A replacement has the same dtype, sizes and strides. A value is not replaced
by one in other memory if the caller could notice (`memory`).

Views of one tensor with equal sizes, strides and offset are the same value, however they were made: one table finds them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph.ends import output_node, outputs_of
from aotgrad.graph.geometry import geometry_key
from aotgrad.ir import GraphHalf, JointGraph
from aotgrad.passes import ops, rewrite
from aotgrad.passes.base import AnyGraph
from aotgrad.passes.memory import MemoryOwnership
from aotgrad.slots import Gradient, UpdatedInput

aten = ops.aten


@dataclass(frozen=True)
class Peephole:
    """Removes views, casts and arithmetic that change nothing, and joins neighbouring views."""

    name: str = "peephole"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        views, memory = Views(), MemoryOwnership.of(graph)

        def visit(node: fx.Node) -> fx.Node | None:
            join = JOINED.get(node.target)
            if join is not None:
                join(node)
            return views.visit(node) or operand(node, memory)

        return_originals(graph, rewrite.replace(graph.module.graph, visit))
        return graph


def return_originals(graph: JointGraph | GraphHalf, replaced: Mapping[fx.Node, fx.Node]) -> None:
    """Return what replaces gradients and new data of inputs, each node once, and no input: `mm` instead of `t(t(mm))`."""
    output = output_node(graph.module.graph)
    results = list(outputs_of(graph.module.graph))
    taken = set(results)
    for position, slot in enumerate(graph.signature.outputs):
        original = replaced.get(results[position])
        if (
            isinstance(slot, Gradient | UpdatedInput)
            and original is not None
            and original.op != "placeholder"
            and original not in taken
        ):
            results[position] = original
            taken.add(original)
    output.args = (results,)


# --- Views -----------------------------------------------------------------------------------------------------------


@dataclass
class Views:
    """`root`: the tensor that a chain of views starts from. `first`: the first node for each root and geometry."""

    root: dict[fx.Node, fx.Node] = field(default_factory=dict)
    first: dict[tuple, fx.Node] = field(default_factory=dict)

    def visit(self, node: fx.Node) -> fx.Node | None:
        """An earlier node that is the same view of the same tensor."""
        self.root[node] = self.root[ops.args_of(node)[0]] if is_geometric_view(node) else node
        key = geometry_key(node.meta.get("val"))
        if key is None:
            return None
        earlier = self.first.setdefault((self.root[node], *key), node)
        return earlier if earlier is not node else None


def is_geometric_view(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and node.args[0].target in ops.GEOMETRIC_VIEWS
    return node.target in ops.GEOMETRIC_VIEWS


def join_reshapes(node: fx.Node) -> None:
    inner = ops.args_of(node)[0]
    if inner.target in (aten.view.default, torch_compat.unsafe_view) and both_contiguous(inner.args[0], node):
        node.args = (inner.args[0], *node.args[1:])


def both_contiguous(one: fx.Node, other: fx.Node) -> bool:
    values = [node.meta.get("val") for node in (one, other)]
    return all(isinstance(value, torch.Tensor) and torch_compat.known_contiguous(value) for value in values)


def join_expands(node: fx.Node) -> None:
    inner, size = ops.args_of(node)
    if inner.target is aten.expand.default and all(not isinstance(s, int) or s >= 0 for s in size):
        node.args = (inner.args[0], *node.args[1:])


def join_permutations(node: fx.Node) -> None:
    inner = permutation(ops.args_of(node)[0])
    outer = permutation(node)
    if inner is not None and outer is not None:
        node.target = aten.permute.default
        node.args = (ops.args_of(node)[0].args[0], [inner[dim] for dim in outer])


def permutation(node: fx.Node) -> list[int] | None:
    """`dims` such that dimension k of the result is dimension `dims[k]` of the argument."""
    if node.target not in PERMUTATIONS:
        return None
    count = node.meta["val"].dim()
    dims = list(range(count))
    if node.target is aten.permute.default:
        return [dim % count for dim in ops.args_of(node)[1]]
    if node.target is aten.t.default:
        return dims[::-1]
    first, second = (dim % max(count, 1) for dim in ops.args_of(node)[1:])
    if count:
        dims[first], dims[second] = second, first
    return dims


PERMUTATIONS = frozenset({aten.permute.default, aten.t.default, aten.transpose.int})
JOINED: dict[Any, Callable[[fx.Node], None]] = {
    torch_compat.cast: lambda node: join_casts(node),
    torch_compat.unsafe_view: join_reshapes,
    aten.expand.default: join_expands,
    aten.permute.default: join_permutations,
    aten.t.default: join_permutations,
    aten.transpose.int: join_permutations,
    aten.view.default: join_reshapes,
}
"""Op -> how a node is joined with its first argument into one call."""


# --- Casts -----------------------------------------------------------------------------------------------------------

WIDENING = {
    torch.bfloat16: {torch.float32, torch.float64},
    torch.float16: {torch.float32, torch.float64},
    torch.float32: {torch.float64},
}
"""Dtype -> the dtypes that hold all its values."""


def join_casts(node: fx.Node) -> None:
    """Cast a widened value from its original dtype: it is rounded once either way."""
    inner = ops.args_of(node)[0]
    if not is_plain_cast(node) or inner.target is not torch_compat.cast or not is_plain_cast(inner):
        return
    source = inner.args[0]
    narrow, wide, last = (each.meta["val"].dtype for each in (source, inner, node))
    if wide in WIDENING.get(narrow, ()) and last in EXACT_DTYPES and cast_keeps_strides(source, inner):
        node.args = (source,)
        node.kwargs = {"dtype": last, **node.kwargs}


def is_plain_cast(node: fx.Node) -> bool:
    """Whether the node only changes the dtype of a tensor. (`vmap` casts numbers, too.)"""
    if not isinstance(node.args[0], fx.Node):
        return False
    source, value = node.args[0].meta["val"], node.meta["val"]
    plain = source.device == value.device and source.layout is torch.strided and value.layout is torch.strided
    return plain and not source.is_conj() and not source.is_neg()


def cast_keeps_strides(source: fx.Node, inner: fx.Node) -> bool:
    """Whether the source has the strides of its cast, which it has if it is dense."""
    return torch_compat.known_equal(source.meta["val"].stride(), inner.meta["val"].stride())


# --- Arithmetic ------------------------------------------------------------------------------------------------------

EXACT_DTYPES = frozenset({torch.bfloat16, torch.float16, torch.float32, torch.float64})


def operand(node: fx.Node, memory: MemoryOwnership) -> fx.Node | None:
    """The operand that equals the node's result bit for bit, if it can replace the result."""
    rule = OPERANDS.get(node.target)
    source = rule(node) if rule is not None else None
    if not isinstance(source, fx.Node) or not rewrite.alike(node, source):
        return None
    return source if memory.may_replace(node, source) else None


def product_operand(node: fx.Node) -> Any:
    one, other = node.args
    if node.meta["val"].dtype.is_complex:
        return None
    return one if number_in(other) == 1 else other if number_in(one) == 1 else None


def quotient_operand(node: fx.Node) -> Any:
    return node.args[0] if node.meta["val"].dtype in EXACT_DTYPES and number_in(node.args[1]) == 1 else None


def power_operand(node: fx.Node) -> Any:
    return node.args[0] if node.args[1] == 1 else None


def sum_operand(node: fx.Node) -> Any:
    one, other = node.args
    if node.kwargs.get("alpha", 1) != 1:
        return None
    return one if adds_nothing(other, node) else other if adds_nothing(one, node) else None


def difference_operand(node: fx.Node) -> Any:
    one, other = node.args
    number = number_in(other)
    is_zero = number == 0 and not is_negative(number)
    return one if is_zero and node.kwargs.get("alpha", 1) == 1 and not node.meta["val"].dtype.is_complex else None


def adds_nothing(term: Any, node: fx.Node) -> bool:
    """Whether a term is zero; for floating point only -0.0, since -0.0 + 0.0 is 0.0."""
    number = number_in(term)
    if number is None or number != 0:
        return False
    dtype = node.meta["val"].dtype
    if isinstance(term, fx.Node) and term.meta["val"].dtype != dtype:
        return False
    return is_negative(number) if dtype in EXACT_DTYPES else not dtype.is_complex and not dtype.is_floating_point


def is_negative(number: Any) -> bool:
    return str(number).startswith("-")


def number_in(value: Any) -> Any:
    """The number that an operand is, or that all its elements equal; `None` if it is not known."""
    if isinstance(value, (bool, int, float)):
        return value
    if not isinstance(value, fx.Node):
        return None
    if value.target in (aten.full.default, aten.full_like.default):
        return value.args[1] if isinstance(value.args[1], (bool, int, float)) else None
    return UNIFORM.get(value.target)


UNIFORM: dict[Any, int] = {
    aten.ones.default: 1,
    aten.ones_like.default: 1,
    aten.zeros.default: 0,
    aten.zeros_like.default: 0,
}

OPERANDS: dict[Any, Callable[[fx.Node], Any]] = {
    torch_compat.cast: lambda node: node.args[0],
    aten.add.Tensor: sum_operand,
    aten.div.Tensor: quotient_operand,
    aten.mul.Tensor: product_operand,
    aten.pow.Tensor_Scalar: power_operand,
    aten.sub.Tensor: difference_operand,
}
"""Op -> the operand that a call may return unchanged. Its type is compared with the result's afterwards."""
