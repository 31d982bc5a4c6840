"""What a trace finds about the wrappers among the arguments and results of a function, and what later calls do with them.

wrappers.enter(ends, parts)           in the trace: the arguments, assembled from parts
wrappers.take_apart(results, ...)     in the trace: parts in place of wrappers
wrappers.assemble(flat, objects)      in a call: the results, and the changes of the arguments `objects`
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union, cast

import torch

from aotgrad import torch_compat
from aotgrad.errors import UnsupportedAliasingError, UnsupportedMutationError, UnsupportedOutputError
from aotgrad.runtime.autograd import watch_saved
from aotgrad.runtime.view_steps import comparable
from aotgrad.slots import Saved
from aotgrad.subclasses.bridge import End, GradientForm, assemble_wrapper, histories_kept, is_assembled, take_apart
from aotgrad.subclasses.forms import form_of, inner_tensors, is_wrapper
from aotgrad.subclasses.passages import TracedView, assembled_result, note_result, shared_pieces
from aotgrad.subclasses.relative import ResultForm


@dataclass(frozen=True)
class PlainResult:
    """A result that is no wrapper."""

    requires_grad: bool

    def of_call(self, value: Any) -> Any:
        """Without a history if it is a part of a wrapper that has one: the tensor of a call serves as both."""
        has_history = isinstance(value, torch.Tensor) and value.requires_grad
        return value.detach() if has_history and not self.requires_grad else value


@dataclass(frozen=True)
class SameArgument:
    """A wrapper that is an argument."""

    index: int


@dataclass(frozen=True)
class SameResult:
    """The same wrapper as an earlier result."""

    index: int


@dataclass(frozen=True, eq=False)
class ReplayedView:
    """A view, replayed from its base: an argument or result.

    Attributes:
        of_argument: whether it is an argument.
        index: of the base.
        ops: that make it.
        is_tracked: whether it was made with gradients on.
        end: of the view, if it has a history; then the first of its flat results stands for the view.
        numbers, tensors: how many of each the ops take: flat results.
        pieces: numbers for calls of ops that return several views of which several are results, by position among `ops`.
    """

    of_argument: bool
    index: int
    ops: tuple[torch_compat.ViewOp, ...]
    is_tracked: bool
    end: End | None
    numbers: int
    tensors: int
    pieces: Mapping[int, int] = field(default_factory=dict)

    def replay(self, base: torch.Tensor, values: Iterator[Any]) -> torch.Tensor:
        numbers = iter(list(itertools.islice(values, self.numbers)))
        with contextlib.nullcontext() if self.is_tracked else torch.no_grad():
            for k, op in enumerate(self.ops):
                base = self.view_by(k, op.of_call(numbers, values), base)
        return base

    def view_by(self, position: int, op: torch_compat.ViewOp, base: torch.Tensor) -> torch.Tensor:
        """The view by one op. Pieces of one call share their autograd node, as in eager."""
        if position not in self.pieces:
            return op.view(base)
        return shared_pieces(self.pieces[position], lambda: op.results(base))[cast(int, op.item)]

    def keys_of_pieces(self, values: Sequence[Any]) -> tuple[Hashable, Mapping[int, Hashable]]:
        """What tells the view from others, and for each op that returns several views, what tells its call.

        Args:
            values: the flat results that the ops take, in the trace.
        """
        numbers: Any = map(str, values[: self.numbers])
        tensors: Any = map(id, values[self.numbers :])
        ops: Any = comparable([op.of_call(numbers, tensors) for op in self.ops])
        base = self.of_argument, self.index, self.is_tracked
        calls = {k: (base, ops[:k], ops[k][:-1]) for k, op in enumerate(self.ops) if op.item is not None}
        return (base, ops), calls


@dataclass(frozen=True)
class AssembledResult:
    """A new wrapper, assembled from parts; `symbols` of its sizes and strides come after the parts."""

    end: End
    symbols: int


WrapperResult = Union[PlainResult, SameArgument, SameResult, ReplayedView, AssembledResult]


@dataclass(frozen=True)
class ChangedWrapper:
    """An argument that the function changes in place.

    Attributes:
        index: of the argument.
        version_bumps: how far its version rises.
        end: if it gets a new history, from parts that are results.
        inner_bumps: how far the versions of its `inner_tensors` rise.
    """

    index: int
    version_bumps: int
    end: End | None
    inner_bumps: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of flat results for the new history."""
        return 0 if self.end is None else self.end.flat_count


