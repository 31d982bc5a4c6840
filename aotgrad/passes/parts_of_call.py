"""The nodes that a call of a kept function consists of, what they read, and whether one node can stand for them.

F.linear(x, w)      forward   t, mm                         args[0]: x, args[1]: w
                    backward  t_1, mm_1, mm_2, t_2          tangent, x, w -> gradients of args[0], args[1]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.graph.kept_calls import MARK, KeptCall, also_named
from aotgrad.passes.ops import computes


class StaysApart(Exception):
    """A call cannot be one node; the message says why."""


@dataclass(frozen=True)
class PartsOfCall:
    """A call, and the nodes that it consists of, each in the order of the graph.

    Attributes:
        args, kwargs: of the call, now.
        names: where each tensor is among them.
        forward, backward: its ops; those of the backward depend on a tangent.
        results: those of `forward` that it returns.
        gradients: those of `backward` that leave it -> whose gradients they are.
        dependent: all nodes that depend on a tangent.
    """

    call: KeptCall
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    names: Mapping[fx.Node, str]
    forward: Mapping[fx.Node, None]
    backward: Mapping[fx.Node, None]
    gradients: Mapping[fx.Node, str]
    dependent: Collection[fx.Node]

    @classmethod
    def of(
        cls, call: KeptCall, nodes: Sequence[fx.Node], moved: Mapping[fx.Node, fx.Node], dependent: Collection[fx.Node]
    ) -> PartsOfCall:
        forward = dict.fromkeys(node for node in nodes if not node.meta.get("autograd_backward"))
        backward = dict.fromkeys(node for node in nodes if node in dependent)
        places = {moved.get(node, node): name for node, name in call.names.items()}
        order, gradients = list(call.edges.values()), dict[fx.Node, str]()
        for name, node in sorted(call.gradients.values(), key=lambda each: order.index(each[0])):
            gradients[node] = also_named(gradients.get(node), name)
        if call.casts:
            casts = casts_of_arguments(places, forward)
            places = {casts.get(node, node): name for node, name in places.items()}
            forward = {node: None for node in forward if node not in casts.values()}
            backward = {node: None for node in backward if not (is_cast(node) and has_other_readers(node, backward))}
            now = {node: moved.get(node, node) for node in call.names}
            moved = {**moved, **{node: casts.get(at, at) for node, at in now.items()}}
        args, kwargs = fx.map_arg((call.args, dict(call.kwargs)), lambda node: moved.get(node, node))
        forward, backward = with_sizes(forward, call.results), with_sums(backward)
        return cls(call, args, kwargs, places, forward, backward, gradients, dependent)

    @property
    def results(self) -> tuple[fx.Node, ...]:
        return self.call.results

    def is_aside(self, node: fx.Node) -> bool:
        """Whether a node computes, for a backward, what no tangent leads to: in a checkpoint or a saved-tensor hook."""
        return bool(node.meta.get("autograd_backward")) and node not in self.dependent

    def may_be_inside(self, node: fx.Node) -> bool:
        """Whether the backward may compute a value itself: one of a kept call, an alias, or one that no tangent leads to."""
        is_inside = self.is_aside(node) or MARK in node.meta or node.target is torch.ops.aten.detach.default
        return is_inside and node not in self.dependent

    # -- what must hold

    def check(self) -> None:
        """Raises StaysApart: the call cannot be one node."""
        ops = [*self.forward, *self.backward]
        if any(op_table.draws(node) or op_table.has_effect(node.target) for node in ops):
            raise StaysApart("it draws random numbers, or has an effect")
        if any(node not in self.forward for node in self.results):
            raise StaysApart("an argument is its result")
        if not any(has_other_readers(node, self.forward) for node in self.forward):
            raise StaysApart("nobody uses its result")
        if any(
            may_be_passed(arg) and arg not in self.forward and arg not in self.names for arg in inputs_of_all(self.forward)
        ):
            raise StaysApart("it reads a tensor that is no argument of it")
        if self.call.casts and any(is_cast(node) for node in ops):
            raise StaysApart("autocast casts a value in it")
        if self.backward:
            self.check_backward()

    def check_backward(self) -> None:
        if len({node.meta.get("segment") for node in self.backward}) > 1:
            raise StaysApart("several autograd nodes of the compiled function share its backward")
        if not {node for node in self.backward if has_other_readers(node, self.backward)} <= self.gradients.keys():
            raise StaysApart("others use a value of its backward that is no gradient of an argument")

    @property
    def tangent(self) -> fx.Node:
        """The only value of the backward that enters the call's backward."""
        inputs = [arg for arg in inputs_of_all(self.backward) if arg not in self.backward]
        match [arg for arg in inputs if arg in self.dependent and may_be_passed(arg)]:
            case [entering] if entering < next(iter(self.backward)):
                return entering
        raise StaysApart("its backward does not start from one tangent")

    def needed(self) -> tuple[dict[fx.Node, str], list[fx.Node]]:
        """What the backward reads, by name, and the ops that it consists of, with those of the call that it recomputes.

        If it recomputes something, then also the result: a backend may compute that in another way.

        Raises:
            StaysApart: it reads something else.
        """
        read, ops = self.behind_backward({*self.results, *self.names})
        if any(node in self.forward and computes(node) for node in ops):
            read, ops = self.behind_backward(self.names)
        if any(op_table.draws(node) or op_table.has_effect(node.target) for node in ops):
            raise StaysApart("its backward draws random numbers, or has an effect")
        names = {self.tangent: "tangent", **self.names}
        names |= {node: f"result[{k}]" if self.call.returns_list else "result" for k, node in enumerate(self.results)}
        named = {node: name for node, name in names.items() if node in read}
        others = {node: "constant" if node.op == "get_attr" else "size" for node in read if node not in named}
        if any(map(may_be_passed, others)):
            raise StaysApart("its backward reads a tensor that is neither argument nor result")
        if any(not arg < next(iter(self.backward)) for arg in read):
            raise StaysApart("its backward does not start from one tangent")
        return {**named, **others}, sorted(ops)

    def behind_backward(self, ends: Collection[fx.Node]) -> tuple[dict[fx.Node, None], dict[fx.Node, None]]:
        """What the backward reads, and its ops with those that it recomputes, if it recomputes none of `ends`."""
        read, ops, left = dict[fx.Node, None](), dict(self.backward), list(self.backward)
        while left:
            for arg in left.pop().all_input_nodes:
                if arg not in ends and (arg in self.forward or (may_be_passed(arg) and self.may_be_inside(arg))):
                    left += [] if arg in ops else [arg]
                    ops[arg] = None
                elif arg not in self.backward:
                    read[arg] = None
        return read, ops

    @property
    def owns_tangent(self) -> bool:
        """Whether the tangent has the sizes of the result; else it is that of a value that the result is a view of."""
        result, *others = self.results
        return bool(others) or torch_compat.known_equal(self.tangent.meta["val"].shape, result.meta["val"].shape)

    def inner_values(self) -> list[fx.Node]:
        """The values between arguments and results that others use."""
        return [node for node in self.forward if node not in self.results and self.is_read_by_others(node)]

    def is_read_by_others(self, node: fx.Node) -> bool:
        others = [user for user in node.users if user not in self.forward and user not in self.backward]
        return any(not self.is_aside(user) or self.is_read_by_others(user) for user in others)


