"""Partition functions: ours and users', typed and in the drop-in convention.

In: a `JointGraph` and a partition function. Out: a `Partition`, checked.

    partition(joint, min_cut_rematerialization_partition)    typed, every saved value has a reason
    partition(joint, my_function)                            calls my_function(module, inputs, num_fwd_outputs=n)

A partition function takes a joint `fx.GraphModule` whose tangent placeholders have `tangents` in their names and whose
first `num_fwd_outputs` outputs are the forward's. It returns two modules: the forward returns its results, saved
tensors and saved sizes; the backward takes the saved sizes, the saved tensors and the tangents, and returns the
gradients.

Limits: a user's two halves are checked against the joint graph by number, names and types of values, not by ops.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx as fx

from aotgrad.errors import PartitionError, add_note
from aotgrad.graph import op_table
from aotgrad.graph.copies import copy_graph_module
from aotgrad.graph.memory_owners import memory_owners
from aotgrad.ir import GraphHalf, JointGraph, Partition, SavedValue
from aotgrad.partition import costs
from aotgrad.partition.crossing import user_line
from aotgrad.partition.decision import Budget, Chooser, Objective
from aotgrad.partition.graphs import analyze_joint
from aotgrad.partition.inner_backwards import partition_inside
from aotgrad.partition.min_cut import min_cut, recompute_all
from aotgrad.partition.save_all import save_all
from aotgrad.partition.split import insert_copy, split
from aotgrad.slots import (
    Gradient,
    Primal,
    Saved,
    SavedSymInt,
    SlotSignature,
    Tangent,
    UserOutput,
    backward_signature,
    forward_signature,
    of_kind,
    split_by_kind,
)

PartitionFn = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


def min_cut_rematerialization_partition(
    joint_module: fx.GraphModule,
    _joint_inputs: Any,
    compiler: str = "inductor",
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    memory_budget: Budget = None,
    **_ignored: Any,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split a joint module so that few bytes are saved: the backward recomputes cheap ops.

    Args:
        joint_module: placeholders `primals_*` and `tangents_*`; outputs are forward results, then gradients.
        num_fwd_outputs: how many of the outputs are forward results.
        static_lifetime_input_indices: the inputs that cost nothing to save, because they outlive the step.
        memory_budget: the most bytes to save (int), or a fraction of the bytes saved without a budget (float).

    Returns:
        The forward and the backward module.
    """
    objective = Objective(memory_budget)
    return _split_module(joint_module, num_fwd_outputs, static_lifetime_input_indices, min_cut, objective)


