"""A backend without some ops: they run in eager, as what it does not support does.

>>> draw_ops(2, seed=0)
('nansum', 'ones')
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.graph_values import GraphInput
from aotgrad.backends.kit import Backend, Role
from aotgrad.backends.registry import get
from aotgrad.errors import BackendError


@dataclass(frozen=True)
class WithoutOps(Backend):
    """The backend of a name or place, which must be a `Backend` or a compile function, without the ATen ops so named."""

    backend: str
    ops: tuple[str, ...]
    inner: Backend = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        inner = get(self.backend)
        if not isinstance(inner, Backend):
            raise BackendError(f"ops cannot be excluded from {self.backend}, which is no aotgrad.backends.Backend")
        settings = {name: getattr(inner, name) for name in ("name", "fuses", "min_graph_ops", "writes_over", "keep")}
        vars(self).update(settings, inner=inner)

    def supports(self, node: fx.Node) -> bool:
        packet = getattr(node.target, "overloadpacket", None)
        return getattr(packet, "__name__", None) not in self.ops and self.inner.supports(node)

    def compile(self, graph: fx.GraphModule, inputs: Sequence[GraphInput], role: Role) -> Callable:
        return self.inner.compile(graph, inputs, role)

    def decompositions(self) -> Mapping[Any, Callable]:
        return self.inner.decompositions()

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return self.inner.context()


def draw_ops(count: int, seed: int) -> tuple[str, ...]:
    """The names of some ATen ops of torch's database, drawn at random: the same ones for a seed.

    Raises:
        BackendError: there are not so many.
    """
    names = {info.aten_name for info in torch_compat.operator_database()}
    packets = {name: getattr(torch.ops.aten, name, None) for name in names if name}
    known = sorted(name for name, packet in packets.items() if packet and torch_compat.has_own_kernel(packet))
    if not 0 <= count <= len(known):
        raise BackendError(f"the database has {len(known)} ATen ops, of which {count} cannot be drawn")
    return tuple(sorted(random.Random(seed).sample(known, count)))
