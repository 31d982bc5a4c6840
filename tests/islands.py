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
        assert all(node.op != "call_function" or self.supports_or_is_item(node) for node in graph.graph.nodes)
        return boxed_code(graph)

    def supports_or_is_item(self, node: fx.Node) -> bool:
        return not hasattr(node.target, "_schema") or self.supports(node) or "sym_" in str(node.target)


ISLANDS = Islands()
