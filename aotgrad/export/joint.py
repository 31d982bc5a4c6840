"""Joint graphs to edit: `export_joint` gives each input and output a meaning, `compile_joint` compiles the edited graph.

In: a function and arguments. Out: an `ExportedJoint`, whose `module` may be changed, and from that a function.

    joint = aotgrad.export_joint(f, (x, w))
    print(joint)                                  the graph, with the meaning of every input and output
    for node in joint.module.graph.nodes: ...
    g = aotgrad.compile_joint(joint, compiler)    called as f is
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.fx as fx
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.backends import FunctionBackend, nop
from aotgrad.backends.base import GraphCompiler
from aotgrad.errors import CaptureError, ExportError
from aotgrad.export.graph import GraphWriter, reject_differentiated_inputs, reject_moved_inputs, reject_shared_memory
from aotgrad.export.trace import exported_plan
from aotgrad.graph.copies import copy_graph
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.ir import GraphHalf, IsInput, IsOutput, JointGraph
from aotgrad.options import Options
from aotgrad.partition import min_cut_rematerialization_partition
from aotgrad.passes.checked import CheckedPass
from aotgrad.pipeline import TracedJoint, assemble, lower
from aotgrad.plan_cache.binding import BoundFunction, PlainFunction, bind
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.call import Call
from aotgrad.plan_cache.compiler import make_compiler, make_tracer
from aotgrad.plan_cache.entry import CachedPlan
from aotgrad.plan_cache.lock import COMPILING
from aotgrad.printing import graph_text
from aotgrad.runtime.recomputation import Gradients
from aotgrad.slots import Primal, SlotSignature, Tangent, UserOutput, of_kind
from aotgrad.telemetry.graph_names import qualified_name
from aotgrad.transforms.vmap import CompiledBatches


@dataclass(frozen=True)
class ExportedJoint:
    """The joint graph of a function: forward and backward in one. Print it.

    Attributes:
        module: the graph, which may be changed in place. It must keep its placeholders and the types of its outputs.
        signature: the meaning of placeholder k (`signature.inputs[k]`) and output k: primals and tangents in; updated
            inputs, outputs, intermediate bases and gradients out (`aotgrad.slots`).
        names: the user's name for each primal.
    """

    module: fx.GraphModule
    signature: SlotSignature
    names: tuple[str, ...]
    bound: BoundFunction
    plan: CachedPlan
    traced: TracedJoint

    def with_module(self, module: fx.GraphModule) -> ExportedJoint:
        """The same function with another graph."""
        return replace(self, module=module)

    def __str__(self) -> str:
        return graph_text("joint", self.module, self.signature, {Primal(k): name for k, name in enumerate(self.names)})


def export_joint(
    fn: Callable[..., Any],
    args: Iterable[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    decompositions: Mapping[Any, Callable] | None = None,
    options: Mapping[str, Any] | None = None,
) -> ExportedJoint:
    """The joint graph of a function or module, to inspect or change.

    Args:
        fn: as for `aot_function`.
        args, kwargs: the arguments of a call; nothing runs.
        decompositions: op overload -> function, applied while tracing.
        options: see `aotgrad.Options`.

    Raises:
        CaptureError: the function cannot be traced.

    Examples:
        >>> x = torch.ones(2, requires_grad=True)
        >>> joint = export_joint(lambda x: x.sin(), (x,))
        >>> [str(slot) for slot in joint.signature.outputs]
        ['output 0', 'gradient of primal 0']
    """
    backend = FunctionBackend("export", nop, decomposition_table=decompositions or {})
    compiler = make_tracer(backend, export_options(options))
    bound = bind(fn, PlanCache(compiler, qualified_name(fn)))
    args, kwargs = tuple(args), dict(kwargs or {})
    plan, traced = exported_plan(bound, args, kwargs)
    joint = traced.joint
    if bound.cache.draws_from_generators(bound.call_of(args, kwargs).arguments):
        raise ExportError(
            "the function draws from a torch.Generator of its own, which a graph cannot move; use the default generator, or "
            "pass the random numbers as an argument"
        )
    return ExportedJoint(
        copy_joint_module(joint.module),
        joint.signature,
        primal_names(bound, args, kwargs, plan, traced),
        bound,
        plan,
        traced,
    )


def export_options(options: Mapping[str, Any] | None) -> Options:
    return Options.from_mapping({"min_graph_ops": 0, **(options or {})})


def primal_names(
    bound: BoundFunction, args: tuple, kwargs: dict[str, Any], plan: CachedPlan, traced: TracedJoint
) -> tuple[str, ...]:
    """The user's name for each primal of a joint graph."""
    names = {k: spec.name for k, spec in enumerate(traced.capture.inputs)}
    order = traced.capture.convention.order
    for position, tensor in zip(plan.guards.dedupe.positions, bound.named_tensors(args, kwargs), strict=True):
        names[order[position]] = tensor.name
    return tuple(names[k] for k in range(len(traced.joint.signature.primals)))


