"""One contract check a stage: raises `ContractError` and names the slot, node or step that breaks the contract.

In: a stage's name and its result. Out: nothing. Turned on by `AOTGRAD_VERIFY=1` or the option `verify`; the tests run
with it. A failed check is a bug in aotgrad, in a pass, or in a custom partition function, never the user's.

    check("joint", joint)      ContractError: joint: gradient of primal 0 is f32[3] (mul_1), the primal is f32[3, 1]

What a check looks at is in the stage's own result; only `executable`, the last one, sees all stages together.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.errors import ContractError
from aotgrad.ir import (
    AliasOfInput,
    AliasOfIntermediate,
    AliasOfIntermediateBaseIsUserOutput,
    Capture,
    Compiled,
    ConstantOutput,
    GraphHalf,
    InputAliasInfo,
    IsInput,
    JointGraph,
    NonAlias,
    OutputAliasInfo,
    Partition,
    TensorInput,
    ViewAndMutationMeta,
    ViewStep,
)
from aotgrad.printing import type_text
from aotgrad.runtime.steps import Attach, Forward, ReturnValue
from aotgrad.slots import (
    FORWARD_RESULTS,
    Gradient,
    GraphSignature,
    Primal,
    Saved,
    SavedSymInt,
    Tangent,
    of_kind,
)

if TYPE_CHECKING:
    from aotgrad.pipeline import Executable


def check(stage: str, result: Any) -> None:
    """Check the result of one stage; a stage without a contract passes.

    Raises:
        ContractError: names the stage and what is wrong.
    """
    for problem in CHECKS[stage](result) if stage in CHECKS else ():
        raise ContractError(f"{stage}: {problem}")


Problems = Iterator[str]
"""A check yields a sentence for each broken rule; the first one is raised."""


# --- capture ---------------------------------------------------------------------------------------------------------


def check_capture(capture: Capture) -> Problems:
    """Flat in, flat out, and one placeholder an input."""
    for name in ("primals", "arguments", "before", "placeholders"):
        yield from same_count(name, getattr(capture, name), "inputs", capture.inputs)
    for spec, node in zip(capture.inputs, capture.placeholders, strict=True):
        yield from check_input(spec, node)
    for index, value in enumerate(capture.outputs):
        if isinstance(value, (list, tuple, dict)):
            yield f"output {index} is a {type(value).__name__}; outputs are flat"
        if isinstance(value, torch_compat.FakeTensor):
            yield f"output {index} is a fake tensor that escaped functionalization: {type_text(value)}"
    yield from lint(capture.trace.graph)


def check_input(spec: Any, node: fx.Node) -> Problems:
    if spec.name != node.name:
        yield f"input {spec.name} has the placeholder {node.name}"
    if not isinstance(spec, TensorInput):
        return
    if not isinstance(spec.fake, torch_compat.FakeTensor):
        yield f"input {spec.name} is traced with a {type(spec.fake).__name__}, not with a fake tensor"
    if spec.fake.requires_grad:
        yield f"the fake tensor of {spec.name} requires grad; only the functional wrapper may"


# --- analysis --------------------------------------------------------------------------------------------------------


def check_meta(meta: ViewAndMutationMeta) -> Problems:
    """Every index is in range; every view names its base and ops that replay it."""
    for index, info in enumerate(meta.inputs):
        if info is not None:
            yield from (f"input {index} {problem}" for problem in check_input_alias(info))
    for index, info in enumerate(meta.outputs):
        yield from (f"output {index} {problem}" for problem in check_output_alias(meta, info))
    used = {info.base for info in meta.outputs if isinstance(info, AliasOfIntermediate)}
    for index in set(range(len(meta.bases))) - used:
        yield f"intermediate base {index} ({meta.bases[index].node.name}) is the base of no output"


def check_input_alias(info: InputAliasInfo) -> Problems:
    if info.mutation.metadata != (info.geometry is not None):
        yield f"is {info.mutation.value} and its new geometry is {info.geometry}"
    if info.version_bumps < 0:
        yield f"raises its version by {info.version_bumps}"


def check_output_alias(meta: ViewAndMutationMeta, info: OutputAliasInfo) -> Problems:
    match info:
        case IsInput(index) | AliasOfInput(index):
            if not 0 <= index < len(meta.inputs) or meta.inputs[index] is None:
                yield f"is an alias of input {index}, which is no tensor input"
        case AliasOfIntermediate(base):
            if not 0 <= base < len(meta.bases):
                yield f"is a view of base {base}; there are {len(meta.bases)} bases"
        case AliasOfIntermediateBaseIsUserOutput(output):
            if not 0 <= output < len(meta.outputs) or not isinstance(meta.outputs[output], NonAlias):
                yield f"is a view of output {output}, which is not returned by the graph"
        case ConstantOutput(value):
            if isinstance(value, torch.Tensor):
                yield f"is a constant tensor: {type_text(value)}"
    for step in replay_steps(info):
        yield from check_view_step(step)


def replay_steps(info: OutputAliasInfo) -> tuple[ViewStep, ...]:
    return info.replay.steps if hasattr(info, "replay") else ()


def check_view_step(step: ViewStep) -> Problems:
    if is_mutable(step.op):
        yield f"is replayed with {step.op}, which writes"
    if holds_tensor((step.args, dict(step.kwargs))):
        yield f"is replayed with {step.op} on a traced tensor"


# --- joint -----------------------------------------------------------------------------------------------------------


def check_joint(joint: JointGraph) -> Problems:
    """Functional ops only; a slot for every placeholder and output; a gradient has the type of its primal."""
    signature = joint.signature
    yield from check_graph(joint.module, signature)
    yield from check_names(joint.module, signature)
    expected = (*map(Primal, range(len(signature.primals))), *signature.tangents)
    if signature.inputs != expected:
        yield f"the inputs are {slot_list(signature.inputs)}; they must be {slot_list(expected)}"
    yield from check_results(signature)
    yield from check_functional(joint)
    types = dict(zip(signature.inputs, placeholder_values(joint.module), strict=True))
    for gradient, node in zip(signature.outputs, results_of(joint.module), strict=True):
        if isinstance(gradient, Gradient):
            yield from check_gradient(gradient, node, types[gradient.of])


def check_names(module: fx.GraphModule, signature: GraphSignature) -> Problems:
    """Backends see `primals_1, ..., tangents_1, ...`."""
    primals, tangents = len(signature.primals), len(signature.tangents)
    expected = [f"primals_{k + 1}" for k in range(primals)] + [f"tangents_{k + 1}" for k in range(tangents)]
    for node, slot, name in zip(placeholders_of(module), signature.inputs, expected, strict=True):
        if node.name != name:
            yield f"the placeholder of {slot} is called {node.name}, not {name}"


def check_results(signature: GraphSignature) -> Problems:
    """Results, then one gradient a primal if there is a backward; a tangent belongs to a result."""
    gradients = tuple(Gradient(primal) for primal in signature.primals) if signature.tangents else ()
    expected = (*signature.forward_results, *gradients)
    if signature.outputs != expected:
        yield f"the outputs are {slot_list(signature.outputs)}; they must be {slot_list(expected)}"
    yield from without_repeats("result", signature.forward_results)
    yield from without_repeats("tangent", signature.tangents)
    for tangent in signature.tangents:
        if tangent.of not in signature.forward_results:
            yield f"{tangent}: the graph returns no {tangent.of}"


def check_functional(joint: JointGraph) -> Problems:
    """Nothing is written, except that a graph without a backward may end in copies into its mutated inputs."""
    trailing = () if joint.differentiable else trailing_copies(joint.module.graph)
    for node in joint.module.graph.nodes:
        if is_mutable(node.target) and node not in trailing:
            yield f"node {node.name} ({node.target}) writes to its arguments"


def trailing_copies(graph: fx.Graph) -> list[fx.Node]:
    """The `copy_` nodes into placeholders right before the output."""
    copies: list[fx.Node] = []
    for node in list(reversed(graph.nodes))[1:]:
        if node.target is not torch.ops.aten.copy_.default or node.args[0].op != "placeholder" or node.users:
            break
        copies.append(node)
    return copies


def check_gradient(gradient: Gradient, node: Any, primal: Any) -> Problems:
    """Equal dtype and device; the sizes are compared when it is known which inputs change theirs (`check_sizes`)."""
    value = value_of(node)
    if value is None:
        return
    if not isinstance(primal, torch.Tensor):
        yield f"{gradient} is {type_text(value)} ({node.name}), the primal is no tensor"
    elif (value.dtype, value.device) != (primal.dtype, primal.device):
        yield f"{gradient} is {type_text(value)} ({node.name}), the primal is {type_text(primal)}"


# --- partition -------------------------------------------------------------------------------------------------------


def check_partition(partition: Partition) -> Problems:
    """Each half fits its signature, and what one saves the other takes, with the same type."""
    yield from check_half("forward", partition.forward, inputs=Primal, outputs=(*FORWARD_RESULTS, Saved, SavedSymInt))
    given = partition.forward.signature.saved
    yield from without_repeats("saved value", given)
    yield from same_slots("what the forward saves", given, "the list of saved values", [v.slot for v in partition.saved])
    for value in partition.saved:
        if value.saved_bytes < 0 or not value.reason:
            yield f"{value.slot} has {value.saved_bytes} bytes and the reason {value.reason!r}"
    if partition.backward is None:
        yield from (f"{slot}, but there is no backward" for slot in given)
        return
    yield from check_half("backward", partition.backward, inputs=(Saved, SavedSymInt, Tangent), outputs=Gradient)
    yield from same_slots("what the forward saves", given, "what the backward takes", partition.backward.signature.saved)
    yield from check_saved_types(partition.forward, partition.backward)


def check_half(name: str, half: GraphHalf, inputs: Any, outputs: Any) -> Problems:
    yield from (f"{name}: {problem}" for problem in check_graph(half.module, half.signature))
    for slot in half.signature.inputs:
        if not isinstance(slot, inputs):
            yield f"{name}: {slot} cannot be an input"
    for slot in half.signature.outputs:
        if not isinstance(slot, outputs):
            yield f"{name}: {slot} cannot be an output"


def check_saved_types(forward: GraphHalf, backward: GraphHalf) -> Problems:
    given = dict(zip(forward.signature.outputs, map(value_of, results_of(forward.module)), strict=True))
    taken = dict(zip(backward.signature.inputs, placeholder_values(backward.module), strict=True))
    for slot in backward.signature.saved:
        if type_text(given[slot]) != type_text(taken[slot]):
            yield f"{slot} is {type_text(given[slot])} in the forward and {type_text(taken[slot])} in the backward"


# --- compiled --------------------------------------------------------------------------------------------------------


def check_compiled(compiled: Compiled) -> Problems:
    """The forward can be called; so can what compiles backward graphs, if there is one."""
    if not callable(compiled.forward):
        yield f"the forward of backend {compiled.backend!r} is a {type(compiled.forward).__name__}, not callable"
    if compiled.compile_backward is not None and not callable(compiled.compile_backward):
        kind = type(compiled.compile_backward).__name__
        yield f"the backward compiler of backend {compiled.backend!r} is a {kind}, not callable"


# --- executable ------------------------------------------------------------------------------------------------------


def check_executable(executable: Executable) -> Problems:
    """The stages fit each other, every user output is made once, and no name is used before it is bound."""
    yield from check_halves_against_joint(executable.joint, executable.partition)
    yield from check_sizes(executable.joint, executable.meta)
    yield from check_arity(executable.partition, executable.compiled)
    yield from check_steps(executable)
    yield from check_source(executable.source, executable.call.__globals__)
    for name, value in executable.call.__globals__.items():
        if isinstance(value, (torch_compat.FakeTensor, torch_compat.FunctionalTensor)):
            yield f"a traced tensor escaped into the plan as {name}: {type_text(value)}"


def check_halves_against_joint(joint: JointGraph, partition: Partition) -> Problems:
    forward = partition.forward.signature
    yield from same_slots("the forward's inputs", forward.inputs, "the joint graph's primals", joint.signature.primals)
    results = joint.signature.forward_results
    yield from same_slots("the forward's results", forward.forward_results, "the joint graph's", results)
    if (partition.backward is not None) != joint.differentiable:
        yield f"the joint graph has {len(joint.signature.tangents)} tangents, the backward is {partition.backward}"
    if partition.backward is not None:
        backward = partition.backward.signature
        yield from same_slots("the backward's tangents", backward.tangents, "the joint's", joint.signature.tangents)
        yield from same_slots("the backward's outputs", backward.outputs, "the gradients", joint.signature.gradients)


def check_sizes(joint: JointGraph, meta: ViewAndMutationMeta) -> Problems:
    """A gradient has the size of its primal, or the one that the call left it with."""
    primals = dict(zip(joint.signature.inputs, placeholder_values(joint.module), strict=True))
    for gradient, node in zip(joint.signature.outputs, results_of(joint.module), strict=True):
        value = value_of(node)
        if not isinstance(gradient, Gradient) or value is None:
            continue
        info = meta.inputs[gradient.of.index]
        allowed = [primals[gradient.of].size(), *([info.geometry.size] if info.geometry is not None else [])]
        if not any(same_size(value.size(), size) for size in allowed):
            yield f"{gradient} is {type_text(value)} ({node.name}), the primal is {type_text(primals[gradient.of])}"


def check_arity(partition: Partition, compiled: Compiled) -> Problems:
    """The compiled forward returns what its graph returns, and there is a compiler for the backward if there is one."""
    if (compiled.compile_backward is None) != (partition.backward is None):
        yield "one of the backward graph and its compiler is missing"
    returned, expected = getattr(compiled.forward, "expected", None), len(partition.forward.signature.outputs)
    if returned not in (None, expected):
        yield f"the compiled forward returns {returned} values, its graph {expected}"


def check_steps(executable: Executable) -> Problems:
    steps, meta, partition = executable.plan.steps, executable.meta, executable.partition
    returned = of_kind(steps, ReturnValue)
    if len(returned) != len(meta.outputs):
        yield f"the function has {len(meta.outputs)} outputs, the plan returns {len(returned)}"
    if len(of_kind(steps, Forward)) != 1 or not isinstance(steps[0], Forward):
        yield "a plan starts with the forward and runs it once"
    if partition.backward is None and of_kind(steps, Attach):
        yield "a plan without a backward attaches autograd nodes"
    if partition.backward is not None and not of_kind(steps, Attach):
        yield "the plan attaches the backward to nothing"


def check_source(source: str, namespace: dict[str, Any]) -> Problems:
    """Every name is a global of the plan, or bound above the line that uses it and not deleted in between."""
    (function,) = ast.parse(source).body
    bound = {argument.arg for argument in function.args.args}
    local = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and is_binding(node)}
    for statement in simple_statements(function.body):
        for name in names_in(statement, ast.Load):
            if name not in bound and (name in local or not is_global(name, namespace)):
                yield f"line {statement.lineno} of the plan uses {name}, which is not bound there"
        bound = (bound | names_in(statement, ast.Store)) - names_in(statement, ast.Del)


def simple_statements(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """The statements in order of execution; of a `with`, what it enters and then its body."""
    for statement in body:
        if isinstance(statement, ast.With):
            yield from (item.context_expr for item in statement.items)
            yield from simple_statements(statement.body)
        else:
            yield statement


def names_in(tree: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def is_binding(name: ast.Name) -> bool:
    return isinstance(name.ctx, (ast.Store, ast.Del))


def is_global(name: str, namespace: dict[str, Any]) -> bool:
    return name in namespace or hasattr(builtins, name)


# --- what several checks share ---------------------------------------------------------------------------------------


def check_graph(module: fx.GraphModule, signature: GraphSignature) -> Problems:
    """A well-formed graph, with one slot for each placeholder and output, each used once."""
    yield from lint(module.graph)
    yield from same_count("placeholders", placeholders_of(module), "input slots", signature.inputs)
    yield from same_count("outputs", results_of(module), "output slots", signature.outputs)
    yield from without_repeats("input", signature.inputs)
    for node in placeholders_of(module):
        if "val" not in node.meta:
            yield f"placeholder {node.name} has no traced value"


def lint(graph: fx.Graph) -> Problems:
    try:
        graph.lint()
    except Exception as error:
        yield f"the graph is not well formed: {error}"


def same_count(name: str, found: Sequence[Any], of: str, expected: Sequence[Any]) -> Problems:
    if len(found) != len(expected):
        yield f"{len(found)} {name} for {len(expected)} {of}"


def same_slots(name: str, found: Iterable[Any], of: str, expected: Iterable[Any]) -> Problems:
    """Equal slots; in any order, since the order is the signature's."""
    found, expected = list(found), list(expected)
    missing = [slot for slot in expected if slot not in found]
    surplus = [slot for slot in found if slot not in expected]
    if missing or surplus:
        yield f"{name} and {of} differ: missing {slot_list(missing)}, surplus {slot_list(surplus)}"


def without_repeats(name: str, slots: Sequence[Any]) -> Problems:
    for slot in dict.fromkeys(slots):
        if slots.count(slot) > 1:
            yield f"{name} {slot} appears {slots.count(slot)} times"


def slot_list(slots: Iterable[Any]) -> str:
    return ", ".join(map(str, slots)) or "none"


def placeholders_of(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="placeholder"))


def placeholder_values(module: fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in placeholders_of(module)]


def results_of(module: fx.GraphModule) -> Sequence[Any]:
    (output,) = module.graph.find_nodes(op="output")
    return output.args[0]


def value_of(result: Any) -> Any:
    return result.meta.get("val") if isinstance(result, fx.Node) else result


def is_mutable(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def holds_tensor(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in torch.utils._pytree.tree_leaves(value))


def same_size(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Equal sizes; symbolic ones are not compared, since that could add a guard."""
    if len(one) != len(other):
        return False
    pairs = zip(one, other, strict=True)
    return all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))


CHECKS: dict[str, Callable[[Any], Problems]] = {
    "capture": check_capture,
    "analysis": check_meta,
    "joint": check_joint,
    "partition": check_partition,
    "compiled": check_compiled,
    "executable": check_executable,
}
