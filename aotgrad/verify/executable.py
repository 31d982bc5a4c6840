"""The contract of an executable: its stages fit each other, and its function makes every output and binds every name."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from aotgrad import torch_compat
from aotgrad.ir import BackwardSegment, Compiled, GraphHalf, JointGraph, Partition, ViewAndMutationMeta
from aotgrad.printing import type_text
from aotgrad.runtime.steps import Attach, Forward, MakeBase, ReturnValue
from aotgrad.slots import Gradient, Primal, UpdatedInput, of_kind
from aotgrad.verify.common import Problems, recorded_value, same_slots, slot_list

if TYPE_CHECKING:
    from aotgrad.pipeline import Executable


def check_compiled(compiled: Compiled) -> Problems:
    """Check that the forward and the compiler of backward graphs, if any, can be called."""
    if not callable(compiled.forward):
        yield f"the forward of backend {compiled.backend!r} is a {type(compiled.forward).__name__}, not callable"
    if compiled.compile_backward is not None and not callable(compiled.compile_backward):
        kind = type(compiled.compile_backward).__name__
        yield f"the backward compiler of backend {compiled.backend!r} is a {kind}, not callable"


def check_executable(executable: Executable) -> Problems:
    """Check that the stages fit each other, each user output is made once, and no name is used before it is bound."""
    yield from check_halves_against_joint(executable.joint, executable.partition)
    yield from check_sizes(executable.joint, executable.meta)
    yield from check_arity(executable.partition, executable.compiled)
    yield from check_schedule_segments(executable.joint.segments, executable.schedule.segments)
    yield from check_steps(executable)
    yield from check_source(executable.source, executable.call.__globals__)
    for name, value in executable.call.__globals__.items():
        if isinstance(value, (torch_compat.FakeTensor, torch_compat.FunctionalTensor)):
            yield f"a traced tensor escaped into the function as {name}: {type_text(value)}"


def is_written_inside(slot: Any, joint: JointGraph, partition: Partition) -> bool:
    """Whether the forward writes a mutated input itself in place of returning its new data."""
    may_write = isinstance(slot, UpdatedInput) and slot.index in joint.writable_inputs
    return may_write and slot not in partition.forward.signature.forward_results


def check_halves_against_joint(joint: JointGraph, partition: Partition) -> Problems:
    forward = partition.forward.signature
    yield from same_slots("the forward's primals", forward.primals, "the joint graph's primals", joint.signature.primals)
    results = [slot for slot in joint.signature.forward_results if not is_written_inside(slot, joint, partition)]
    yield from same_slots("the forward's results", forward.forward_results, "the joint graph's", results)
    if (partition.backward is not None) != joint.differentiable:
        yield f"the joint graph has {len(joint.signature.tangents)} tangents, the backward is {partition.backward}"
    if partition.backward is not None:
        backward = partition.backward.signature
        yield from same_slots("the backward's tangents", backward.tangents, "the joint's", joint.signature.tangents)
        yield from same_slots("the backward's outputs", backward.outputs, "the gradients", joint.signature.gradients)


def check_schedule_segments(segments: Sequence[BackwardSegment], halves: Sequence[GraphHalf]) -> Problems:
    """Check that each segment has a graph, which takes its tangents and computes its gradients."""
    if len(segments) != len(halves):
        yield f"the backward has {len(segments)} segments and {len(halves)} graphs"
        return
    for number, (segment, half) in enumerate(zip(segments, halves, strict=True)):
        name = f"segment {number}"
        yield from same_slots(f"the tangents of the graph of {name}", half.signature.incoming, "its own", segment.tangents)
        for gradient in segment.gradients:
            if gradient not in half.signature.outputs:
                yield f"the graph of {name} does not compute the {gradient}"


def check_sizes(joint: JointGraph, meta: ViewAndMutationMeta) -> Problems:
    """Check that each gradient has the size of its primal before or after the call."""
    primals = {slot: node.meta["val"] for slot, node in joint.placeholders.items()}
    for gradient, node in joint.results.items():
        value = recorded_value(node)
        if not isinstance(gradient, Gradient) or not isinstance(gradient.of, Primal) or value is None:
            continue
        info = meta.inputs[gradient.of.index]
        moved = None if info is None else info.geometry
        allowed = [primals[gradient.of].size(), *([] if moved is None else [moved.size])]
        if not any(same_size(value.size(), size) for size in allowed):
            yield f"{gradient} is {type_text(value)} ({node.name}), the primal is {type_text(primals[gradient.of])}"


def same_size(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two sizes are equal; symbolic sizes are not compared, since that could add a guard."""
    if len(one) != len(other):
        return False
    pairs = zip(one, other, strict=True)
    return all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))


def check_arity(partition: Partition, compiled: Compiled) -> Problems:
    """Check that the compiled forward returns as many values as its graph, and that a backward has a compiler."""
    if (compiled.compile_backward is None) != (partition.backward is None):
        yield "one of the backward graph and its compiler is missing"
    returned, expected = getattr(compiled.forward, "expected", None), len(partition.forward.signature.outputs)
    if returned not in (None, expected):
        yield f"the compiled forward returns {returned} values, its graph {expected}"


def check_steps(executable: Executable) -> Problems:
    steps, partition = executable.schedule.steps, executable.partition
    returned, expected = of_kind(steps, ReturnValue), executable.capture.returned
    if len(returned) != expected:
        yield f"the function has {expected} outputs, the schedule returns {len(returned)}"
    forwards, bases = len(of_kind(steps, Forward)), len(of_kind(steps, MakeBase))
    if forwards > 1 or (forwards == 1 and not isinstance(steps[bases], Forward)):
        yield "a schedule makes the synthetic bases, then runs the forward, once"
    if forwards == 0 and partition.forward.signature.outputs:
        yield f"the schedule does not run the forward, which returns {slot_list(partition.forward.signature.outputs)}"
    if partition.backward is None and of_kind(steps, Attach):
        yield "a schedule without a backward attaches autograd nodes"
    if partition.backward is not None and not of_kind(steps, Attach):
        yield "the schedule attaches the backward to nothing"
    elif partition.backward is not None and len(of_kind(steps, Attach)) != len(executable.joint.segments):
        yield f"the backward has {len(executable.joint.segments)} segments, the schedule {len(of_kind(steps, Attach))} nodes"


def check_source(source: str, namespace: dict[str, Any]) -> Problems:
    """Check that each name is a global of the function, or bound before its use and not deleted in between."""
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    bound = {argument.arg for argument in function.args.args}
    local = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and is_binding(node)}
    for statement in simple_statements(function.body):
        for name in names_by_context(statement, ast.Load):
            if name not in bound and (name in local or not is_global(name, namespace)):
                yield f"line {statement.lineno} of the source uses {name}, which is not bound there"
        bound = (bound | names_by_context(statement, ast.Store)) - names_by_context(statement, ast.Del)


def simple_statements(body: Iterable[ast.stmt]) -> Iterator[Any]:
    """The statements in order of execution; for a `with`, its context expressions and then its body."""
    for statement in body:
        if isinstance(statement, ast.With):
            yield from (item.context_expr for item in statement.items)
            yield from simple_statements(statement.body)
        else:
            yield statement


def names_by_context(tree: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def is_binding(name: ast.Name) -> bool:
    return isinstance(name.ctx, (ast.Store, ast.Del))


def is_global(name: str, namespace: dict[str, Any]) -> bool:
    return name in namespace or hasattr(builtins, name)
