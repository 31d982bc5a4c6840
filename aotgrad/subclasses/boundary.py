"""What a trace finds about the wrappers among the arguments and results of a function, and what later calls do with them.

wrappers.enter(ends, parts)           in the trace: the arguments, assembled from parts
wrappers.take_apart(results)          in the trace: parts in place of wrappers
wrappers.assemble(flat, objects)      in a call: the results, and the changes of the arguments `objects`
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

import torch

from aotgrad import torch_compat
from aotgrad.errors import UnsupportedAliasingError
from aotgrad.subclasses.bridge import Detour, End, GradientForm, assemble_wrapper, take_apart
from aotgrad.subclasses.forms import WrapperForm, form_of, is_wrapper


@dataclass(frozen=True)
class PlainResult:
    """A result that is no wrapper."""


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
    """A view of an argument, replayed from it; `model` is such a view, of a tensor without memory."""

    index: int
    model: torch.Tensor


@dataclass(frozen=True)
class AssembledResult:
    """A new wrapper, assembled from parts; `symbols` of its sizes and strides come after the parts."""

    end: End
    symbols: int


WrapperResult = Union[PlainResult, SameArgument, SameResult, ReplayedView, AssembledResult]


@dataclass(frozen=True)
class ChangedWrapper:
    """An argument that the function changes in place. `end`: it gets a new history, from parts that are results."""

    index: int
    version_bumps: int
    end: End | None


@dataclass
class Wrappers:
    """The wrappers of one traced function.

    Attributes:
        arguments: the ends of the arguments; the trace fills in the forms of their gradients.
        results: one per flat result of the function.
        changes: of arguments.
        live: the arguments, while the function is traced.
        expected: the forms of gradients of results that differ from the forms of the results.
    """

    expected: Mapping[int, GradientForm] = field(default_factory=dict)
    arguments: list[End] = field(default_factory=list)
    results: list[WrapperResult] = field(default_factory=list)
    changes: list[ChangedWrapper] = field(default_factory=list)
    live: list[LiveWrapper] = field(default_factory=list)

    @property
    def needed(self) -> bool:
        """Whether an argument or result is a wrapper."""
        return bool(self.arguments or any(not isinstance(result, PlainResult) for result in self.results))

    def enter(self, ends: Sequence[End], parts: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """The arguments of the traced function, assembled from parts. A second trace finds the same forms of gradients."""
        self.arguments = self.arguments or [replace(end, is_traced=True) for end in ends]
        self.live = [live_wrapper(end, some) for end, some in zip(self.arguments, parts, strict=True)]
        return [each.value for each in self.live]

    def take_apart(self, leaves: Sequence[Any]) -> list[Any]:
        """The flat results with parts in place of wrappers, then the parts of changed arguments.

        Raises:
            UnsupportedAliasingError: a result is a view of another wrapper.
        """
        flat: list[Any] = []
        self.results = [self.add_result(leaf, k, leaves, flat) for k, leaf in enumerate(leaves)]
        changes = (self.change_of(k, live, flat) for k, live in enumerate(self.live))
        self.changes = [change for change in changes if change is not None]
        self.live = []
        return flat

    def add_result(self, leaf: Any, index: int, leaves: Sequence[Any], flat: list[Any]) -> WrapperResult:
        """How calls get one result; appends its parts to `flat`."""
        if not is_wrapper(leaf) and index not in self.expected:
            flat.append(leaf)
            return PlainResult()
        for k, live in enumerate(self.live):
            if live.value is leaf:
                return SameArgument(k)
        for k in range(index):
            if leaves[k] is leaf:
                return SameResult(k)
        for k, live in enumerate(self.live):
            if leaf._base is live.value and (view := view_of_argument(k, live, leaf)) is not None:
                return view
        others = [*(live.value for live in self.live), *(other for other in leaves if other is not leaf)]
        reject_views(f"output {index}", leaf, others)
        end = End(f"output {index}", index, form_of(leaf), carried=self.expected.get(index), is_traced=True)
        flat.extend(take_apart(end, leaf))
        sizes = (*end.form.size, *end.form.stride) if isinstance(end.form, WrapperForm) else ()
        numbers = [number for number in sizes if isinstance(number, torch.SymInt)]
        flat.extend(numbers)
        return AssembledResult(replace(end, is_traced=False), len(numbers))

    def change_of(self, index: int, live: LiveWrapper, flat: list[Any]) -> ChangedWrapper | None:
        """What the function did to an argument; appends the parts of one with a new history to `flat`."""
        bumps = live.value._version - live.version
        if not bumps:
            return None
        if live.value.grad_fn is live.history:
            return ChangedWrapper(index, bumps, None)
        if self.arguments[index].is_leaf and self.arguments[index].requires_grad:
            raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
        end = End(f"argument {index} after its change", index, form_of(live.value), is_traced=True)
        flat.extend(take_apart(end, live.value))
        return ChangedWrapper(index, bumps, replace(end, is_traced=False))

    def assemble(self, flat: Sequence[Any], objects: Sequence[torch.Tensor], detour: Detour | None = None) -> list[Any]:
        """The results of a call with these wrappers as arguments, which it changes as the function does."""
        values = iter(flat)
        results: list[Any] = []
        for result in self.results:
            match result:
                case PlainResult():
                    results.append(next(values))
                case SameArgument(index):
                    results.append(objects[index])
                case SameResult(index):
                    results.append(results[index])
                case ReplayedView(index, model):
                    results.append(torch_compat.replayed_view(model, objects[index]))
                case AssembledResult(end, symbols):
                    parts = [next(values) for _ in range(end.count)]
                    numbers = [next(values) for _ in range(symbols)]
                    results.append(assemble_wrapper(end.resized(numbers), parts, detour))
        for change in self.changes:
            self.apply(change, objects[change.index], values)
        return results

    def protect_saved(self, saved: Container[int]) -> None:
        """Note which flat results the backward needs. A change of their wrapper is noticed there: it shows at no part."""
        position = 0
        for result in self.results:
            match result:
                case PlainResult():
                    position += 1
                case AssembledResult(end, symbols):
                    end.is_saved = any(k in saved for k in range(position, position + end.count))
                    position += end.count + symbols

    def paths(self, names: Sequence[str]) -> list[str]:
        """The names of the flat results, from those of the results."""
        found: list[str] = []
        for name, result in zip(names, self.results, strict=True):
            match result:
                case PlainResult():
                    found.append(name)
                case AssembledResult(end, symbols):
                    found += end.part_names(name) + [f"{name} (a size)"] * symbols
        for change in self.changes:
            found += [] if change.end is None else change.end.part_names(change.end.name)
        return found

    def apply(self, change: ChangedWrapper, wrapper: torch.Tensor, values: Iterator[Any]) -> None:
        """Give an argument the version and history that it has after the call; its parts are changed already."""
        bumps = change.version_bumps
        if change.end is not None:
            wrapper.copy_(assemble_wrapper(change.end, [next(values) for _ in range(change.end.count)]))
            bumps -= 1
        torch_compat.raise_version(wrapper, torch_compat.version_of(wrapper), bumps)


@dataclass(frozen=True)
class LiveWrapper:
    """An argument of a running trace, and its state before the function runs."""

    value: torch.Tensor
    version: int
    history: Any


def live_wrapper(end: End, parts: Sequence[torch.Tensor]) -> LiveWrapper:
    with torch.enable_grad():
        value = assemble_wrapper(end, parts)
    if end.is_parameter:
        torch_compat.mark_parameter(value)
    return LiveWrapper(value, value._version, value.grad_fn)


def view_of_argument(index: int, live: LiveWrapper, view: torch.Tensor) -> ReplayedView | None:
    """How to replay a view of an argument; `None` if it has symbolic sizes, or another history than the argument."""
    base = live.value
    symbolic = torch_compat.has_symbolic_shape(base) or torch_compat.has_symbolic_shape(view)
    if symbolic or base.grad_fn is not live.history or view.requires_grad != base.requires_grad:
        return None
    model = torch_compat.model_of_view(view)
    try:
        torch_compat.replayed_view(model, base)
    except RuntimeError:  # some views are replayed by as_strided(), which a subclass may not have
        return None
    return ReplayedView(index, model)


def reject_views(name: str, wrapper: torch.Tensor, others: Sequence[Any]) -> None:
    """Raise if a wrapper shares its history with another one.

    Raises:
        UnsupportedAliasingError
    """
    base = wrapper._base
    relatives = (other for other in others if isinstance(other, torch.Tensor) and is_wrapper(other))
    related = any(
        other is base or other._base is wrapper or (base is not None and other._base is base) for other in relatives
    )
    if related:
        raise UnsupportedAliasingError(
            f"{name} is a {type(wrapper).__name__} and a view of another argument or output; return a clone()"
        )
