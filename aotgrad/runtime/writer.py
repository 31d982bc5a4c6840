"""The source text of one call, while the steps write it: lines, and names for what the lines use.

writer.line("y = x.sin()")                  a line, indented as the `with` around it asks for
writer.value((s0, 2))                       `(s0, 2)`, after a line that binds `s0` to `x.size(0)`
writer.version("x")                         `x._version`
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.errors import UnsupportedAliasingError
from aotgrad.graph.op_table import VIEW_METHODS
from aotgrad.ir import ViewStep

MANY = 8
"""From this many tensors on, one call reads all their versions, or sets them."""


class SourceWriter:
    """Collects the lines of a call.

    Attributes:
        returned: the expressions that the call returns.
        bound: names that the lines so far have bound, and that later steps may ask for.
    """

    def __init__(self, fakes: Mapping[str, Any], untracked: Collection[str] = ()) -> None:
        """
        Args:
            fakes: the traced values by name.
            untracked: names of tensors that may have no version at run time, whatever the trace knows.
        """
        self.fakes = fakes
        self.untracked = untracked
        self.lines: list[str] = []
        self.returned: list[str] = []
        self.bound: set[str] = set()
        self.names = ObjectNames()
        self._indent = ""

    def line(self, text: str) -> None:
        self.lines.append(self._indent + text)

    @contextmanager
    def block(self, head: str | None) -> Iterator[None]:
        """Lines inside `head`, a `with` statement, which is left out if there are none; `None` writes them without one."""
        if head is None:
            yield
            return
        self.line(head)
        start = len(self.lines)
        outer, self._indent = self._indent, f"{self._indent}    "
        yield
        self._indent = outer
        if len(self.lines) == start:
            self.lines.pop()

    def grad_mode(self, mode: bool | None) -> AbstractContextManager[None]:
        """Lines under a grad mode; `None` leaves the mode of the caller."""
        return self.block(None if mode is None else f"with set_grad_enabled({mode}):")

    def version(self, name: str) -> str:
        """The version of a tensor: read directly if the trace knows that it has one, unlike inference tensors.

        Dynamo's fake tensors do not tell. A tensor that is written without autograd may be an inference tensor.
        """
        fake = self.fakes.get(name)
        is_tracked = isinstance(fake, torch.Tensor) and not fake.is_inference() and name not in self.untracked
        return f"{name}._version" if is_tracked else f"version_of({name})"

    def bind_versions(self, names: Collection[str]) -> None:
        """Bind `version_x` to the version of each tensor; one call reads those of many."""
        if len(names) >= MANY:
            bound = tuple_of([f"version_{name}" for name in names])
            self.line(f"{bound} = versions_at_entry(({tuple_of(list(names))}))")
            return
        for name in names:
            self.line(f"version_{name} = {self.version(name)}")

    def views(self, name: str, base: str, steps: Sequence[ViewStep]) -> None:
        """The lines that bind `name` to the last view of a chain."""
        for step in steps:
            arguments = [*map(self.value, step.args), *(f"{key}={self.value(value)}" for key, value in step.kwargs)]
            method = None if step.kwargs else VIEW_METHODS.get(str(step.op))
            call = f"{base}.{method}" if method is not None else op_expression(step.op)
            given = arguments if method is not None else [base, *arguments]
            self.line(f"{name} = {call}({', '.join(given)}){'' if step.item is None else f'[{step.item}]'}")
            base = name

    def value(self, value: Any) -> str:
        """The text of a (nested) value, after lines that bind the symbols in it."""
        if isinstance(value, tuple):
            return f"({tuple_of([self.value(item) for item in value])})"
        if isinstance(value, list):
            return f"[{', '.join(map(self.value, value))}]"
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            text, symbols = torch_compat.symbolic_text(value)
            for symbol in symbols:
                self.bind(symbol)
            return text
        return repr(value)

    def bind(self, symbol: str) -> None:
        if symbol not in self.bound:
            self.bound.add(symbol)
            self.line(f"{symbol} = {find_symbol(symbol, self.fakes)}")


class ObjectNames:
    """Numbers the names of objects that the source refers to, by kind: `constant_0`, `hook_0`, `constant_1`."""

    def __init__(self) -> None:
        self._counts = Counter[str]()

    def next(self, kind: str) -> str:
        self._counts[kind] += 1
        return f"{kind}_{self._counts[kind] - 1}"


def versions_text(versions: Sequence[tuple[str, str]]) -> str:
    """A list of versions, given by name as text; one call reads those of many tensors in a row.

    >>> versions_text([("a", "a._version"), ("b", "None")])
    '[a._version, None]'
    """
    texts: list[str] = []
    for is_plain, run in itertools.groupby(versions, lambda pair: pair[1] == f"{pair[0]}._version"):
        names, each = zip(*run, strict=True)
        texts += [f"*versions_of(({', '.join(names)}))"] if is_plain and len(names) >= MANY else each
    return f"[{', '.join(texts)}]"


def find_symbol(symbol: str, fakes: Mapping[str, Any]) -> str:
    """The expression that reads the value of a symbol at run time.

    Raises:
        UnsupportedAliasingError: if there is none: the graph computes the symbol from the values of a tensor.
    """
    for name, value in fakes.items():
        for text, size in size_expressions(name, value):
            if torch_compat.is_symbol(size, symbol):
                return text
    raise UnsupportedAliasingError(
        f"an output is a view whose size or place depends on the value of a tensor ({symbol}); return a clone() of it"
    )


def size_expressions(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a named value that may be symbols, with the expressions that read them."""
    if not isinstance(value, torch.Tensor):
        yield name, value
        return
    for dim, size in enumerate(value.size()):
        yield f"{name}.size({dim})", size
    for dim, stride in enumerate(torch_compat.strides(value)):
        yield f"{name}.stride({dim})", stride
    if value.layout is torch.strided:
        yield f"{name}.storage_offset()", value.storage_offset()


def op_expression(op: torch._ops.OpOverload) -> str:
    """The op as the emitted source names it."""
    namespace, _, _ = op._schema.name.partition("::")
    return str(op) if namespace == "aten" else f"torch.ops.{op}"


def tuple_of(items: Sequence[str]) -> str:
    return ", ".join(items) + ("," if len(items) == 1 else "")
