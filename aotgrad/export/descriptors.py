"""Joint graphs whose placeholders and outputs say what they are: `aot_export_joint_with_descriptors`, as torch names it.

    with contextlib.ExitStack() as stack:
        joint = aotgrad.aot_export_joint_with_descriptors(stack, model, (x,))
        for node in joint.graph_module.graph.find_nodes(op="placeholder"):
            print(node.meta["desc"].expr())           self.get_parameter('weight'), args[0], __output_tangent(output[0])
        f = aotgrad.aot_compile_joint_with_descriptors(joint)
    f(*model.parameters(), *model.buffers(), x)

The descriptors have the names and fields of torch's. What torch has no descriptor for, such as a part of a tensor subclass,
has a `SlotDescriptor`. `export_joint` is the shorter form: slots alone, and a compiled function that is called as the module
is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Union, cast

import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch import nn

from aotgrad.backends import nop
from aotgrad.backends.base import GraphCompiler
from aotgrad.errors import ExportError
from aotgrad.export.joint import CompiledJoint, ExportedJoint, compile_joint, export_joint
from aotgrad.guards.module_slots import slots_of
from aotgrad.ir import AliasOfIntermediate, SyntheticBase
from aotgrad.options import reject_parameters
from aotgrad.partition import default_partition
from aotgrad.plan_cache.module_state import ModuleArguments
from aotgrad.slots import Gradient, IntermediateBase, Primal, Tangent, UpdatedInput, UserOutput


@dataclass(frozen=True)
class ParamAOTInput:
    """The parameter with the name `target`."""

    target: str

    def expr(self) -> str:
        return f"self.get_parameter({self.target!r})"


@dataclass(frozen=True)
class BufferAOTInput:
    """The buffer with the name `target`."""

    target: str

    def expr(self) -> str:
        return f"self.get_buffer({self.target!r})"


@dataclass(frozen=True)
class PlainAOTInput:
    """The `idx`-th flat argument of the module."""

    idx: int

    def expr(self) -> str:
        return f"args[{self.idx}]"


@dataclass(frozen=True)
class SyntheticBaseAOTInput:
    """The memory that arguments share which the module changes; `base_of` is one of them."""

    base_of: Any

    def expr(self) -> str:
        return f"__make_synthetic_base({self.base_of.expr()})"


@dataclass(frozen=True)
class PlainAOTOutput:
    """The `idx`-th flat output of the module."""

    idx: int

    def expr(self) -> str:
        return f"output[{self.idx}]"


@dataclass(frozen=True)
class InputMutationAOTOutput:
    """The new value of an input that the module changes."""

    mutated_input: Any

    def expr(self) -> str:
        return f"__input_mutation({self.mutated_input.expr()})"


@dataclass(frozen=True)
class IntermediateBaseAOTOutput:
    """A tensor of which several outputs are views; `base_of` is the first of them."""

    base_of: Any

    def expr(self) -> str:
        return f"__intermediate_base({self.base_of.expr()})"


@dataclass(frozen=True)
class TangentAOTInput:
    """The incoming gradient of an output."""

    output: Any

    def expr(self) -> str:
        return f"__output_tangent({self.output.expr()})"


@dataclass(frozen=True)
class GradAOTOutput:
    """The gradient of an input.

    Several outputs have backwards of their own where each may run alone. The gradient of an input of several of them is the
    sum of its terms, each with the number of its backward; what passes between two of them has a `SlotDescriptor`.
    """

    grad_of: Any
    term: int = 0

    def expr(self) -> str:
        return f"__grad({self.grad_of.expr()})" + (f"[{self.term}]" if self.term else "")


@dataclass(frozen=True)
class SlotDescriptor:
    """What torch has no descriptor for: a slot of the joint graph (`aotgrad.slots`)."""

    slot: Any

    def expr(self) -> str:
        return f"__slot({str(self.slot)!r})"


Descriptor = Union[
    ParamAOTInput,
    BufferAOTInput,
    PlainAOTInput,
    SyntheticBaseAOTInput,
    TangentAOTInput,
    PlainAOTOutput,
    InputMutationAOTOutput,
    IntermediateBaseAOTOutput,
    GradAOTOutput,
    SlotDescriptor,
]


@dataclass
class JointWithDescriptors:
    """The joint graph of a module, with descriptors as `meta["desc"]` of placeholders and, in a list, of the output.

    Attributes:
        graph_module: the graph, which may be changed or replaced before it is compiled.
        params_spec, buffers_spec: the names of the tensors that the compiled function takes first, in order.
        in_spec, out_spec: the structure of `((*parameters, *buffers, *args), kwargs)`, and of the result.
        joint: the same graph, with slots.
    """

    graph_module: fx.GraphModule
    params_spec: list[str]
    buffers_spec: list[str]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    joint: ExportedJoint


def aot_export_joint_with_descriptors(
    stack: contextlib.ExitStack,
    mod: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    decompositions: Mapping[Any, Callable] | None = None,
    keep_inference_input_mutations: bool = False,
    **of_peer: Any,
) -> JointWithDescriptors:
    """The joint graph of a module, whose placeholders and outputs say what they are.

    Args:
        stack: not needed here; torch enters contexts on it.
        mod: the module.
        args, kwargs: the arguments of a call; nothing runs.
        decompositions: op overload -> function, applied while tracing.
        keep_inference_input_mutations: graphs without a backward write mutated inputs themselves.
        **of_peer: parameters that torch's function has, with its default values.

    Raises:
        CaptureError: the module cannot be traced.
        OptionError: a parameter of torch's has no meaning here; the message says what to use.
    """
    reject_parameters("aot_export_joint_with_descriptors", of_peer)
    options = {"keep_input_mutations": keep_inference_input_mutations}
    joint = export_joint(mod, args, kwargs, decompositions=decompositions, options=options)
    own = slots_of(mod)
    parameters = [slot.name for slot in own if isinstance(slot.table[slot.key], nn.Parameter)]
    buffers = [slot.name for slot in own if not isinstance(slot.table[slot.key], nn.Parameter)]
    everything = (*(slot.table[slot.key] for slot in own), *args)
    in_spec, out_spec = pytree.tree_flatten((everything, dict(kwargs or {})))[1], joint.plan.output.spec
    assert out_spec is not None, "the result of a module has a structure"
    descriptors = Descriptors(joint, named_inputs(joint, args, dict(kwargs or {})))
    note_descriptors(joint.module.graph, descriptors)
    return JointWithDescriptors(joint.module, parameters, buffers, in_spec, out_spec, joint)


def note_descriptors(graph: fx.Graph, descriptors: Descriptors) -> None:
    """Note the descriptors in a joint graph."""
    signature = descriptors.joint.signature
    for node, slot in zip(graph.find_nodes(op="placeholder"), signature.inputs, strict=True):
        node.meta["desc"] = descriptors.of(slot)
    (output,) = graph.find_nodes(op="output")
    output.meta["desc"] = list(map(descriptors.of, signature.outputs))


def named_inputs(joint: ExportedJoint, args: tuple, kwargs: dict[str, Any]) -> dict[int, Descriptor]:
    """The descriptor of each input that is a parameter, a buffer or an argument; the first one if it is several."""
    leaves = pytree.tree_leaves((args, kwargs))
    places = iter(k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    order, found = joint.traced.capture.convention.order, cast("dict[int, Descriptor]", {})
    tensors = joint.bound.named_tensors(args, kwargs)
    for position, (name, kind) in zip(joint.plan.guards.dedupe.positions, tensors, strict=True):
        kinds = {"parameter": ParamAOTInput, "buffer": BufferAOTInput}
        described = kinds[kind](name) if kind in kinds else PlainAOTInput(next(places, -1))
        found.setdefault(order[position], described)
    return found


@dataclass(frozen=True)
class Descriptors:
    """The descriptors of the slots of a joint graph; `inputs` has those of its inputs by position."""

    joint: ExportedJoint
    inputs: Mapping[int, Descriptor]

    def of(self, slot: Any) -> Descriptor:
        match slot:
            case Primal(index):
                return self.of_input(index, slot)
            case UpdatedInput(index):
                return InputMutationAOTOutput(self.of_input(index, slot))
            case UserOutput(index):
                return PlainAOTOutput(index)
            case IntermediateBase(index):
                return IntermediateBaseAOTOutput(PlainAOTOutput(self.first_view(index)))
            case Tangent(of):
                return TangentAOTInput(self.of(of))
            case Gradient(Primal() as of, segment, 0):
                return GradAOTOutput(self.of(of), segment or 0)
        return SlotDescriptor(slot)

    def of_input(self, index: int, slot: Any) -> Descriptor:
        spec = self.joint.traced.capture.inputs[index]
        if isinstance(spec, SyntheticBase):
            return SyntheticBaseAOTInput(self.of_input(spec.member, slot))
        return SlotDescriptor(slot) if getattr(spec, "part", "") else self.inputs[index]

    def first_view(self, base: int) -> int:
        outputs = self.joint.traced.meta.outputs
        return next(k for k, info in enumerate(outputs) if isinstance(info, AliasOfIntermediate) and info.base == base)


def aot_compile_joint_with_descriptors(
    jd: JointWithDescriptors,
    *,
    partition_fn: Callable = default_partition,
    fw_compiler: GraphCompiler = nop,
    bw_compiler: GraphCompiler | None = None,
    serializable: bool = False,
) -> Callable[..., Any]:
    """Compile a joint graph, which may have been changed.

    Args:
        jd: from `aot_export_joint_with_descriptors`.
        partition_fn, fw_compiler, bw_compiler: as for `aot_function`.
        serializable: only `False` is supported.

    Returns:
        A function `(*parameters, *buffers, *args, **kwargs) -> result`, which the graph differentiates.

    Raises:
        ExportError: `serializable=True`.
        PassError: the changed graph has other placeholders or outputs than the exported one.
    """
    if serializable:
        raise ExportError(
            "a compiled joint graph is not saved; use aotgrad.save of the compiled module, or pickle its graph"
        )
    compiled = compile_joint(jd.joint.with_module(jd.graph_module), fw_compiler, bw_compiler, partition_fn)
    assert isinstance(compiled, CompiledJoint)
    return WithState(compiled, len(jd.params_spec) + len(jd.buffers_spec))


@dataclass(frozen=True)
class WithState:
    """A compiled joint graph that takes the `count` parameters and buffers of the module as its first arguments."""

    compiled: CompiledJoint
    count: int

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        state, given = args[: self.count], args[self.count :]
        call = self.compiled.bound.call_of(given, kwargs)
        return self.compiled.run(call._replace(arguments=ModuleArguments.after(state, given, kwargs)))
