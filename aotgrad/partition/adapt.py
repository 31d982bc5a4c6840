"""Partition functions: ours and users', typed and in the drop-in convention.

In: a `JointGraph` and a partition function. Out: a `Partition`, checked.

    partition(joint, min_cut_rematerialization_partition)        typed, every saved value has a reason
    partition(joint, my_function)                                my_function(module, inputs, num_fwd_outputs=n) -> (fw, bw)

A partition function takes a joint `fx.GraphModule` whose tangent placeholders have `tangents` in their names and whose first
`num_fwd_outputs` outputs are the forward's. It returns two modules: the forward returns its results, saved tensors and saved
sizes; the backward takes the saved sizes, the saved tensors and the tangents, and returns the gradients.

Limits: that a user's two halves compute the joint graph is checked for the number, names and types of values, not for the ops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx

from aotgrad.errors import PartitionError, add_note
from aotgrad.ir import GraphHalf, JointGraph, Partition, SavedValue
from aotgrad.partition import costs, op_table
from aotgrad.partition.graphs import JointAnalysis, analyze, base_of_each
from aotgrad.partition.min_cut import min_cut
from aotgrad.partition.save_all import save_all
from aotgrad.partition.split import insert_copy, source_line, split
from aotgrad.slots import (
    Gradient,
    GraphSignature,
    Primal,
    Saved,
    SavedSymInt,
    Tangent,
    UserOutput,
    backward_signature,
    forward_signature,
    of_kind,
)

PartitionFn = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]
Chooser = Callable[[JointAnalysis], Mapping[fx.Node, str]]


def min_cut_rematerialization_partition(
    joint_module: fx.GraphModule,
    _joint_inputs: Any,
    compiler: str = "inductor",
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    **_ignored: Any,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split a joint module so that few bytes are saved: cheap ops run again in the backward.

    Args:
        joint_module: placeholders `primals_*` and `tangents_*`; outputs are forward results, then gradients.
        num_fwd_outputs: how many of the outputs are forward results.
        static_lifetime_input_indices: the inputs that cost nothing to save, because they outlive the step.

    Returns:
        The forward and the backward module.
    """
    joint = read_joint_module(joint_module, num_fwd_outputs, static_lifetime_input_indices or ())
    return _modules(_choose_and_split(joint, min_cut))


