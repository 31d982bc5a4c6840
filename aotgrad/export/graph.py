"""A traced function -> one graph that takes its flat arguments and returns updated inputs, outputs and gradients.

In: a `TracedJoint`, and for each flat argument its input of the joint graph. Out: an `fx.GraphModule`, and the nodes of its
outputs. The graph itself does what a plan does around its graphs: it replays views on their base, and returns a placeholder
for an output that is an input.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.errors import ExportError
from aotgrad.graph import op_table
from aotgrad.graph.copies import copy_node
from aotgrad.ir import (
    AliasOfInput,
    AliasOfIntermediate,
    AliasOfIntermediateBaseIsUserOutput,
    AliasOfOutput,
    ConstantOutput,
    IsInput,
    IsOutput,
    SyntheticBase,
    ViewReplay,
)
from aotgrad.pipeline import TracedJoint
from aotgrad.slots import Gradient, IntermediateBase, Primal, Tangent, UpdatedInput, UserOutput, of_kind


@dataclass
class GraphWriter:
    """Copies a joint graph into a new one.

    Attributes:
        traced: the function.
        graph: the new graph.
        env: from nodes of the joint graph to new nodes.
        loss: the output with tangent one, if the graph has a backward.
    """

    traced: TracedJoint
    loss: int | None = None
    graph: fx.Graph = field(default_factory=fx.Graph)
    env: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        joint = self.traced.joint
        self.inputs, self.results = joint.placeholders, joint.results
        self.slots = {node: slot for slot, node in self.inputs.items()}

    def placeholder(self, name: str, index: int | None) -> fx.Node:
        """An argument: input `index` of the joint graph, or an unused one (`None`)."""
        node = self.graph.placeholder(name)
        if index is not None and self.inputs[Primal(index)] not in self.env:
            self.env[self.inputs[Primal(index)]] = node
            node.meta = dict(self.inputs[Primal(index)].meta)
        return node

    def tangent_placeholder(self, name: str, slot: Tangent) -> fx.Node:
        """An argument that is the gradient of an output."""
        node = self.env[self.inputs[slot]] = self.graph.placeholder(name)
        node.meta = dict(self.inputs[slot].meta)
        return node

    def copy(self, wanted: Sequence[Any]) -> None:
        """Copy the nodes that some results of the joint graph need."""
        needed = {node for node in wanted if isinstance(node, fx.Node)}
        stack = list(needed)
        while stack:
            for arg in self.arguments(stack.pop()):
                if arg not in needed:
                    needed.add(arg)
                    stack.append(arg)
        for node in self.traced.joint.module.graph.nodes:
            if node in needed and node not in self.env:
                self.copy_node(node)

    def copy_all(self) -> None:
        """Copy all nodes that the results need and all that have effects, in the order of the joint graph."""
        nodes = self.traced.joint.module.graph.nodes
        effects = [node for node in nodes if node.op == "call_function" and op_table.is_kept_when_dead(node.target)]
        self.copy([*self.results.values(), *effects])

    def arguments(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that a node needs: for a tangent, the loss or the gradients that are its terms."""
        slot = None if node in self.env else self.slots.get(node)
        return (
            [value for value in self.terms(slot) if value is not None] if isinstance(slot, Tangent) else node.all_input_nodes
        )

    def terms(self, tangent: Tangent) -> list[fx.Node | None]:
        if tangent.of == UserOutput(-1 if self.loss is None else self.loss):
            return [self.results[tangent.of]]
        return [self.results[slot] for slot in of_kind(self.results, Gradient) if slot.of == tangent.of]

    def copy_node(self, node: fx.Node) -> None:
        if node.op != "placeholder":
            self.env[node] = copy_node(self.graph, node, self.value)

    def value(self, node: fx.Node) -> fx.Node:
        """The new node; a tangent is created at its first use."""
        if node not in self.env:
            slot = self.slots[node]
            assert isinstance(slot, Tangent), "the primals are placeholders from the start"
            self.env[node] = self.tangent(slot)
            self.env[node].meta.setdefault("val", node.meta["val"])
        return self.env[node]

    def tangent(self, slot: Tangent) -> fx.Node:
        """The node of a tangent: ones for the loss, a sum of gradients for an inner value."""
        values = [self.env[value] for value in self.terms(slot) if value is not None]
        assert values, f"the {slot} has terms, since only the loss has a backward"
        if slot.of == UserOutput(-1 if self.loss is None else self.loss):
            keywords = {"pin_memory": False, "memory_format": torch.preserve_format}
            return self.graph.call_function(torch.ops.aten.ones_like.default, (values[0],), keywords)
        return self.total(values)

    def total(self, values: Sequence[fx.Node]) -> fx.Node:
        total = values[0]
        for value in values[1:]:
            total = self.graph.call_function(torch.ops.aten.add.Tensor, (total, value))
        return total

    # -- outputs

    def updated_inputs(self) -> Iterator[tuple[int, fx.Node]]:
        """The inputs with changed data, and their new values."""
        for slot in of_kind(self.results, UpdatedInput):
            self.copy([self.results[slot]])
            yield slot.index, self.value(self.results[slot])

    def current(self, index: int) -> fx.Node:
        """The value of input `index` after the call."""
        updated = self.results.get(UpdatedInput(index))
        return self.value(self.inputs[Primal(index)] if updated is None else updated)

    def output(self, index: int) -> Any:
        """The node of an output, or its constant value."""
        match self.traced.meta.outputs[index]:
            case ConstantOutput(value):
                return self.constant(value)
            case IsOutput(first):
                return self.output(first)
            case IsInput(position):
                return self.current(position)
            case AliasOfInput(position, replay):
                return self.view(self.current(position), replay)
            case AliasOfOutput(other, replay) | AliasOfIntermediateBaseIsUserOutput(other, replay):
                return self.view(self.output(other), replay)
            case AliasOfIntermediate(base, replay):
                return self.view(self.result(IntermediateBase(base)), replay)
        return self.result(UserOutput(index))

    def result(self, slot: Any) -> fx.Node:
        self.copy([self.results[slot]])
        return self.value(self.results[slot])

    def constant(self, value: Any) -> Any:
        """A constant; a tensor that the function closed over becomes an attribute of the module."""
        if not isinstance(value, torch.Tensor):
            return value
        name = f"_constant_output_{len(self.graph.nodes)}"
        setattr(self.traced.joint.module, name, value)
        return self.graph.get_attr(name)

    def view(self, base: Any, replay: ViewReplay) -> fx.Node:
        for step in replay.steps:
            value = step.op(base.meta["val"], *step.args, **dict(step.kwargs))
            args, kwargs = pytree.tree_map_only(torch.SymInt, self.number, (step.args, dict(step.kwargs)))
            base = self.graph.call_function(step.op, (base, *args), kwargs)
            base.meta["val"] = value
            if step.item is not None:
                base = self.graph.call_function(operator.getitem, (base, step.item))
                base.meta["val"] = value[step.item]
        return base

    def number(self, value: torch.SymInt) -> Any:
        """The node of a symbolic size."""
        return torch_compat.write_expression(self.graph, value, self.symbol)

    def symbol(self, symbol: Any) -> fx.Node:
        """The node of a symbol: the node that reads it, or a size of an argument."""
        for node in self.traced.joint.module.graph.nodes:
            value = node.meta.get("val")
            if torch_compat.is_symbol(value, str(symbol)):
                self.copy([node])
                return self.value(node)
            sizes = value.size() if node in self.slots and isinstance(value, torch.Tensor) else ()
            for dim, size in enumerate(sizes):
                if torch_compat.is_symbol(size, str(symbol)):
                    return self.graph.call_function(torch.ops.aten.sym_size.int, (self.value(node), dim))
        raise AssertionError(f"no node reads {symbol}")

    def gradient(self, index: int) -> fx.Node | None:
        """The gradient of input `index`; `None` if it has none."""
        slots = [slot for slot in of_kind(self.results, Gradient) if slot.of == Primal(index)]
        terms = [self.results[slot] for slot in slots if self.results[slot] is not None]
        self.copy(terms)
        return self.total([self.env[term] for term in terms]) if terms else None

    def module(self) -> fx.GraphModule:
        return fx.GraphModule(self.traced.joint.module, self.graph)


