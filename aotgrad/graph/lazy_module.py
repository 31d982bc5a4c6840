"""Graphs whose Python code is generated when somebody runs or reads it.

Most graphs on the way from the trace to the plan are only transformed: a joint graph is partitioned, a backward is cut into
variants. Generating and compiling the code of each took a third of a partition's time.
"""

from __future__ import annotations

from typing import Any

import torch.fx as fx


class LazyGraphModule(fx.GraphModule):
    """An `fx.GraphModule` that generates its code at the first call, or when `code` or `forward` is read.

    Pickled, it comes back as a plain `fx.GraphModule`. TorchScript takes it as one.
    """

    __jit_unused_properties__ = (*getattr(fx.GraphModule, "__jit_unused_properties__", ()), "code", "forward")

    def recompile(self) -> Any:
        """Forget the code. Every `fx.GraphModule` has a class of its own, in which `forward` stands once it is generated."""
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
        """The same graph in an `fx.GraphModule`, to be pickled; attributes are still looked up in this module."""
        plain = fx.GraphModule(self, self.graph, type(self).__name__)
        self.graph.owning_module = self
        return plain
