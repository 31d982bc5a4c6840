"""Calls of functions that a backend keeps whole (`Backend.keep`), and the targets of their backward nodes.

    y = linear(x, w)                                              one node, whose target is the function
    gx, gw = linear_backward(tangent, x, w)                       one node, whose target is a `KeptBackward`
    y, mean = batch_norm_functional(x, mean)                      one node, whose target is a `FunctionalizedCall`

A trace notes each call as a `KeptCall` and marks the nodes that it consists of; `passes/kept_calls.py` folds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.graph.functionalized_call import FunctionalizedCall
from aotgrad.graph.lazy_module import LazyGraphModule

MARK = "kept"
"""The key in `meta` of the call that a node is part of, from the trace until the calls are folded."""

KEPT_FUNCTION = "kept_function"
"""The key in `meta` of a function, which is the target if the node is a kept call. Other nodes may have copies of it."""

Run = int | None
"""A backward: the number of one that the function itself runs, or `None` for the backward of the function."""


@dataclass(eq=False)
class NotedGradients:
    """What one backward computes for a kept call.

    Attributes:
        starts: the gradients that the backward starts from, if the function runs it.
        found: by autograd node and position of its input: the place of the tensor and the node of its gradient.
    """

    starts: frozenset[fx.Node] = frozenset()
    found: dict[tuple[Any, int], tuple[str, fx.Node]] = field(default_factory=dict)


@dataclass(eq=False)
class KeptCall:
    """One call of a kept function in a trace.

    Attributes:
        args, kwargs: as the user wrote them, with nodes in place of tensors and symbolic numbers.
        names: where each tensor and symbolic number is among them: node -> `"args[0]"`.
        edges: where the gradients of these tensors arrive -> where the tensors are.
        first, last: the sequence number of the next autograd node when the call began and ended.
        casts: autocast was on.
        results: the nodes of the tensors that it returned.
        items: where these are in the tuple or list that it returned, with `None` elsewhere; `None`: it returned a tensor.
        count: the length of that tuple or list.
        changed: where the arguments are that it changes in place -> the nodes of their new values.
        gradients: what the traces of backwards found.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    names: Mapping[fx.Node, str]
    edges: Mapping[tuple[Any, int], str]
    first: int
    casts: bool
    last: int = 0
    results: tuple[fx.Node, ...] = ()
    items: tuple[int, ...] | None = None
    count: int = 0
    changed: Mapping[str, fx.Node] = field(default_factory=dict)
    gradients: dict[Run, NotedGradients] = field(default_factory=dict)

    def holds(self, node: Any) -> bool:
        """Whether the call made an autograd node."""
        return self.first <= torch_compat.node_sequence_nr(node) < self.last

    @property
    def computed(self) -> tuple[fx.Node, ...]:
        """The results, and the new values of arguments."""
        return (*self.results, *self.changed.values())

    def named_results(self) -> dict[fx.Node, str]:
        """What the call computes, each with its name, as in `KeptBackward.inputs`."""
        names = ["result"] if self.items is None else [f"result[{k}]" for k in self.items]
        changed = {node: f"changed {name}" for name, node in self.changed.items()}
        return {**dict(zip(self.results, names, strict=True)), **changed}

    def noted_gradients(self) -> Iterator[fx.Node]:
        return (node for noted in self.gradients.values() for _, node in noted.found.values())

    def name_behind(self, edge: tuple[Any, int]) -> str | None:
        """Where the tensor is whose gradient an edge of the autograd graph leads to, also through a cast of autocast."""
        node = edge[0]
        if self.casts and node is not None and node.name().startswith("ToCopyBackward"):
            return self.edges.get(node.next_functions[0])
        return self.edges.get(edge)


@dataclass(frozen=True)
class CallArgument:
    """A tensor or symbolic number among the arguments of a kept call. `name`: as in `KeptBackward.inputs`, `"args[0]"`."""

    name: str

    def __str__(self) -> str:
        return self.name


def kept_function_of(node: fx.Node) -> Any:
    """The kept function whose call, or whose gradients, a node computes; `None` for other nodes."""
    if isinstance(node.target, (FunctionalizedCall, KeptBackward)):
        return node.target.function
    return node.target if node.meta.get(KEPT_FUNCTION) is node.target else None


@dataclass(frozen=True, eq=False)
class KeptBackward:
    """The target of a node that computes the gradients of a kept call. Calling it runs `graph`, which returns a tuple.

    Attributes:
        function: the kept function.
        graph: the gradients as a graph of ATen ops. It recomputes what it needs between arguments and results of the call.
        inputs: what each input is: `"tangent"`, an argument of the call (`"args[0]"`, `"kwargs['bias']"`), `"result"` (or
            `"result[1]"` of several), `"size"` or `"constant"`.
        outputs: whose gradient each output is. If two have one name, their sum is the gradient; a tensor that was passed
            twice has two names, `"args[0], args[1]"`.
        args, kwargs: of the call, with a `CallArgument` in place of each tensor and each symbolic number. Such numbers are
            always among the inputs.
    """

    function: Any
    graph: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def __name__(self) -> str:
        return f"{getattr(self.function, '__name__', 'kept')}_backward"

    def __str__(self) -> str:
        return self.__name__

    def __call__(self, *values: Any) -> Any:
        return self.graph(*values)

    def narrowed(self, wanted: Sequence[int]) -> tuple[KeptBackward, list[int]]:
        """This with some of the outputs only, and the positions of the inputs that these need."""
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        returned: Any = graph.graph_copy(self.graph.graph, copies)
        graph.output(tuple(returned[k] for k in wanted))
        graph.eliminate_dead_code()
        placeholders = graph.find_nodes(op="placeholder")
        needed = [k for k, node in enumerate(placeholders) if node.users or self.takes_number(k, node)]
        for k, node in enumerate(placeholders):
            if k not in needed:
                graph.erase_node(node)
        inputs, outputs = (tuple(names[k] for k in some) for names, some in ((self.inputs, needed), (self.outputs, wanted)))
        return replace(self, graph=LazyGraphModule(self.graph, graph), inputs=inputs, outputs=outputs), needed

    def takes_number(self, position: int, node: fx.Node) -> bool:
        """Whether an input is a symbolic number among the arguments of the call."""
        return op_table.is_symbolic_value(node) and self.inputs[position] not in ("size", "constant")


def also_named(earlier: str | None, name: str) -> str:
    """The name of a value that is in several places."""
    return name if earlier is None else f"{earlier}, {name}"
