"""The autograd graph of one eager call, and the tensor that stands for it among the saved values of a compiled function.

tensor = Tape(leaves, results).as_tensor()      saved by the forward
Tape.of(tensor).gradients(gradients, wanted)    in the backward
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.errors import EagerCallError


class Ended(torch.autograd.Function):
    """A number whose backward passes on an undefined gradient."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor) -> torch.Tensor:
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> None:
        return None


@dataclass(frozen=True, eq=False)
class Tape:
    """The inputs of a call, which are leaves, and its results with their history. `numbers`: of its forms."""

    leaves: tuple[torch.Tensor, ...]
    results: tuple[torch.Tensor, ...]
    numbers: tuple[int, ...] = ()

    def as_tensor(self) -> torch.Tensor:
        """A tensor whose memory holds this tape: it lives as long as that memory."""
        tensor = torch.zeros(1, dtype=torch.uint8)
        torch_compat.attach_to_storage(tensor, self)
        return tensor

    @staticmethod
    def of(tensor: torch.Tensor) -> Tape:
        """The tape that a tensor stands for.

        Raises:
            EagerCallError: it is a copy of that tensor.
        """
        tape = torch_compat.attached_to_storage(tensor)
        if not isinstance(tape, Tape):
            raise EagerCallError(
                "the backward of a function that is not traced needs its autograd graph, and a saved-tensor hook has copied "
                "the tensor that stands for it; call the function without such hooks"
            )
        return tape

    def gradients(
        self, gradients: Sequence[torch.Tensor | None], wanted: Sequence[int], create_graph: bool = False
    ) -> Sequence[torch.Tensor | None]:
        """The gradients of some leaves. Where no gradient of a result is given, an undefined one arrives at each."""
        pairs = [(result, given) for result, given in zip(self.results, gradients, strict=True) if given is not None]
        with torch_compat.above_autograd():
            results, given = zip(*(pairs or self._undefined()), strict=True)
            leaves = [self.leaves[k] for k in wanted]
            return torch.autograd.grad(results, leaves, given, True, create_graph, allow_unused=True)

    @torch.enable_grad()
    def _undefined(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Numbers, and gradients of them that arrive at each result as undefined ones."""
        return [(Ended.apply(result), torch.ones(())) for result in self.results if result.requires_grad]

    def inputs_reached(self, position: int) -> frozenset[int]:
        """The leaves that get a gradient from one result; all that may get one, if its backward raises."""
        if not (result := self.results[position]).requires_grad:
            return frozenset()
        return self._reached([torch.ones_like(result) if k == position else None for k in range(len(self.results))])

    def inputs_reached_by_none(self) -> frozenset[int]:
        """The leaves that get a gradient if that of the only differentiable result is undefined, as by a custom function."""
        differentiable = sum(result.requires_grad for result in self.results)
        if differentiable != 1 or not any(map(torch_compat.is_custom_node, self._nodes())):
            return frozenset()
        return self._reached([None] * len(self.results))

    def _reached(self, given: Sequence[torch.Tensor | None]) -> frozenset[int]:
        needed = [k for k, leaf in enumerate(self.leaves) if leaf.requires_grad]
        try:
            found = self.gradients(given, needed)
        except Exception:
            return frozenset(needed)
        return frozenset(k for k, value in zip(needed, found, strict=True) if value is not None)

    def closes_over_a_leaf(self) -> bool:
        """Whether a result depends on a leaf that is no input."""
        own = {id(leaf) for leaf in self.leaves}
        leaves = (getattr(node, "variable", None) for node in self._nodes())
        return any(leaf is not None and id(leaf) not in own for leaf in leaves)

    def saved(self) -> Iterator[torch.Tensor]:
        """The tensors that the autograd graph has saved."""
        for node in self._nodes():
            yield from torch_compat.saved_by_node(node)

    def _nodes(self) -> Collection[Any]:
        pending, seen = [result.grad_fn for result in self.results], set[Any]()
        while pending:
            node = pending.pop()
            if node is not None and node not in seen:
                seen.add(node)
                pending.extend(torch_compat.next_nodes(node))
        return seen
