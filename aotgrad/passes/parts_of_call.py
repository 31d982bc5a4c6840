"""The nodes that a call of a kept function consists of, what they read, and whether one node can stand for them.

F.linear(x, w)      forward   t, mm                         args[0]: x, args[1]: w
                    backward  t_1, mm_1, mm_2, t_2          tangent, x, w -> gradients of args[0], args[1]
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.graph.functionalized_call import FunctionalizedCall
from aotgrad.graph.kept_calls import KeptCall, Run
from aotgrad.passes.backward_of_call import (
    BackwardOfCall,
    ForwardOfCall,
    StaysApart,
    gradients_by_node,
    has_other_readers,
    inputs_of_all,
    is_cast,
    is_of_any_backward,
    may_be_passed,
    run_of,
    with_sums,
)
from aotgrad.passes.ops import computes

Dependents = Mapping[Run, Collection[fx.Node]]
"""The gradients in a graph, by the backward that computes them, or starts from them."""


@dataclass(frozen=True)
class PartsOfCall:
    """A call, and the nodes that it consists of, each in the order of the graph.

    Attributes:
        args, kwargs: of the call, now.
        computed: its forward.
        backwards: those that have gradients of it.
        dependents: see `Dependents`.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    computed: ForwardOfCall
    backwards: tuple[BackwardOfCall, ...]
    dependents: Dependents

    @classmethod
    def of(
        cls, call: KeptCall, nodes: Sequence[fx.Node], moved: Mapping[fx.Node, fx.Node], dependents: Dependents
    ) -> PartsOfCall:
        ops = dict.fromkeys(node for node in nodes if not is_of_any_backward(node))
        places = {moved.get(node, node): name for node, name in call.names.items()}
        if call.casts:
            casts = casts_of_arguments(places, ops)
            places = {casts.get(node, node): name for node, name in places.items()}
            ops = {node: None for node in ops if node not in casts.values()}
            now = {node: moved.get(node, node) for node in call.names}
            moved = {**moved, **{node: casts.get(at, at) for node, at in now.items()}}
        args, kwargs = fx.map_arg((call.args, dict(call.kwargs)), lambda node: moved.get(node, node))
        computed = ForwardOfCall(call, places, with_sizes(ops, call.computed))
        backwards = (cls.backward_in(run, computed, nodes, dependents[run]) for run in call.gradients)
        return cls(args, kwargs, computed, tuple(each for each in backwards if each.ops), dependents)

    @staticmethod
    def backward_in(
        run: Run, computed: ForwardOfCall, nodes: Sequence[fx.Node], dependent: Collection[fx.Node]
    ) -> BackwardOfCall:
        of_run = (node for node in nodes if is_of_any_backward(node) and run_of(node) == run)
        ops = dict.fromkeys(node for node in of_run if node in dependent)
        if computed.call.casts:
            ops = {node: None for node in ops if not (is_cast(node) and has_other_readers(node, ops))}
        return BackwardOfCall(computed, run, with_sums(ops, dependent), gradients_by_node(computed.call, run), dependent)

    @functools.cached_property
    def ops(self) -> set[fx.Node]:
        """All nodes of the call."""
        return set(self.computed.ops).union(*(each.ops for each in self.backwards))

    @property
    def results(self) -> tuple[fx.Node, ...]:
        """What the call returns, then the new values of arguments."""
        return self.computed.call.computed

    @property
    def target(self) -> Any:
        """The target of a node that stands for the call."""
        call = self.computed.call
        return FunctionalizedCall(call.function, tuple(call.changed), self.reads_changed) if call.changed else call.function

    @property
    def reads_changed(self) -> bool:
        """Whether what the function returns depends on the values that changed arguments had before."""
        names = self.computed.call.changed
        found = {node for node, name in self.computed.names.items() if name in names}
        for node in self.computed.ops:
            is_new = op_table.is_new_statistic(node)
            read = node.all_input_nodes[0].all_input_nodes if is_new else node.all_input_nodes
            if any(arg in found and (is_new or not op_table.is_running_statistic(node, arg)) for arg in read):
                found.add(node)
        return not found.isdisjoint(self.computed.call.results)

    def check(self) -> None:
        """Raises StaysApart: the call cannot be one node."""
        if any(op_table.draws(node) or op_table.has_effect(node.target) for node in self.ops):
            raise StaysApart("it draws random numbers, or has an effect")
        forward = self.computed.ops
        if any(node not in forward for node in self.results):
            raise StaysApart("an argument is its result")
        if not any(has_other_readers(node, forward) for node in forward):
            raise StaysApart("nobody uses its result")
        if any(
            may_be_passed(arg) and arg not in forward and arg not in self.computed.names for arg in inputs_of_all(forward)
        ):
            raise StaysApart("it reads a tensor that is no argument of it")
        if any(map(self.is_read_by_function, self.computed.call.changed.values())):
            raise StaysApart("the function reads an argument that it changes, which derivatives may need")
        if self.computed.call.casts and any(map(is_cast, self.ops)):
            raise StaysApart("autocast casts a value in it")
        for backward in self.backwards:
            backward.check()

    def is_read_by_function(self, node: fx.Node) -> bool:
        """Whether others read the new value of an argument, and not as a running statistic."""
        others = [user for user in node.users if user not in self.ops and user.op != "output"]
        return any(not op_table.is_running_statistic(user, node) for user in others)

    def inner_values(self) -> list[fx.Node]:
        """The values between arguments and results that others use, and that are more than views of arguments or numbers.

        Others compute those themselves.
        """
        ops, own = self.ops, {*self.results, *self.views_of_arguments}
        return [node for node in self.computed.ops if node not in own and self.is_read_by_others(node, ops)]

    @property
    def views_of_arguments(self) -> set[fx.Node]:
        """The views of arguments in the call, and the numbers that follow from them."""
        found = set[fx.Node]()
        for node in self.computed.ops:
            behind = (arg for arg in node.all_input_nodes if arg in self.computed.ops)
            if not computes(node) and found.issuperset(behind):
                found.add(node)
        return found

    def is_read_by_others(self, node: fx.Node, ops: Collection[fx.Node]) -> bool:
        others = [user for user in node.users if user not in ops]
        return any(not self.is_aside(user) or self.is_read_by_others(user, ops) for user in others)

    def is_aside(self, node: fx.Node) -> bool:
        """Whether a node computes, for a backward, what no gradient leads to: in a checkpoint or a saved-tensor hook."""
        return is_of_any_backward(node) and node not in self.dependents.get(run_of(node), ())


def casts_of_arguments(names: Iterable[fx.Node], ops: Mapping[fx.Node, None]) -> dict[fx.Node, fx.Node]:
    """The casts by which ops read arguments, where they read them in no other way. Autocast has some from earlier calls."""
    found: dict[fx.Node, fx.Node] = {}
    known = {*ops, *inputs_of_all(ops)}
    for argument in names:
        readers = [node for node in argument.users if node in known and not op_table.is_symbolic_value(node)]
        if len(readers) == 1 and is_cast(readers[0]):
            found[argument] = readers[0]
    return found


def with_sizes(ops: Mapping[fx.Node, None], results: Collection[fx.Node]) -> dict[fx.Node, None]:
    """The ops of a call, and the sizes that are read of values inside of it."""
    sizes = (user for node in ops if node not in results for user in node.users if op_table.reads_size(user.target))
    return dict.fromkeys(sorted({*ops, *sizes}))
