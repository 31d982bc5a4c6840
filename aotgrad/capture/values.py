"""Answers a traced function's questions about values of tensors, from the inputs of the call.

A trace has no values. If the function branches on a value or returns a number, the nodes that lead to it run on the real
inputs; they change nothing. They are kept as a graph of their own, the prologue, and each answer becomes a condition on the
prologue's results: the plan holds for calls with the same answers.

    values = ValueReads(Level.GUARD, real_inputs)
    capture_function(function, ..., values=values)
    values.guard().holds(other_inputs)

A number becomes a condition only if Python asks for it. Others stay symbolic. A plan can take values that the prologue has
computed, see `passes/guarded_values.py`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch.fx.node import map_arg

from aotgrad import torch_compat
from aotgrad.capture.recorder import UNSEEN, Recorder, printed_line, user_stack_trace
from aotgrad.errors import CaptureError, EagerError
from aotgrad.graph import op_table
from aotgrad.graph.copies import copy_node
from aotgrad.graph.dependents import dependencies_of
from aotgrad.graph.draws import RepeatedDraw
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.graph.node_tags import PARTITION_TAGS
from aotgrad.guards.data_dependent import Condition, Level, ValueGuard, evaluate
from aotgrad.ir import CallingConvention, MemberInput, SymInput, SyntheticBase
from aotgrad.torch_compat import FakeTensor, FakeTensorMode, Read


class NotAnswered(Exception):
    """The function must be retraced at the next level."""


class ValueReads:
    """The answers that one trace got.

    Attributes:
        asked: whether the function asked about a value.
        is_over: whether the trace has ended, so that an error is not the function's.
    """

    def __init__(self, level: Level, arguments: Sequence[torch.Tensor], shared: bool = False) -> None:
        self.level, self.shared = level, shared
        self.asked = self.is_over = False
        # Aliases: while a training step is traced, its parameters hold traced values.
        self._arguments = tuple(argument.detach() for argument in arguments) if level else ()
        self._prologue: Prologue | None = None
        self._conditions: dict[str, Condition] = {}
        self._guard: ValueGuard | None = None

    def begin(self, recorder: Recorder, fake_mode: FakeTensorMode, convention: CallingConvention) -> None:
        """Start a trace, in place of an earlier one."""
        self._conditions, self.is_over = {}, False
        self._recorder, self._fake_mode = recorder, fake_mode
        self._prologue = Prologue(recorder, convention, self._arguments) if self.level else None

    def end_trace(self) -> None:
        """End the trace: later errors come from passes or the backend, not from the function. Passes may still ask for
        conditions."""
        self.is_over = True

    def guard(self) -> ValueGuard | None:
        """The guard of the answers, `None` if there were none. Ends answering, and frees the values."""
        prologue, self._prologue, self._arguments = self._prologue, None, ()
        if prologue is not None and self._conditions:
            self._guard = ValueGuard(self.level, *prologue.finish(), tuple(self._conditions.values()), prologue.draws)
        return self._guard

    @property
    def computed(self) -> Collection[fx.Node]:
        """The nodes of the trace that the guard computes, if its values are shared with the plan."""
        return self._prologue.computed if self.shared and self._prologue is not None and self._conditions else ()

    def keep(self, nodes: Sequence[fx.Node]) -> None:
        """Let the guard return the values of these nodes of the trace."""
        assert self._prologue is not None
        self._prologue.keep(nodes)

    def keep_only(self, kept: Sequence[int]) -> None:
        """Let the guard return some of the kept values, and end it."""
        if self._prologue is not None:
            self._prologue.keep_only(kept)
        self.guard()

    def compute_by(self, compute: Callable[..., tuple]) -> None:
        """Let another function compute what the graph of the guard does."""
        assert self._guard is not None
        self._guard = replace(self._guard, compute=compute)

    # -- questions of torch

    def wants(self, op: Any, args: Sequence[Any]) -> bool:
        """Whether `result` computes the op: its result is a number, or has a size, that depends on values.

        Raises:
            CaptureError: this level cannot answer, and torch would compute a wrong result.
        """
        read = torch_compat.READS_VALUES.get(op)
        if read is None:
            return False
        if op in torch_compat.READS_ENTRIES:
            return read is Read.ANSWER or self._wants_parts(node_of(args[0], self._recorder))
        if torch_compat.check_of_running_node(op) is not None:
            return True
        self.asked = True
        forget_closed_over(args, self._recorder)
        return self._prologue is not None and self.level >= (Level.SPECIALIZE if read is Read.NUMBER else Level.GUARD)

    def _wants_parts(self, node: fx.Node) -> bool:
        """Whether the trace does not know how many entries a sparse tensor has."""
        if has_known_entries(node):
            return False
        self._ask_for_entries()
        return True

    def _ask_for_entries(self) -> Prologue:
        """The prologue, which answers. Raises CaptureError without one: a fake sparse tensor has no entries."""
        self.asked = True
        if self._prologue is None:
            raise CaptureError(
                f"a sparse tensor is asked for its entries, and the trace does not know how many there are, at "
                f"{printed_line(user_stack_trace())}. Do this outside of the compiled function"
            )
        return self._prologue

    def result(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an op on traced tensors: a number of this call, or fakes with the sizes of this call.

        A check of the backward runs when the backward does.
        """
        if (message := torch_compat.check_of_running_node(op)) is not None:
            torch_compat.assert_close(message, *map_tensors(torch_compat.from_functional, args), **kwargs)
            return True
        if op in torch_compat.READS_ENTRIES and torch_compat.READS_VALUES[op] is Read.ANSWER:
            return self._fact_of_entries(op, fake_of(args[0]))
        assert self._prologue is not None
        node, value = self._prologue.call(op, args, kwargs)
        if torch_compat.READS_VALUES[op] is not Read.SIZES:
            return self._require(self._prologue.name_result(node, "value"))
        name = self._prologue.name_result(node, "results")
        one = isinstance(value, torch.Tensor)
        self._require(f"tuple({name}.size())" if one else f"[tuple(each.size()) for each in {name}]")
        return self._record(op, args, kwargs, value)

    def _fact_of_entries(self, op: Any, fake: torch.Tensor) -> Any:
        """The result of an op that reads facts about the entries of a sparse tensor, from the tensor that they come from."""
        node = node_of(fake, self._recorder)
        while (source := torch_compat.KEEPS_ENTRIES.get(node.target)) is not None:
            node = node_at(node, source)
        if has_known_entries(node) or (op is torch_compat.is_coalesced and is_known_coalesced(node)):
            with torch_compat.hidden_tracing_modes():
                told = op(node.meta["val"])
        else:
            prologue = self._ask_for_entries()
            copy, _ = prologue.call(op, (node,), {})
            told = self._require(prologue.name_result(copy, "value"))
        if op is torch_compat.is_coalesced:
            torch_compat.set_coalesced(fake, told)
        return told

    def _record(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], results: Any) -> Any:
        """Record the op in the trace; returns fakes of its results."""
        recorder = self._recorder
        with torch_compat.hidden_tracing_modes():
            fakes = map_tensors(self._fake_mode.from_tensor, results)
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda each: fx.Proxy(node_of(each, recorder), recorder), (args, kwargs)
        )
        torch_compat.track_tensor_tree(
            fakes, recorder.create_proxy("call_function", op, tuple(args), kwargs), constant=None, tracer=recorder
        )
        return fakes

    def answer(self, expression: Any, place: str = "") -> Any:
        """The value of an expression in symbols; `None` if it is not known. `place` says where the question comes from."""
        self.asked = True
        if self._prologue is None:
            return None
        text, names = torch_compat.expression_text(expression)
        return self._require(text, place) if all(map(self._prologue.bind, names)) else None

    def require_equal(self, numbers: Sequence[fx.Node]) -> list[list[fx.Node]]:
        """Group numbers of a training step that are equal in this call, which becomes a condition for other calls.

        Zeros are not grouped: `0.0` and `-0.0` are equal, but not the same number.
        """
        if self._prologue is None or not self.shared:
            return []
        groups = dict[float, list[fx.Node]]()
        for node in numbers:
            groups.setdefault(self._prologue.value_of(node).item(), []).append(node)
        groups = {value: group for value, group in groups.items() if len(group) > 1 and value == value != 0}
        for group in groups.values():
            copies = [self._prologue.call(torch_compat.read_number, (node,), {})[0] for node in group]
            names = [self._prologue.name_result(copy, "number") for copy in copies]
            self._require(" == ".join(["0.0 != " + names[0], *names[1:]]), "so that equal numbers are computed with once")
        return list(groups.values())

    def answer_checks(self, replaced: Mapping[Any, Any]) -> None:
        """Make conditions of torch's assumptions during the trace, which a graph does not check.

        Args:
            replaced: symbols of the trace that others stand for.

        Raises:
            NotAnswered: this level cannot answer.
            EagerError: an assumption does not hold in this call: eager raises, or takes another path.
        """
        counts = torch_compat.pass_counts(self._recorder.graphs())
        for expression in torch_compat.deferred_checks(self._fake_mode):
            if torch_compat.holds_of_counts(expression, counts):
                continue
            answer = self.answer(expression.xreplace(replaced), "by a check of torch's")
            if answer is None and self.level is not Level.SPECIALIZE:
                raise NotAnswered(f"a graph does not check that {expression}")
            if answer is not None and not answer:
                raise EagerError(f"the function assumes of values that {expression}")

    def _require(self, text: str, place: str = "") -> Any:
        """The value of an expression in this call, as a condition for other calls."""
        assert self._prologue is not None
        value = evaluate(text, self._prologue.read)
        self._conditions.setdefault(text, Condition(text, value, place or f"at {printed_line(user_stack_trace())}"))
        return value


