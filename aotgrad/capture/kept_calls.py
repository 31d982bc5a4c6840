"""Notes the calls of functions that a backend keeps whole, while the function is traced.

    y = F.linear(x, w)      KeptCall(F.linear, (primals_1, primals_2)); its nodes are marked: t, mm

A call inside of another one belongs to it. A call is not noted if its arguments are not all values of the trace or
constants, if it changes one that requires grad, or if a result is a view of one: then the graph has its ops. Nor is a call
that a backward makes.

While a backward runs, that of the function or one inside of it, what it records for a noted call is marked, too.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch.fx.node import base_types

from aotgrad import torch_compat
from aotgrad.capture.recorder import Recorder
from aotgrad.errors import BackendError, CaptureError
from aotgrad.graph.autograd_nodes import autograd_nodes
from aotgrad.graph.functionalized_call import place_in_call
from aotgrad.graph.kept_calls import KeptCall, NotedGradients, Run, also_named

log = logging.getLogger("aotgrad.backends.kept")


class Nodes(Protocol):
    """The trace: its recorder, and the nodes of live values."""

    @property
    def recorder(self) -> Recorder: ...

    kept_calls: list[KeptCall]

    def node_of(self, value: Any) -> fx.Node: ...


class KeptCalls:
    """A handler of the calls of some functions, which notes them in `trace.kept_calls`."""

    def __init__(self, trace: Nodes, functions: Collection[Any]) -> None:
        for function in functions:
            if not callable(function):
                raise BackendError(
                    f"keep has {function!r}, which is no function; a backend keeps calls of functions of torch"
                )
        self.trace, self.functions = trace, functions

    def handle(self, function: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        recorder = self.trace.recorder
        if recorder.kept is not None or recorder.backward is not None:
            return call(*args, **kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        recorder.kept = kept = self.described(function, args, kwargs)
        arguments = [] if kept is None else [(each, self.trace.node_of(each)) for each in tensors]
        try:
            result = call(*args, **kwargs)
        finally:
            recorder.kept = None
        if kept is not None and self.finish(kept, result, arguments):
            self.trace.kept_calls.append(kept)
        else:
            log.debug("%s is taken apart: it changes or returns an argument, or a node cannot have its arguments", function)
        return result

    def described(self, function: Any, args: tuple, kwargs: Mapping[str, Any]) -> KeptCall | None:
        """The call before it runs; `None` if a graph cannot have its arguments."""
        written = pytree.tree_map(lambda leaf: tuple(leaf) if isinstance(leaf, torch.Size) else leaf, (args, dict(kwargs)))
        leaves, spec = pytree.tree_flatten_with_path(written)
        names: dict[fx.Node, str] = {}
        edges: dict[tuple[Any, int], str] = {}
        nodes: list[Any] = []
        for path, leaf in leaves:
            try:
                node = self.node_or_constant(leaf)
            except (CaptureError, TypeError):
                return None
            nodes.append(node)
            name = place_in_call(path)
            if isinstance(node, fx.Node):
                names[node] = also_named(names.get(node), name)
            if isinstance(leaf, torch.Tensor) and (edge := torch_compat.gradient_edge_if_any(leaf)) is not None:
                edges[edge] = also_named(edges.get(edge), name)
        args, kwargs = pytree.tree_unflatten(nodes, spec)
        kinds = {leaf.device.type for _, leaf in leaves if isinstance(leaf, torch.Tensor)}
        casts = any(map(torch.is_autocast_enabled, kinds))
        return KeptCall(function, args, kwargs, names, edges, torch_compat.sequence_nr(), casts)

    def node_or_constant(self, value: Any) -> Any:
        """What a node has as argument for a value.

        Raises:
            CaptureError, TypeError: it is neither traced nor a constant of FX.
        """
        if isinstance(value, torch.Tensor):
            if not torch_compat.any_functional([value]):
                raise TypeError
            return self.trace.node_of(value)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.trace.node_of(value)
        if value is None or value is ... or isinstance(value, base_types):
            return value
        raise TypeError

    def finish(self, kept: KeptCall, result: Any, arguments: Sequence[tuple[torch.Tensor, fx.Node]]) -> bool:
        """Note what the call returned and changed. Returns whether that are new values, computed of its arguments.

        `arguments`: the tensors among its arguments, with their nodes before the call.
        """
        is_list = isinstance(result, (tuple, list))
        given = {k: each for k, each in enumerate(result if is_list else [result]) if each is not None}
        results = list(given.values())
        if not results or not all(torch_compat.any_functional([each]) for each in results):
            return False
        if sum(each.requires_grad for each in results) > 1:
            return False
        memory = [torch_compat.storage_id(each) for each, _ in arguments]
        if any(torch_compat.storage_id(each) in memory for each in results):
            return False
        changed = {node: each for each, node in arguments if self.trace.node_of(each) is not node}
        if any(each.requires_grad or memory.count(torch_compat.storage_id(each)) > 1 for each in changed.values()):
            return False
        kept.changed = {kept.names[node]: self.trace.node_of(each) for node, each in changed.items()}
        kept.last = torch_compat.sequence_nr()
        kept.results = tuple(map(self.trace.node_of, results))
        kept.items, kept.count = (tuple(given), len(result)) if is_list else (None, 1)
        return len(set(kept.computed)) == len(kept.computed)


@contextlib.contextmanager
def noted_gradients(
    trace: Nodes, roots: Iterable[torch.Tensor], run: Run, starts: frozenset[fx.Node] = frozenset()
) -> Iterator[None]:
    """Inside, a backward from `roots` runs: mark what it records for kept calls, and note the gradients that leave these.

    Sums of the engine, which follow, belong to no call. `starts`: see `NotedGradients`.
    """
    outer, handles = trace.recorder.kept, []
    for node in autograd_nodes(roots) if trace.kept_calls else ():
        if (call := call_of(trace.kept_calls, node)) is not None:
            noting = NotingGradients(trace, call, node, call.gradients.setdefault(run, NotedGradients(starts)))
            handles += (node.register_prehook(noting.begin), node.register_hook(noting.end))
    try:
        yield
    finally:
        trace.recorder.kept = outer
        for handle in handles:
            handle.remove()


def call_of(calls: Sequence[KeptCall], node: Any) -> KeptCall | None:
    """The call that made an autograd node. The calls are in the order of the nodes that they made."""
    position = bisect.bisect(calls, torch_compat.node_sequence_nr(node), key=lambda call: call.first)
    return call if position and (call := calls[position - 1]).holds(node) else None


@dataclass(frozen=True)
class NotingGradients:
    """The hooks of an autograd node of a kept call."""

    trace: Nodes
    call: KeptCall
    node: Any
    noted: NotedGradients

    def begin(self, _: tuple) -> None:
        self.trace.recorder.kept = self.call

    def end(self, gradients: tuple, _: tuple) -> None:
        for k, (gradient, edge) in enumerate(zip(gradients, self.node.next_functions, strict=True)):
            if gradient is not None and (name := self.call.name_behind(edge)) is not None:
                self.noted.found[self.node, k] = (name, self.trace.node_of(gradient))
        self.trace.recorder.kept = None
