"""Checks in each call what a compiled graph does, beside its trace: the option `verify_results`.

    run = GraphContract.of(graph, outputs, overwritable, "backend 'mine'", "the forward graph").around(compiled)
    run(args)       BackendError: backend 'mine' breaks its contract: output 0 of the forward graph has stride [1, 3], ...

In: the graph before it is compiled, and the compiled function. Checked are the results' number, dtypes, devices, sizes and
strides, whose memory they have, and that inputs stay as they are. Values are not: see `conformance` and `debug`.

Nothing is kept alive for a check: memory is known by weak references.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import sympy
import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.gradient_mode import is_workspace
from aotgrad.backends.graph_values import GraphOutput
from aotgrad.errors import BackendError
from aotgrad.graph import op_table
from aotgrad.graph.ends import outputs_of
from aotgrad.graph.memory_owners import memory_owner
from aotgrad.graph.strided_overlap import ByteLayout, overlap
from aotgrad.graph.symbols import SYMBOLIC_NUMBERS, bound_symbol
from aotgrad.ir import BoxedCallable

SymbolValues = Mapping[sympy.Symbol, sympy.Integer]
"""The values of symbols in a call."""


UNKNOWN = object()
PLAIN_NUMBERS = (int, float, bool, *SYMBOLIC_NUMBERS)


@dataclass(frozen=True)
class TracedResult:
    """What the trace says about a result.

    Attributes:
        name: for messages.
        value: the traced value; `UNKNOWN` for a workspace, whose size no trace knows.
        owner: the name of the node that owns the memory; `None` for what is no node.
        is_new: the graph computes it, in memory of its own.
    """

    name: str
    value: Any
    source: str | None
    owner: str | None
    is_new: bool

    @classmethod
    def of(cls, node: Any, described: GraphOutput) -> TracedResult:
        name = str(described.slot or described.name)
        if not isinstance(node, fx.Node):
            return cls(name, node, None, None, False)
        owner = memory_owner(node)
        value = UNKNOWN if is_workspace(node) else node.meta.get("val", UNKNOWN)
        return cls(name, value, described.source, owner.name, owner.op == "call_function")


@dataclass(frozen=True)
class MemoryInUse:
    """The memory of a tensor, which may be gone by now, and the sum of its bytes."""

    name: str
    reference: Any
    layout: ByteLayout
    start: int
    checksum: int | None

    @classmethod
    def of(cls, name: str, tensor: Any, is_summed: bool = False) -> MemoryInUse | None:
        """`None` for what has no memory of its own."""
        if not has_checked_memory(tensor) or tensor.numel() == 0 or tensor.data_ptr() == 0:
            return None
        inside, reference = ByteLayout.of(tensor), torch_compat.memory_reference(tensor)
        start = tensor.data_ptr() - inside.offset
        found = cls(name, reference, inside._replace(offset=tensor.data_ptr()), start, None)
        return replace(found, checksum=found.sum()) if is_summed else found

    @property
    def key(self) -> int:
        return self.reference.cdata

    def sum(self) -> int | None:
        return torch_compat.content_checksum(self.reference, self.layout.offset - self.start, self.layout.end - self.start)

    def is_changed(self) -> bool:
        """Whether the memory is there and has other bytes."""
        return self.checksum is not None and self.sum() not in (None, self.checksum)

    def shows(self, other: MemoryInUse) -> bool:
        """Whether both have an element in common. What is gone has none."""
        if self.reference.expired() or other.reference.expired():
            return False
        return overlap(self.layout, other.layout)


@dataclass(frozen=True)
class GraphContract:
    """What the trace of a graph promises.

    Attributes:
        backend, title: for messages.
        inputs: the placeholders' names and traced values.
        results: what it returns.
        written: the inputs that it may write to.
        overwritable: the inputs whose memory it may use for anything.
    """

    backend: str
    title: str
    inputs: tuple[tuple[str, Any], ...]
    results: tuple[TracedResult, ...]
    written: frozenset[str]
    overwritable: frozenset[str]

    @classmethod
    def of(
        cls, graph: fx.Graph, outputs: Sequence[GraphOutput], overwritable: frozenset[str], backend: str, title: str
    ) -> GraphContract:
        inputs = tuple((node.name, node.meta["val"]) for node in graph.find_nodes(op="placeholder"))
        results = tuple(map(TracedResult.of, outputs_of(graph), outputs))
        return cls(backend, title, inputs, results, inputs_written(graph), overwritable)

    def around(self, function: BoxedCallable) -> BoxedCallable:
        """The compiled function, which then raises BackendError if it breaks the contract."""
        return CheckedCalls(self, function)

    def named(self, result: TracedResult) -> str:
        line = f" (`{result.source}`)" if result.source else ""
        return f"{result.name} of {self.title}{line}"


@dataclass(frozen=True)
class CheckedCalls:
    """A compiled graph that is checked in each call.

    `known`: the memory of inputs and results of earlier calls.
    """

    graph: GraphContract
    function: BoxedCallable
    known: dict[int, MemoryInUse] = field(default_factory=dict)
    _boxed_call = True

    @property
    def expected(self) -> int:
        return len(self.graph.results)

    def __call__(self, args: list) -> Any:
        if not all(has_checked_memory(arg) or not torch_compat.has_storage(arg) for arg in args):
            return self.function(args)  # of another trace
        graph = self.graph
        call = CheckedCall(graph, symbol_values_of(graph.inputs, args), memory_of_inputs(graph, args))
        results = self.function(args)
        found = results if isinstance(results, (list, tuple)) else (results,)
        for problem in itertools.chain(call.problems(found), self.old_memory(found)):
            raise BackendError(f"{graph.backend} breaks its contract: {problem}")
        self.remember(call, found)
        return results

    def old_memory(self, results: Sequence[Any]) -> Iterator[str]:
        for traced, result in zip(self.graph.results, results, strict=True):
            memory = MemoryInUse.of("", result) if traced.is_new else None
            if memory is not None and memory.key in self.known:
                earlier = self.known[memory.key].name
                yield f"{self.graph.named(traced)} is in the memory of {earlier} of an earlier call; a result has new memory"

    def remember(self, call: CheckedCall, results: Sequence[Any]) -> None:
        for key in [key for key, memory in list(self.known.items()) if memory.reference.expired()]:
            self.known.pop(key, None)
        made = (MemoryInUse.of(each.name, result) for each, result in zip(self.graph.results, results, strict=True))
        for memory in (*call.inputs.values(), *made):
            if memory is not None:
                self.known[memory.key] = memory


@dataclass(frozen=True)
class CheckedCall:
    """One call: the values of symbols, and the memory of its inputs by their names."""

    graph: GraphContract
    numbers: SymbolValues
    inputs: Mapping[str, MemoryInUse]

    def problems(self, results: Sequence[Any]) -> Iterator[str]:
        """What is wrong with the results, or with the inputs after the call."""
        graph = self.graph
        if len(results) != len(graph.results):
            yield f"{graph.title} returns {len(results)} values and has {len(graph.results)} outputs"
            return
        for traced, result in zip(graph.results, results, strict=True):
            for fact, found, wanted in different_facts_of(result, traced.value, self.numbers):
                yield f"{graph.named(traced)} has {fact} {found} and not {wanted}"
        yield from self.shared_memory(results)
        for traced, result in zip(graph.results, results, strict=True):
            if traced.is_new and torch_compat.has_storage(result) and result.requires_grad:
                yield f"{graph.named(traced)} requires grad; a result has no history"
        for name, memory in self.inputs.items():
            if name not in self.own(graph.written | graph.overwritable) and memory.is_changed():
                yield f"{graph.title} changes its input {name}, which the trace does not"

    def own(self, names: Collection[str]) -> set[str]:
        """The inputs in the memory of some inputs."""
        keys = {self.inputs[name].key for name in names if name in self.inputs}
        return {name for name, memory in self.inputs.items() if memory.key in keys}

    def shared_memory(self, results: Sequence[Any]) -> Iterator[str]:
        """Results in the memory of others, or not, where the trace has them elsewhere."""
        graph, found = self.graph, list[tuple[TracedResult, MemoryInUse]]()
        free = self.own(graph.overwritable)
        for traced, result in zip(graph.results, results, strict=True):
            memory = MemoryInUse.of(traced.name, result)
            if memory is None or traced.owner is None:
                continue
            allowed = free | self.own([traced.owner])
            for name, other in self.inputs.items():
                if name not in allowed and memory.shows(other):
                    yield f"{graph.named(traced)} is in the memory of the input {name}; {of_trace(traced)}"
            if traced.owner in self.inputs and memory.key != self.inputs[traced.owner].key:
                yield f"{graph.named(traced)} is in memory of its own; {of_trace(traced)}"
            for earlier, other in found:
                if earlier.owner == traced.owner and memory.key != other.key:
                    yield f"{graph.named(traced)} is not in the memory of {earlier.name}, as in the trace"
                elif traced.is_new and earlier.owner != traced.owner and memory.shows(other):
                    yield f"{graph.named(traced)} is in the memory of {earlier.name}; {of_trace(traced)}"
            found.append((traced, memory))


def of_trace(traced: TracedResult) -> str:
    return "in the trace it is new" if traced.is_new else f"in the trace it is in that of {traced.owner}"


def has_checked_memory(value: Any) -> bool:
    """Whether a value is a strided tensor with memory, and belongs to no trace."""
    is_strided = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
    return is_strided and not torch_compat.is_traced(value) and not torch_compat.is_wrapped(value) and not value.is_meta


def inputs_written(graph: fx.Graph) -> frozenset[str]:
    """The inputs that a graph may change: ops that write, and those that are no ops of torch, read them or views of them."""
    writing = (node for node in graph.nodes if node.op == "call_function" and may_write(node.target))
    return frozenset(memory_owner(each).name for node in writing for each in node.all_input_nodes)


def may_write(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return op_table.writes(target)
    return not op_table.is_getitem(target)


def memory_of_inputs(graph: GraphContract, args: Sequence[Any]) -> dict[str, MemoryInUse]:
    found, may_arrive_later = {}, torch.distributed.is_available() and torch.distributed.is_initialized()
    for (name, _), arg in zip(graph.inputs, args, strict=True):
        is_summed = name not in graph.written | graph.overwritable and not may_arrive_later
        memory = MemoryInUse.of(f"the input {name}", arg, is_summed)
        if memory is not None:
            found[name] = memory
    return found


# --- Facts -----------------------------------------------------------------------------------------------------------


def symbol_values_of(inputs: Sequence[tuple[str, Any]], args: Sequence[Any]) -> SymbolValues:
    """The values of the symbols that are sizes of inputs, or inputs themselves."""
    found: dict[sympy.Symbol, sympy.Integer] = {}
    for (_, traced), arg in zip(inputs, args, strict=True):
        is_tensor = isinstance(traced, torch.Tensor) and isinstance(arg, torch.Tensor)
        pairs = zip(traced.shape, arg.shape, strict=True) if is_tensor else ((traced, arg),)
        for number, value in pairs:
            if (symbol := bound_symbol(number)) is not None and isinstance(value, int):
                found[symbol] = sympy.Integer(value)
    return found


def in_call(number: Any, numbers: SymbolValues, actual: Any) -> Any:
    """A traced number in a call; `actual`, if it depends on anything else."""
    if isinstance(number, int):
        return number
    value = torch_compat.expression_of(number).xreplace(dict(numbers))
    return int(value) if value.is_Integer else actual


def different_facts_of(result: Any, traced: Any, numbers: SymbolValues) -> Iterator[tuple[str, Any, Any]]:
    """(fact, what it is, what it is in the trace) of a result that differs."""
    if traced is UNKNOWN:
        return
    if not isinstance(traced, torch.Tensor):
        expected = PLAIN_NUMBERS if isinstance(traced, PLAIN_NUMBERS) else type(traced)
        if not isinstance(result, expected):
            yield "the type", type(result).__name__, type(traced).__name__
    elif not isinstance(result, torch.Tensor):
        yield "the type", type(result).__name__, "Tensor"
    else:
        properties = (("layout", result.layout, traced.layout), *compared_properties(result, traced, numbers))
        yield from (each for each in properties if each[1] != each[2])


def compared_properties(
    actual: torch.Tensor, traced: torch.Tensor, numbers: SymbolValues = MappingProxyType({})
) -> list[tuple[str, Any, Any]]:
    """(property, actual, traced), without sizes that are not known and without strides of dimensions of size 1."""
    properties: list[tuple[str, Any, Any]] = [
        ("dtype", actual.dtype, traced.dtype),
        ("device", actual.device, traced.device),
        ("number of dimensions", actual.dim(), traced.dim()),
    ]
    if actual.dim() != traced.dim():
        return properties
    shape = tuple(actual.shape)
    properties.append(("shape", shape, tuple(in_call(*each) for each in with_numbers(traced.shape, numbers, shape))))
    if traced.layout is actual.layout is torch.strided and actual.numel() > 0:
        strides = enumerate(with_numbers(traced.stride(), numbers, actual.stride()))
        pairs = [(each[2], in_call(*each)) for dim, each in strides if shape[dim] > 1]
        properties.append(("stride", [found for found, _ in pairs], [wanted for _, wanted in pairs]))
    return properties


def with_numbers(
    traced: Sequence[Any], numbers: SymbolValues, actual: Sequence[int]
) -> Iterator[tuple[Any, SymbolValues, int]]:
    return ((number, numbers, value) for number, value in zip(traced, actual, strict=True))