COPIED_META = ("val", "seq_nr", *PARTITION_TAGS)
"""What a node of the guard knows of the node of the trace: its value, and what the partition asks for."""


class Prologue:
    """The part of a trace that computes the answers, and its values in this call."""

    def __init__(self, recorder: Recorder, convention: CallingConvention, arguments: Sequence[torch.Tensor]) -> None:
        self.graph = fx.Graph()
        self.read: dict[str, Any] = {}
        self._recorder = recorder
        self._indexed: set[fx.Node] = set()
        self._sources: dict[str, tuple[Any, ...]] = {}
        self._copies: dict[fx.Node, fx.Node] = {}
        self._values: dict[fx.Node, Any] = {}
        self._outputs: dict[str, fx.Node] = {}
        self._kept: tuple[fx.Node, ...] = ()
        self._convention = convention
        self._draw = torch_compat.RandomReplay()
        self._draws: dict[fx.Node, RepeatedDraw] = {}
        self._states: dict[fx.Node, torch.Tensor] = {}
        for position, argument in enumerate(arguments):
            node = self.graph.placeholder(f"argument_{position}")
            spec = convention.inputs[convention.order[position]]
            node.meta["val"] = spec.value if isinstance(spec, SymInput) else spec.fake
            self._values[node] = argument
        self._arguments = tuple(self._values)

    def name_result(self, node: fx.Node, name: str) -> str:
        """Give the result of a node of this graph a name by which conditions read it."""
        name = f"{name}_{len(self._outputs)}"
        self._outputs[name], self.read[name] = node, self._values[node]
        return name

    def bind(self, symbol: str) -> bool:
        """Let conditions read a symbol. False if the trace does not know where the symbol comes from."""
        if symbol in self.read:
            return True
        with torch_compat.unobserved():
            self._index_new_nodes()
        if symbol not in self._sources:
            return False
        node, op, *more = self._sources[symbol]
        copy = self._copied(node)
        if op is not None:
            copy = self._run(self.graph.call_function(op, (copy, *more)))
        self._outputs[symbol], self.read[symbol] = copy, self._values[copy]
        return True

    def _index_new_nodes(self) -> None:
        """Note the first node that each symbol can be read from. A node that is being made has no value yet."""
        new = (node for node in self._recorder.graph.nodes if node not in self._indexed and "val" in node.meta)
        inputs = {spec.name for spec in self._convention.inputs}
        for node in new:
            self._indexed.add(node)
            if node.op != "placeholder" or node.name in inputs:  # no tangent
                for symbol, found in sources_in(node):
                    self._sources.setdefault(symbol, found)

    @property
    def computed(self) -> Collection[fx.Node]:
        """The nodes of the trace that have a copy."""
        return self._copies.keys()

    def keep(self, nodes: Sequence[fx.Node]) -> None:
        """Let the graph return the values of these nodes of the trace, too."""
        self._kept = tuple(map(self._copied, nodes))

    def keep_only(self, kept: Sequence[int]) -> None:
        self._kept = tuple(self._kept[k] for k in kept)

    def value_of(self, node: fx.Node) -> Any:
        """The value of a node of the trace in this call."""
        return self._values[self._copied(node)]

    def call(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[fx.Node, Any]:
        """An op on traced tensors, as a node of this graph, and its result."""
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda each: node_of(each, self._recorder), (args, kwargs))
        args, kwargs = map_arg((args, kwargs), self._copied)
        node = self._run(self.graph.call_function(op, tuple(args), kwargs))
        return node, self._values[node]

    def _copied(self, node: fx.Node) -> fx.Node:
        """The copy of a node of the trace. Copies and runs the nodes that it needs first."""
        for each in self._needed(node):
            self._copies[each] = self._argument(each) if each.op == "placeholder" else self._copy(each)
        return self._copies[node]

    def _needed(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that a node needs and that are not copied yet, in order. A random op needs all draws before it, too."""
        if node in self._copies:
            return []
        before = list(itertools.takewhile(lambda each: each is not node, self._recorder.graph.nodes))
        needed = dependencies_of([node], self._copies)
        if any(op_table.draws(each) for each in needed):
            needed = dependencies_of([node, *(each for each in before if op_table.draws(each))], self._copies)
        return [each for each in (*before, node) if each in needed]

    def _copy(self, node: fx.Node) -> fx.Node:
        reject_unrepeatable(node, self._recorder.root)
        copy = copy_node(self.graph, node, self._copies.__getitem__)
        copy.meta = {name: node.meta[name] for name in COPIED_META if name in node.meta}
        if node.op == "get_attr":
            self._values[copy] = getattr(self._recorder.root, str(node.target))
            return copy
        if (first := self._first_draw(node)) is not None:
            return self._repeated(first, copy)
        if op_table.draws(copy):
            self._draws[node] = RepeatedDraw(copy)
            self._states[copy] = self._draw.next_state(op_table.drawing_device(copy))
        return self._run(copy)

    def _first_draw(self, node: fx.Node) -> RepeatedDraw | None:
        """The op among the copied ones that has drawn the numbers that a node draws again."""
        if (number := node.meta.get("draw")) is None:
            return None
        return next((draw for each, draw in self._draws.items() if each.meta.get("draw") == number), None)

    def _repeated(self, first: RepeatedDraw, copy: fx.Node) -> fx.Node:
        """The result of a copy that draws the numbers of `first`, which is replaced by an op that records its state."""
        before = first.node
        result = first.repeat(copy)
        self.graph.erase_node(copy)
        if result is first.node:
            return result
        if first.node is not before:
            self._values[first.node] = self._values.pop(before)
            self._values[first.record_state()] = self._states.pop(before)
            self._copies.update({key: first.node for key, each in self._copies.items() if each is before})
            self._outputs.update({key: first.node for key, each in self._outputs.items() if each is before})
        return self._run(result)

    def _argument(self, placeholder: fx.Node) -> fx.Node:
        """The argument of a placeholder, or the memory that several arguments share."""
        specs = [spec for spec in self._convention.inputs if not isinstance(spec, MemberInput)]
        index = next((k for k, spec in enumerate(specs) if spec.name == placeholder.name), None)
        if index is None:
            raise CaptureError(f"{NOT_REPEATABLE}: it depends on a gradient that arrives only in the backward")
        spec = specs[index]
        if not isinstance(spec, SyntheticBase):
            return self._arguments[self._convention.argument_of(index)]
        member = self._arguments[self._convention.argument_of(spec.member)]
        nbytes = int(spec.fake.numel()) * spec.fake.element_size()
        return self._run(self.graph.call_function(memory_around, (member, spec.start_bytes, nbytes, spec.fake.dtype)))

    def _run(self, node: fx.Node) -> fx.Node:
        args, kwargs = map_arg((node.args, node.kwargs), self._values.__getitem__)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch_compat.bare_evaluation())
            stack.enter_context(torch_compat.below_autograd())
            stack.enter_context(torch_compat.no_python_dispatcher())
            if op_table.draws(node):
                stack.enter_context(self._draw())
            assert callable(node.target)
            self._values[node] = node.target(*args, **kwargs)
        return node

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn."""
        return any(op_table.draws(node) for node in self.graph.nodes)

    def finish(self) -> tuple[fx.GraphModule, tuple[str, ...], tuple[int, ...]]:
        """End the graph. Returns it as a module, the names of its first results, and the arguments that it needs."""
        self.graph.output((*self._outputs.values(), *self._kept))
        inputs = tuple(position for position, node in enumerate(self._arguments) if node.users)
        return LazyGraphModule(self._recorder.root, self.graph), tuple(self._outputs), inputs


map_tensors = functools.partial(pytree.tree_map_only, torch.Tensor)


def has_known_entries(node: fx.Node) -> bool:
    """Whether a trace knows how many entries a sparse tensor has."""
    while node.target is torch.ops.aten.detach.default:
        node = node_at(node, 0)
    return node.target in torch_compat.MAKES_ENTRIES


def node_at(node: fx.Node, position: int) -> fx.Node:
    """The argument at a position, which is a node."""
    argument = node.args[position]
    assert isinstance(argument, fx.Node)
    return argument


def is_known_coalesced(node: fx.Node) -> bool:
    """Whether a fake sparse tensor knows whether it is coalesced. For an argument, a guard checks it."""
    return node.op == "placeholder" or node.target in torch_compat.COALESCES


def fake_of(tensor: torch.Tensor) -> torch.Tensor:
    """The fake that holds the current value of a traced tensor."""
    return torch_compat.from_functional(tensor) if torch_compat.is_functional(tensor) else tensor


def node_of(tensor: torch.Tensor, recorder: Recorder) -> fx.Node:
    """The node of a traced tensor."""
    node = torch_compat.proxy_node(fake_of(tensor), recorder)
    if node is None:
        raise CaptureError(UNSEEN)
    return node


def forget_closed_over(args: Sequence[Any], recorder: Recorder) -> None:
    """Drop the constant values of tensors that depend on closed-over tensors: every call reads those."""
    for tensor in pytree.tree_leaves(args):
        inner = fake_of(tensor) if isinstance(tensor, torch.Tensor) else None
        if inner is not None and torch_compat.is_constant(inner, recorder) and closes_over(node_of(tensor, recorder)):
            torch_compat.forget_constant(inner, recorder)


def takes_symbolic_float(args: Sequence[Any]) -> bool:
    """Whether a symbolic float is among the arguments of an op, or in a list of them."""
    lists = (arg if isinstance(arg, (list, tuple)) else (arg,) for arg in args)
    return any(type(value) is torch.SymFloat for values in lists for value in values)


def forget_constants(args: Sequence[Any], recorder: Recorder) -> None:
    """Drop the constant values of the tensors that an op takes."""
    for tensor in pytree.tree_leaves(args):
        if isinstance(tensor, FakeTensor):
            torch_compat.forget_constant(tensor, recorder)


def closes_over(node: fx.Node) -> bool:
    """Whether a node depends on a tensor that the function closed over. Literals that it makes do not count."""
    literal = torch.ops.aten.lift_fresh_copy.default
    attributes = (each for each in dependencies_of([node]) if each.op == "get_attr")
    return any(user.target is not literal for each in attributes for user in each.users)


def memory_around(member: torch.Tensor, start_bytes: int, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
    """The memory that arguments share. It starts `start_bytes` after the first byte of `member`."""
    return torch_compat.flat_alias(member, int(member.storage_offset()) * member.element_size() + start_bytes, nbytes, dtype)


def sources_in(node: fx.Node) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The symbols that can be read from a node, as value, size or stride: the node, the op that reads it, and arguments."""
    value = node.meta.get("val")
    if (symbol := torch_compat.first_symbol(value)) is not None:
        yield symbol, (node, None)
    elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
        for op, *more, number in geometry(value):
            if (symbol := torch_compat.first_symbol(number)) is not None:
                yield symbol, (node, op, *more)


def geometry(tensor: torch.Tensor) -> Iterator[tuple[Any, ...]]:
    """Sizes, strides and offset of a tensor, each with the op that reads it and its dimension."""
    yield from ((torch.ops.aten.sym_size.int, dim, size) for dim, size in enumerate(tensor.size()))
    yield from ((torch.ops.aten.sym_stride.int, dim, step) for dim, step in enumerate(tensor.stride()))
    yield torch.ops.aten.sym_storage_offset.default, tensor.storage_offset()


NOT_REPEATABLE = (
    "Python control flow or a Python number depends on the value of a tensor, which cannot be computed before the call"
)


def reject_unrepeatable(node: fx.Node, root: torch.nn.Module) -> None:
    """Raise if a node cannot run a second time with the same result.

    Raises:
        CaptureError
    """
    part = getattr(root, str(node.target)) if node.op == "get_attr" else None
    if isinstance(part, fx.GraphModule):
        for each in part.graph.nodes:
            reject_unrepeatable(each, part)
            if op_table.draws(each):
                raise CaptureError(f"{NOT_REPEATABLE}: {each.target} draws random numbers, at {line_of(each)}")
    if torch_compat.is_effect_wrapper(node.target) or op_table.has_effect(node.target):
        raise CaptureError(f"{NOT_REPEATABLE}: {node.target} has an effect, at {line_of(node)}")
    if any(map(torch_compat.has_symbols, pytree.tree_leaves((node.args, node.kwargs)))):
        raise CaptureError(f"{NOT_REPEATABLE}: the graph does not record a size of it, at {line_of(node)}")


def line_of(node: fx.Node) -> str:
    return printed_line(node.meta.get("stack_trace", ""))
