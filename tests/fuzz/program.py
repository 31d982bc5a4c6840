"""A fuzzed program: a function, and a caller that calls it several times and uses the results.

    Program    parameters, body, result         the function
               rounds                           one call each, with other arguments; the plans of the function stay
    Round      setup, arguments, actions        makes the arguments; the caller's actions after the call

Statements are templates of Python, applied to names, so the printed text is the code that runs:

    Apply("v0", "{0}.transpose(0, 1)", ("p0",))     v0 = p0.transpose(0, 1)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union

INDENT = "    "


@dataclass(frozen=True)
class Name:
    """A variable, in a nested result."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Leaf:
    """A tensor made from nothing. `dtype` is a Python expression."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool

    def lines(self) -> Iterator[str]:
        shape = "".join(f"{size}, " for size in self.shape)
        yield f"{self.name} = tensor({shape}dtype={self.dtype}, requires_grad={self.requires_grad})"


@dataclass(frozen=True)
class Apply:
    """`target = template of operands`, without the assignment if `target` is empty; it may be several names."""

    target: str
    template: str
    operands: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        call = self.template.format(*self.operands)
        yield f"{self.target} = {call}" if self.target else call


@dataclass(frozen=True)
class Block:
    """Statements in a context, such as `torch.no_grad()`."""

    context: str
    body: tuple[Statement, ...]

    def lines(self) -> Iterator[str]:
        yield f"with {self.context}:"
        yield from indented(line for statement in self.body for line in statement.lines())


@dataclass(frozen=True)
class Backward:
    """A backward from several tensors at once. `inputs`: for these leaves only."""

    roots: tuple[str, ...]
    expanded: bool = False
    retain_graph: bool = False
    create_graph: bool = False
    inputs: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        flags = [name for name in ("expanded", "retain_graph", "create_graph") if getattr(self, name)]
        options = [f"{name}=True" for name in flags]
        options += [f"inputs=[{', '.join(self.inputs)}]"] if self.inputs else []
        yield f"backward({', '.join((*self.roots, *options))})"


@dataclass(frozen=True)
class Gradients:
    """`targets = gradients(roots, inputs)`, differentiable again with `create_graph`."""

    targets: tuple[str, ...]
    roots: tuple[str, ...]
    inputs: tuple[str, ...]
    retain_graph: bool
    create_graph: bool

    def lines(self) -> Iterator[str]:
        options = f"retain_graph={self.retain_graph}, create_graph={self.create_graph}"
        roots, inputs = ", ".join(self.roots), ", ".join(self.inputs)
        yield f"{', '.join(self.targets)}, = gradients([{roots}], [{inputs}], {options})"


Statement = Union[Leaf, Apply, Block, Backward, Gradients]


@dataclass(frozen=True)
class Round:
    """One call: `setup` makes the tensors `arguments`; `context` is around the call; then come the caller's `actions`."""

    setup: tuple[Statement, ...]
    arguments: tuple[str, ...]
    context: str
    actions: tuple[Statement, ...]

    def call(self) -> str:
        call = f"result = f({', '.join(self.arguments)})"
        return f"with {self.context}:\n{INDENT}{call}" if self.context else call


@dataclass(frozen=True)
class Program:
    """A function, how it is compiled (keywords of `aot_function`, as Python), and the rounds of its caller."""

    parameters: tuple[str, ...]
    body: tuple[Statement, ...]
    result: Any
    options: str
    rounds: tuple[Round, ...] = ()

    def function(self) -> str:
        """The text of the function `f`."""
        body = [*source(self.body).splitlines(), f"return {self.result!r}"]
        return "\n".join([f"def f({', '.join(self.parameters)}):", *indented(body)]) + "\n"


def source(statements: tuple[Statement, ...]) -> str:
    return "\n".join(line for statement in statements for line in statement.lines())


def indented(lines) -> Iterator[str]:
    return (INDENT + line for line in lines)


def names_in(result: Any) -> list[str]:
    """The variables of a nested result, in order."""
    match result:
        case Name(name):
            return [name]
        case tuple() | list():
            return [name for item in result for name in names_in(item)]
        case dict():
            return [name for item in result.values() for name in names_in(item)]
    return []
