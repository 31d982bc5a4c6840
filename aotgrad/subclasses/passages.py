"""Gradients of wrapper subclasses that pass from one segment of a backward to another: they pass in parts.

    y = x.exp(); return y, y.sin()
    segments     0: Sin, whose gradient is one of y     1: Exp
    a call       y = Assemble(parts of y)    parts = TakeApart(y)    segment 0 passes the parts of its gradient on to `parts`

A gradient of a result passes through the wrapper that the caller gets, as in eager: hooks see it there, and the engine adds
it to others. At a cut between two segments it is assembled again in the graph.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Union, cast

import torch

from aotgrad import torch_compat
from aotgrad.graph.autograd_nodes import nodes_reached
from aotgrad.graph.symbols import values_of_symbols
from aotgrad.runtime.autograd import is_same_call, is_segment
from aotgrad.slots import ReturnedWrapper
from aotgrad.subclasses.bridge import (
    Assemble,
    Detour,
    End,
    GradientForm,
    OtherGradientForm,
    TakeApart,
    assemble_gradient,
    assemble_wrapper,
    carries_gradient,
    histories_kept,
    take_apart,
)
from aotgrad.subclasses.forms import TensorForm, parts_of
from aotgrad.subclasses.relative import relative_form

if TYPE_CHECKING:
    from aotgrad.ir import Capture


def is_taker(node: Any) -> bool:
    """Whether an autograd node takes a wrapper apart."""
    return torch_compat.is_node_of(node, TakeApart)


def is_passage(node: Any) -> bool:
    """Whether a gradient passes a result of a call at this node."""
    return is_taker(node) and node.end.is_passage


def takes_result_apart(node: Any) -> bool:
    """Whether an autograd node takes a result apart that calls assemble."""
    return is_taker(node) and node.end.in_calls is not None


def assembles_argument(node: Any) -> bool:
    """Whether an autograd node assembles an argument in a trace."""
    return torch_compat.is_node_of(node, Assemble)


def end_inside(form: TensorForm) -> End:
    """How a gradient of that form is taken apart, and assembled, where a backward is cut."""
    return End("a gradient inside of a backward", 0, form, is_traced=True)


def gradient_parts(gradient: torch.Tensor) -> dict[int, torch.Tensor]:
    """The parts of a gradient that carry one, unlike the offsets of a nested tensor, by position."""
    parts = take_apart(end_inside(GradientForm.of(gradient).form), gradient)
    return {k: part for k, part in enumerate(parts) if carries_gradient(part)}


@dataclass(frozen=True)
class CutForm:
    """How a gradient is assembled where a backward is cut.

    Attributes:
        form: of the gradient.
        fixed: its parts that carry no gradient, as the offsets of a nested tensor: the positions of such primals.
        places: where the symbolic numbers of the form are found, see `Capture.places_of_symbols`.
    """

    form: TensorForm
    fixed: Mapping[int, int]
    places: Mapping[str, tuple[int, int | None]]

    @classmethod
    def of(cls, gradient: torch.Tensor, capture: Capture) -> CutForm | None:
        """The form of this gradient; `None` if it consists of more than its parts and what the inputs tell."""
        form = GradientForm.of(gradient).form
        position = {id(primal): k for k, primal in enumerate(capture.primals)}
        fixed = {k: part for k, part in enumerate(parts_of(form, gradient)) if not carries_gradient(part)}
        names = {name for number in form.symbols() for name in torch_compat.symbolic_text(number)[1]}
        if any(id(part) not in position for part in fixed.values()) or not names <= capture.places_of_symbols.keys():
            return None
        places = {name: capture.places_of_symbols[name] for name in names}
        return cls(form, {k: position[id(part)] for k, part in fixed.items()}, places)

    def assemble(self, parts: Mapping[int, torch.Tensor], inputs: Sequence[Any]) -> torch.Tensor:
        """The gradient of these parts, in a run with these inputs; other parts are zeros."""
        numbers = values_of_symbols(self.places, inputs)
        form = self.form.resized(torch_compat.value_of_symbolic(number, numbers) for number in self.form.symbols())
        values = {**parts, **{k: inputs[position] for k, position in self.fixed.items()}}
        return assemble_gradient(end_inside(form), [values.get(k) for k in range(form.count)], None)


@dataclass(eq=False)
class TracedView:
    """Stands for a result that is a view among the flat results of a trace; calls replay it.

    Attributes:
        end: of the view, in calls.
        usual: the form of its gradient, if it has that of the view.
        edge, base_edge: where gradients of the view and of its base arrive in the trace.
        count: how many flat results follow, which the ops of the view take.
        base: the slot and end of the base, if calls assemble it.
    """

    end: End
    usual: GradientForm
    edge: tuple[Any, int]
    base_edge: tuple[Any, int]
    count: int
    base: tuple[ReturnedWrapper, End] | None = None


@dataclass(frozen=True)
class Passage:
    """How a gradient passes through a result: `end` takes it apart once more, for a node that passes on parts.

    Attributes:
        result: the end at which calls assemble it.
        end: whose gradient has the form that the trace has found.
        view: if the result is a view.
    """

    result: End
    end: End
    view: TracedView | None = None

    @classmethod
    def of(cls, taker: Any, gradient: torch.Tensor) -> Passage:
        """The passage of a gradient through a view, or a result that a node `taker` takes apart in the trace.

        Raises:
            OtherGradientForm: the trace has assumed the form of the result, or of the changed argument.
        """
        view = taker if isinstance(taker, TracedView) else None
        found = GradientForm.of(gradient)
        result = view.end if view is not None else cast(End, taker.end.in_calls)
        if result.carried is None and not found.matches(taker.usual):
            raise OtherGradientForm(result.index, found, None if result.is_changed else taker.usual)
        name = f"{result.name}, passed on"
        end = replace(result, name=name, carried=None, relative=None, gradient=found.form, is_passage=True)
        if not found.matches(taker.usual):
            form = relative_form(found, taker.usual) or found.with_fixed_sizes()
            end = end.carrying(form, taker.usual)
            end.gradient = cast(GradientForm, end.carried).form
        return cls(result, end, view)

    @property
    def count(self) -> int:
        """The number of tensors that `through` returns."""
        return self.end.form.count if self.end.carried is None else len(self.end.carried.parts)

    def through(self, wrapper: torch.Tensor) -> Sequence[torch.Tensor]:
        """Tensors whose gradients are the parts of one of the wrapper."""
        with histories_kept():
            values = take_apart(self.end.sized_as(wrapper), wrapper)
        return values if self.end.carried is None else values[self.end.form.count :]


# -- the results of a call


Make = Callable[[End, Sequence[Any], dict[int, torch.Tensor]], Union[torch.Tensor, None]]


@dataclass
class RunningCall:
    """A call whose results are assembled.

    Attributes:
        make: given an end and values for it, makes a view or changes an argument; `None` for the end of another result.
        passed: the results through which gradients of others pass, by index.
        pieces: what ops have returned that make several views, of which several are results.
    """

    detour: Detour | None
    make: Make
    passed: dict[int, torch.Tensor] = field(default_factory=dict)
    pieces: dict[int, Sequence[torch.Tensor]] = field(default_factory=dict)

    def results_behind(self, values: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """The results that gradients of these tensors reach first."""
        places = {result.grad_fn: index for index, result in self.passed.items()}

        def before_results(node: Any) -> Iterable[Any]:
            goes_on = node not in places and (is_segment(node) or is_taker(node))
            return torch_compat.next_nodes(node) if goes_on else ()

        reached = nodes_reached((value.grad_fn for value in values), before_results) if places else ()
        return {places[node]: self.passed[places[node]] for node in reached if node in places}

    def assemble(self, end: End, values: Sequence[torch.Tensor]) -> torch.Tensor:
        if self.detour is None:
            return assemble_wrapper(end, values)
        passed = self.results_behind(values)
        return assemble_wrapper(end, values, replace(self.detour, passed=tuple(passed)), list(passed.values()))


_running: contextvars.ContextVar[RunningCall] = contextvars.ContextVar("_running")


@contextlib.contextmanager
def running_call(detour: Detour | None, make: Make) -> Iterator[None]:
    """Inside, the results of one call are assembled. `make`: see `RunningCall`."""
    token = _running.set(RunningCall(detour, make))
    try:
        yield
    finally:
        _running.reset(token)


def shared_pieces(number: int, make_pieces: Callable[[], Sequence[torch.Tensor]]) -> Sequence[torch.Tensor]:
    """The views of that number, which the running call makes once."""
    known = _running.get().pieces
    if number not in known:
        known[number] = make_pieces()
    return known[number]


def assembled_result(end: End, values: Sequence[torch.Tensor], numbers: Sequence[int]) -> torch.Tensor:
    """A result of the running call from its parts and carriers, and the symbolic numbers of its form."""
    own = end.resized(numbers, values[: end.form.count])
    with histories_kept():
        result = _running.get().assemble(own, values)
    note_result(result, own, values)
    return result


def note_result(wrapper: torch.Tensor, end: End, values: Sequence[torch.Tensor]) -> None:
    """Let the call know the wrapper that its results were assembled to, for gradients of gradients."""
    calls = (getattr(value.grad_fn, "recomputation", None) for value in values[: end.form.count])
    call = next((each for each in calls if each is not None), None)
    if call is not None:
        call.wrappers += ((weakref.ref(wrapper), end, torch_compat.version_of(wrapper)),)


def passed_result(end: End, values: Sequence[torch.Tensor], numbers: Sequence[int]) -> torch.Tensor:
    """A result, or an argument after its change, through which gradients of other results pass."""
    running = _running.get()
    with histories_kept():
        if (made := running.make(end, [*values, *numbers], running.passed)) is not None:
            return made
    result = running.passed[end.index] = assembled_result(end, values, numbers)
    return result


def passed_results(node: Any) -> Iterator[torch.Tensor]:
    """The results of a call that gradients pass behind a node of it, as far as the caller still has them."""

    def within_call(each: Any) -> Iterable[Any]:
        goes_on = is_passage(each) or assembles_argument(each) or (is_segment(each) and is_same_call(each, node))
        return torch_compat.next_nodes(each) if goes_on else ()

    results = (each.passed() for each in nodes_reached([node], within_call) if is_passage(each))
    return (result for result in results if result is not None)


@contextlib.contextmanager
def gradients_end_at(results: Sequence[torch.Tensor]) -> Iterator[None]:
    """Inside, gradients do not pass on through these results; who asks for that of a result gets it."""
    edges = map(torch_compat.gradient_edge, results)
    handles = [node.register_prehook(functools.partial(without_gradient, position)) for node, position in edges]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def without_gradient(position: int, gradients: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
    """The gradients that arrive at a node, without one of them."""
    return tuple(None if k == position else gradient for k, gradient in enumerate(gradients))
