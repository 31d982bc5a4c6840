"""The recorder of a trace: which node computes which fake, the metadata of new nodes, and subgraphs."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.fx as fx
import torch.fx.traceback as fx_traceback
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import disable_functional_mode
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    PythonKeyTracer,
    _MakefxTracer,
    _ProxyTensor,
    _set_make_fx_tracer,
    disable_proxy_modes_tracing,
    get_proxy_mode,
    get_proxy_slot,
)
from torch.fx.proxy import _COPY_META_FIELDS

from aotgrad.torch_compat.fakes import Metadata, metadata_of
from aotgrad.torch_compat.refusals import refuses_lazy_bits, views_across_gaps


class TrackedTensor:
    """A fake and the node that computes it; `slot` is the entry of torch's recorder, created on demand."""

    __slots__ = ("_metadata", "node", "slot", "value")

    def __init__(self, value: torch.Tensor, node: fx.Node, slot: Any = None) -> None:
        self.value, self.node, self.slot = value, node, slot
        self._metadata: Any = NotImplemented

    @property
    def constant(self) -> torch.Tensor | None:
        return None if self.slot is None else self.slot.constant

    @property
    def metadata(self) -> Metadata | None:
        found = self._metadata
        if found is NotImplemented:
            found = self._metadata = metadata_of(self.value)
        return found


class TensorTracker:
    """Maps fakes to the nodes that compute them. For torch's recorder, it is a mapping of tensors to proxies."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._tracked: dict[int, TrackedTensor] = {}  # by id; an entry keeps its tensor alive

    def entry(self, value: torch.Tensor) -> TrackedTensor | None:
        return self._tracked.get(id(value))

    def add(self, value: torch.Tensor, node: fx.Node) -> TrackedTensor:
        tracked = self._tracked[id(value)] = TrackedTensor(value, node)
        return tracked

    def settled_value(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake behind a functional tensor, after pending writes."""
        settle(self, tensor)
        return torch._from_functional_tensor(tensor.elem)

    def get(self, tensor: torch.Tensor, default: Any = None) -> Any:
        tracked = self._tracked.get(id(tensor))
        if tracked is None:
            return default
        if tracked.slot is None:
            tracked.slot = _ProxyTensor(fx.Proxy(tracked.node, self._tracer), None)
        return tracked.slot

    def __getitem__(self, tensor: torch.Tensor) -> Any:
        if id(tensor) not in self._tracked:
            raise KeyError(tensor)
        return self.get(tensor)

    def __contains__(self, tensor: object) -> bool:
        return id(tensor) in self._tracked

    def __setitem__(self, tensor: torch.Tensor, proxy: Any) -> None:
        self._tracked[id(tensor)] = TrackedTensor(tensor, proxy.proxy.node, proxy)


def settle(tracker: TensorTracker, tensor: torch.Tensor) -> None:
    """Regenerate a view whose base was written to; the new nodes get the metadata of the first view's nodes."""
    if not torch._functionalize_has_data_mutation(tensor.elem):
        return
    tracked = tracker.entry(torch._from_functional_tensor(tensor.elem))
    with contextlib.nullcontext() if tracked is None else _replaying(tracked.node):
        torch._sync(tensor)


DEVICE_OF = torch.ops.prim.device.default
"""Reads the device of a wrapped tensor: whenever a functional tensor is created."""


def is_outside_of_kernels(value: Any) -> bool:
    """Whether a value is a fake with its own device; while kernels of its mode run, a fake is on the meta device."""
    return type(value) is FakeTensor and not value.fake_mode.in_kernel_invocation


_replaying = getattr(fx_traceback, "set_current_replay_node", contextlib.nullcontext)
_replayed_node = getattr(fx_traceback, "get_current_replay_node", lambda: None)


def copy_current_meta(meta: dict[str, Any], op: Any) -> None:
    """Add the metadata of `fx.traceback`, for example from an interpreter of a graph, to that of a new node for `op`."""
    current = fx_traceback.current_meta
    for field in _COPY_META_FIELDS if current else ():
        if field in current:
            meta[field] = copy.copy(current[field])
    if current.get("stack_trace"):
        meta["stack_trace"] = current["stack_trace"]
    if (first := _replayed_node()) is not None:
        meta["is_functional_regenerated"] = True
        meta.update({field: first.meta[field] for field in ("custom", "stack_trace") if field in first.meta})
    meta["original_aten"] = _decomposed_op() or op


def _decomposed_op() -> Any:
    """The outermost op whose decomposition is being recorded."""
    found = proxy_tensor.ORIGINAL_ATEN
    return found.get() if isinstance(found, contextvars.ContextVar) else found


