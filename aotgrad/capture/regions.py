"""Checkpointed regions: `torch.utils.checkpoint` reruns them in the backward, where they are traced a second time.

    with rerun_context(module_holds_traced_tensors):
        y = checkpoint(region, x)                 a `CheckpointedRegion`, with the autograd nodes that it made
    backward of y                                 reruns the region within `module_holds_traced_tensors()`

Nodes of a region have its number and the policy of recomputation, in both runs. So a pass merges the runs, and the partition
chooses what to recompute, as for the regions that Dynamo tags. A region within another one has its number.

The second run repeats the region's in-place changes, and draws new random numbers if the generator's state was not kept. A
region that Dynamo keeps as one op is recomputed from saved values, and is traced a second time only if it does one of these.

Hooks and the backwards of autograd functions run in the backward, too, and may read the module. So the whole backward is
traced within the contexts that the function has opened (`OpenedContexts`).
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from aotgrad import torch_compat

Entered = TypeVar("Entered")
MakeContext = Callable[[], contextlib.AbstractContextManager[Any]]
_contexts: contextvars.ContextVar[tuple[MakeContext, ...]] = contextvars.ContextVar("_open", default=())


MakeContextOfBackward = Callable[[], contextlib.AbstractContextManager[Collection[str]]]
"""Makes a context for the backward, whose value names the state that must not be read there."""


def no_context() -> contextlib.AbstractContextManager[Collection[str]]:
    return contextlib.nullcontext(())


class OpenedContexts:
    """The contexts for the backward of a function, which were noted inside."""

    def __init__(self) -> None:
        self.makers: list[MakeContextOfBackward] = []

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        token = _opened.set(self)
        try:
            yield
        finally:
            _opened.reset(token)

    @contextlib.contextmanager
    def again(self) -> Iterator[list[str]]:
        """Open them. Returns the names of the state that must not be read.

        Raises:
            CaptureError: state is assigned inside.
        """
        with contextlib.ExitStack() as stack:
            yield [name for make_context in self.makers for name in stack.enter_context(make_context())]


_opened: contextvars.ContextVar[OpenedContexts | None] = contextvars.ContextVar("_opened", default=None)


def open_in_backward(make_context: MakeContextOfBackward) -> None:
    """Trace the whole backward of the function that runs within a context."""
    if (opened := _opened.get()) is not None:
        opened.makers.append(make_context)


@contextlib.contextmanager
def rerun_context(
    make_context: Callable[[], contextlib.AbstractContextManager[Entered]],
    *,
    in_backward: MakeContextOfBackward = no_context,
) -> Iterator[Entered]:
    """Open a context, and return its value. Regions that run inside are rerun later within a new context of its kind.

    The whole backward runs within the context of `in_backward`.
    """
    open_in_backward(in_backward)
    token = _contexts.set((*_contexts.get(), make_context))
    try:
        with make_context() as entered:
            yield entered
    finally:
        _contexts.reset(token)


@dataclass(eq=False)
class CheckpointedRegion:
    """One run of a checkpointed region.

    `number`: of the outermost region that is running. `first` and `last`: the sequence number of the next autograd node when
    the run began and ended. `around`: the contexts that it ran within. `keeps_state`: the second run draws the same random
    numbers.
    """

    function: Callable[..., Any]
    keeps_state: bool
    number: int
    first: int
    around: tuple[MakeContext, ...]
    last: int | None = None

    @classmethod
    def begin(cls, function: Callable[..., Any], keeps_state: bool, number: int) -> CheckpointedRegion:
        return cls(function, keeps_state, number, torch_compat.sequence_nr(), _contexts.get())

    def end(self) -> None:
        self.last = torch_compat.sequence_nr()

    def holds(self, node: Any) -> bool:
        """Whether the region made an autograd node."""
        return self.last is not None and self.first <= torch_compat.node_sequence_nr(node) < self.last

    def is_within(self, other: CheckpointedRegion) -> bool:
        return other is not self and other.first <= self.first and (self.last or 0) <= (other.last or 0)

    def rerun(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        with contextlib.ExitStack() as stack:
            for make_context in self.around:
                stack.enter_context(make_context())
            return self.function(*args, **kwargs)
