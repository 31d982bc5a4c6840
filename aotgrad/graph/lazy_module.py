"""Graph modules that generate their Python code on demand.

Most graphs between the trace and the plan are only transformed: a joint graph is partitioned, a backward is cut into
variants. Generating and compiling the code of each took a third of a partition's time.

Torch's own `_LazyGraphModule` does not fit: TorchScript cannot compile it, and a `forward` taken from it follows later
changes of the graph.
"""

from __future__ import annotations

from typing import Any

import torch.fx as fx


class LazyGraphModule(fx.GraphModule):
    """An `fx.GraphModule` that generates its code at the first call, or when `code` or `forward` is read.

    Pickling converts it to a plain `fx.GraphModule`. TorchScript treats it as one.
    """

    __jit_unused_properties__ = (*getattr(fx.GraphModule, "__jit_unused_properties__", ()), "code", "forward")

    def recompile(self) -> Any:
        """Drop the code. Every `fx.GraphModule` has its own class, which holds the generated `forward`."""
        if "forward" in vars(type(self)):
            del type(self).forward  # pyright: ignore[reportAttributeAccessIssue]: of the class that `fx` made for it

    @property
    def forward(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().recompile()
        return type(self).forward.__get__(self)

    @property
    def code(self) -> str:
        _ = self.forward
        return super().code

    def __str__(self) -> str:
        _ = self.forward
        return super().__str__()

    def __reduce__(self) -> Any:
        return self._plain().__reduce__()

    def __reduce_package__(self, exporter: Any) -> Any:
        return self._plain().__reduce_package__(exporter)

    def _plain(self) -> fx.GraphModule:
        """The same graph in a plain `fx.GraphModule`, for pickling; attributes are still looked up in this module."""
        plain = fx.GraphModule(self, self.graph, type(self).__name__)
        self.graph.owning_module = self
        return plain
