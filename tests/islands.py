"""A backend that supports about two thirds of all ops, and runs its graphs as they are.

ISLANDS.supports(node)      the same for each op in every process
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import torch.fx as fx

from aotgrad.backends import Backend, GraphInput
from aotgrad.backends.boxed_code import boxed_code


class Islands(Backend):
    name = "islands"
    fuses = False

    def supports(self, node: fx.Node) -> bool:
        return zlib.crc32(str(node.target).encode()) % 3 > 0

    def compile(self, graph: fx.GraphModule, inputs: Sequence[GraphInput], role: str) -> Callable:
        assert not self.islands(graph.graph)
        return boxed_code(graph)


ISLANDS = Islands()
