"""Calls with wrapper subclasses: the parts of a wrapper are arguments of the graph in its place.

    f(x: TwoTensor)     ->     run f on (x.a, x.b), which returns (y.a, y.b); the result is TwoTensor(y.a, y.b)

Plans are told apart by the forms of wrappers, and guards see only plain tensors.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from aotgrad.plan_cache.arguments import Arguments
from aotgrad.plan_cache.call import Call
from aotgrad.subclasses.boundary import Wrappers
from aotgrad.subclasses.bridge import OtherGradientForm, ResultGradient
from aotgrad.subclasses.forms import is_wrapper
from aotgrad.subclasses.layout import USUAL, GradientForms, WrapperLayout
from aotgrad.subclasses.relative import relative_form


@dataclass(frozen=True)
class WrapperArguments(Arguments):
    """The arguments of a call with the parts of each wrapper in place of the wrapper.

    Attributes:
        inner: the arguments with the wrappers.
        layout: where the wrappers are among the tensors of `inner`.
        objects: the distinct wrappers of this call; empty in what outlives it.
    """

    inner: Arguments
    layout: WrapperLayout
    objects: Sequence[torch.Tensor]

    @classmethod
    def of_call(cls, inner: Arguments, gradients: GradientForms) -> WrapperArguments:
        layout = WrapperLayout.of(inner.tensors, gradients)
        flat, objects = layout.take_apart(inner.tensors)
        sizes = {
            k: frozenset() if layout.has_fixed_parts(origin) else inner.symbolic.get(origin)
            for k, origin in enumerate(layout.origins)
        }
        symbolic = {k: dims for k, dims in sizes.items() if dims is not None}
        spec = ("wrappers", layout.key, inner.spec)
        return cls(inner.args, inner.kwargs, flat, inner.constants, spec, inner, layout, objects, symbolic=symbolic)

    @property
    def fixed_count(self) -> int:
        return self.inner.fixed_count

    def count_of(self, leading: int) -> int:
        """How many tensors come from the first `leading` ones of `inner`."""
        return sum(origin < leading for origin in self.layout.origins)

    def rebuild(self, tensors: Sequence[Any]) -> tuple[tuple, dict[str, Any]]:
        """The nested arguments; the wrappers are assembled from parts, in a trace."""
        return self.inner.rebuild(self.layout.enter(tensors))

    def part_names(self, names: Sequence[str]) -> list[tuple[str, int]]:
        """The name of each tensor, and the position in `inner` of the tensor that it is or comes from."""
        return list(zip(self.layout.part_names(names), self.layout.origins, strict=True))

    def without_tensors(self) -> WrapperArguments:
        layout = replace(self.layout, wrappers=Wrappers(expected=self.layout.wrappers.expected))
        return replace(self, args=(), kwargs={}, tensors=(), inner=self.inner.without_tensors(), layout=layout, objects=())


@dataclass
class KnownGradientForms:
    """The forms of gradients that the calls of a cache were found to have, by the kind of call.

    Some forms have sizes. So they are known for a kind of call with certain sizes of its tensors, `known`; what has been
    found `last` for a kind serves other sizes where it fits.
    """

    known: dict[Hashable, GradientForms] = field(default_factory=dict)
    last: dict[Hashable, GradientForms] = field(default_factory=dict)

    def of(self, call: Call) -> GradientForms:
        if not self.known:
            return USUAL
        kind = kind_of_call(call)
        if (known := self.known.get((kind, sizes_of_call(call)))) is not None:
            return known
        return self.last.get(kind, USUAL).for_other_sizes(call.tensors)

    def learn_from(self, call: Call, error: OtherGradientForm) -> None:
        """Note what a trace of the call has found.

        Raises:
            OtherGradientForm: it has found it before.
        """
        whole = with_whole_wrappers(call)
        self.learn(whole, self.of(whole).after(error))

    def learn_result(self, call: Call, arrived: ResultGradient) -> None:
        """Note the gradient that arrived for a result of the call."""
        form = relative_form(arrived.form, arrived.usual) or arrived.form
        self.learn(call, self.of(call).with_result(arrived.index, form))

    def drop_guesses(self, call: Call) -> bool:
        """Forget for a call what was found for results in calls of other sizes. Returns whether that is something."""
        if not self.known:
            return False
        whole = with_whole_wrappers(call)
        key, forms = (kind_of_call(whole), sizes_of_call(whole)), self.of(whole)
        if key in self.known or not forms.results:
            return False
        self.known[key] = replace(forms, results={})
        return True

    def learn(self, call: Call, forms: GradientForms) -> None:
        kind = kind_of_call(call)
        self.known[kind, sizes_of_call(call)] = self.last[kind] = forms


def with_whole_wrappers(call: Call) -> Call:
    arguments = call.arguments
    return call._replace(arguments=arguments.inner) if isinstance(arguments, WrapperArguments) else call


def kind_of_call(call: Call) -> Hashable:
    """Equal for calls that have the same forms of gradients; `call` has its wrappers whole."""
    dims = tuple(value.dim() for value in call.tensors if isinstance(value, torch.Tensor))
    return call.current_key(), WrapperLayout.of(call.tensors).key, dims


def sizes_of_call(call: Call) -> Hashable:
    """The sizes of the plain tensors of a call; those of wrappers are a part of its kind, or follow from parts."""
    return tuple(tuple(value.size()) for value in call.tensors if isinstance(value, torch.Tensor) and not is_wrapper(value))
