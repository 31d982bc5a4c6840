"""The halves of a joint graph, from the cache if another process has made them. The function was traced before.

In: a joint graph, and what it is partitioned and compiled with. Out: what `pipeline.lower` gives. What a Python
function depends on is not known before it runs; what its halves depend on is: the joint graph says everything.

    replace(compiler, lower=lower_through_cache)        compiles with halves from the cache
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx as fx

from aotgrad.cache.entry import GraphText, StoredPartition
from aotgrad.cache.graphs import Attributes, Origins, StoredHalf, attribute_of, digest, text_of, write_half
from aotgrad.cache.io import assume, bypassed, plan_store, read_entry, storing_backend, write_entry
from aotgrad.cache.key import NotStored, compilation_key
from aotgrad.cache.serialize import Damaged, NotPlain, Writer
from aotgrad.cache.store import IS_SUPPORTED, Store, failed
from aotgrad.ir import Compiled, GraphHalf, JointGraph, Partition
from aotgrad.passes import KnownValues
from aotgrad.pipeline import Compiler, compile_forward, lower, partition_graph
from aotgrad.telemetry.counters import counters
from aotgrad.telemetry.graph_names import GraphNames
from aotgrad.telemetry.observer import Observer, is_watched
from aotgrad.torch_compat import FakeTensorMode, conditions_since, fake_mode_of, guards_of_mode, symbolic_state

TAGS = ("recompute", "has_backward_hook", "partitioner_tag")
"""What else of a node decides how a graph is partitioned, besides its checkpoint region."""


def lower_through_cache(
    joint: JointGraph, compiler: Compiler, observe: Observer, known: KnownValues | None
) -> tuple[Partition, Compiled]:
    """What `pipeline.lower` makes of a joint graph, from the cache if it is there."""
    if compiler.options.verify or is_watched():  # somebody looks at the stages
        return lower(joint, compiler, observe, known)
    try:
        if known is not None:
            raise NotStored("it takes values that another graph has saved")
        request = HalvesRequest.of(joint, compiler)
    except (NotStored, NotPlain) as reason:
        bypassed(reason)
        return lower(joint, compiler, observe, known)
    found, names = request.found(), GraphNames()
    if found is not None:
        counters["cache_hits"] += 1
        return compile_forward(found, joint, request.compiler, observe, names, known_to_backend=True)
    counters["cache_misses"] += 1
    partition = partition_graph(joint, compiler, names)
    try:
        forward = request.text_of(partition.forward)
    except NotPlain as reason:
        bypassed(reason)
        return compile_forward(partition, joint, request.compiler, observe, names)
    made = compile_forward(partition, joint, request.compiler, observe, names)
    request.keep(forward, partition)
    return made


@dataclass(frozen=True)
class HalvesRequest:
    """Halves that are looked for. `compiler` has a backend that keeps what it makes in `store`, too.

    `held` are the tensors that the joint graph refers to: the halves refer to the same ones.
    """

    key: str
    store: Store
    compiler: Compiler
    origins: Origins
    held: Attributes
    mode: FakeTensorMode
    guards_before: int

    @classmethod
    def of(cls, joint: JointGraph, compiler: Compiler) -> HalvesRequest:
        """Raises NotStored, NotPlain."""
        if not IS_SUPPORTED:
            raise NotStored("this system does not say who owns a folder")
        graph, held = joint.module.graph, tensors_of(joint.module)
        origins = tuple(dict.fromkeys(node.meta.get("stack_trace") for node in graph.nodes))
        mode = fake_mode_of(graph)
        how = (*compilation_key(compiler.backend, compiler.partition_fn, compiler.options), repr(symbolic_state(mode)))
        key, store = digest("halves", *how, text_of(joint_key(joint, origins, held))), plan_store()
        compiler = replace(compiler, backend=storing_backend(compiler.backend, store))
        return cls(key, store, compiler, origins, held, mode, guards_of_mode(mode))

    def found(self) -> Partition | None:
        """What another process has made of the graph, if it is there and of use."""
        content = self.store.read(self.key)
        if content is None:
            return None
        try:
            entry = read_entry(content, self.mode)
            if not isinstance(entry, StoredPartition):
                raise Damaged(f"an entry that is a {type(entry).__name__}")
            assume(entry.conditions)
            backward = None if entry.backward is None else self.half(entry.backward)
            return Partition(self.half(entry.forward), backward, entry.saved, entry.recomputed)
        except Exception as error:  # an entry that was whole, and is of no use: what it says is not relied on
            failed(f"{self.key} is of no use: {type(error).__name__}: {error}")
            return None

    def half(self, stored: GraphText) -> GraphHalf:
        """Both are read at once: what follows looks at their nodes."""
        half = StoredHalf(stored, self.mode, self.origins, self.held)
        return GraphHalf(half.module, half.signature)

    def text_of(self, half: GraphHalf) -> GraphText:
        """Raises NotPlain."""
        return write_half(half, self.origins, self.held, of_users=True)

    def keep(self, forward: GraphText, partition: Partition) -> None:
        """Store what was made, if it can be. `forward` is as the backend got it, the backward as it left that."""
        try:
            backward = None if partition.backward is None else self.text_of(partition.backward)
            conditions = conditions_since(self.mode, self.guards_before)
            entry = StoredPartition(forward, backward, partition.saved, partition.recomputed, conditions)
            write_entry(self.store, self.key, entry)
        except NotPlain as reason:
            bypassed(reason)


def tensors_of(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    """The tensors that a graph refers to, by name: what the function closed over, or made of numbers."""
    attributes = {str(node.target): attribute_of(module, node) for node in module.graph.find_nodes(op="get_attr")}
    return {name: value for name, value in attributes.items() if isinstance(value, torch.Tensor)}


def joint_key(joint: JointGraph, origins: Origins, held: Mapping[str, torch.Tensor]) -> list[Any]:
    """Everything that the halves depend on, as plain data. Tensors that are referred to are known by how they lie.

    Raises:
        NotPlain: something in it has no such form.
    """
    writer = Writer()
    graph = write_half(GraphHalf(joint.module, joint.signature), origins, held, of_users=True)
    inputs = [joint.static_inputs, joint.mutated_inputs, joint.private_inputs]
    rest = [joint.signature, joint.segments, *inputs]
    tensors = [[name, str(value.dtype), str(value.device), list(value.shape)] for name, value in held.items()]
    return [graph.text, list(origins), tags(list(joint.module.graph.nodes)), tensors, [writer.write(each) for each in rest]]


def tags(nodes: Sequence[fx.Node]) -> list[list[Any]]:
    """What activation checkpoints want of each node. Their regions have numbers of this process: only the order matters."""
    regions = sorted({node.meta["ac_graph_id"] for node in nodes if node.meta.get("ac_graph_id") is not None})
    places = {region: place for place, region in enumerate(regions)}
    return [[places.get(node.meta.get("ac_graph_id")), *(repr(node.meta.get(name)) for name in TAGS)] for node in nodes]
