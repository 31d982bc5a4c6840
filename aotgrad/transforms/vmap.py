"""Backward graphs under transforms: many tangents at once, and autocast.

    graph(saved..., tangents...) -> gradients    becomes    graph(saved..., tangents[batch, ...]...) -> gradients[batch, ...]

For `is_grads_batched=True`, or `torch.func.vmap` around a backward, the graph of the variant is traced under `vmap`,
compiled by the same backend, and kept with guards like any other plan. The same holds if autocast is on around the
backward: eager then casts the arguments of the ops of the derivative. Under any other transform of `torch.func` the graph
runs node by node, and each op meets the transform as in eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.ir import GraphHalf
from aotgrad.pipeline import Compiler
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.runtime.anomaly import leaves_its_derivative
from aotgrad.torch_compat import CompilerSettings
from aotgrad.transforms.derived import Batch, DerivedFunction
from aotgrad.transforms.plans import DerivedPlans

AS_ATEN = {torch.ops.prims.convert_element_type.default: lambda x, dtype: torch_compat.cast(x, dtype=dtype)}
"""Prims whose own ATen form cannot be traced: it writes to its result."""


@dataclass(frozen=True)
class BackwardGraph(DerivedFunction):
    """A backward graph, as a function that is traced once more. Returns its gradients, `None` where there is none."""

    half: GraphHalf

    def __call__(self, *values: Any) -> list[torch.Tensor | None]:
        return list(BackwardInterpreter(self.half.module).run(*values))


class BackwardInterpreter(fx.Interpreter):
    """Runs the prims that backends decompose to as ATen ops, which have batching rules.

    Recomputed nodes of the forward run in the dtypes of the forward. A value that one derivative passes on to another gets
    the dtype that it was traced with, as the autograd engine ensures in eager.
    """

    def run_node(self, n: fx.Node) -> Any:
        if not n.meta.get("autograd_backward"):
            with torch_compat.disable_autocast():
                return super().run_node(n)
        result, traced = super().run_node(n), n.meta.get("val")
        return result.to(traced.dtype) if isinstance(traced, torch.Tensor) and leaves_its_derivative(n) else result

    def call_function(self, target: Any, args: tuple, kwargs: dict) -> Any:
        op: Any = AS_ATEN.get(target, getattr(target, "impl_aten", target))
        return super().call_function(op, args, kwargs)


@dataclass(frozen=True)
class CompiledBatches:
    """The variants of one backward under `vmap` and autocast."""

    plans: DerivedPlans

    @classmethod
    def of(cls, compiler: Compiler, name: str) -> CompiledBatches:
        """Those of a function that was just compiled."""
        return cls(DerivedPlans(PlanCache(compiler, name), settings=CompilerSettings.now()))

    def __call__(self, half: GraphHalf, values: Sequence[Any]) -> Sequence[torch.Tensor | None]:
        """The results of `half` for `values`, some of which a transform of `torch.func` has wrapped, or are dual numbers."""
        vmap = torch_compat.only_vmap(values)
        graph = BackwardGraph(half)
        if vmap is None and torch_compat.is_transformed(values):
            return graph(*values)
        batched = tuple(map(torch_compat.is_batched, values))
        batches = [vmap.unwrap(value) if vmap and flag else value for value, flag in zip(values, batched, strict=True)]
        placeholders = half.module.graph.find_nodes(op="placeholder")
        with torch_compat.outside_transforms():
            batches = tuple(map(with_traced_strides, batches, batched, placeholders))
            arguments = symbolic_as_traced(Arguments.of(batches, {}), placeholders, batched)
            if vmap is None or not any(batched):
                return self.plans.call(graph, arguments)
            dims = tuple(0 if flag else None for flag in batched)
            results, flags = self.plans.call(Batch(graph, dims), arguments)
        wrapped = iter(flags)
        return [vmap.wrap(result) if result is not None and next(wrapped) else result for result in results]


def symbolic_as_traced(arguments: Arguments, placeholders: Sequence[fx.Node], batched: Sequence[bool]) -> Arguments:
    """The arguments of a graph with symbolic sizes: a plan with the same symbolic sizes, for any size of the batch."""
    traced = [node.meta["val"] for node in placeholders]
    if not any(map(torch_compat.has_symbols, traced)):
        return arguments
    pairs = ((value, flag) for value, flag in zip(traced, batched, strict=True) if torch.is_tensor(value))
    return arguments.with_symbols({k: batched_dims(value, flag) for k, (value, flag) in enumerate(pairs)})


def batched_dims(traced: torch.Tensor, is_batched: bool) -> frozenset[int]:
    dims = torch_compat.symbolic_dims(traced)
    return frozenset({0, *(dim + 1 for dim in dims)}) if is_batched else dims


def with_traced_strides(value: Any, is_batched: bool, placeholder: fx.Node) -> Any:
    """A batch of tangents, each with the strides that the graph was traced with."""
    traced = placeholder.meta["val"]
    if not is_batched or torch_compat.has_symbolic_shape(traced):
        return value
    strides = torch_compat.strides(traced)
    span = 1 + sum((size - 1) * stride for size, stride in zip(traced.size(), strides, strict=True))
    wanted = (max(span, 1), *strides)
    return value if value.stride() == wanted else value.new_empty_strided(value.size(), wanted).copy_(value)
