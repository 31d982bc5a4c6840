"""The nodes of a kept call in one backward, and whether one node can stand for them.

gradients of F.linear(x, w)     t_1 = t(tangent); gw = t(mm(t_1, x)); gx = mm(tangent, w)
                                reads tangent, args[0], args[1]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.graph.kept_calls import MARK, KeptCall, Run, also_named
from aotgrad.passes.ops import computes


class StaysApart(Exception):
    """A call cannot be one node; the message says why."""


@dataclass(frozen=True)
class ForwardOfCall:
    """What a call computes. `names`: where each tensor and number is among its arguments; `ops`: in the graph's order."""

    call: KeptCall
    names: Mapping[fx.Node, str]
    ops: Mapping[fx.Node, None]


@dataclass(frozen=True)
class BackwardOfCall:
    """The gradients of a call in one backward.

    Attributes:
        forward: the call.
        run: the backward.
        ops: those that depend on a gradient, in the graph's order.
        gradients: those of `ops` that leave the call -> whose gradients they are.
        dependent: all gradients of the backward.
    """

    forward: ForwardOfCall
    run: Run
    ops: Mapping[fx.Node, None]
    gradients: Mapping[fx.Node, str]
    dependent: Collection[fx.Node]

    def check(self) -> None:
        """Raises StaysApart: the call cannot be one node."""
        if len({node.meta.get("segment") for node in self.ops}) > 1:
            raise StaysApart("several autograd nodes of the compiled function share its backward")

    def inner_values(self) -> list[fx.Node]:
        """The values of the backward that others use besides gradients."""
        return [node for node in self.ops if node not in self.gradients and has_other_readers(node, self.ops)]

    @property
    def tangent(self) -> fx.Node:
        """The only gradient that enters the call's backward."""
        inputs = [arg for arg in inputs_of_all(self.ops) if arg not in self.ops]
        match [arg for arg in inputs if arg in self.dependent and may_be_passed(arg)]:
            case [entering] if entering < next(iter(self.ops)) and entering not in self.forward.names:
                return entering
        raise StaysApart("its backward does not start from one tangent")

    @property
    def owns_tangent(self) -> bool:
        """Whether the tangent has the sizes of the result; else it is that of a value that the result is a view of."""
        result, *others = self.forward.call.results
        return bool(others) or torch_compat.known_equal(self.tangent.meta["val"].shape, result.meta["val"].shape)

    def needed(self) -> tuple[dict[fx.Node, str], list[fx.Node]]:
        """What the backward reads, by name, and the ops that it consists of, with those of the call that it recomputes.

        If it recomputes something, then also the result: a backend may compute that in another way. Numbers among the
        arguments of the call are given to it in any case.

        Raises:
            StaysApart: it reads something else.
        """
        call, arguments = self.forward.call, self.forward.names
        read, ops = self.behind_backward({*call.computed, *arguments})
        if any(node in self.forward.ops and computes(node) for node in ops):
            read, ops = self.behind_backward({*call.changed.values(), *arguments})
        if any(op_table.draws(node) or op_table.has_effect(node.target) for node in ops):
            raise StaysApart("its backward draws random numbers, or has an effect")
        read |= dict.fromkeys(filter(op_table.is_symbolic_value, arguments))
        names = {self.tangent: "tangent", **arguments}
        names |= call.named_results()
        named = {node: name for node, name in names.items() if node in read}
        others = {node: "constant" if node.op == "get_attr" else "size" for node in read if node not in named}
        if any(map(may_be_passed, others)):
            raise StaysApart("its backward reads a tensor that is neither argument nor result")
        if any(not arg < next(iter(self.ops)) for arg in read):
            raise StaysApart("its backward does not start from one tangent")
        return {**named, **others}, sorted(ops)

    def behind_backward(self, ends: Collection[fx.Node]) -> tuple[dict[fx.Node, None], dict[fx.Node, None]]:
        """What the backward reads, and its ops with those that it recomputes, if it recomputes none of `ends`."""
        read, ops, left = dict[fx.Node, None](), dict(self.ops), list(self.ops)
        while left:
            for arg in nodes_read(left.pop()):
                if arg not in ends and (arg in self.forward.ops or self.may_be_inside(arg)):
                    left += [] if arg in ops else [arg]
                    ops[arg] = None
                elif arg not in self.ops:
                    read[arg] = None
        return read, ops

    def may_be_inside(self, node: fx.Node) -> bool:
        """Whether the backward may compute a value itself: one of a call, an alias, or one that no gradient leads to.

        It computes numbers that come after its first op, as the sizes of its own values.
        """
        if not may_be_passed(node):
            return node.op == "call_function" and next(iter(self.ops)) < node
        is_of_run = is_of_any_backward(node) and run_of(node) == self.run
        is_inside = is_of_run or MARK in node.meta or node.target is torch.ops.aten.detach.default
        return is_inside and node not in self.dependent