def default_partition(
    joint_module: fx.GraphModule,
    _joint_inputs: Any,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    **_ignored: Any,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split a joint module so that no op runs twice: every value that crosses is saved. Arguments as above."""
    joint = read_joint_module(joint_module, num_fwd_outputs, static_lifetime_input_indices or ())
    return _modules(_choose_and_split(joint, save_all))


CHOOSERS: dict[PartitionFn, Chooser] = {
    default_partition: save_all,
    min_cut_rematerialization_partition: min_cut,
}


def partition(joint: JointGraph, partition_fn: PartitionFn) -> Partition:
    """Split a joint graph with one of our partition functions or a user's.

    Raises:
        PartitionError: if the halves that a user's function returned do not fit the joint graph or each other.
    """
    if not joint.differentiable:
        return Partition(GraphHalf(joint.module, joint.signature), None, ())
    plain = partition_fn.func if isinstance(partition_fn, functools.partial) else partition_fn
    chooser = CHOOSERS.get(plain)
    if chooser is not None:
        return _choose_and_split(joint, chooser)
    return _call_users_function(joint, partition_fn)


def read_joint_module(module: fx.GraphModule, num_fwd_outputs: int, static_inputs: Sequence[int]) -> JointGraph:
    """The joint graph that a module in the drop-in convention is.

    Raises:
        PartitionError: if the module returns fewer values than `num_fwd_outputs`.
    """
    nodes = list(module.graph.nodes)
    inputs: list[Primal | Tangent] = []
    for node in (node for node in nodes if node.op == "placeholder"):
        kind = Tangent if "tangents" in str(node.target) else Primal
        index = len(of_kind(inputs, kind))
        inputs.append(Primal(index) if kind is Primal else Tangent(UserOutput(index)))
    count = len(nodes[-1].args[0])
    if count < num_fwd_outputs:
        raise PartitionError(f"num_fwd_outputs is {num_fwd_outputs} but the joint graph returns {count} values")
    results = [UserOutput(index) for index in range(num_fwd_outputs)]
    gradients = [Gradient(Primal(index)) for index in range(count - num_fwd_outputs)]
    signature = GraphSignature(tuple(inputs), (*results, *gradients))
    return JointGraph(module, signature, frozenset(static_inputs), frozenset())


def _choose_and_split(joint: JointGraph, chooser: Chooser) -> Partition:
    analysis = analyze(joint)
    return split(analysis, chooser(analysis))


def _modules(halves: Partition) -> tuple[fx.GraphModule, fx.GraphModule]:
    assert halves.backward is not None, "split returns both halves"
    return halves.forward.module, halves.backward.module


# --- A user's partition function -------------------------------------------------------------------------------------


def _call_users_function(joint: JointGraph, partition_fn: PartitionFn) -> Partition:
    name = getattr(partition_fn, "__name__", repr(partition_fn))
    halves = partition_fn(
        copy_module(joint.module),
        _example_inputs(joint),
        num_fwd_outputs=len(joint.signature.forward_results),
        static_lifetime_input_indices=sorted(joint.static_inputs),
    )
    try:
        forward, backward = _two_modules(halves)
        return read_halves(joint, forward, backward)
    except PartitionError as error:
        add_note(error, f"the halves were made by the partition function {name}")
        raise


def copy_module(module: fx.GraphModule) -> fx.GraphModule:
    """A module with its own graph and node metadata, sharing parameters and traced values with `module`."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, lambda arg: copies[arg])
    return fx.GraphModule(module, graph)


def read_halves(joint: JointGraph, forward: fx.GraphModule, backward: fx.GraphModule) -> Partition:
    """The `Partition` that two modules in the drop-in convention are.

    Raises:
        PartitionError: if they do not fit the joint graph or each other; the message names the value.
    """
    forward_out, backward_out = _returned(forward), _returned(backward)
    signature = joint.signature
    results = len(signature.forward_results)
    _check_count("forward", "inputs", _placeholders(forward), [str(slot) for slot in signature.primals])
    if len(forward_out) < results:
        raise PartitionError(f"the forward returns {len(forward_out)} values; the first {results} are its results")
    _check_results(joint, forward_out[:results])
    _check_count("backward", "gradients", backward_out, [str(slot) for slot in signature.gradients])

    saved = forward_out[results:]
    _check_saved(saved)
    _check_backward_inputs(joint, saved, _placeholders(backward))
    saved = _copy_overwritten(joint, forward, saved)
    slots = [_saved_slot(node) for node in saved]
    values = tuple(_describe(joint, node, slot) for node, slot in zip(saved, slots, strict=True))
    return Partition(
        GraphHalf(forward, forward_signature(signature, slots)),
        GraphHalf(backward, backward_signature(signature, slots)),
        values,
    )


def _two_modules(halves: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    if isinstance(halves, (tuple, list)) and len(halves) == 2 and all(isinstance(h, fx.GraphModule) for h in halves):
        return halves[0], halves[1]
    raise PartitionError(f"a partition function returns a forward and a backward GraphModule, not {type(halves)}")


def _example_inputs(joint: JointGraph) -> tuple[list[Any], list[Any]]:
    nodes = _placeholders(joint.module)
    pairs = list(zip(nodes, joint.signature.inputs, strict=True))
    primals = [node.meta.get("val") for node, slot in pairs if isinstance(slot, Primal)]
    return primals, [node.meta.get("val") for node, slot in pairs if isinstance(slot, Tangent)]


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _returned(module: fx.GraphModule) -> list[Any]:
    return list(next(iter(reversed(module.graph.nodes))).args[0])


def _check_count(half: str, what: str, values: Sequence[Any], expected: Sequence[str]) -> None:
    if len(values) != len(expected):
        raise PartitionError(
            f"the {half} has {len(values)} {what}, the joint graph {len(expected)}: {', '.join(expected)}"
        )


def _check_results(joint: JointGraph, values: Sequence[Any]) -> None:
    expected = _returned(joint.module)[: len(values)]
    for slot, value, original in zip(joint.signature.forward_results, values, expected, strict=True):
        problem = _difference(value, original)
        if problem:
            raise PartitionError(f"{slot} of the forward, {value}, {problem} in the joint graph ({original})")


def _check_saved(saved: Sequence[Any]) -> None:
    for value in saved:
        if not isinstance(value, fx.Node):
            raise PartitionError(f"the forward saves {value!r}, which is not a value of the graph")
    numbers = [op_table.is_symbolic_value(node) for node in saved]
    if numbers != sorted(numbers):
        late = saved[numbers.index(True)]
        raise PartitionError(f"the forward saves the size {late} before a tensor; saved sizes come last")


def _check_backward_inputs(joint: JointGraph, saved: list[fx.Node], inputs: list[fx.Node]) -> None:
    numbers = [node for node in saved if op_table.is_symbolic_value(node)]
    tensors = [node for node in saved if not op_table.is_symbolic_value(node)]
    tangents = _placeholders(joint.module)
    tangents = [n for n, slot in zip(tangents, joint.signature.inputs, strict=True) if isinstance(slot, Tangent)]
    expected = [*numbers, *tensors, *tangents]
    _check_count("backward", "inputs", inputs, [node.name for node in expected])
    names = {node.name for node in expected}
    for given, node in zip(inputs, expected, strict=True):
        if given.name != node.name and given.name in names:
            raise PartitionError(f"the backward takes {given.name} where the forward hands over {node.name}")
        problem = _difference(given, node)
        if problem:
            raise PartitionError(f"the backward's input {given.name} {problem} in the forward ({node.name})")


def _difference(value: Any, original: Any) -> str | None:
    """How two values differ in kind, dtype or shape, or `None`; values without a traced value are not compared."""
    if not isinstance(value, fx.Node) or not isinstance(original, fx.Node):
        return None if type(value) is type(original) else "is not what it is"
    ours, theirs = value.meta.get("val"), original.meta.get("val")
    if ours is None or theirs is None:
        return None
    if isinstance(ours, torch.Tensor) != isinstance(theirs, torch.Tensor):
        return "is a tensor on one side only: it is not what it is"
    if not isinstance(ours, torch.Tensor) or (_type(ours) == _type(theirs)):
        return None
    return f"is {_type(ours)}, but {_type(theirs)}"


def _type(value: torch.Tensor) -> str:
    return f"{value.dtype}[{', '.join(str(size) for size in value.shape)}]".removeprefix("torch.")


def _saved_slot(node: fx.Node) -> Saved | SavedSymInt:
    return SavedSymInt(node.name) if op_table.is_symbolic_value(node) else Saved(node.name)


def _describe(joint: JointGraph, node: fx.Node, slot: Saved | SavedSymInt) -> SavedValue:
    static = node.op == "placeholder" and _primal_index(node) in joint.static_inputs
    saved_bytes = 0 if static else costs.bytes_to_hold(node)
    return SavedValue(slot, saved_bytes, "chosen by the user's partition function", source_line(node))


def _primal_index(node: fx.Node) -> int:
    return [n for n in node.graph.nodes if n.op == "placeholder"].index(node)


def _copy_overwritten(joint: JointGraph, forward: fx.GraphModule, saved: list[fx.Node]) -> list[fx.Node]:
    """Save copies of what lies in the memory of a primal that the epilogue overwrites."""
    base = base_of_each(forward.graph.nodes)
    inputs = _placeholders(forward)
    overwritten = {node for index, node in enumerate(inputs) if index in joint.mutated_inputs}
    copies = {node: insert_copy(node) for node in saved if base[node] in overwritten}
    if copies:
        _replace_outputs(forward, len(saved), copies)
    return [copies.get(node, node) for node in saved]


def _replace_outputs(module: fx.GraphModule, count: int, copies: Mapping[fx.Node, fx.Node]) -> None:
    """Return copies in place of the last `count` outputs."""
    output = next(iter(reversed(module.graph.nodes)))
    values = list(output.args[0])
    kept, last = values[: len(values) - count], values[len(values) - count :]
    output.args = ((*kept, *(copies.get(value, value) for value in last)),)
    module.recompile()
