"""Partitions a joint graph, or takes its halves from the cache.

In: a joint graph, and how to partition and compile it. Out: the result of `pipeline.lower`. What a Python function depends
on is unknown before it is traced. Its halves depend on the joint graph alone, which serves as their key.

    replace(compiler, lower=lower_through_cache)        compiles with halves from the cache
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx as fx

from aotgrad.cache.entry import GraphText, StoredPartition
from aotgrad.cache.graphs import (
    Attributes,
    Origins,
    StoredHalf,
    attribute_of,
    digest_of,
    encode_half,
    functions_by_name,
    text_of,
)
from aotgrad.cache.io import assume, count_bypass, plan_store, read_entry, storing_backend, write_entry
from aotgrad.cache.key import NotCacheable, compilation_key
from aotgrad.cache.serialize import DamagedEntry, Encoder, NotSerializable
from aotgrad.cache.store import Store, count_failure
from aotgrad.graph.node_tags import PARTITION_TAGS
from aotgrad.ir import Compiled, GraphHalf, JointGraph, Partition
from aotgrad.passes.known_values import KnownValues
from aotgrad.pipeline import Compiler, compile_forward, lower, partition_graph
from aotgrad.telemetry.counters import counters
from aotgrad.telemetry.graph_names import GraphNames
from aotgrad.telemetry.observer import Observer, is_watched
from aotgrad.torch_compat import FakeTensorMode, conditions_since, fake_mode_of, guards_of_mode, symbolic_state

TAGS = tuple(tag for tag in PARTITION_TAGS if tag != "ac_graph_id")
"""The metadata that the partition reads, besides the checkpoint region."""


def lower_through_cache(
    joint: JointGraph, compiler: Compiler, observe: Observer, known: KnownValues | None
) -> tuple[Partition, Compiled]:
    """The result of `pipeline.lower`, from the cache if it is there."""
    if compiler.options.verify or is_watched():  # a restored partition does not pass the observer
        return lower(joint, compiler, observe, known)
    try:
        if known is not None:
            raise NotCacheable("it takes values that another graph saved")
        search = PartitionLookup.of(joint, compiler)
    except (NotCacheable, NotSerializable) as reason:
        count_bypass(reason)
        return lower(joint, compiler, observe, known)
    found, names = search.find(), GraphNames()
    if found is not None:
        counters["cache_hits"] += 1
        return compile_forward(found, joint, search.compiler, observe, names, known_to_backend=True)
    counters["cache_misses"] += 1
    partition = partition_graph(joint, compiler, names)
    try:
        forward = search.text_of(partition.forward)
    except NotSerializable as reason:
        count_bypass(reason)
        return compile_forward(partition, joint, search.compiler, observe, names)
    made = compile_forward(partition, joint, search.compiler, observe, names)
    search.keep(forward, partition)
    return made


@dataclass(frozen=True)
class PartitionLookup:
    """The lookup of one pair of halves. The backend of `compiler` stores its compiled graphs in `store`, too.

    `held` are the tensors that the joint graph refers to; the halves refer to the same ones.
    """

    key: str
    store: Store
    compiler: Compiler
    origins: Origins
    held: Attributes
    mode: FakeTensorMode
    guards_before: int

    @classmethod
    def of(cls, joint: JointGraph, compiler: Compiler) -> PartitionLookup:
        """Raises NotCacheable, NotSerializable."""
        graph, held = joint.module.graph, referenced_tensors(joint.module)
        origins = tuple(dict.fromkeys(node.meta.get("stack_trace") for node in graph.nodes))
        mode = fake_mode_of(graph)
        how = (*compilation_key(compiler.backend, compiler.partition_fn, compiler.options), repr(symbolic_state(mode)))
        key, store = digest_of("halves", *how, text_of(joint_key(joint, origins, held))), plan_store()
        compiler = replace(compiler, backend=storing_backend(compiler.backend, store))
        return cls(key, store, compiler, origins, held, mode, guards_of_mode(mode))

    def find(self) -> Partition | None:
        """The partition that another process made, if a usable entry exists."""
        content = self.store.read(self.key)
        if content is None:
            return None
        try:
            entry = read_entry(content, self.mode)
            if not isinstance(entry, StoredPartition):
                raise DamagedEntry(f"an entry that is a {type(entry).__name__}")
            assume(entry.conditions)
            backward = None if entry.backward is None else self.half(entry.backward)
            return Partition(self.half(entry.forward), backward, entry.saved, entry.recomputed)
        except Exception as error:  # the file is intact, but its content is unusable
            count_failure(f"{self.key} is unusable: {type(error).__name__}: {error}")
            return None

    def half(self, stored: GraphText) -> GraphHalf:
        """A half, parsed at once: lowering looks at its nodes."""
        half = StoredHalf(stored, self.mode, self.origins, self.held, functions_by_name(self.compiler.backend.keep))
        return GraphHalf(half.module, half.signature)

    def text_of(self, half: GraphHalf) -> GraphText:
        """The text of a half. Raises NotSerializable."""
        return encode_half(half, self.origins, self.held, custom_ops=True)

    def keep(self, forward: GraphText, partition: Partition) -> None:
        """Store the halves, if possible. `forward` was encoded before the backend saw it; the backward is encoded now."""
        try:
            backward = None if partition.backward is None else self.text_of(partition.backward)
            conditions = conditions_since(self.mode, self.guards_before)
            entry = StoredPartition(forward, backward, partition.saved, partition.recomputed, conditions)
            write_entry(self.store, self.key, entry)
        except NotSerializable as reason:
            count_bypass(reason)


def referenced_tensors(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    """The tensors that a graph refers to, by name: the function closed over them or made them of numbers."""
    attributes = {str(node.target): attribute_of(module, node) for node in module.graph.find_nodes(op="get_attr")}
    return {name: value for name, value in attributes.items() if isinstance(value, torch.Tensor)}


def joint_key(joint: JointGraph, origins: Origins, held: Mapping[str, torch.Tensor]) -> list[Any]:
    """Everything that the halves depend on, as plain data. Referenced tensors count by their type and shape only.

    Raises:
        NotSerializable: a part has no plain form.
    """
    encoder = Encoder()
    graph = encode_half(GraphHalf(joint.module, joint.signature), origins, held, custom_ops=True)
    kinds = [joint.static_inputs, joint.mutated_inputs, joint.writable_inputs, joint.private_inputs, joint.held_inputs]
    rest = [joint.signature, joint.segments, *kinds, joint.saved_in_eager, joint.eager_bytes]
    tensors = [[name, str(value.dtype), str(value.device), list(value.shape)] for name, value in held.items()]
    return [
        graph.text,
        list(origins),
        tags(list(joint.module.graph.nodes)),
        tensors,
        [encoder.encode(each) for each in rest],
    ]


def tags(nodes: Sequence[fx.Node]) -> list[list[Any]]:
    """The checkpoint tags of each node. Regions are renumbered, since their numbers differ between processes."""
    regions = sorted({node.meta["ac_graph_id"] for node in nodes if node.meta.get("ac_graph_id") is not None})
    places = {region: place for place, region in enumerate(regions)}
    return [[places.get(node.meta.get("ac_graph_id")), *(repr(node.meta.get(name)) for name in TAGS)] for node in nodes]
