"""`aot_export_module`: a module -> one functional graph, and the meaning of its inputs and outputs.

In: a module and arguments. Out: a graph that takes parameters, buffers and flat arguments and returns updated inputs,
outputs and, with a loss, gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch import nn

from aotgrad.backends import FunctionBackend, nop
from aotgrad.errors import ExportError
from aotgrad.export.graph import GraphWriter, reject_differentiated_inputs, reject_moved_inputs, reject_shared_memory
from aotgrad.export.pre_dispatch import FunctionOfInputs, check_before_autograd, trace_before_autograd
from aotgrad.export.trace import exported_plan
from aotgrad.graph.copies import copy_nodes
from aotgrad.guards.module_slots import slots_of
from aotgrad.ir import NonAlias
from aotgrad.options import Options
from aotgrad.pipeline import Compiler, TracedJoint
from aotgrad.plan_cache.binding import BoundModule
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.call import Call
from aotgrad.plan_cache.compiler import make_tracer
from aotgrad.plan_cache.entry import CachedPlan
from aotgrad.plan_cache.module_state import LiftedModule
from aotgrad.slots import UpdatedInput, of_kind


@dataclass(frozen=True)
class BackwardSignature:
    """The gradients among the outputs of a graph, as node names.

    Attributes:
        gradients_to_parameters: output -> parameter.
        gradients_to_user_inputs: output -> placeholder.
        loss_output: the output of the loss.
    """

    gradients_to_parameters: dict[str, str]
    gradients_to_user_inputs: dict[str, str]
    loss_output: str


@dataclass(frozen=True)
class GraphSignature:
    """The meaning of the placeholders and outputs of an exported graph. Nodes are given by `node.name`.

    Attributes:
        parameters, buffers: the names in the module, in the order of their placeholders, which come first.
        user_inputs: the placeholders of the flat arguments, which follow.
        user_outputs: the module's own outputs, which follow the updated inputs.
        inputs_to_parameters, inputs_to_buffers: placeholder -> name in the module.
        buffers_to_mutate, parameters_to_mutate: output -> name in the module, for the caller to copy back.
        user_inputs_to_mutate: output -> placeholder, for the caller to copy back.
        in_spec, out_spec: the structure of `((*parameters, *buffers, *args), kwargs)` and of the result.
        backward_signature: the gradients, if there is a loss.
        input_tokens, output_tokens: empty; the graph orders ops with effects.
    """

    parameters: list[str]
    buffers: list[str]
    user_inputs: list[str]
    user_outputs: list[str]
    inputs_to_parameters: dict[str, str]
    inputs_to_buffers: dict[str, str]
    buffers_to_mutate: dict[str, str]
    parameters_to_mutate: dict[str, str]
    user_inputs_to_mutate: dict[str, str]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    backward_signature: BackwardSignature | None
    input_tokens: tuple[str, ...] = ()
    output_tokens: tuple[str, ...] = ()


def aot_export_module(
    mod: nn.Module,
    args: Iterable[Any],
    *,
    decompositions: Mapping[Any, Callable] | None = None,
    trace_joint: bool,
    output_loss_index: int | None = None,
    pre_dispatch: bool = False,
    dynamic_shapes: bool | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> tuple[fx.GraphModule, GraphSignature]:
    """Export a module as one functional graph of ATen ops.

    Args:
        mod: the module.
        args, kwargs: the arguments of a call. A leaf that is not a tensor is a constant of the graph, with an unused
            placeholder.
        decompositions: op overload -> function, applied while tracing.
        trace_joint: also compute the gradients of the loss for every parameter and argument that requires grad.
        output_loss_index: the position of the loss, a scalar. The other outputs must not require grad.
        pre_dispatch: the graph has the ops that the module calls, before autograd and autocast: composite ops such as
            `linear` stay, and eager autograd differentiates the graph. Not with `trace_joint`.
        dynamic_shapes: `True`: the sizes of the arguments (not of parameters) are symbolic.

    Returns:
        The graph: `(*parameters, *buffers, *flat args) -> (*updated inputs, *outputs, *gradients)`, and its signature. A
        parameter with two names has two placeholders; the graph reads the first.

    Raises:
        ExportError: the module has an effect that such a graph cannot express.
        CaptureError: the module cannot be traced.

    Examples:
        >>> graph, signature = aot_export_module(nn.Linear(2, 1), (torch.ones(3, 2),), trace_joint=False)
        >>> signature.inputs_to_parameters, signature.user_inputs
        ({'arg0_1': 'weight', 'arg1_1': 'bias'}, ['arg2_1'])
    """
    if pre_dispatch and trace_joint:
        raise ExportError("pre_dispatch=True exports a graph before autograd, which has no gradients; set trace_joint=False")
    if trace_joint and output_loss_index is None:
        raise ExportError("trace_joint=True differentiates a loss: say with output_loss_index which output is the loss")
    args, kwargs, decompositions = tuple(args), dict(kwargs or {}), decompositions or {}
    loss = output_loss_index if trace_joint else None
    compiler = export_compiler({} if pre_dispatch else decompositions, bool(dynamic_shapes))
    with torch.set_grad_enabled((trace_joint or pre_dispatch) and torch.is_grad_enabled()):
        plan, traced = traced_module(mod, args, kwargs, compiler, loss)
        export = _ModuleExport(mod, args, kwargs, plan, traced, loss)
        return export.write_before_autograd(compiler, decompositions) if pre_dispatch else export.write()


def export_compiler(decompositions: Mapping[Any, Callable], dynamic: bool) -> Compiler:
    backend = FunctionBackend("export", nop, decomposition_table=decompositions)
    return make_tracer(backend, Options.from_mapping({"dynamic": dynamic}))


def traced_module(
    mod: nn.Module,
    args: tuple,
    kwargs: dict[str, Any],
    compiler: Compiler,
    loss: int | None,
) -> tuple[CachedPlan, TracedJoint]:
    """The joint graph of a module. A loss that is an alias is cloned, because only a result of the graph has a tangent."""
    cache = PlanCache(compiler, type(mod).__qualname__)
    bound = LossModule(cache, mod, LiftedModule(mod), loss)
    plan, traced = exported_plan(bound, args, kwargs)
    if loss is not None and not isinstance(traced.meta.outputs[loss], NonAlias):
        plan, traced = exported_plan(replace(bound, cache=replace(cache, entries={}), copies=True), args, kwargs)
    return plan, traced


@dataclass(frozen=True)
class LossModule(BoundModule):
    """A bound module that differentiates its loss only."""

    loss: int | None
    copies: bool = False

    def call_of(self, args: tuple, kwargs: dict[str, Any]) -> Call:
        call = super().call_of(args, kwargs)
        if self.loss is None:
            return call
        differentiated = LossFunction(call.function, self.loss, self.copies)
        return call._replace(function=differentiated)


@dataclass(frozen=True)
class LossFunction:
    """A function that checks its output `loss`, and clones it if `copies` is set."""

    function: Callable
    loss: int
    copies: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.function(*args, **kwargs)
        leaves, spec = pytree.tree_flatten(result)
        check_outputs(leaves, self.loss)
        if self.copies:
            leaves[self.loss] = leaves[self.loss].clone()
        return pytree.tree_unflatten(leaves, spec)


def check_outputs(outputs: list[Any], loss: int) -> None:
    """Reject outputs unless the loss, and no other, requires grad.

    Raises:
        ExportError
    """
    if not -len(outputs) <= loss < len(outputs) or not isinstance(outputs[loss], torch.Tensor):
        raise ExportError(f"output_loss_index is {loss}, but the module returns {len(outputs)} values; it must be a tensor")
    value = outputs[loss]
    if not value.requires_grad:
        raise ExportError(f"output {loss} is the loss, but it does not require grad")
    if value.numel() != 1:
        raise ExportError(f"output {loss} is the loss, but its size is {list(value.size())}; it must have one element")
    for position, other in enumerate(outputs):
        if other is not value and isinstance(other, torch.Tensor) and other.requires_grad:
            raise ExportError(
                f"output {position} requires grad and is not the loss, which is output {loss}; detach() it in the module"
            )


@dataclass(frozen=True)
class _ModuleExport:
    """Writes the graph and the signature of a traced module."""

    mod: nn.Module
    args: tuple
    kwargs: dict[str, Any]
    plan: CachedPlan
    traced: TracedJoint
    loss: int | None

    def write(self) -> tuple[fx.GraphModule, GraphSignature]:
        """The joint graph, or the forward alone if there is no loss."""
        count = self.traced.capture.returned
        loss = None if self.loss is None else self.loss % count
        writer = GraphWriter(self.traced, loss)
        placeholders, first, names = self.inputs(writer)
        reject_differentiated_inputs(self.traced, [names[node] for node in first.values()])
        writer.copy_all()
        updated = {node.name: first[index] for index, node in writer.updated_inputs()}
        mutated = [node for _, node in writer.updated_inputs()]
        outputs = [writer.output(k) for k in range(count)]
        gradients = [] if loss is None else list(self.gradients(writer, first))
        writer.graph.output((*mutated, *outputs, *(node for _, node in gradients)))
        backward = None if loss is None else self.backward_signature(gradients, names, outputs[loss].name)
        return writer.module(), self.signature(placeholders, names, updated, outputs, backward)

    def write_before_autograd(
        self, compiler: Compiler, decompositions: Mapping[Any, Callable]
    ) -> tuple[fx.GraphModule, GraphSignature]:
        """The graph of ops before autograd, which computes what the module does and has the same gradients."""
        writer = GraphWriter(self.traced)
        placeholders, first, names = self.inputs(writer)
        mutated = [slot.index for slot in of_kind(self.traced.joint.signature.outputs, UpdatedInput)]
        flat = FunctionOfInputs.of(self.mod, self.args, self.kwargs, self.input_positions(), mutated)
        module = trace_before_autograd(flat, self.traced, {})
        check_before_autograd(flat, module, self.first_leaves(), compiler)
        if decompositions:
            module = trace_before_autograd(flat, self.traced, decompositions)
        inputs = module.graph.find_nodes(op="placeholder")
        results = copy_nodes(writer.graph, module.graph, {node: first[k] for k, node in enumerate(inputs)})
        writer.graph.output(tuple(results))
        updated = {node.name: first[index] for index, node in zip(mutated, results, strict=False)}
        signature = self.signature(placeholders, names, updated, results[len(mutated) :], None)
        return fx.GraphModule(module, writer.graph), signature

    def inputs(self, writer: GraphWriter) -> tuple[list[fx.Node], dict[int, fx.Node], dict[fx.Node, str]]:
        """The placeholders, the first one of each input of the joint graph in the inputs' order, and their names.

        Raises:
            ExportError: the module does to an argument what a graph cannot do.
        """
        reject_shared_memory(self.traced)
        placeholders, index_of = self.placeholders(writer)
        names = self.names(placeholders)
        found: dict[int, fx.Node] = {}
        for node, index in index_of.items():
            found.setdefault(index, node)
        first = {index: found[index] for index in range(len(self.traced.capture.inputs))}
        reject_moved_inputs(self.traced, [names[node] for node in first.values()])
        return placeholders, first, names

    def input_positions(self) -> list[int]:
        """The input of the joint graph that each tensor of the call is."""
        order = self.traced.capture.convention.order
        return [order[position] for position in self.plan.guards.dedupe.positions]

    def first_leaves(self) -> list[torch.Tensor]:
        """The tensor of each input of the joint graph."""
        tensors = [leaf for leaf in self.leaves() if isinstance(leaf, torch.Tensor)]
        found = dict(zip(self.input_positions(), tensors, strict=True))
        return [found[index] for index in range(len(found))]

    def leaves(self) -> list[Any]:
        own = [slot.table[slot.key] for slot in slots_of(self.mod)]
        return [*own, *pytree.tree_leaves((self.args, self.kwargs))]

    def placeholders(self, writer: GraphWriter) -> tuple[list[fx.Node], dict[fx.Node, int]]:
        """A placeholder for each leaf, and the input of the joint graph that it is."""
        positions = iter(self.input_positions())
        placeholders: list[fx.Node] = []
        index_of: dict[fx.Node, int] = {}
        for k, leaf in enumerate(self.leaves()):
            index = next(positions) if isinstance(leaf, torch.Tensor) else None
            placeholders.append(writer.placeholder(f"arg{k}_1", index))
            if index is not None:
                index_of[placeholders[-1]] = index
        return placeholders, index_of

    def names(self, placeholders: list[fx.Node]) -> dict[fx.Node, str]:
        """The name of each placeholder: that of its parameter or buffer, else its own."""
        own = [slot.name for slot in slots_of(self.mod)]
        return dict(zip(placeholders, [*own, *(node.name for node in placeholders[len(own) :])], strict=True))

    def gradients(self, writer: GraphWriter, first: dict[int, fx.Node]) -> Iterable[tuple[fx.Node, fx.Node]]:
        """The placeholders with gradients, and the gradients."""
        order = {node: position for position, node in enumerate(writer.graph.nodes)}
        for index, placeholder in sorted(first.items(), key=lambda item: order[item[1]]):
            if (node := writer.gradient(index)) is not None:
                yield placeholder, node

    def backward_signature(
        self, gradients: list[tuple[fx.Node, fx.Node]], names: dict[fx.Node, str], loss: str
    ) -> BackwardSignature:
        own = {slot.name for slot in slots_of(self.mod)}
        named = [(node.name, names[placeholder]) for placeholder, node in gradients]
        of_parameters = {gradient: name for gradient, name in named if name in own}
        return BackwardSignature(of_parameters, {g: name for g, name in named if name not in own}, loss)

    def signature(
        self,
        placeholders: list[fx.Node],
        names: dict[fx.Node, str],
        updated: dict[str, fx.Node],
        outputs: list[Any],
        backward: BackwardSignature | None,
    ) -> GraphSignature:
        slots = slots_of(self.mod)
        parameters = [slot.name for slot in slots if isinstance(slot.table[slot.key], nn.Parameter)]
        buffers = [slot.name for slot in slots if slot.name not in parameters]
        own, given = placeholders[: len(slots)], placeholders[len(slots) :]
        everything = (*(slot.table[slot.key] for slot in slots), *self.args)

        def changed(among: list[str]) -> dict[str, str]:
            return {output: names[node] for output, node in updated.items() if names[node] in among}

        return GraphSignature(
            parameters=parameters,
            buffers=buffers,
            user_inputs=[node.name for node in given],
            user_outputs=[getattr(value, "name", value) for value in outputs],
            inputs_to_parameters={node.name: names[node] for node in own if names[node] in parameters},
            inputs_to_buffers={node.name: names[node] for node in own if names[node] in buffers},
            buffers_to_mutate=changed(buffers),
            parameters_to_mutate=changed(parameters),
            user_inputs_to_mutate=changed([node.name for node in given]),
            in_spec=pytree.tree_flatten((everything, self.kwargs))[1],
            out_spec=cast(pytree.TreeSpec, self.plan.output.spec),
            backward_signature=backward,
        )
