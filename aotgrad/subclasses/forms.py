"""The form of a tensor: how a wrapper subclass is built from plain tensors.

    form = form_of(TwoTensor(a, b))
    parts_of(form, x)                 [x.a, x.b]: the plain tensors, in order
    form.assemble([c, d])             TwoTensor(c, d)

Nested wrappers have nested forms. What `__tensor_flatten__` names and is no tensor, as a device mesh, belongs to the form.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import operator
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

import torch

from aotgrad import torch_compat
from aotgrad.errors import CaptureError


@dataclass(frozen=True)
class PlainForm:
    """A plain tensor: its only part."""

    key = layout_free_key = "plain"
    name = "plain tensor"
    count = 1
    is_symbolic = follows_parts = False

    def symbols(self) -> Iterator[torch.SymInt]:
        return iter(())

    def sized_as(self, value: torch.Tensor) -> PlainForm:
        return self

    def laid_out_as(self, other: TensorForm) -> PlainForm:
        return self

    def without_cached_parts(self) -> PlainForm:
        return self

    def resized(self, numbers: Iterator[int]) -> PlainForm:
        return self

    def assemble(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return parts[0]

    def build(self, parts: Iterator[torch.Tensor]) -> Any:
        return next(parts)


@dataclass(frozen=True)
class FixedForm:
    """An attribute that is no tensor."""

    value: Any
    count = 0

    @property
    def key(self) -> Hashable:
        return ("fixed", frozen_context(self.value))

    layout_free_key = key

    def symbols(self) -> Iterator[torch.SymInt]:
        return iter(())

    def sized_as(self, value: Any) -> FixedForm:
        return self

    def resized(self, numbers: Iterator[int]) -> FixedForm:
        return self

    def build(self, parts: Iterator[torch.Tensor]) -> Any:
        return self.value


@dataclass(frozen=True, eq=False)
class WrapperForm:
    """A wrapper subclass.

    Attributes:
        kind: its class.
        fields: the form of each attribute that `__tensor_flatten__` names.
        context: what else `__tensor_flatten__` returns.
        size, stride: of the wrapper.
        follows_parts: its size follows from its parts, as that of a nested tensor.
    """

    kind: type
    fields: tuple[tuple[str, Form], ...]
    context: Any
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    follows_parts: bool = False

    @functools.cached_property
    def key(self) -> Hashable:
        """Equal for wrappers that a trace cannot tell apart, if their parts are alike."""
        fields = tuple((name, form.key) for name, form in self.fields)
        return (self.kind, fields, frozen_context(self.context), *map(frozen_context, self.free_numbers()))

    @functools.cached_property
    def layout_free_key(self) -> Hashable:
        """The key without strides, which a gradient is free to have."""
        fields = tuple((name, form.layout_free_key) for name, form in self.fields)
        context = frozen_context(self.context, frozen_context(self.stride))
        return (self.kind, fields, context, *map(frozen_context, self.free_numbers()[:1]))

    def without_cached_parts(self) -> WrapperForm:
        """The form without parts that follow from others. They come last, so that the parts of both begin alike."""
        fields = tuple((name, form) for name, form in self.fields if name not in torch_compat.CACHED_PARTS)
        return replace(self, fields=fields) if self.follows_parts else self

    def free_numbers(self) -> tuple[tuple[Any, ...], ...]:
        """The size and the stride, unless they follow from the parts."""
        return () if self.follows_parts else (self.size, self.stride)

    @functools.cached_property
    def count(self) -> int:
        """The number of parts."""
        return sum(form.count for _, form in self.fields)

    def build(self, parts: Iterator[torch.Tensor]) -> Any:
        attributes = {name: form.build(parts) for name, form in self.fields}
        if self.follows_parts:
            torch_compat.remember_ragged_size(attributes, self.size)
        return self.kind.__tensor_unflatten__(attributes, self.context, self.size, self.stride)

    @functools.cached_property
    def is_symbolic(self) -> bool:
        """Whether a size, a stride or a number in the context is symbolic, here or in a part."""
        return any(True for _ in self.symbols())

    def symbols(self) -> Iterator[torch.SymInt]:
        """The symbolic sizes and strides, and numbers in the context, those of parts last."""
        for numbers in (*self.free_numbers(), self.context):
            yield from symbols_in(numbers)
        for _, inner in self.fields:
            yield from inner.symbols()

    def sized_as(self, value: torch.Tensor) -> WrapperForm:
        """The form with the sizes and strides of a wrapper of the same structure."""
        fields = tuple((name, inner.sized_as(getattr(value, name))) for name, inner in self.fields)
        context = self.context
        if any(True for _ in symbols_in(context)):
            context = filled(context, torch_compat.flattened(value)[1])
        return replace(self, fields=fields, context=context, size=tuple(value.size()), stride=tuple(value.stride()))

    @property
    def is_expanded(self) -> bool:
        """Whether a stride is zero; it does not follow from the parts."""
        return not self.follows_parts and any(isinstance(step, int) and step == 0 for step in self.stride)

    def made_contiguous(self) -> WrapperForm:
        """The form with the strides of a contiguous tensor."""
        stride = dense_strides(self.size, range(len(self.size)))
        is_told_apart = frozen_context(self.size) != frozen_context(self.stride)
        context = restrided(self.context, self.stride, stride) if is_told_apart else self.context
        return replace(self, context=context, stride=stride)

    def laid_out_as(self, other: TensorForm) -> WrapperForm:
        """The form with dense strides, in the order of those of another form."""
        assert isinstance(other, WrapperForm), "both are forms of one wrapper"
        if self.follows_parts:
            return self
        given = torch_compat.hints(other.stride)
        return replace(self, stride=dense_strides(self.size, sorted(range(len(given)), key=lambda dim: -given[dim])))

    def resized(self, numbers: Iterator[int]) -> WrapperForm:
        """The form with `numbers` in place of `symbols`."""
        free = [renumbered(some, numbers) for some in self.free_numbers()]
        context = renumbered(self.context, numbers)
        fields = tuple((name, inner.resized(numbers)) for name, inner in self.fields)
        size, stride = free or (self.size, self.stride)
        return replace(self, fields=fields, context=context, size=size, stride=stride)

    def assemble(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """A wrapper of these parts that does not require grad."""
        return self.build(iter(parts))

    @property
    def name(self) -> str:
        return self.kind.__name__


def dense_strides(size: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """Strides without gaps, with the dimensions in this order: the one with the largest stride is first."""
    strides = itertools.accumulate((size[dim] for dim in order[:0:-1]), operator.mul, initial=1)
    found = dict(zip(order[::-1], strides, strict=False))
    return tuple(found[dim] for dim in range(len(size)))


TensorForm = Union[PlainForm, WrapperForm]
Form = Union[TensorForm, FixedForm]


def is_wrapper(value: Any) -> bool:
    """Whether a value is a wrapper subclass that can be taken apart."""
    return type(value) not in USUAL_TYPES and isinstance(value, torch.Tensor) and torch_compat.is_wrapper_subclass(value)


USUAL_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))
"""The usual types, to tell quickly."""


def has_wrapper(values: Iterable[Any]) -> bool:
    """Whether one of the values is a wrapper subclass."""
    values = tuple(values)
    return not USUAL_TYPES.issuperset(map(type, values)) and any(map(is_wrapper, values))


def form_of_attribute(value: Any) -> Form:
    return form_of(value) if isinstance(value, torch.Tensor) else FixedForm(value)


def form_of(value: torch.Tensor) -> TensorForm:
    """The form of a tensor."""
    if not is_wrapper(value):
        return PlainForm()
    if value.requires_grad:  # some contexts hold the flag
        with torch.inference_mode(False), torch.no_grad():  # there is no inference tensor with the version of another
            value = value.detach()
    names, context = torch_compat.flattened(value)
    fields = tuple((name, form_of_attribute(getattr(value, name))) for name in names)
    return WrapperForm(type(value), fields, context, tuple(value.size()), tuple(value.stride()), value.is_nested)


def parts_of(form: Form, value: Any) -> list[torch.Tensor]:
    """The plain tensors of a value of that form, in order."""
    if isinstance(form, PlainForm):
        return [value]
    if isinstance(form, FixedForm):
        return []
    return [part for name, inner in form.fields for part in parts_of(inner, getattr(value, name))]


def inner_tensors(form: Form, value: Any) -> Iterator[torch.Tensor]:
    """The tensors that a value of that form holds, wrappers and parts."""
    for name, inner in form.fields if isinstance(form, WrapperForm) else ():
        if not isinstance(inner, FixedForm):
            yield getattr(value, name)
            yield from inner_tensors(inner, getattr(value, name))


def paths_of(form: Form, path: str = "") -> list[str]:
    """The attribute that leads to each part: `["._local_tensor.a", "._local_tensor.b"]`."""
    if isinstance(form, PlainForm):
        return [path]
    if isinstance(form, FixedForm):
        return []
    return [found for name, inner in form.fields for found in paths_of(inner, f"{path}.{name}")]


def frozen_context(context: Any, stride: Hashable = None) -> Hashable:
    """A context of `__tensor_flatten__` as part of a key. With a frozen `stride`, strides like these do not count.

    Symbolic numbers are equal if their expressions are: to compare them would be a part of the trace. What cannot be hashed
    is copied, since its owner may change it, and compared.
    """
    if isinstance(context, torch.SymInt):
        return ("symbol", str(context))
    if isinstance(context, (dict, tuple, list)) or any(True for _ in symbols_in(context)):
        names, values = values_in(context)
        frozen = tuple(frozen_context(value, stride) for value in values)
        if isinstance(context, tuple):
            return "stride" if frozen and frozen == stride else frozen
        return frozen if isinstance(context, list) else tuple(zip(names, frozen, strict=True))
    try:
        hash(context)
    except TypeError:
        return ComparedContext.of(context)
    return context


def values_in(context: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """The keys and the values of a container or dataclass; none of another context."""
    if isinstance(context, dict):
        return tuple(context), tuple(context.values())
    if isinstance(context, (tuple, list)):
        return range(len(context)), context
    if dataclasses.is_dataclass(context) and not isinstance(context, type):
        names = tuple(each.name for each in dataclasses.fields(context) if each.init)
        return names, tuple(getattr(context, name) for name in names)
    return (), ()


def symbols_in(context: Any) -> Iterator[torch.SymInt]:
    """The symbolic numbers in a context."""
    if isinstance(context, torch.SymInt):
        yield context
    for value in values_in(context)[1]:
        yield from symbols_in(value)


def with_values(context: Any, values: Sequence[Any]) -> Any:
    """A container or dataclass with other values."""
    if isinstance(context, dict):
        changed = copy.copy(context)
        changed.update(zip(context, values, strict=True))
        return changed
    if isinstance(context, (tuple, list)):
        return context._make(values) if hasattr(context, "_make") else type(context)(values)  # pyright: ignore
    return dataclasses.replace(context, **dict(zip(values_in(context)[0], values, strict=True)))


def renumbered(context: Any, numbers: Iterator[int]) -> Any:
    """A context with `numbers` in place of the symbolic ones."""
    if isinstance(context, torch.SymInt):
        return next(numbers)
    if not any(True for _ in symbols_in(context)):
        return context
    return with_values(context, [renumbered(value, numbers) for value in values_in(context)[1]])


def restrided(context: Any, old: tuple[Any, ...], new: tuple[Any, ...]) -> Any:
    """A context with other strides, or another size."""
    if isinstance(context, tuple) and frozen_context(context) == frozen_context(old):
        return new
    values = values_in(context)[1]
    found = [restrided(value, old, new) for value in values]
    return context if all(map(operator.is_, values, found)) else with_values(context, found)


def filled(context: Any, actual: Any) -> Any:
    """A context with the numbers of a context of the same structure in place of the symbolic ones."""
    if isinstance(context, torch.SymInt):
        return actual
    if not any(True for _ in symbols_in(context)):
        return context
    return with_values(context, list(map(filled, values_in(context)[1], values_in(actual)[1])))


@dataclass(frozen=True, eq=False)
class ComparedContext:
    """A copy of a context that cannot be hashed; equal to one of the same class that compares as equal."""

    value: Any

    @classmethod
    def of(cls, context: Any) -> ComparedContext:
        try:
            return cls(copy.deepcopy(context))
        except Exception as error:
            raise CaptureError(
                f"the context of a tensor subclass, a {type(context).__name__} from __tensor_flatten__, can neither be "
                "hashed nor copied, so calls cannot be told apart by it; return a tuple, or a frozen dataclass"
            ) from error

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ComparedContext) or type(self.value) is not type(other.value):
            return False
        try:
            return bool(self.value == other.value)
        except (TypeError, ValueError, RuntimeError):  # of arrays, for example
            return False