def reject_shared_memory(traced: TracedJoint) -> None:
    """Reject synthetic bases and backwards that change tensors in place.

    Raises:
        ExportError
    """
    if traced.joint.memory:
        raise ExportError(
            "the backward changes a tensor in place (an autograd function, or a hook), which one graph of values cannot do; "
            "do that outside the exported function, or use export_joint"
        )
    if any(isinstance(spec, SyntheticBase) for spec in traced.capture.inputs):
        raise ExportError(
            "an argument that shares memory with another one is changed in place, which one graph of separate inputs cannot "
            "do; pass tensors with memory of their own"
        )


def reject_moved_inputs(traced: TracedJoint, names: Sequence[str]) -> None:
    """Reject functions that change the size, strides, memory or kind of an argument.

    Raises:
        ExportError: names the argument.
    """
    if traced.meta.new_leaves or traced.capture.new_leaves or traced.capture.ended:
        raise ExportError(
            "requires_grad_() or detach_() is called on an argument, or requires_grad_() on a new tensor that is returned, "
            "which a graph of values cannot do; do that outside the exported function, or use export_joint"
        )
    if traced.capture.assigned:
        raise ExportError(
            "an argument is given another memory, by `x.data = ...` or `x.set_(...)`, which a graph cannot do to the "
            "caller's tensor; use x.copy_(...)"
        )
    for name, info in zip(names, traced.meta.inputs, strict=True):
        if info is not None and info.mutation.metadata:
            raise ExportError(
                f"{name} is transposed or resized in place, which a graph cannot do to the caller's tensor; return it"
            )


def reject_differentiated_inputs(traced: TracedJoint, names: Sequence[str]) -> None:
    """Reject functions that write to an argument what has a gradient, which the joint graph would not have.

    Raises:
        ExportError: names the argument.
    """
    for name, info in zip(names, traced.meta.inputs, strict=True):
        if info is not None and info.carries_gradient:
            raise ExportError(
                f"{name} is changed in place and the new value requires grad; a graph returns gradients of the loss alone. "
                "Change it under torch.no_grad()"
            )