def nodes_read(node: fx.Node) -> dict[fx.Node, None]:
    """The nodes that a node of a backward reads: new running statistics of a batch norm are not computed there."""
    found = dict[fx.Node, None]()
    fx.map_arg((op_table.call_without_statistics(node)[1], node.kwargs), lambda arg: found.setdefault(arg))
    return found


def gradients_by_node(call: KeptCall, run: Run) -> dict[fx.Node, str]:
    """The gradients that leave a call in a backward -> whose gradients they are, in the order of the arguments."""
    order, gradients = list(call.edges.values()), dict[fx.Node, str]()
    for name, node in sorted(call.gradients[run].found.values(), key=lambda each: order.index(each[0])):
        gradients[node] = also_named(gradients.get(node), name)
    return gradients


def is_of_any_backward(node: fx.Node) -> bool:
    """Whether a backward has recorded a node: that of the function, or one inside of it."""
    return bool(node.meta.get("autograd_backward")) or "inner_backward" in node.meta


def run_of(node: fx.Node) -> Run:
    """The backward that has recorded a node."""
    return node.meta.get("inner_backward")


def is_cast(node: fx.Node) -> bool:
    return op_table.op_name(node.target) == "aten._to_copy"


def inputs_of_all(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    return list(dict.fromkeys(arg for node in nodes for arg in node.all_input_nodes))


def may_be_passed(node: fx.Node) -> bool:
    """Whether a node is a value that a call could be given: no size, and no constant of the graph."""
    return node.op != "get_attr" and not op_table.is_symbolic_value(node)


def has_other_readers(node: fx.Node, nodes: Mapping[fx.Node, None]) -> bool:
    return any(user not in nodes for user in node.users)


def with_sums(ops: Mapping[fx.Node, None], dependent: Collection[fx.Node]) -> dict[fx.Node, None]:
    """The ops of a backward, and the sums of the engine among them: read by these ops alone, and of their results.

    A term may be the gradient that enters the backward. `dependent`: all gradients.
    """
    if not ops:
        return {}
    first, last = min(ops), max(ops)
    entering = {arg for arg in inputs_of_all(ops) if arg in dependent and arg < first and may_be_passed(arg)}
    found, node = set(ops), first
    while node is not last:
        node, args = node.next, node.next.all_input_nodes
        if found.intersection(args) and (found | entering).issuperset(args):
            found.add(node)
    while outside := [node for node in found if node not in ops and is_of_others(node, found, entering)]:
        found.difference_update(outside)
    return dict.fromkeys(sorted(found))


def is_of_others(node: fx.Node, nodes: Collection[fx.Node], entering: Collection[fx.Node]) -> bool:
    """Whether others than `nodes` read a node, or compute a value that it reads."""
    return any(user not in nodes for user in node.users) or not all(
        arg in nodes or arg in entering for arg in node.all_input_nodes
    )