def proxy_mode(tracer: PythonKeyTracer, record: Callable[..., Any]) -> ProxyTorchDispatchMode:
    """The mode that records ops on fakes, unless `record(op, args, kwargs)` does; it may return `NotImplemented`.

    A write may have left a value that a view cannot be regenerated from: one with conjugate or negative bits, which are
    resolved first, or with other strides than before, which is copied.
    """
    mode = ProxyTorchDispatchMode(tracer, "symbolic")

    def dispatch(mode: Any, op: Any, classes: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is DEVICE_OF and is_outside_of_kernels(args[0]):
            return args[0].fake_device
        if refuses_lazy_bits(op, args):
            with mode:
                args = (args[0].resolve_conj().resolve_neg(), *args[1:])
        if views_across_gaps(op, args):
            with mode:
                args = (args[0].contiguous(), *args[1:])
        if not mode.emulate_precision_casts:
            with torch._C.DisableTorchFunction():
                result = record(op, args, kwargs or {})
            if result is not NotImplemented:
                return result
        return ProxyTorchDispatchMode.__torch_dispatch__(mode, op, classes, args, kwargs)

    mode.__torch_dispatch__ = types.MethodType(dispatch, mode)  # on the instance, as in `functional_mode`
    return mode


def proxy_node(value: Any, tracer: Any) -> fx.Node | None:
    """The graph node of a fake tensor or symbolic number; `None` if the tracer has not seen it."""
    slot = get_proxy_slot(value, tracer, None)
    if slot is None:
        return None
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        slot = slot.force() if hasattr(slot, "force") else slot
        return slot.node
    return slot.proxy.node


def known_numbers(tracer: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """A copy of what a tracer knows about symbolic numbers: their nodes."""
    return dict(tracer.symnode_tracker.sym_node_dict), dict(tracer.sympy_expr_tracker)


def set_known_numbers(tracer: Any, known: tuple[dict[Any, Any], dict[Any, Any]]) -> None:
    """Make a tracer forget all symbolic numbers but some, whose nodes are in its graph."""
    tracer.symnode_tracker.sym_node_dict, tracer.sympy_expr_tracker = map(dict, known)


def is_constant(value: Any, tracer: Any) -> bool:
    """Whether a traced tensor has a known value, as a small one that does not depend on inputs."""
    slot = get_proxy_slot(value, tracer, None)
    return value.constant is not None or (slot is not None and slot.constant is not None)


def forget_constant(value: Any, tracer: Any) -> None:
    """Drop the known value of a fake tensor, because its inputs may change in a later call."""
    value.constant = None
    slot = get_proxy_slot(value, tracer, None)
    if slot is not None:
        slot.constant = None


@contextlib.contextmanager
def hidden_tracing_modes() -> Iterator[None]:
    """Suspend the proxy and functional modes: what runs inside is not recorded."""
    with disable_functional_mode(), disable_proxy_modes_tracing():
        yield


def set_coalesced(fake: torch.Tensor, is_coalesced: bool) -> None:
    """Set whether a fake sparse tensor is coalesced; many shape functions claim that it is."""
    with hidden_tracing_modes():
        torch.ops.aten._coalesced_.default(fake, is_coalesced)


def run_shape_function(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """What the shape function of an op returns for fake arguments, or its error, without recording anything."""
    with hidden_tracing_modes():
        return op(*args, **kwargs)


class SubgraphTracer(_MakefxTracer):
    """Traces subgraphs in the active fake mode: some ops call Dynamo, which has its own."""

    _given_mode: FakeTensorMode | None = None

    @property
    def fake_tensor_mode(self) -> FakeTensorMode | None:
        return torch._guards.active_fake_mode() or self._given_mode

    @fake_tensor_mode.setter
    def fake_tensor_mode(self, mode: FakeTensorMode | None) -> None:
        self._given_mode = mode


@contextlib.contextmanager
def subgraphs_are_traced(fake_mode: FakeTensorMode, decompositions: Mapping[Any, Callable]) -> Iterator[None]:
    """Inside, higher-order ops trace their functions (branches, loop bodies) into subgraphs."""
    tracer = SubgraphTracer(
        decompositions,
        "real",
        _allow_non_fake_inputs=True,
        pre_dispatch=False,
        record_module_stack=False,
        _allow_fake_constant=False,
        _error_on_data_dependent_ops=True,
    )
    tracer.fake_tensor_mode, tracer.fx_tracer = fake_mode, PythonKeyTracer()
    with _set_make_fx_tracer(tracer):
        yield


def closed_over_in_trace() -> list[torch.Tensor]:
    """The real tensors that the open trace has met so far."""
    mode: Any = get_proxy_mode()
    names = dict.fromkeys(str(node.target) for node in mode.tracer.graph.find_nodes(op="get_attr"))
    values = (getattr(mode.tracer.root, name, None) for name in names)
    return [value for value in values if isinstance(value, torch.Tensor)]