@dataclass
class Wrappers:
    """The wrappers of one traced function.

    Attributes:
        arguments: the ends of the arguments; the trace fills in the forms of their gradients.
        results: one per flat result of the function, then the bases of views among them that are no results themselves.
        count: the number of flat results of the function.
        flags: for each tensor among these, whether it requires grad.
        changes: of arguments.
        live: the arguments, while the function is traced.
        saved: the flat results that share the memory of a value which the backward needs.
        expected: the forms of gradients of results that differ from the forms of the results.
        numbers: the expressions of the arguments that are symbolic numbers, by position.
        is_known: the function is compiled; when it runs once more, nothing new is found.
    """

    expected: Mapping[int, ResultForm] = field(default_factory=dict)
    arguments: list[End] = field(default_factory=list)
    results: list[WrapperResult] = field(default_factory=list)
    count: int = 0
    flags: list[bool] = field(default_factory=list)
    changes: list[ChangedWrapper] = field(default_factory=list)
    live: list[LiveWrapper] = field(default_factory=list)
    saved: Mapping[Saved, Collection[int]] = field(default_factory=dict)
    numbers: Mapping[int, str] = field(default_factory=dict)
    is_known: bool = False

    @property
    def needed(self) -> bool:
        """Whether an argument or result is a wrapper."""
        return bool(self.arguments or any(not isinstance(result, PlainResult) for result in self.results))

    def enter(
        self, ends: Sequence[End], parts: Sequence[Sequence[torch.Tensor]], others: Mapping[int, Any]
    ) -> list[torch.Tensor]:
        """The arguments of the traced function, assembled from parts. A second trace finds the same forms of gradients.

        Args:
            others: the other arguments, by position; some are numbers.
        """
        self.arguments = self.arguments or [replace(end, is_traced=True) for end in ends]
        entered = self.arguments
        if self.is_known:
            numbers = {text: others[k] for k, text in self.numbers.items()}
            entered = [end.sized_by(numbers, some) for end, some in zip(self.arguments, parts, strict=True)]
        else:
            self.numbers = {k: str(value) for k, value in others.items() if isinstance(value, torch.SymInt)}
        self.live = [live_wrapper(end, some) for end, some in zip(entered, parts, strict=True)]
        return [each.value for each in self.live]

    def finish(self, saved: Mapping[Saved, Collection[int]]) -> None:
        """Note that the function is compiled."""
        self.saved, self.is_known = saved, True

    def live_arguments(self) -> list[tuple[End, torch.Tensor]]:
        """The arguments of the running trace."""
        return [(end, live.value) for end, live in zip(self.arguments, self.live, strict=True)] if self.live else []

    def take_apart(self, leaves: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """The flat results with parts in place of wrappers, then the parts of changed arguments.

        Args:
            arguments: those of the function, wrappers and others.

        Raises:
            UnsupportedAliasingError: a result is a view of another wrapper.
        """
        if self.is_known:
            return self.take_apart_again(leaves, arguments)
        flat: list[Any] = []
        self.count = len(leaves)
        self.flags = [leaf.requires_grad for leaf in leaves if isinstance(leaf, torch.Tensor)]
        leaves = [*leaves, *self.bases_of_views(leaves, arguments)]
        self.results = with_pieces([self.add_result(leaf, k, leaves, flat) for k, leaf in enumerate(leaves)], flat)
        changes = (self.change_of(k, live, flat) for k, live in enumerate(self.live))
        self.changes = [change for change in changes if change is not None]
        self.live = []
        return flat

    def take_apart_again(self, leaves: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """The flat results of another run, in the places that they had in the first one; sizes may be fixed now."""
        again = replace(self, is_known=False)
        flat, self.live = iter(again.take_apart(leaves, arguments)), []
        found: list[Any] = []
        for first, now in zip(self.results, again.results, strict=True):
            values, missing = list(itertools.islice(flat, count_of(now))), [0] * (count_of(first) - count_of(now))
            leading = 1 if isinstance(first, ReplayedView) and first.end is not None else 0
            cut = leading if isinstance(first, ReplayedView) else len(values)
            found += [*values[:cut], *missing, *values[cut:]]
        for first, now in zip(self.changes, again.changes, strict=True):
            found += [*itertools.islice(flat, now.count), *[0] * (first.count - now.count)]
        return found

    def add_result(self, leaf: Any, index: int, leaves: Sequence[Any], flat: list[Any]) -> WrapperResult:
        """How calls get one result; appends its parts to `flat`.

        Raises:
            UnsupportedOutputError: the result is the ragged size of a nested tensor.
        """
        if torch_compat.is_ragged_size(leaf):
            raise UnsupportedOutputError(
                f"output {index} is the size of the ragged dimension of a nested tensor, which stands for its offsets; "
                "return the tensor, and read its shape from that"
            )
        if not is_wrapper(leaf) and index not in self.expected:
            flat.append(leaf)
            return PlainResult(isinstance(leaf, torch.Tensor) and leaf.requires_grad)
        for k, live in enumerate(self.live):
            if live.value is leaf:
                return SameArgument(k)
        for k in range(index):
            if leaves[k] is leaf:
                return SameResult(k)
        view = self.view_of(leaf, leaves)
        if view is not None:
            return self.add_view(leaf, index, *view, flat)
        others = [*(live.value for live in self.live), *(other for other in leaves if other is not leaf)]
        reject_views(f"output {index}", leaf, others)
        end = self.end_of_result(leaf, index, leaf.requires_grad)
        with histories_kept():
            flat.extend(take_apart(replace(end, is_traced=True, in_calls=end), leaf))
        numbers = list(end.form.symbols())
        flat.extend(numbers)
        return AssembledResult(end, len(numbers))

    def end_of_result(self, leaf: torch.Tensor, index: int, requires_grad: bool) -> End:
        end = End(f"output {index}", index, form_of(leaf), requires_grad)
        return end.carrying(self.expected[index], GradientForm.of(leaf, end.form)) if index in self.expected else end

    def add_view(
        self, leaf: torch.Tensor, index: int, replay: ReplayedView, values: list[Any], flat: list[Any]
    ) -> ReplayedView:
        """How calls get a view; appends what its ops take to `flat`, after what stands for a view with a history."""
        if leaf.grad_fn is not None and leaf._base is not None and leaf._base.grad_fn is not None:
            end = self.end_of_result(leaf, index, True)
            edge, base_edge = map(torch_compat.gradient_edge, (leaf, leaf._base))
            flat.append(TracedView(end, GradientForm.of(leaf, end.form), edge, base_edge, len(values)))
            replay = replace(replay, end=end)
        flat.extend(values)
        return replay

    def bases_of_views(self, leaves: Sequence[Any], arguments: Sequence[Any]) -> list[torch.Tensor]:
        """The bases that several results are views of, and that are neither wrappers among the arguments nor results.

        A plain argument is such a base, too, and then it is a result that the caller does not see.
        """
        known = {id(live.value) for live in self.live} | {id(leaf) for leaf in leaves}
        bases = {id(leaf): leaf._base for leaf in leaves if is_wrapper(leaf) and leaf._base is not None}
        counts = Counter(map(id, bases.values())) + Counter(map(id, arguments))
        found = {id(base): base for base in bases.values() if counts[id(base)] > 1}
        return [base for key, base in found.items() if key not in known]

    def view_of(self, leaf: torch.Tensor, leaves: Sequence[Any]) -> tuple[ReplayedView, list[Any]] | None:
        """How to replay a view of an argument or result, with what its ops take; `None` if it is none."""
        base = leaf._base
        for k, live in enumerate(self.live):
            if base is live.value:
                return None if hides_a_change(live) else view_from(True, k, leaf)
        place = next((k for k, other in enumerate(leaves) if base is not None and other is base), None)
        return None if place is None else view_from(False, place, leaf)

    def change_of(self, index: int, live: LiveWrapper, flat: list[Any]) -> ChangedWrapper | None:
        """What the function did to an argument; appends the parts of one with a new history to `flat`.

        Raises:
            UnsupportedMutationError: the argument has another size than before, or another inner tensor.
        """
        bumps = live.value._version - live.version
        inner = tuple(
            now - before for now, before in zip(inner_versions(self.arguments[index], live.value), live.inner, strict=True)
        )
        has_history = bool(bumps) and live.value.grad_fn is not live.history
        if not has_history and live.is_assigned(self.arguments[index]):
            raise UnsupportedMutationError(
                f"{self.arguments[index].name} is a {type(live.value).__name__}, and one of its inner tensors is assigned "
                "(x.part = ...); change that in place (x.part.copy_(...)), or return a new wrapper"
            )
        if not bumps:
            return ChangedWrapper(index, 0, None, inner) if any(inner) else None
        if live.is_resized():
            raise UnsupportedMutationError(
                f"{self.arguments[index].name} is a {type(live.value).__name__}, and its size or stride is changed in place "
                "(t_, unsqueeze_, ...); return a view of it instead"
            )
        if not has_history:
            return ChangedWrapper(index, bumps, None, inner)
        if self.arguments[index].is_leaf and self.arguments[index].requires_grad:
            raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
        end = End(f"argument {index} after its change", index, form_of(live.value), is_changed=True)
        passes = is_wrapper(live.value) and self.arguments[index].carried is None
        traced = replace(end, is_traced=True, in_calls=end if passes else None)
        flat.extend([*take_apart(traced, live.value), *end.form.symbols()])
        return ChangedWrapper(index, bumps, end, inner)

    def assemble(self, flat: Sequence[Any], objects: Sequence[torch.Tensor]) -> list[Any]:
        """The results of the running call with these wrappers as arguments, which it changes as the function does."""
        values = iter(flat)
        taken = values_by_result(self.results, values)
        for change in self.changes:
            own = list(itertools.islice(values, change.count))
            if not own or own[0] is not objects[change.index]:
                self.apply(change, objects[change.index], own)
        results: list[Any] = [None] * len(self.results)
        for k, (result, own) in enumerate(zip(self.results, taken, strict=True)):
            match result:
                case PlainResult():
                    results[k] = result.of_call(own[0])
                case SameArgument(index):
                    results[k] = objects[index]
                case AssembledResult() if is_assembled(own[0]):  # gradients of other results pass through it
                    results[k] = own[0]
                case AssembledResult(end):
                    parts = own[: end.count]
                    if not end.requires_grad:  # another result may be the same tensor, with a history
                        parts = [part.detach() for part in parts]
                    results[k] = assembled_result(end, parts, own[end.count :])
        for k, (result, own) in enumerate(zip(self.results, taken, strict=True)):
            if isinstance(result, ReplayedView):
                first, *values = own if result.end is not None else (None, *own)
                base = (objects if result.of_argument else results)[result.index]
                results[k] = result.replay(base, iter(values)) if first is None else first
        for k, result in enumerate(self.results):
            if isinstance(result, SameResult):
                results[k] = results[result.index]
        if self.saved:
            self.watch_saved(flat, results)
        return results[: self.count]

    def changed_arguments(self) -> list[int]:
        """The positions of the arguments that calls change."""
        return [self.arguments[change.index].index for change in self.changes]

    def knows_gradients(self) -> bool:
        """Whether the results have had gradients of the forms that the trace has assumed."""
        ends = (result.end for result in self.results if isinstance(result, AssembledResult))
        return all(end.is_confirmed for end in ends if end.requires_grad)

    def tensor_at(self, results: Sequence[Any], index: int) -> torch.Tensor:
        """A result of a call, or the base of views among them, by its index among the results of the trace."""
        if index < self.count:
            return results[index]
        for view, result in zip(results, self.results, strict=False):
            if isinstance(result, ReplayedView) and not result.of_argument and result.index == index:
                return view._base
        raise AssertionError("a base that is no result has views among the results")

    def watch_saved(self, flat: Sequence[Any], results: Sequence[Any]) -> None:
        """Let the wrappers guard the values that the backward needs of their parts: a change of one shows at no part."""
        guards, position = {}, 0
        for result, wrapper in zip(self.results, results, strict=True):
            if isinstance(result, AssembledResult):
                alias = torch_compat.alias_with_version(wrapper)
                guards.update(dict.fromkeys(range(position, position + result.end.form.count), alias))
            position += count_of(result)
        watch_saved(flat, guards, self.saved)

    def paths(self, names: Sequence[str]) -> list[str]:
        """The names of the flat results, from those of the results."""
        found: list[str] = []
        bases = (f"a base of views, {k}" for k in range(len(self.results) - len(names)))
        for name, result in zip([*names, *bases], self.results, strict=True):
            match result:
                case PlainResult():
                    found.append(name)
                case AssembledResult(end, symbols):
                    found += end.part_names(name) + [f"{name} (a size)"] * symbols
                case ReplayedView():
                    found += [f"{name} (of its view)"] * count_of(result)
        for change in self.changes:
            if change.end is not None:
                symbols = change.end.flat_count - change.end.count
                found += change.end.part_names(change.end.name) + [f"{change.end.name} (a size)"] * symbols
        return found

    def make_early(
        self, objects: Sequence[torch.Tensor], end: End, values: Sequence[Any], passed: dict[int, torch.Tensor]
    ) -> torch.Tensor | None:
        """Make a view, or change an argument, before the call is over; `None` for the end of another result.

        Args:
            passed: the results so far, by index.
        """
        for change in self.changes:
            if change.end is end:
                self.apply(change, objects[change.index], values)
                return objects[change.index]
        for view in self.results:
            if isinstance(view, ReplayedView) and view.end is end:
                base = objects[view.index] if view.of_argument else passed[view.index]
                made = passed[end.index] = view.replay(base, iter(values))
                return made
        return None

    def apply(self, change: ChangedWrapper, wrapper: torch.Tensor, values: Sequence[Any]) -> None:
        """Give an argument the version and history that it has after the call; `values` are those of its end."""
        bumps = change.version_bumps
        if change.end is not None:
            parts = values[: change.end.count]
            end = change.end.resized(values[change.end.count :], parts)
            wrapper.copy_(assemble_wrapper(end, parts))
            bumps -= 1
        torch_compat.raise_version(wrapper, torch_compat.version_of(wrapper), bumps)
        if any(change.inner_bumps):
            inner = inner_tensors(self.arguments[change.index].form, wrapper)
            for tensor, count in zip(inner, change.inner_bumps, strict=True):
                torch_compat.raise_version(tensor, torch_compat.version_of(tensor), count)
        if change.end is not None:
            note_result(wrapper, change.end, values)


@dataclass(frozen=True)
class LiveWrapper:
    """An argument of a running trace, and its state before the function runs."""

    value: torch.Tensor
    version: int
    inner: tuple[int, ...]
    held: tuple[torch.Tensor | None, ...]
    history: Any
    size: torch.Size
    stride: tuple[Any, ...]

    def is_resized(self) -> bool:
        """Whether an in-place op has given it another size or other strides."""
        same = torch_compat.known_equal
        return not (same(self.value.size(), self.size) and same(self.value.stride(), self.stride))

    def is_assigned(self, end: End) -> bool:
        """Whether it holds another inner tensor than before."""
        pairs = zip(self.held, held_objects(end, self.value), strict=True)
        return any(before is not None and now is not None and now is not before for before, now in pairs)


def live_wrapper(end: End, parts: Sequence[torch.Tensor]) -> LiveWrapper:
    with torch.enable_grad():
        value = assemble_wrapper(end, parts)
    if end.requires_grad and not value.requires_grad:  # in inference mode, where nothing has a history
        value.requires_grad_()
    if end.is_parameter:
        torch_compat.mark_parameter(value)
    state = value._version, inner_versions(end, value), held_objects(end, value), value.grad_fn
    return LiveWrapper(value, *state, value.size(), value.stride())


def held_objects(end: End, value: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The tensors that a wrapper holds; `None` for one that is another object each time it is asked for."""
    with torch_compat.unobserved():
        pairs = zip(inner_tensors(end.form, value), inner_tensors(end.form, value), strict=True)
        return tuple(one if one is other else None for one, other in pairs)


def inner_versions(end: End, value: torch.Tensor) -> tuple[int, ...]:
    """The versions of what a wrapper holds."""
    with torch_compat.unobserved():  # a part may be an argument of the traced function
        return tuple(torch_compat.version_of(tensor) or 0 for tensor in inner_tensors(end.form, value))


def count_of(result: WrapperResult) -> int:
    """The number of flat results in the place of a result."""
    match result:
        case PlainResult():
            return 1
        case AssembledResult(end, symbols):
            return end.count + symbols
        case ReplayedView():
            return (result.end is not None) + result.numbers + result.tensors
    return 0


def values_by_result(results: Sequence[WrapperResult], flat: Iterator[Any]) -> list[list[Any]]:
    """The flat results in the place of each result."""
    return [list(itertools.islice(flat, count_of(result))) for result in results]


def with_pieces(results: Sequence[WrapperResult], flat: Sequence[Any]) -> list[WrapperResult]:
    """The results of a trace; views that are pieces of one call know its number. A piece may be returned twice."""
    calls, times = defaultdict[Hashable, list[tuple[int, int]]](list), Counter[Hashable]()
    for index, (result, own) in enumerate(zip(results, values_by_result(results, iter(flat)), strict=True)):
        if isinstance(result, ReplayedView):
            view, keys = result.keys_of_pieces(own[result.end is not None :])
            for position, key in keys.items():
                calls[key, times[view]].append((index, position))
            times[view] += 1
    pieces = defaultdict[int, dict[int, int]](dict)
    for number, places in enumerate(calls.values()):
        for index, position in places if len(places) > 1 else ():
            pieces[index][position] = number
    return [replace(result, pieces=pieces[k]) if k in pieces else result for k, result in enumerate(results)]


def hides_a_change(live: LiveWrapper) -> bool:
    """Whether an argument has another history than before, and no change that calls make shows it."""
    return live.value.grad_fn is not live.history and live.value._version == live.version


def view_from(of_argument: bool, index: int, view: torch.Tensor) -> tuple[ReplayedView, list[Any]] | None:
    """How to replay a view of its base, with what its ops take from the trace; `None` if it has another history."""
    base = view._base
    if base is None or view.requires_grad != base.requires_grad:
        return None
    try:
        ops, numbers, tensors = torch_compat.ops_of_view(view)
        torch_compat.replayed_view(ops, base, numbers, tensors)
    except (RuntimeError, ValueError):  # no op of the view is known, or the subclass does not have it
        return None
    is_tracked = not torch_compat.made_under_no_grad(view)
    replay = ReplayedView(of_argument, index, ops, is_tracked, None, len(numbers), len(tensors))
    return replay, [*numbers, *tensors]


def reject_views(name: str, wrapper: torch.Tensor, others: Sequence[Any]) -> None:
    """Raise if a wrapper shares its history with another one.

    Raises:
        UnsupportedAliasingError
    """
    base = wrapper._base
    relatives = (other for other in others if isinstance(other, torch.Tensor) and is_wrapper(other))
    if base is not None and any(other is base or other._base is base for other in relatives):
        raise UnsupportedAliasingError(
            f"{name} is a {type(wrapper).__name__} and a view of another argument or output; return a clone()"
        )
