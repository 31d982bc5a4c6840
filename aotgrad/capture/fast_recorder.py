"""Writes the nodes of ordinary ops straight into the graph, without proxies.

In: an op and its fake arguments. Out: its fake results, each with a node, or `NotImplemented` where the general recorder is
needed: symbolic sizes, constants, higher-order ops, decomposed ops, in-place ops.

The metadata of results is cached by op and by the metadata of the arguments, so the second layer of a model runs no shape
function.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.capture.recorder import CHECKED_OPS, Recorder
from aotgrad.torch_compat import FakeTensor, FakeTensorMode, FunctionalTensor, TrackedTensor

MAX_CACHED = 50_000
"""The number of cached results. A further one clears the cache."""

PLAIN_TYPES = frozenset({int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
"""Argument types whose values are part of a cache key as they are."""
TYPED = frozenset({bool, float, complex})
"""Types that a key names beside the value, since `1 == 1.0 == True`."""

_cache: dict[tuple, Any] = {}


def clear_results() -> None:
    _cache.clear()


def cached_count() -> int:
    return len(_cache)


class GeneralRecorderNeeded(Exception):
    """The fast recorder cannot record these arguments."""


class FastRecorder:
    """Records ops that compute fakes from fakes with known nodes.

    Args:
        recorder: has the graph and the node of each fake, and completes the `meta` of a new node.
        fake_mode: the mode of the fakes.
        decomposed: ops that the general recorder decomposes.
        track: tracks a result whose metadata is not plain.
    """

    def __init__(
        self,
        recorder: Recorder,
        fake_mode: FakeTensorMode,
        decomposed: Collection[Any],
        track: Callable[[Any, fx.Node], None],
    ) -> None:
        self.graph, self.tracked, self.annotate = recorder.graph, recorder.tensor_tracker, recorder.annotate
        self.fake_mode, self.decomposed, self.track = fake_mode, decomposed, track
        self._kinds: dict[Any, torch_compat.OpKind | None] = {}
        self._names: dict[Any, str] = {}

    def kind_of(self, op: Any) -> torch_compat.OpKind | None:
        """How an op is recorded; `None` if the general recorder records it."""
        try:
            return self._kinds[op]
        except KeyError:
            kind = None if op in self.decomposed or op in CHECKED_OPS else torch_compat.kind_of_op(op)
            self._kinds[op] = kind
            return kind

    def record_fakes(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The fake results of an op on fakes. The proxy mode must be off."""
        kind = self.kind_of(op)
        if kind is None:
            return NotImplemented
        try:
            key: list[Any] = [op, FakeTensor, torch.get_default_dtype()]
            node_args, node_kwargs = self._node_arguments(args, kwargs, FakeTensor, key)
        except GeneralRecorderNeeded:
            return NotImplemented
        if kind is torch_compat.OpKind.VIEW:
            result = torch_compat.view_of_fake(self.fake_mode, op, args, kwargs)
        else:
            result = self._cached(key, lambda: op(*args, **kwargs), (node_args, node_kwargs))
        self._record(op, node_args, node_kwargs, result)
        return result

    def record_functional(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], check: Callable[[], None]) -> Any:
        """The fake results of an op that neither writes nor views, on functional tensors without pending writes.

        `check` raises for arguments that eager refuses. It is called when the op first meets arguments of this kind. The ops
        that a decomposed op consists of are recorded below functionalization.
        """
        if torch_compat.kind_of_op(op) is not torch_compat.OpKind.PURE:
            return NotImplemented
        try:
            key: list[Any] = [op, FunctionalTensor, torch.get_default_dtype()]
            node_args, node_kwargs = self._node_arguments(args, kwargs, FunctionalTensor, key)
        except GeneralRecorderNeeded:
            return NotImplemented

        if op in self.decomposed:
            check()
            return op(*torch_compat.inner_values(args), **torch_compat.inner_values(kwargs))

        def compute() -> Any:
            check()
            with torch_compat.disable_proxy_modes_tracing():
                return op(*torch_compat.inner_values(args), **torch_compat.inner_values(kwargs))

        result = self._cached(key, compute, (node_args, node_kwargs))
        self._record(op, node_args, node_kwargs, result)
        return result

    def _node_arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], kind: type, key: list[Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a node. Extends `key` by everything that the metadata of its results depends on."""
        node_args = tuple(self._arguments_of_node(args, kind, key))
        if not kwargs:
            return node_args, {}
        key.extend(kwargs)
        return node_args, dict(zip(kwargs, self._arguments_of_node(kwargs.values(), kind, key), strict=True))

    def _arguments_of_node(self, values: Any, kind: type, key: list[Any]) -> list[Any]:
        lowered: list[Any] = []
        for value in values:
            its_type = type(value)
            if its_type is kind:
                tracked = self._tracked_of(value)
                key.append(tracked.metadata)
                value = tracked.node
            elif its_type in PLAIN_TYPES:
                key.append(value)
            elif its_type in TYPED:
                key.append((its_type, value))
            elif its_type is list or its_type is tuple:
                key.append((its_type, len(value)))
                value = its_type(self._arguments_of_node(value, kind, key))
            else:
                raise GeneralRecorderNeeded
            lowered.append(value)
        return lowered

    def _tracked_of(self, value: torch.Tensor) -> TrackedTensor:
        fake = self.tracked.settled_value(value) if type(value) is FunctionalTensor else value
        tracked = self.tracked.entry(fake)
        if tracked is None or tracked.constant is not None or tracked.metadata is None:
            raise GeneralRecorderNeeded
        return tracked

    def _cached(self, key: list[Any], compute: Callable[[], Any], node_args: Any) -> Any:
        """The fake results, made from cached metadata if the key is known."""
        whole = tuple(key)
        found = _cache.get(whole)
        if found is None:
            result = compute()
            found = recipe_of(result, node_args)
            if len(_cache) >= MAX_CACHED:
                clear_results()
            if found is not None:
                _cache[whole] = found
            return result
        kind, pieces = found
        if kind is None:
            return torch_compat.new_fake(self.fake_mode, pieces)
        return kind(piece and torch_compat.new_fake(self.fake_mode, piece) for piece in pieces)

    def _record(self, op: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """Add a node for the op, and one for each of several results."""
        name = self._names.get(op)
        if name is None:
            name = self._names[op] = torch_compat.name_of_node(self.graph, op)
        node = torch_compat.new_node(self.graph, "call_function", op, args, kwargs, name)
        self.annotate(node, op)
        if isinstance(result, torch.Tensor):
            self._track(result, node)
            return
        node.meta["val"] = type(result)(result)
        for index, part in enumerate(result):
            item = torch_compat.new_node(self.graph, "call_function", operator.getitem, (node, index), {}, "getitem")
            self.annotate(item, op)
            if part is not None:
                self._track(part, item)

    def _track(self, value: torch.Tensor, node: fx.Node) -> None:
        tracked = self.tracked.add(value, node)
        if tracked.metadata is None:
            self.track(value, node)
        else:
            node.meta["val"] = value
            node.meta["tensor_meta"] = tracked.metadata.described


def recipe_of(result: Any, node_args: Any) -> tuple[type | None, Any] | None:
    """The metadata to make equal results from; `None` unless all are plain tensors with memory of their own."""
    several = type(result) in (list, tuple)
    parts = result if several else [result]
    if not all(part is None or isinstance(part, torch.Tensor) for part in parts):
        return None
    pieces = [None if part is None else torch_compat.metadata_of_new(part) for part in parts]
    if any(piece is None and part is not None for piece, part in zip(pieces, parts, strict=True)):
        return None
    sources = (leaf.meta["val"] for leaf in pytree.tree_leaves(node_args) if isinstance(leaf, fx.Node))
    storages = [torch_compat.storage_id(value) for value in (*parts, *sources) if value is not None]
    own = [torch_compat.storage_id(part) for part in parts if part is not None]
    if any(storages.count(storage) > 1 for storage in own):
        return None
    return (type(result), tuple(pieces)) if several else (None, pieces[0])