def compile_joint(
    joint: ExportedJoint,
    fw_compiler: GraphCompiler,
    bw_compiler: GraphCompiler | None = None,
    partition_fn: Callable = min_cut_rematerialization_partition,
    *,
    inference_compiler: GraphCompiler | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile an exported joint graph, which may have been changed.

    Args:
        joint: from `export_joint`.
        fw_compiler, bw_compiler, inference_compiler, partition_fn: as for `aot_function`.
        options: see `aotgrad.Options`.

    Returns:
        A function with the parameters of the exported one, whose gradients the graph computes. It accepts arguments with
        the properties of the example only, and does not support `create_graph=True`.

    Raises:
        PassError: the changed graph has other placeholders or outputs than the exported one.
        CaptureError: at a call, if an argument does not fulfil the guards of the exported graph.
    """
    backend = FunctionBackend("user", fw_compiler, bw_compiler, inference_compiler)
    compiler = make_compiler(backend, export_options(options), partition_fn)
    first_order: Any = FirstOrder(CompiledBatches.of(compiler, "batched backward"))
    with COMPILING:
        changed = CheckedPass(cast(Any, Replacement(joint.module)), "joint").apply(copy_joint(joint.traced.joint))
        traced = replace(joint.traced, joint=changed)
        partition, compiled = lower(changed, compiler, observe := compiler.observer(), known=None)
        observe("compiled", compiled)
        executable = assemble(traced, partition, compiled, first_order)
        observe("executable", executable)
    return CompiledJoint(joint.bound, replace(joint.plan, executable=executable))


def copy_joint(joint: JointGraph) -> JointGraph:
    return replace(joint, module=copy_joint_module(joint.module))


def copy_joint_module(module: fx.GraphModule) -> fx.GraphModule:
    """A module with a copy of the graph."""
    return LazyGraphModule(module, copy_graph(module.graph))


@dataclass(frozen=True)
class Replacement:
    """The user's change of the graph, as a pass."""

    module: fx.GraphModule
    name: str = "changed by hand"

    def apply(self, graph: JointGraph) -> JointGraph:
        return replace(graph, module=copy_joint_module(self.module))


@dataclass(frozen=True)
class FirstOrder:
    """Higher-order derivatives of a changed joint graph: batched backwards run, second derivatives are undefined."""

    batches: CompiledBatches

    def __call__(self, *_: Any) -> Gradients:
        raise ExportError(
            "a joint graph that was exported has no gradient of a gradient (create_graph=True); compile the function itself"
        )

    def inner_values(self, _: int) -> tuple[()]:
        return ()

    def transformed(self, half: GraphHalf, values: Sequence[Any]) -> Gradients:
        return self.batches(half, values)


@dataclass(frozen=True)
class CompiledJoint:
    """A compiled joint graph with the parameters of the original function."""

    bound: BoundFunction
    plan: CachedPlan

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self.bound.call_of(args, kwargs))

    def run(self, call: Call) -> Any:
        if not self.plan.guards.check(call.tensors):
            raise CaptureError(
                f"the joint graph was exported for other arguments: {self.plan.guards.why_not(call.tensors)}; "
                "export it for these"
            )
        return self.plan(call)


# --- The simple form -------------------------------------------------------------------------------------------------


