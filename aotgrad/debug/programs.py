"""A graph with real inputs, and smaller programs from parts of it.

In: an `fx.GraphModule` of functional ops, and values for its placeholders. Out: `ConcreteProgram`s. The values that a part
reads from outside become its inputs, as computed in the whole program.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad.graph.copies import copy_graph_module, copy_node
from aotgrad.graph.ends import output_node, outputs_of

OP_KINDS = ("call_function", "call_method", "call_module")


@dataclass(frozen=True)
class ConcreteProgram:
    """A module and its inputs. The module returns a list or tuple."""

    module: fx.GraphModule
    inputs: tuple[Any, ...]

    def __call__(self) -> list[Any]:
        """The results in eager; the inputs stay unchanged."""
        with torch.no_grad():
            return list(self.module(*map(copy_value, self.inputs)))

    @property
    def ops(self) -> list[fx.Node]:
        return [node for node in self.module.graph.nodes if node.op in OP_KINDS]

    @property
    def returned(self) -> list[Any]:
        return list(outputs_of(self.module.graph))


def copy_value(value: Any) -> Any:
    """A tensor of the same geometry and values in new memory; other values as they are."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_conj() or value.is_neg():
        return value.clone() if isinstance(value, torch.Tensor) else value
    return flat(value).clone().as_strided(value.size(), value.stride())


def flat(value: torch.Tensor) -> torch.Tensor:
    """The memory from the first to the last element, as a flat tensor."""
    extent = 1 + sum((n - 1) * s for n, s in zip(value.size(), value.stride(), strict=True)) if value.numel() else 0
    return value.detach().as_strided((extent,), (1,))


class ValueRecorder(fx.Interpreter):
    """Runs a module and records the value of each node."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)

    def values(self, inputs: Sequence[Any]) -> dict[fx.Node, Any]:
        with torch.no_grad():
            self.run(*map(copy_value, inputs))
        return dict(self.env)


def values_of(program: ConcreteProgram) -> dict[fx.Node, Any]:
    """The value of each node in eager."""
    return ValueRecorder(program.module).values(program.inputs)


def units_of(program: ConcreteProgram) -> list[tuple[fx.Node, ...]]:
    """The ops, each with the `getitem` nodes of its result."""
    units: dict[fx.Node, list[fx.Node]] = {}
    for node in program.ops:
        owner = node.args[0] if node.target is operator.getitem and node.args[0] in units else node
        units.setdefault(owner, []).append(node)
    return [tuple(unit) for unit in units.values()]


def part_of(program: ConcreteProgram, values: Mapping[fx.Node, Any], kept: Collection[fx.Node]) -> ConcreteProgram | None:
    """The program of some nodes; `None` if it has no results."""
    kept = set(kept)
    outside = list(dict.fromkeys(arg for node in program.ops if node in kept for arg in node.all_input_nodes))
    given = [arg for arg in outside if arg not in kept and isinstance(values[arg], (torch.Tensor, int, float, bool))]
    graph = fx.Graph()
    env = {node: graph.placeholder(node.name) for node in given}
    for node in program.module.graph.nodes:
        is_attribute = node.op == "get_attr" and node in outside and node not in env
        if node in kept or is_attribute:
            env[node] = copy_node(graph, node, env.__getitem__)
    returned = [env[node] for node in results(program, values, kept)]
    if not returned:
        return None
    graph.output(tuple(returned))
    return ConcreteProgram(fx.GraphModule(program.module, graph), tuple(values[node] for node in given))


def results(program: ConcreteProgram, values: Mapping[fx.Node, Any], kept: Collection[fx.Node]) -> Iterator[fx.Node]:
    """The tensors of a part that the rest of the program reads, or that no node reads."""
    for node in program.ops:
        inside = bool(node.users) and all(user in kept for user in node.users)
        if node in kept and not inside and isinstance(values[node], torch.Tensor):
            yield node


def with_results(program: ConcreteProgram, positions: Collection[int]) -> ConcreteProgram:
    """The program with some of its results, and the ops and inputs that they need."""
    module = copy_graph_module(program.module)
    output = output_node(module.graph)
    output.args = (tuple(value for k, value in enumerate(outputs_of(module.graph)) if k in positions),)
    module.graph.eliminate_dead_code()
    inputs = []
    for node, value in zip(module.graph.find_nodes(op="placeholder"), program.inputs, strict=True):
        if node.users:
            inputs.append(value)
        else:
            module.graph.erase_node(node)
    module.recompile()
    return ConcreteProgram(module, tuple(inputs))


def with_inputs(program: ConcreteProgram, change: Callable[[int, Any], Any]) -> ConcreteProgram:
    """The program with other values for its inputs."""
    return ConcreteProgram(program.module, tuple(change(k, value) for k, value in enumerate(program.inputs)))


def with_size(program: ConcreteProgram, size: int, smaller: int) -> ConcreteProgram:
    """The program with each dimension of `size` made `smaller`, in its inputs and in the arguments of its ops."""

    def other(number: Any) -> Any:
        return smaller if type(number) is int and number == size else number

    def shrunk(_: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or size not in value.shape:
            return other(value)
        for dim in range(value.dim()):
            value = value.narrow(dim, 0, other(value.size(dim)))
        return value.clone(memory_format=torch.preserve_format)

    module = copy_graph_module(program.module)
    for node in module.graph.nodes:
        if node.op == "call_function":
            node.args = tuple(map_lists(other, arg) for arg in node.args)
    module.recompile()
    return with_inputs(ConcreteProgram(module, program.inputs), shrunk)


def map_lists(change: Callable[[Any], Any], value: Any) -> Any:
    """A list of sizes with each element changed; anything else as it is, since a single number is rarely a size."""
    is_list = isinstance(value, (list, tuple)) and all(type(item) is int for item in value)
    return type(value)(map(change, value)) if is_list and value else value


def sizes_of(program: ConcreteProgram) -> list[int]:
    """The distinct sizes of the inputs, the largest first."""
    tensors = [value for value in program.inputs if isinstance(value, torch.Tensor)]
    return sorted({size for tensor in tensors for size in tensor.shape if size > 1}, reverse=True)
