"""`torch._higher_order_ops.scan`: the graphs of one step, forward and backward, that torch makes to differentiate a scan."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.fx as fx
from torch._higher_order_ops.partitioner import HopGraphMinCutPartitioner
from torch.multiprocessing.reductions import StorageWeakRef


@contextlib.contextmanager
def separate_results_of_scans() -> Iterator[None]:
    """Inside, no two results of a step share memory.

    A step often saves its own result, or a view of one, for its backward. Torch returns it a second time, and then refuses
    to trace the step because two of its results are one tensor. Which values it saves differs from run to run.
    """
    partition = HopGraphMinCutPartitioner.create_partitioned_graph

    def partition_separately(*args: Any, **settings: Any) -> Any:
        found = partition(*args, **settings)
        for module in (found.fw_gm, found.bw_gm):
            _copy_shared_results(module)
        return found

    with mock.patch.object(HopGraphMinCutPartitioner, "create_partitioned_graph", partition_separately):
        yield


def _copy_shared_results(module: fx.GraphModule) -> None:
    """Return copies of results that are views of arguments, or share memory with an earlier result.

    An argument that is itself a result stays, as torch knows it by its node.
    """
    (output,) = module.graph.find_nodes(op="output")
    seen = _memory_of(module.graph.find_nodes(op="placeholder"))
    results = list(output.args[0])
    for place, node in enumerate(results):
        if not isinstance(node, fx.Node) or node.op == "placeholder":
            continue
        memory = _memory_of([node])
        if memory & seen:
            with module.graph.inserting_before(output):
                results[place] = module.graph.call_function(torch.ops.aten.clone.default, (node,))
            results[place].meta = dict(node.meta)
        seen |= memory
    output.args = (tuple(results),)
    module.recompile()


def _memory_of(nodes: Sequence[fx.Node]) -> set[StorageWeakRef]:
    values = [node.meta.get("val") for node in nodes]
    return {StorageWeakRef(value.untyped_storage()) for value in values if isinstance(value, torch.Tensor)}
