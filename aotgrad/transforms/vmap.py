"""Backward graphs under transforms: many tangents at once, and autocast.

    graph(saved..., tangents...) -> gradients    becomes    graph(saved..., tangents[batch, ...]...) -> gradients[batch, ...]

For `is_grads_batched=True`, or `torch.func.vmap` around a backward, the graph of the variant is traced again under `vmap`,
compiled by the same backend, and kept with guards as any other plan. So it is if autocast is on around the backward: eager
then casts the arguments of the ops that the derivative consists of. Under any other transform of `torch.func` it runs node
by node, so that each op meets the transform as in eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.ir import GraphHalf
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.call import AmbientState, Call
from aotgrad.runtime.anomaly import is_handed_on

AS_ATEN = {torch.ops.prims.convert_element_type.default: lambda x, dtype: torch_compat.cast(x, dtype=dtype)}
"""Prims whose own ATen form cannot be traced: it writes to its result."""


@dataclass(frozen=True)
class BatchedGraph:
    """The function that is traced: a backward graph, under `vmap` if some inputs have a batch as first dimension."""

    half: GraphHalf
    batched: tuple[bool, ...]

    def __call__(self, *values: Any) -> list[torch.Tensor]:
        if not any(self.batched):
            return list(self.run(*values))
        return list(torch.func.vmap(self.run, tuple(0 if is_batched else None for is_batched in self.batched))(*values))

    def run(self, *values: Any) -> tuple[torch.Tensor, ...]:
        """The gradients that there are: `vmap` cannot return `None`."""
        results = BackwardInterpreter(self.half.module).run(*values)
        return tuple(gradient for gradient in results if gradient is not None)


class BackwardInterpreter(fx.Interpreter):
    """Runs the prims that backends decompose to as ATen ops, for which there are batching rules.

    What the graph runs again of the forward, it runs in the dtypes of the forward; and what one derivative hands on to
    another gets the dtype that it was traced with, as the autograd engine sees to.
    """

    def run_node(self, n: fx.Node) -> Any:
        if not n.meta.get("autograd_backward"):
            with torch_compat.disable_autocast():
                return super().run_node(n)
        result, traced = super().run_node(n), n.meta.get("val")
        return result.to(traced.dtype) if isinstance(traced, torch.Tensor) and is_handed_on(n) else result

    def call_function(self, target: Any, args: tuple, kwargs: dict) -> Any:
        op: Any = AS_ATEN.get(target, getattr(target, "impl_aten", target))
        return super().call_function(op, args, kwargs)


@dataclass(frozen=True)
class CompiledBatches:
    """The batched variants of one backward."""

    plans: PlanCache

    def __call__(self, half: GraphHalf, values: Sequence[Any]) -> Sequence[torch.Tensor | None]:
        """The results of `half` for `values`, some of which a transform of `torch.func` has wrapped, or are dual numbers."""
        vmap = torch_compat.only_vmap(values)
        if vmap is None and torch_compat.is_transformed(values):
            return BackwardInterpreter(half.module).run(*values)
        graph = BatchedGraph(half, tuple(map(torch_compat.is_batched, values)))
        batches = [vmap.unwrap(value) if vmap and torch_compat.is_batched(value) else value for value in values]
        with torch_compat.outside_transforms():
            ready = tuple(map(laid_out, batches, graph.batched, half.module.graph.find_nodes(op="placeholder")))
            arguments = symbolic_as_traced(Arguments.of(ready, {}), graph)
            call = Call(graph, arguments, static_count=0, state=AmbientState(graph, graph, lambda: graph))
            found = iter(self.plans.run(self.plans.plan_for(call)))
        results = [None if node is None else next(found) for node in results_of(half)]
        return [vmap.wrap(result) if vmap and result is not None else result for result in results]


def results_of(half: GraphHalf) -> Sequence[fx.Node | None]:
    (output,) = half.module.graph.find_nodes(op="output")
    return output.args[0]


def symbolic_as_traced(arguments: Arguments, graph: BatchedGraph) -> Arguments:
    """The arguments of a graph with symbolic sizes, for a plan that has these, too, and any number of batches."""
    traced = [node.meta["val"] for node in graph.half.module.graph.find_nodes(op="placeholder")]
    if not any(map(torch_compat.has_symbols, traced)):
        return arguments
    pairs = ((value, batched) for value, batched in zip(traced, graph.batched, strict=True) if torch.is_tensor(value))
    return arguments.with_symbols({k: batched_dims(value, batched) for k, (value, batched) in enumerate(pairs)})


def batched_dims(traced: torch.Tensor, is_batched: bool) -> frozenset[int]:
    dims = torch_compat.symbolic_dims(traced)
    return frozenset({0, *(dim + 1 for dim in dims)}) if is_batched else dims


def laid_out(value: Any, is_batched: bool, placeholder: fx.Node) -> Any:
    """A batch of tangents, each with the strides that the graph was traced with."""
    traced = placeholder.meta["val"]
    if not is_batched or torch_compat.has_symbolic_shape(traced):
        return value
    strides = torch_compat.strides(traced)
    span = 1 + sum((size - 1) * stride for size, stride in zip(traced.size(), strides, strict=True))
    wanted = (max(span, 1), *strides)
    return value if value.stride() == wanted else value.new_empty_strided(value.size(), wanted).copy_(value)
