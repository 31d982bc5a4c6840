"""The backward of a segment as a part of the graph of compiled autograd.

Compiled autograd records a whole backward, once for each structure of autograd nodes, and compiles it as one graph. The
graph of a segment is copied into it as it was traced, in the variant for the tangents and gradients of that backward.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.graph.symbols import bound_symbol
from aotgrad.ir import GraphHalf
from aotgrad.runtime.backward import Backward, SizeAndStride
from aotgrad.runtime.variants import VariantKey, copy_graph
from aotgrad.slots import SavedSymInt, of_kind


@dataclass(frozen=True)
class InlinedBackward:
    """The variants of a backward with the gradients `wanted`. Implements `torch_compat.InlinedNode`."""

    backward: Backward
    wanted: tuple[bool, ...]

    def graph(self, defined: Sequence[bool]) -> fx.GraphModule:
        """The graph of a variant, which returns `None` for undefined gradients.

        Raises:
            RuntimeError: eager's, if the backward needs a value which the call itself overwrote.
        """
        key = VariantKey(tuple(defined), self.wanted)
        self.backward.check_overwritten(key)
        half, undefined = self.backward.variants.graph(key)
        graph, _ = copy_graph(half)
        (output,) = graph.find_nodes(op="output")
        output.args = (tuple(None if k in (undefined or ()) else node for k, node in enumerate(output.args[0])),)
        return LazyGraphModule(half.module, graph)

    def inputs(self, saved: Sequence[Any], sizes: Sequence[Any], unused: Sequence[Any], tangents: Sequence[Any]) -> Any:
        """The inputs of the graph, tangents as they were laid out in the trace."""
        key = VariantKey(tuple(tangent is not None for tangent in tangents), self.wanted)
        _, values, _ = self.backward.uncompiled(key, [*sizes, *saved], tangents, self.layouts(sizes))
        return values

    def results(self, gradients: Sequence[Any]) -> tuple[Any, ...]:
        return self.backward.node_results(gradients)

    def layouts(self, sizes: Sequence[Any]) -> Sequence[SizeAndStride]:
        """The layouts of the tangents in a call with some symbolic sizes."""
        values = {**torch_compat.text_namespace(), **dict(zip(self.size_names, sizes, strict=True))}
        return eval(torch_compat.compiled_text(self.layout_text), values) if self.size_names else self.backward.layouts

    @functools.cached_property
    def size_names(self) -> tuple[str, ...]:
        return names_of_sizes(self.backward.variants.full)

    @functools.cached_property
    def layout_text(self) -> str:
        return nested_text(self.backward.layouts)

    @functools.cached_property
    def knows_layouts(self) -> bool:
        """Whether the saved sizes determine the layouts. They do, unless a size depends on the values of a tensor."""
        numbers = (number for layout in self.backward.layouts for part in layout for number in part)
        symbolic = filter(torch_compat.has_symbols, numbers)
        return {name for number in symbolic for name in torch_compat.symbolic_text(number)[1]} <= {*self.size_names}


def names_of_sizes(half: GraphHalf) -> tuple[str, ...]:
    """The symbols of the sizes that a backward saves, in order: its first inputs."""
    count = len(of_kind(half.signature.inputs, SavedSymInt))
    return tuple(str(bound_symbol(node.meta["val"])) for node in half.module.graph.find_nodes(op="placeholder")[:count])


def nested_text(value: Any) -> str:
    """A nested tuple of numbers, some of them symbolic, as Python source.

    >>> nested_text(((2, 3), (3, 1)))
    '((2, 3,), (3, 1,),)'
    """
    if isinstance(value, tuple):
        return f"({''.join(f'{nested_text(item)}, ' for item in value).rstrip()})"
    return torch_compat.symbolic_text(value)[0] if torch_compat.has_symbols(value) else repr(value)
