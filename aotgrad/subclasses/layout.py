"""Where the wrappers are among the flat values of a call.

layout = WrapperLayout.of([x, t, x])          t: TwoTensor
layout.take_apart([x, t, x])                  [x, t.a, t.b, x] and [t]
layout.enter([x, a, b, x])                    in a trace: [x, TwoTensor(a, b), x]
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from aotgrad.graph.symbols import SYMBOLIC_NUMBERS
from aotgrad.subclasses.boundary import Wrappers
from aotgrad.subclasses.bridge import (
    End,
    GradientForm,
    OtherGradientForm,
    carriers,
    histories_kept,
    numbers_of,
    take_apart,
)
from aotgrad.subclasses.forms import TensorForm, form_of, is_wrapper, parts_of
from aotgrad.subclasses.relative import RelativeForm, ResultForm, relative_form
from aotgrad.torch_compat import FakeTensor


@dataclass(frozen=True)
class GradientForms:
    """The forms of gradients that differ from those of their tensors: of values, and of results, by position.

    `found` are the keys of all forms that traces have found for values, by position.
    """

    values: Mapping[int, GradientForm] = field(default_factory=dict)
    results: Mapping[int, ResultForm] = field(default_factory=dict)
    found: frozenset[tuple[int, Hashable]] = frozenset()

    @property
    def key(self) -> Hashable:
        return tuple(tuple((k, some[k].key) for k in sorted(some)) for some in (self.values, self.results))

    def after(self, error: OtherGradientForm, numbers: Collection[str] = ()) -> GradientForms:
        """With what a trace has found; its sizes stay symbolic if calls know them, by expressions `numbers`.

        Raises:
            OtherGradientForm: it has found it before.
        """
        if error.result is not None:
            known, found = self.results.get(error.index), relative_form(error.found, error.result) or error.form
            if known is not None and known.key == found.key:
                raise error
            return self.with_result(error.index, found)
        form = error.found if error.found.is_known_from(numbers) else error.form
        key = error.index, form.key
        if key in self.found:
            raise error
        return GradientForms({**self.values, error.index: form}, self.results, self.found | {key})

    def with_result(self, index: int, form: ResultForm) -> GradientForms:
        """Another gradient of a result; those of values may then be others, too."""
        return GradientForms({}, {**self.results, index: form})

    def for_other_sizes(self, values: Sequence[Any]) -> GradientForms:
        """What also holds for values of other sizes, and for results, whose sizes are not known yet."""
        own = {k: form for k, form in self.values.items() if form.size == tuple(values[k].size())}
        results = {k: form for k, form in self.results.items() if isinstance(form, RelativeForm)}
        if len(own) == len(self.values) and len(results) == len(self.results):
            return self
        return GradientForms(own, results)


FLAT_NUMBERS = (int, float, *SYMBOLIC_NUMBERS)

USUAL = GradientForms()
"""Gradients have the forms of their tensors."""


@dataclass(frozen=True)
class WrapperLayout:
    """Flat values with wrappers among them.

    Attributes:
        ends: of the distinct tensors that are taken apart, in the order of their first places.
        places: for each value, which of `ends` it is; `None` for other values.
        fixed: the values that are neither tensors nor numbers, by position: Dynamo passes device meshes, and guards them.
        wrappers: what the trace finds.
    """

    ends: tuple[End, ...]
    places: tuple[int | None, ...]
    fixed: Mapping[int, Any]
    wrappers: Wrappers

    @classmethod
    def of(
        cls, values: Sequence[Any], gradients: GradientForms = USUAL, fakes: Mapping[int, Any] | None = None
    ) -> WrapperLayout:
        """The layout of these values; `fakes` of wrappers, by position, have symbolic sizes."""
        fakes = fakes or {}
        distinct: dict[int, int] = {}
        for k, value in enumerate(values):
            if is_wrapper(value) or k in gradients.values:
                distinct.setdefault(id(value), k)
        ends = tuple(
            argument_end(values[k], form_of(fakes.get(k, values[k])), k, gradients.values.get(k)) for k in distinct.values()
        )
        for end, k in zip(ends, distinct.values(), strict=True):
            if k in fakes and end.form.is_symbolic:
                end.numbers = numbers_of(end.form, fakes[k])
            elif end.carried is not None:  # sizes that were symbolic in an earlier trace
                end.carried = end.carried.with_fixed_sizes()
        numbers = {key: number for number, key in enumerate(distinct)}
        places = tuple(numbers.get(id(value)) for value in values)
        fixed = {k: value for k, value in enumerate(values) if not isinstance(value, (torch.Tensor, *FLAT_NUMBERS))}
        return cls(ends, places, fixed, Wrappers(expected=gradients.results))

    @property
    def is_plain(self) -> bool:
        """Whether all values, and all results of the trace, are plain tensors and numbers."""
        return not (self.fixed or self.wrappers.needed)

    @property
    def key(self) -> Hashable:
        """Equal for values that a trace cannot tell apart, if their parts are alike."""
        return self.places, tuple(end.key for end in self.ends), GradientForms(results=self.wrappers.expected).key

    @functools.cached_property
    def origins(self) -> tuple[int, ...]:
        """For each part or plain value, the position of the value that it comes from."""
        return tuple(k for k, count in self.counts() for _ in range(count))

    def has_fixed_parts(self, position: int) -> bool:
        """Whether a plan serves one size of the parts of a value: its own size is a part of the key of the plan."""
        place = self.places[position]
        return place is not None and not (self.ends[place].form.follows_parts and self.ends[place].carried is None)

    def counts(self) -> Iterator[tuple[int, int]]:
        """The positions of the values, with the number of flat values in their place: none for a repeated wrapper."""
        for k, place in enumerate(self.places):
            if k in self.fixed:
                continue
            if place is None:
                yield k, 1
            elif place not in self.places[:k]:
                yield k, self.ends[place].count

    def part_names(self, names: Sequence[str]) -> list[str]:
        """The name of each part or plain value, from the names of the values."""
        found: list[str] = []
        for k, _ in self.counts():
            place = self.places[k]
            found += [names[k]] if place is None else self.ends[place].part_names(names[k])
        return found

    def parts_by_argument(self) -> list[str]:
        """For each part its name, `"argument 0.a"`; for a plain value an empty text."""
        names = self.part_names([f"argument {k}" for k in range(len(self.places))])
        return ["" if self.places[k] is None else name for name, k in zip(names, self.origins, strict=True)]

    def parts_of(self, models: Mapping[int, torch.Tensor]) -> list[torch.Tensor | None]:
        """For each part, carrier or plain value, the part of the model of its wrapper, if there is one."""
        found: list[torch.Tensor | None] = []
        for k, count in self.counts():
            place = self.places[k]
            parts = [] if place is None or k not in models else [*model_parts(self.ends[place], models[k])]
            found += [*parts, *[None] * (count - len(parts))]
        return found

    def take_apart(self, values: Sequence[Any]) -> tuple[list[Any], list[torch.Tensor]]:
        """The values with the parts of each wrapper in its first place, and the distinct wrappers."""
        if not (self.ends or self.fixed):
            return list(values), []
        flat: list[Any] = []
        objects: list[torch.Tensor] = []
        for k, _ in self.counts():
            place, value = self.places[k], values[k]
            if place is None:
                flat.append(value)
            else:
                objects.append(value)
                with histories_kept():
                    flat.extend(take_apart(self.ends[place].sized_as(value), value))
        return flat, objects

    def enter(self, flat: Sequence[Any]) -> list[Any]:
        """The values from plain values and parts, in a trace. Starts the record of what happens to the wrappers."""
        remaining, plain, parts = iter(flat), dict(self.fixed), []
        for k, count in self.counts():
            if self.places[k] is None:
                plain[k] = next(remaining)
            else:
                parts.append([next(remaining) for _ in range(count)])
        live = self.wrappers.enter(self.ends, parts, plain)
        return [plain[k] if place is None else live[place] for k, place in enumerate(self.places)]

    def expect_gradients(self, traced: Wrappers) -> None:
        """Tell the ends the forms of gradients that a trace found."""
        for end, known in zip(self.ends, traced.arguments, strict=True):
            end.gradient = known.gradient


def model_parts(end: End, model: torch.Tensor) -> Iterator[torch.Tensor]:
    """The parts of a fake wrapper, and carriers of symbolic sizes."""
    parts = parts_of(end.form, model)
    yield from parts
    if end.carried is not None and end.carried.is_symbolic:
        with cast(FakeTensor, parts[0]).fake_mode:
            yield from carriers(end)


def argument_end(value: torch.Tensor, form: TensorForm, position: int, carried: GradientForm | None) -> End:
    is_parameter = isinstance(value, torch.nn.Parameter)
    return End(
        *(f"tensor argument {position}", position, form, value.requires_grad, carried),
        is_leaf=value.is_leaf,
        is_parameter=is_parameter,
    )
