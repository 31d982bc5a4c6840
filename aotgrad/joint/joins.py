"""Where gradients end at values that a function both computes and gets as arguments; see `capture/gradient_aliases.py`.

joins of (argument 2, h)                    the gradient of h is that of argument 2
joins of (argument 2, y.a), (3, y.b)        the gradient of the wrapper subclass y is taken apart for arguments 2 and 3
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.errors import HigherOrderError
from aotgrad.slots import Primal
from aotgrad.subclasses.bridge import GradientForm
from aotgrad.subclasses.passages import gradient_parts, takes_result_apart

Edge = tuple[Any, ...]


class OtherFormAtResult(HigherOrderError):
    """A gradient of a gradient arrives at a wrapper subclass among the results in another form than the result has."""


@dataclass(frozen=True)
class Joins:
    """The edges at which gradients end, each with the argument; a wrapper subclass has one edge for all its parts.

    `parts` are the arguments for the parts of the wrapper subclasses, by their first argument.
    """

    edges: Mapping[Edge, Primal]
    parts: Mapping[Primal, tuple[Any, Mapping[int, Primal]]]

    @classmethod
    def of(cls, joins: Iterable[tuple[int, torch.Tensor]]) -> Joins:
        edges: dict[Edge, Primal] = {}
        parts: dict[Primal, tuple[Any, dict[int, Primal]]] = {}
        for k, computed in joins:
            taker: Any = computed.grad_fn
            if not takes_result_apart(taker):
                edges[torch_compat.gradient_edge(computed)] = Primal(k)
                continue
            first = edges.setdefault(taker.next_functions[0], Primal(k))
            parts.setdefault(first, (taker, {}))[1][computed.output_nr] = Primal(k)
        return cls(edges, parts)

    def primals_of(self, primal: Primal) -> Iterable[Primal]:
        """The arguments that gradients at the edge of one belong to."""
        return self.parts[primal][1].values() if primal in self.parts else (primal,)

    def ends_of(self, primal: Primal, gradient: torch.Tensor) -> Iterator[tuple[Primal, torch.Tensor]]:
        """The arguments that a gradient belongs to, each with its part.

        Raises:
            OtherFormAtResult
        """
        if primal not in self.parts:
            yield primal, gradient
            return
        taker, primals = self.parts[primal]
        if not GradientForm.of(gradient).matches(taker.usual):
            raise OtherFormAtResult("a gradient of a gradient arrives at a tensor subclass in another form")
        yield from ((primals[k], part) for k, part in gradient_parts(gradient).items() if k in primals)


NO_JOINS = Joins({}, {})