def is_cast(node: fx.Node) -> bool:
    return op_table.op_name(node.target) == "aten._to_copy"


def inputs_of_all(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    return list(dict.fromkeys(arg for node in nodes for arg in node.all_input_nodes))


def may_be_passed(node: fx.Node) -> bool:
    """Whether a node is a value that a call could be given: no size, and no constant of the graph."""
    return node.op != "get_attr" and not op_table.is_symbolic_value(node)


def has_other_readers(node: fx.Node, nodes: Mapping[fx.Node, None]) -> bool:
    return any(user not in nodes for user in node.users)


def casts_of_arguments(names: Iterable[fx.Node], ops: Mapping[fx.Node, None]) -> dict[fx.Node, fx.Node]:
    """The casts by which ops read arguments, where they read them in no other way. Autocast has some from earlier calls."""
    found: dict[fx.Node, fx.Node] = {}
    known = {*ops, *inputs_of_all(ops)}
    for argument in names:
        readers = [node for node in argument.users if node in known]
        if len(readers) == 1 and is_cast(readers[0]):
            found[argument] = readers[0]
    return found


def with_sizes(ops: Mapping[fx.Node, None], results: Collection[fx.Node]) -> dict[fx.Node, None]:
    """The ops of a call, and the sizes that are read of values inside of it."""
    sizes = (user for node in ops if node not in results for user in node.users if op_table.reads_size(user.target))
    return dict.fromkeys(sorted({*ops, *sizes}))


def with_sums(ops: Mapping[fx.Node, None]) -> dict[fx.Node, None]:
    """The ops of a backward, and the sums of the engine among them: read by these ops alone, and of their results."""
    found = dict(ops)
    sums = dict.fromkeys(user for node in ops for user in node.users if user not in ops and user.op != "output")
    for node in sorted(sums):
        if all(arg in found for arg in node.all_input_nodes) and not has_other_readers(node, found):
            found[node] = None
    return dict.fromkeys(sorted(found))