def default_partition(
    joint_module: fx.GraphModule,
    _joint_inputs: Any,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    **_ignored: Any,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split a joint module so that no op runs twice: every value that crosses is saved. Arguments as above."""
    return _split_module(joint_module, num_fwd_outputs, static_lifetime_input_indices, save_all)


def recompute_all_partition(
    joint_module: fx.GraphModule,
    _joint_inputs: Any,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    **_ignored: Any,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split a joint module so that as few bytes are saved as possible, at any cost. Arguments as above."""
    return _split_module(joint_module, num_fwd_outputs, static_lifetime_input_indices, recompute_all)


CHOOSERS: tuple[tuple[PartitionFn, Chooser], ...] = (
    (default_partition, save_all),
    (min_cut_rematerialization_partition, min_cut),
    (recompute_all_partition, recompute_all),
)
"""Our partition functions and their choosers. A typed caller gets reasons, which two modules cannot carry."""


def partition(
    joint: JointGraph,
    partition_fn: PartitionFn,
    objective: Objective | None = None,
    finish: Callable[[Partition], Partition] = lambda halves: halves,
) -> Partition:
    """Split a joint graph with one of our partition functions or a user's.

    Args:
        joint, partition_fn, objective: what is split, by whom, and what for.
        finish: a pass over both halves, also over those of a backward inside.

    Raises:
        PartitionError: if the halves of a user's function do not fit the joint graph or each other, or if a memory budget
            is given for a function that does not support one.
    """
    objective = objective or Objective()
    plain, objective = _unwrapped(partition_fn, objective)
    for ours, chooser in CHOOSERS:
        if plain is ours:
            if not joint.differentiable:
                return partition_inside(joint, chooser, objective, finish)
            return finish(_choose_and_split(joint, chooser, objective))
    if not joint.differentiable:
        return Partition(GraphHalf(joint.module, joint.signature), None, ())
    if objective.memory_budget is not None or objective.host_bytes is not None:
        ignored = "offload" if objective.memory_budget is None else "memory_budget"
        raise PartitionError(
            f"{ignored} has no effect on the partition function {partition_fn!r}: use "
            f"{min_cut_rematerialization_partition.__name__}, or leave it out"
        )
    return _call_users_function(joint, partition_fn)


def is_typed(partition_fn: PartitionFn) -> bool:
    """Whether a partition function is one of ours: those give a reason for each saved value."""
    return any(_unwrapped(partition_fn, Objective())[0] is ours for ours, _ in CHOOSERS)


def _unwrapped(partition_fn: PartitionFn, objective: Objective) -> tuple[PartitionFn, Objective]:
    """The function inside a `functools.partial`, and the objective with the budget of the partial."""
    if not isinstance(partition_fn, functools.partial):
        return partition_fn, objective
    budget = partition_fn.keywords.get("memory_budget", objective.memory_budget)
    return partition_fn.func, replace(objective, memory_budget=budget)


def read_joint_module(module: fx.GraphModule, num_fwd_outputs: int, static_inputs: Sequence[int]) -> JointGraph:
    """A module in the drop-in convention as a joint graph.

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
    signature = SlotSignature(tuple(inputs), (*results, *gradients))
    return JointGraph(module, signature, frozenset(static_inputs), frozenset())


def _choose_and_split(joint: JointGraph, chooser: Chooser, objective: Objective) -> Partition:
    analysis = analyze_joint(joint)
    return split(analysis, chooser(analysis, objective), objective.collectives_first)


def _split_module(
    module: fx.GraphModule,
    num_fwd_outputs: int,
    static_inputs: Sequence[int] | None,
    chooser: Chooser,
    objective: Objective | None = None,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Run one of our choosers on a joint module in the drop-in convention."""
    joint = read_joint_module(module, num_fwd_outputs, static_inputs or ())
    halves = _choose_and_split(joint, chooser, objective or Objective())
    assert halves.backward is not None, "split returns both halves"
    return halves.forward.module, halves.backward.module


# --- A user's partition function -------------------------------------------------------------------------------------


def _call_users_function(joint: JointGraph, partition_fn: PartitionFn) -> Partition:
    given: dict[str, Any] = {"num_fwd_outputs": len(joint.signature.forward_results)}
    if _accepts(partition_fn, "static_lifetime_input_indices"):
        given["static_lifetime_input_indices"] = sorted(joint.static_inputs)
    halves = partition_fn(_tagged_copy(joint), _example_inputs(joint), **given)
    try:
        return read_halves(joint, *_two_modules(halves))
    except PartitionError as error:
        add_note(error, f"the halves were made by the partition function {partition_fn!r}")
        raise


def _accepts(fn: Callable, keyword: str) -> bool:
    parameters = inspect.signature(fn).parameters
    return keyword in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _tagged_copy(joint: JointGraph) -> fx.GraphModule:
    """A copy of the joint module whose `partitioner_tag`s mark what the forward traced; some functions expect them."""
    analysis = analyze_joint(joint)
    first = min((analysis.position[node] for node in analysis.backward), default=len(analysis.nodes))
    traced = {node.name for node in analysis.forward if analysis.position[node] < first}
    module = copy_graph_module(joint.module)
    for node in module.graph.nodes:
        if node.name in traced:
            node.meta.setdefault("partitioner_tag", "is_forward")
    return module


def read_halves(joint: JointGraph, forward: fx.GraphModule, backward: fx.GraphModule) -> Partition:
    """Two modules in the drop-in convention as a `Partition`.

    Raises:
        PartitionError: if they do not fit the joint graph or each other; the message names the value.
    """
    signature = joint.signature
    split_at = len(signature.forward_results)
    returned = _returned(forward)
    if len(returned) < split_at:
        raise PartitionError(f"the forward returns {len(returned)} values, but it has {split_at} results")
    results, saved = returned[:split_at], returned[split_at:]
    _check_saved(saved)

    primals, tangents = _inputs_by_kind(joint)
    expected = _returned(joint.module)
    _check_values("forward", "input", _placeholders(forward), primals, signature.primals)
    _check_values("forward", "result", results, expected[:split_at], signature.forward_results)
    handed_over = [*_numbers(saved), *_tensors(saved), *tangents]
    _check_values("backward", "input", _placeholders(backward), handed_over, handed_over)
    _check_values("backward", "result", _returned(backward), expected[split_at:], signature.gradients)
    _drop_dead_copies(forward, backward)
    _check_nothing_runs_twice(forward, backward)
    return _as_partition(joint, forward, backward, saved)


def _as_partition(joint: JointGraph, forward: fx.GraphModule, backward: fx.GraphModule, saved: list[fx.Node]) -> Partition:
    saved = _copy_overwritten(joint, forward, backward, saved)
    slots = [SavedSymInt(node.name) if op_table.is_symbolic_value(node) else Saved(node.name) for node in saved]
    return Partition(
        GraphHalf(forward, forward_signature(joint.signature, slots)),
        GraphHalf(backward, backward_signature(joint.signature, slots)),
        tuple(_saved_values(joint, forward, saved, slots)),
    )


def _two_modules(halves: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    if isinstance(halves, (tuple, list)) and len(halves) == 2 and all(isinstance(h, fx.GraphModule) for h in halves):
        return halves[0], halves[1]
    raise PartitionError(f"a partition function returns a forward and a backward GraphModule, not {type(halves)}")


def _example_inputs(joint: JointGraph) -> tuple[list[Any], list[Any]]:
    primals, tangents = _inputs_by_kind(joint)
    return [node.meta.get("val") for node in primals], [node.meta.get("val") for node in tangents]


def _inputs_by_kind(joint: JointGraph) -> tuple[list[fx.Node], list[fx.Node]]:
    return split_by_kind(_placeholders(joint.module), joint.signature.inputs, Primal)


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _returned(module: fx.GraphModule) -> list[Any]:
    return list(next(iter(reversed(module.graph.nodes))).args[0])


def _numbers(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    return [node for node in nodes if op_table.is_symbolic_value(node)]


def _tensors(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    return [node for node in nodes if not op_table.is_symbolic_value(node)]


def _check_saved(saved: Sequence[Any]) -> None:
    for value in saved:
        if not isinstance(value, fx.Node):
            raise PartitionError(f"the forward saves {value!r}, which is not a value of the graph")
    if len(set(saved)) < len(saved):
        twice = next(value for index, value in enumerate(saved) if value in saved[:index])
        raise PartitionError(f"the forward saves {twice} twice")
    if saved != [*_tensors(saved), *_numbers(saved)]:
        raise PartitionError(f"the forward saves the size {_numbers(saved)[0]} before a tensor; saved sizes come last")


def _check_values(half: str, what: str, given: Sequence[Any], expected: Sequence[Any], meanings: Sequence[object]) -> None:
    """Compare the inputs or results of a half with those of the joint graph or the other half."""
    if len(given) != len(expected):
        listed = ", ".join(str(meaning) for meaning in meanings) or "nothing"
        raise PartitionError(f"the {half} has {len(given)} {what}s where {len(expected)} are expected: {listed}")
    names = {str(value) for value in expected}
    for value, other, meaning in zip(given, expected, meanings, strict=True):
        if what == "input" and value.name != other.name and value.name in names:
            raise PartitionError(f"the {half} takes {value.name} where {other.name} is handed over")
        problem = _type_mismatch(value, other)
        if problem:
            raise PartitionError(f"the {half}'s {what} {value}, {meaning}, {problem}")


def _drop_dead_copies(forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Remove unused ops of the backward that the forward runs, too: a random op would advance the generator twice."""
    ran = {node.name for node in forward.graph.nodes}
    for node in reversed(backward.graph.nodes):
        if node.op == "call_function" and not node.users and node.name in ran and not op_table.has_effect(node.target):
            backward.graph.erase_node(node)
    backward.recompile()


def _check_nothing_runs_twice(forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    ran = {node.name for node in forward.graph.nodes}
    for node in backward.graph.nodes:
        if node.op == "call_function" and node.name in ran and op_table.runs_once(node.target):
            name = op_table.op_name(node.target)
            raise PartitionError(f"{node} ({name}) runs in both halves; save its result instead")


def _type_mismatch(value: Any, other: Any) -> str | None:
    """How two values differ in kind, dtype or shape, or `None`; values that were not traced are not compared."""
    ours, theirs = _type(value), _type(other)
    unknown = ours is None or theirs is None
    return None if unknown or ours == theirs else f"is {ours} where {theirs} is expected"


def _type(value: Any) -> str | None:
    if not isinstance(value, fx.Node):
        return repr(value)
    traced = value.meta.get("val")
    if not isinstance(traced, torch.Tensor):
        return "a number" if op_table.is_symbolic_value(value) else None
    return f"{str(traced.dtype).removeprefix('torch.')}[{', '.join(str(size) for size in traced.shape)}]"


def _saved_values(joint: JointGraph, forward: fx.GraphModule, saved: list[fx.Node], slots) -> Iterator[SavedValue]:
    """Count each storage once. Those of parameters and of the forward's results are alive anyway."""
    base = memory_owners(forward.graph.nodes)
    results = _returned(forward)[: len(joint.signature.forward_results)]
    counted = {base[value] for value in results if isinstance(value, fx.Node)}
    alive = joint.static_inputs | joint.held_inputs
    counted |= {node for index, node in enumerate(_placeholders(forward)) if index in alive}
    for node, slot in zip(saved, slots, strict=True):
        saved_bytes = 0 if base[node] in counted else costs.bytes_kept_alive(base[node])
        counted.add(base[node])
        yield SavedValue(slot, saved_bytes, "chosen by the user's partition function", user_line(node))


def _copy_overwritten(
    joint: JointGraph, forward: fx.GraphModule, backward: fx.GraphModule, saved: list[fx.Node]
) -> list[fx.Node]:
    """Replace saved values by copies where the epilogue overwrites their memory."""
    base = memory_owners(forward.graph.nodes)
    inputs = _placeholders(forward)
    overwritten = {node for index, node in enumerate(inputs) if index in joint.mutated_inputs}
    stale = [node for node in saved if base[node] in overwritten]
    if not stale:
        return saved
    _check_no_absolute_views(backward, {node.name for node in stale})
    copies = {node: insert_copy(node, f"{node.name}_copy") for node in stale}
    _replace_outputs(forward, len(saved), copies)
    return [copies.get(node, node) for node in saved]


def _check_no_absolute_views(backward: fx.GraphModule, copied: set[str]) -> None:
    """Raise for `as_strided` of a copied value: it reads the whole storage, and a copy has only the visible part."""
    base = memory_owners(backward.graph.nodes)
    for node in backward.graph.nodes:
        if op_table.is_absolute(node.target) and base[node].name in copied:
            name = base[node].name
            raise PartitionError(f"the forward overwrites {name}, which {node} views by as_strided; save {node} instead")


def _replace_outputs(module: fx.GraphModule, count: int, copies: Mapping[fx.Node, fx.Node]) -> None:
    """Replace the last `count` outputs by their copies."""
    output = next(iter(reversed(module.graph.nodes)))
    values = list(output.args[0])
    kept, last = values[: len(values) - count], values[len(values) - count :]
    output.args = ((*kept, *(copies.get(value, value) for value in last)),)
    module.recompile()
