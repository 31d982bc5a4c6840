"""The form of the gradient of a result apart from its sizes, which are those of the result or fractions of them.

y = DTensor.from_local(x, mesh, [Shard(0)])           of size (4 n, k), its part (n, k)
relative_form(replicated gradient, form of y)         of size (4 n, k), its part (4 n, k), for each n and k

What is found for one call then holds for calls of other sizes, and in traces with symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

from aotgrad import torch_compat
from aotgrad.subclasses.bridge import GradientForm
from aotgrad.subclasses.forms import Form, WrapperForm, dense_strides, frozen_context, restrided

TensorSizes = Sequence[tuple[Any, ...]]
"""The sizes of a result, then those of its parts."""


class NotRelative(Exception):
    """The sizes of a gradient do not follow from those of the result."""


@dataclass(frozen=True)
class Fraction:
    """Stands for a size: that of the result, or of one of its parts, in a dimension, divided.

    Attributes:
        tensor: 0: the result.
    """

    tensor: int
    dim: int
    divisor: int

    def of(self, sizes: TensorSizes) -> Any:
        """The size.

        Raises:
            NotRelative: it is not whole.
        """
        size = sizes[self.tensor][self.dim]
        if self.divisor == 1:
            return size
        if not torch_compat.is_multiple(size, self.divisor):
            raise NotRelative
        return size // self.divisor


@dataclass(frozen=True)
class Rank:
    """Stands for a stride of a wrapper without gaps: the largest one has rank 0."""

    rank: int


@dataclass(frozen=True)
class RelativeForm:
    """The form of a gradient, with `Fraction` and `Rank` in place of sizes and strides.

    Attributes:
        dims: how many dimensions the result and its parts have.
    """

    gradient: GradientForm
    dims: tuple[int, ...]

    @property
    def key(self) -> Hashable:
        return ("relative", self.gradient.key)

    def for_result(self, result: GradientForm) -> GradientForm | None:
        """The form of the gradient of a result, given the usual one; `None` if this form does not fit its sizes."""
        sizes = sizes_of_result(result)
        if tuple(map(len, sizes)) != self.dims:
            return None
        try:
            parts = tuple(replace(part, size=sized(part.size, sizes)) for part in self.gradient.parts)
            return GradientForm(given_sizes(self.gradient.form, sizes), parts)
        except NotRelative:
            return None


ResultForm = Union[GradientForm, RelativeForm]


def relative_form(gradient: GradientForm, result: GradientForm) -> RelativeForm | None:
    """The form of a gradient apart from its sizes, given the usual form for the result.

    `None` if its sizes do not follow from those of the result. A trace with symbolic sizes then depends on how they do.
    """
    if result.form.follows_parts or torch_compat.any_depends_on_data([*gradient.numbers(), *result.numbers()]):
        return None
    hints, sizes = gradient.with_hints(), sizes_of_result(result.with_hints())
    try:
        parts = tuple(replace(part, size=fractions(part.size, sizes)) for part in hints.parts)
        found = RelativeForm(GradientForm(without_sizes(hints.form, sizes), parts), tuple(map(len, sizes)))
    except NotRelative:
        return None
    again = found.for_result(result)
    return found if again is not None and again.matches(gradient) else None


def sizes_of_result(result: GradientForm) -> TensorSizes:
    return [result.size, *(part.size for part in result.parts)]


def fractions(size: Sequence[int], sizes: TensorSizes) -> tuple[Fraction, ...]:
    """What stands for a size.

    Raises:
        NotRelative
    """
    found = (next(fractions_of(number, dim, sizes), None) for dim, number in enumerate(size))
    fractions = tuple(fraction for fraction in found if fraction is not None)
    if len(fractions) != len(size):
        raise NotRelative
    return fractions


def sized(size: Sequence[Any], sizes: TensorSizes) -> tuple[Any, ...]:
    """The inverse of `fractions`."""
    return tuple(fraction.of(sizes) for fraction in size)


def fractions_of(number: int, dim: int, sizes: TensorSizes) -> Iterator[Fraction]:
    """Sizes in a dimension that are equal to a number, then those that are multiples of it."""
    given = [(tensor, size[dim]) for tensor, size in enumerate(sizes) if dim < len(size)]
    yield from (Fraction(tensor, dim, 1) for tensor, size in given if size == number)
    yield from (Fraction(tensor, dim, size // number) for tensor, size in given if number and size % number == 0)


def without_sizes(form: Form, sizes: TensorSizes) -> Any:
    """A form with `Fraction` and `Rank` in place of sizes and strides, also where its context repeats them.

    Raises:
        NotRelative: its sizes do not follow from these, or are not told apart from its strides.
    """
    if not isinstance(form, WrapperForm):
        return form
    if form.follows_parts or (form.size and frozen_context(form.size) == frozen_context(form.stride)):
        raise NotRelative
    order = sorted(range(len(form.stride)), key=lambda dim: -form.stride[dim])
    size, stride = fractions(form.size, sizes), tuple(Rank(order.index(dim)) for dim in range(len(order)))
    fields = tuple((name, without_sizes(inner, sizes)) for name, inner in form.fields)
    return with_geometry(replace(form, fields=fields), size, stride)


def given_sizes(form: Form, sizes: TensorSizes) -> Any:
    """The inverse of `without_sizes`, with dense strides."""
    if not isinstance(form, WrapperForm):
        return form
    size = sized(form.size, sizes)
    stride = dense_strides(size, sorted(range(len(size)), key=lambda dim: form.stride[dim].rank))
    fields = tuple((name, given_sizes(inner, sizes)) for name, inner in form.fields)
    return with_geometry(replace(form, fields=fields), size, stride)


def with_geometry(form: WrapperForm, size: tuple[Any, ...], stride: tuple[Any, ...]) -> WrapperForm:
    """The form with another size and other strides, also in its context."""
    context = restrided(restrided(form.context, form.size, size), form.stride, stride)
    return replace(form, context=context, size=size, stride=stride)