def aot_export_joint_simple(
    func: Callable[..., Any],
    args: Sequence[Any],
    *,
    trace_joint: bool,
    num_params_buffers: int = 0,
    decompositions: Mapping[Any, Callable] | None = None,
) -> fx.GraphModule:
    """Export a function that changes no input and returns new tensors.

    Args:
        func: takes tensors, returns a list or tuple of tensors.
        args: the arguments of a call.
        trace_joint: also export the backward, if an argument requires grad.
        num_params_buffers: the number of leading arguments that are parameters or buffers.
        decompositions: op overload -> function, applied while tracing.

    Returns:
        A graph module: `(*args) -> outputs`, or with a backward `(primals, tangents) -> (outputs, gradients)`, all lists,
        with a gradient or `None` for each primal.

    Raises:
        ExportError: the function changes an input, returns a view of one, or takes or returns nested values.
    """
    given = tuple(args)
    if not all(isinstance(arg, torch.Tensor) for arg in given):
        raise ExportError("aot_export_joint_simple takes tensors; flatten the arguments first")
    backend = FunctionBackend("export", nop, decomposition_table=decompositions or {})
    cache = PlanCache(make_tracer(backend, export_options(None)), "export")
    bound = PlainFunction.of(cache, func, num_params_buffers)
    with torch.set_grad_enabled(trace_joint and torch.is_grad_enabled()):
        plan, traced = exported_plan(bound, given, {})
    reject_shared_memory(traced)
    names = [spec.name for spec in traced.capture.inputs]
    reject_moved_inputs(traced, names)
    reject_differentiated_inputs(traced, names)
    check_simple(plan, traced)
    return joint_module(plan, traced) if traced.joint.differentiable else flat_module(plan, traced)


def check_simple(plan: CachedPlan, traced: TracedJoint) -> None:
    """Reject functions that change inputs, or whose outputs are nested or share memory.

    Raises:
        ExportError
    """
    if any(info is not None and info.mutation.data for info in traced.meta.inputs):
        raise ExportError("aot_export_joint_simple exports functions that change no input")
    spec = plan.output.spec
    if spec is None or spec.type not in (list, tuple) or any(not child.is_leaf() for child in spec.children()):
        raise ExportError("aot_export_joint_simple exports functions that return a flat list or tuple of tensors")
    results = set(traced.joint.signature.forward_results)
    if any(isinstance(info, IsInput | IsOutput) for info in traced.meta.outputs) or results != {
        UserOutput(k) for k in range(len(traced.meta.outputs))
    }:
        raise ExportError("aot_export_joint_simple exports functions whose outputs share no memory; clone() the views")


def flat_module(plan: CachedPlan, traced: TracedJoint) -> fx.GraphModule:
    writer = GraphWriter(traced)
    order = traced.capture.convention.order
    for k, position in enumerate(plan.guards.dedupe.positions):
        writer.placeholder(f"arg{k}_1", order[position])
    writer.copy_all()
    outputs = [writer.output(k) for k in range(traced.capture.returned)]
    writer.graph.output(tuple(outputs))
    return writer.module()


def joint_module(plan: CachedPlan, traced: TracedJoint) -> fx.GraphModule:
    """The joint graph with primals and tangents in two lists, and a gradient for each primal."""
    writer, order = GraphWriter(traced), traced.capture.convention.order
    inputs = [order[position] for position in plan.guards.dedupe.positions]
    for k, index in enumerate(inputs):
        writer.placeholder(f"primals_{k + 1}", index)
    tangents = [slot for slot in of_kind(traced.joint.signature.inputs, Tangent) if isinstance(slot.of, UserOutput)]
    for k, slot in enumerate(sorted(tangents, key=lambda slot: slot.of.index)):
        writer.tangent_placeholder(f"tangents_{k + 1}", slot)
    writer.copy_all()
    outputs = [writer.output(k) for k in range(traced.capture.returned)]
    gradients = [None if index in inputs[:k] else writer.gradient(index) for k, index in enumerate(inputs)]
    writer.graph.output([*outputs, *gradients])
    in_spec = pytree.tree_flatten(([0] * len(inputs), [0] * len(tangents)))[1]
    out_spec = pytree.tree_flatten(([0] * len(outputs), [0] * len(inputs)))[1]
    torch_compat.returns_pytree(writer.graph, ("primals", "tangents"), in_spec, out_spec)
    return writer.module()
