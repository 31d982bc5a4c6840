"""Checkpointed regions: what `torch.utils.checkpoint` runs again in the backward, and is traced again there.

    with reentered(module_holds_traced_tensors):
        y = checkpoint(region, x)                 a `Region`, with the autograd nodes that it made
    backward of y                                 runs the region within `module_holds_traced_tensors()`

What the region changes in place is changed again then, and random numbers are drawn again that no state was kept for.
Regions that Dynamo keeps as one op are made again from saved values, and not traced again, unless they do such a thing.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aotgrad import torch_compat

MakeContext = Callable[[], contextlib.AbstractContextManager[Any]]
_contexts: contextvars.ContextVar[tuple[MakeContext, ...]] = contextvars.ContextVar("_open", default=())


@contextlib.contextmanager
def reentered(make_context: MakeContext) -> Iterator[None]:
    """What runs inside, and is run again later, is run within a context like this one."""
    token = _contexts.set((*_contexts.get(), make_context))
    try:
        with make_context():
            yield
    finally:
        _contexts.reset(token)


@dataclass(eq=False)
class CheckpointedRegion:
    """One run of a checkpointed region.

    `first` and `last` are the numbers of the next autograd node when it began and when it ended, `around` is what it ran
    within. `keeps_state`: it draws the same random numbers again.
    """

    function: Callable[..., Any]
    keeps_state: bool
    first: int
    around: tuple[MakeContext, ...]
    last: int | None = None

    @classmethod
    def begun(cls, function: Callable[..., Any], keeps_state: bool) -> CheckpointedRegion:
        return cls(function, keeps_state, torch_compat.sequence_nr(), _contexts.get())

    def end(self) -> None:
        self.last = torch_compat.sequence_nr()

    def holds(self, node: Any) -> bool:
        """Whether it has made an autograd node."""
        return self.last is not None and self.first <= torch_compat.node_sequence_nr(node) < self.last

    def is_within(self, other: CheckpointedRegion) -> bool:
        return other is not self and other.first <= self.first and (self.last or 0) <= (other.last or 0)

    def run_again(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        with contextlib.ExitStack() as stack:
            for make_context in self.around:
                stack.enter_context(make_context())
            return self.function(*args, **kwargs)
