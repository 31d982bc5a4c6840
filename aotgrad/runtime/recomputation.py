"""What a gradient of the gradient is computed from: the inputs of the call, kept by its autograd node."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from aotgrad import torch_compat
from aotgrad.ir import GraphHalf
from aotgrad.slots import Saved

Reference = tuple["weakref.ref[torch.Tensor]", "int | None"]
"""To a result: an autograd node must not keep alive what it computed."""


@dataclass(slots=True)
class Recomputation:
    """What the original function can be run again from: its inputs, their versions, the random state at entry.

    A version is `None` for numbers; for inputs that the call itself changes it is that after the call, or `None`. `results`
    are the differentiable ones of the call that it returned as they are, and views (with their versions) that others were
    computed from; the caller may have dropped one or changed its history since.
    """

    primals: tuple[Any, ...]
    versions: list[int | None]
    random_state: Any
    results: tuple[Reference, ...] = ()

    def present_results(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Those results, by position, that the caller has and that are still what the call returned."""
        for position, (reference, version) in enumerate(self.results):
            tensor = reference()
            if tensor is not None and self.is_unchanged(tensor, version):
                yield position, tensor

    def is_unchanged(self, result: torch.Tensor, version: int | None) -> bool:
        """Whether a result has the history that the call gave it. A view has another one with every other version."""
        if version is not None:
            return torch_compat.version_of(result) == version
        return getattr(result.grad_fn, "recomputation", None) is self

    def check_unchanged(self, needed: Iterable[int]) -> None:
        """Raise what eager would: a saved tensor was modified in place.

        Args:
            needed: the inputs whose values are needed.

        Raises:
            RuntimeError: as eager's.
        """
        for index in needed:
            version = self.versions[index]
            if version is not None:
                check_version(self.primals[index], version)


def check_version(tensor: torch.Tensor, version: int) -> None:
    """Raise eager's error if a tensor was modified in place since it had `version`.

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


class HigherOrder(Protocol):
    """What a node does with its gradients beyond a plain backward at first order; nothing of it is compiled before."""

    def __call__(
        self,
        segment: int,
        call: Recomputation,
        saved: Mapping[Saved, torch.Tensor],
        tangents: Gradients,
        wanted: Sequence[bool],
    ) -> Gradients:
        """Differentiable gradients, `None` where not wanted or undefined."""
        ...

    def transformed(self, half: GraphHalf, values: Sequence[Any]) -> Gradients:
        """The results of a backward graph, under autocast, or where a transform has wrapped some of its inputs."""
        ...
