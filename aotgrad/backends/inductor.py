"""The `inductor` backend: torch's own code generator compiles both halves.

What it needs beyond the graphs: its decompositions while tracing, its joint passes before partitioning, which inputs keep
their address (parameters, saved values), which outputs a user sees (their strides must be eager's), and, for the
backward, the strides that the forward really gave the saved values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.base import checked_arity, example_inputs
from aotgrad.ir import BoxedCallable, Compiled, GraphHalf, JointGraph, Partition
from aotgrad.slots import Saved, Tangent, UserOutput


@dataclass(frozen=True)
class InductorBackend:
    """`mode` is one of `torch.compile`'s: it chooses Inductor's configuration."""

    mode: str = "default"
    name: str = "inductor"
    fuses: bool = True

    @property
    def min_graph_ops(self) -> int:
        """A lone op has nothing to be fused with (`scripts/bench/small_graphs.py`); the other modes were asked for."""
        return 2 if self.mode == "default" else 0

    def decompositions(self) -> Mapping[Any, Callable]:
        """Inductor's, but for `detach`: a replayed view chain must know where it was cut off from autograd."""
        table = torch_compat.inductor_decompositions()
        return {op: function for op, function in table.items() if op is not torch.ops.aten.detach.default}

    def prepare_joint(self, joint: JointGraph) -> JointGraph:
        with torch_compat.inductor_context(torch_compat.fake_mode_of(joint.module.graph), self.mode):
            module = torch_compat.inductor_joint_passes(joint.module)
            copy_expanded_targets(module.graph)
            module.recompile()  # Inductor's cache looks a graph up by its code.
            return replace(joint, module=module)

    def compile(self, partition: Partition, static_inputs: frozenset[int]) -> Compiled:
        with torch_compat.inductor_context(torch_compat.fake_mode_of(partition.forward.module.graph), self.mode):
            shared = torch_compat.inductor_graph_settings(torch_compat.inductor_uses_cudagraphs())
            with torch_compat.reported_output_strides() as strides:
                forward = self._forward(partition, static_inputs, shared)
            if partition.backward is None:
                return Compiled(self.name, forward, None)
            apply_strides(partition, strides)
        return Compiled(self.name, forward, InductorBackward(self, shared))

    def _forward(self, partition: Partition, static_inputs: frozenset[int], shared: dict[str, Any]) -> Callable:
        half = partition.forward
        mark_user_visible(half, UserOutput)
        is_inference = partition.backward is None
        return self._compile(half, "forward", static_input_idxs=sorted(static_inputs), is_inference=is_inference, **shared)

    def backward(self, half: GraphHalf, shared: dict[str, Any]) -> BoxedCallable:
        """Compile a backward half that belongs to the forward which was compiled with `shared`.

        Layouts are the forward's choice. One convolution that runs again would otherwise make Inductor choose anew for the
        whole graph, and copy what it is given.
        """
        mark_user_visible(half, ())
        static = [k for k, slot in enumerate(half.signature.inputs) if not isinstance(slot, Tangent)]
        mode = torch_compat.fake_mode_of(half.module.graph)
        with torch_compat.inductor_context(mode, self.mode, layout_optimization=False):
            return self._compile(half, "backward", static_input_idxs=static, is_backward=True, **shared)

    def _compile(self, half: GraphHalf, role: str, **settings: Any) -> Callable:
        compiled = torch_compat.inductor_compile(half.module, example_inputs(half.module), **settings)
        return checked_arity(compiled, len(half.signature.outputs), self.name, role)


@dataclass(frozen=True)
class InductorBackward:
    """Compiles variants of one backward; `shared` pairs them with their forward."""

    backend: InductorBackend
    shared: dict[str, Any]

    def __call__(self, half: GraphHalf) -> BoxedCallable:
        return self.backend.backward(half, self.shared)


def mark_user_visible(half: GraphHalf, kinds: Any) -> None:
    """Tell Inductor which outputs must keep the strides that they were traced with."""
    (output,) = half.module.graph.find_nodes(op="output")
    output.meta["user_visible_output_idxs"] = [
        k for k, slot in enumerate(half.signature.outputs) if kinds and isinstance(slot, kinds)
    ]


def apply_strides(partition: Partition, strides: Sequence[Sequence[int] | None]) -> None:
    """Give the backward's saved inputs the strides that the forward's outputs have after Inductor's layout choices.

    Not those that are inputs of the forward: the caller's own tensor is saved, not what the graph returns for it.
    """
    primals = {node.name for node in partition.forward.module.graph.find_nodes(op="placeholder")}
    reported = zip(partition.forward.signature.outputs, strides, strict=False)
    stride_of = {slot: stride for slot, stride in reported if isinstance(slot, Saved) and slot.name not in primals}
    placeholders = partition.backward.module.graph.find_nodes(op="placeholder")
    for node, slot in zip(placeholders, partition.backward.signature.inputs, strict=True):
        if (reported_stride := stride_of.get(slot)) is None:
            continue
        value = node.meta["val"]
        actual = torch_compat.as_symints(value.fake_mode, reported_stride)
        if torch_compat.hints(value.stride()) != torch_compat.hints(actual):
            node.meta["val"] = value.as_strided(value.size(), actual)


def copy_expanded_targets(graph: fx.Graph) -> None:
    """Give each `index_put` memory of its own to write to: Inductor writes into an expanded tensor in place.

    For `zeros(2).expand(3, 2).index_put(...)` it returns wrong values, in torch 2.13 at least.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.index_put.default):
        target = node.args[0]
        if torch_compat.is_expanded(target.meta["val"]):
            with graph.inserting_before(node):
                copy = graph.call_function(
                    torch.ops.aten.clone.default, (target,), {"memory_format": torch.contiguous_format}
                )
            copy.meta = {**target.meta, "val": target.meta["val"].contiguous()}
            node.args = (copy, *node.args[1:])


inductor = InductorBackend()
