"""The inputs of gradients of gradients: those of the call, kept by its autograd node."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from aotgrad import torch_compat
from aotgrad.graph.symbols import values_of_symbols
from aotgrad.ir import GraphHalf
from aotgrad.slots import Saved
from aotgrad.subclasses.bridge import End, edges_of_parts, take_apart

Reference = tuple["weakref.ref[torch.Tensor]", "int | None"]
"""A weak reference to a result, and its version: an autograd node must not keep its results alive."""


@dataclass(slots=True)
class Recomputation:
    """What a rerun of the original function needs: its inputs, their versions, and the random state at entry.

    The version of a number, and of an input that the call changes, is `None`.
    `results` are the differentiable results that the call returned unchanged, and views (with their versions) that others
    were computed from. The caller may have dropped a result since, or changed its history.
    `wrappers` are the wrapper subclasses that were assembled from results, with their ends and versions.
    """

    primals: tuple[Any, ...]
    versions: list[int | None]
    random_state: Any
    results: tuple[Reference, ...] = ()
    wrappers: tuple[tuple[weakref.ref[torch.Tensor], End, int], ...] = ()

    def present_parts(self) -> Iterator[tuple[torch.Tensor, Any, int, torch.Tensor]]:
        """The parts of wrapper subclasses among the results that the caller still has, with the history of the call.

        Each with the wrapper, what the node runs that it is a result of, and its position among the results of this node.
        """
        for reference, end, version in self.wrappers:
            wrapper = reference()
            if wrapper is None or torch_compat.version_of(wrapper) != version:
                continue
            edges = edges_of_parts(wrapper, end.form.count)
            own = [(k, node, output) for k, (node, output) in edges if getattr(node, "recomputation", None) is self]
            parts = take_apart(end.sized_as(wrapper), wrapper) if own else ()
            yield from ((wrapper, node.backward, output, parts[k]) for k, node, output in own)

    def present_results(self) -> Iterator[tuple[int, torch.Tensor]]:
        """The results, by position, that the caller still has, and that have the history of the call."""
        for position, (reference, version) in enumerate(self.results):
            tensor = reference()
            if tensor is not None and self.is_unchanged(tensor, version):
                yield position, tensor

    def is_unchanged(self, result: torch.Tensor, version: int | None) -> bool:
        """Whether a result has the history that the call gave it. A view has another history at each version."""
        if version is not None:
            return torch_compat.version_of(result) == version
        return getattr(result.grad_fn, "recomputation", None) is self

    def inputs_are_unchanged(self, versions_of: Callable[[Sequence[torch.Tensor]], list[int]]) -> bool:
        """Whether all inputs are tensors that nobody has modified in place, the call included."""
        return None not in self.versions and versions_of(self.primals) == self.versions

    def check_unchanged(self, needed: Iterable[int]) -> None:
        """Check that no input was modified in place.

        Args:
            needed: the inputs to check.

        Raises:
            RuntimeError: as eager's.
        """
        for index in needed:
            version = self.versions[index]
            if version is not None:
                check_version(self.primals[index], version)


def check_version(tensor: torch.Tensor, version: int | None) -> None:
    """Check that a tensor was not modified in place since it had `version`.

    Raises:
        RuntimeError: as eager's.
    """
    if torch_compat.version_of(tensor) != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"a tensor of shape {tuple(tensor.shape)} is at version {torch_compat.version_of(tensor)}; expected "
            f"version {version} instead"
        )


Gradients = Sequence[torch.Tensor | None]


@dataclass(frozen=True)
class InnerValue:
    """The type of an inner value; see `inner_values.py`.

    `size` may be symbolic. `symbols` says where to find each symbol in a call: a number, or a dimension of an input.
    """

    size: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device
    symbols: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)

    def count(self, primals: Sequence[Any]) -> int:
        """How many elements it has in a call with these inputs."""
        return math.prod(self.size_in(primals) if self.symbols else self.size)

    def stand_in(self, primals: Sequence[Any]) -> torch.Tensor:
        """A tensor with the memory of one element, whose gradient has this type."""
        size = self.size_in(primals) if self.symbols else self.size
        return torch.empty_strided(size, (0,) * len(size), dtype=self.dtype, device=self.device)

    def size_in(self, primals: Sequence[Any]) -> Sequence[int]:
        """The size in a call with these inputs."""
        numbers = values_of_symbols(self.symbols, primals)
        return eval(torch_compat.compiled_text(self.size_text), {**torch_compat.text_namespace(), **numbers})

    @functools.cached_property
    def size_text(self) -> str:
        texts = (torch_compat.symbolic_text(n)[0] if torch_compat.has_symbols(n) else repr(n) for n in self.size)
        return f"({''.join(f'{text}, ' for text in texts)})"


@dataclass(frozen=True)
class InnerGradients:
    """The stand-ins for inner values of a call, and the gradients that have arrived at them; empty if there are none."""

    stand_ins: tuple[torch.Tensor, ...] = ()
    tangents: Gradients = ()


NO_INNER_GRADIENTS = InnerGradients()


class SavedValues(NamedTuple):
    """What the forward saved, in the order of `slots`; `None` for values that are not at hand. `absent`: their positions."""

    slots: tuple[Saved, ...] = ()
    values: Gradients = ()
    absent: tuple[int, ...] = ()


NO_SAVED_VALUES = SavedValues()


class HigherOrder(Protocol):
    """Computes gradients where the compiled backward is not enough; compiles what it needs at the first use."""

    def __call__(
        self,
        segment: int,
        call: Recomputation,
        saved: SavedValues,
        tangents: Gradients,
        wanted: Sequence[bool],
        inner: InnerGradients = NO_INNER_GRADIENTS,
    ) -> Gradients:
        """Gradients; `None` for those that are unwanted or undefined. They are differentiable if grad mode is on.

        Args:
            saved: what the forward saved. The first order does not need what is not at hand.
        """
        ...

    def inner_values(self, segment: int) -> Sequence[InnerValue]:
        """The inner values through which gradients of gradients pass on to the node of a segment."""
        ...

    def transformed(self, half: GraphHalf, values: Sequence[Any]) -> Gradients:
        """The results of a backward graph under autocast, or with inputs that a transform wrapped."""
        ...
