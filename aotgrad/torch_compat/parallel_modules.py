"""Modules that torch.distributed makes data parallel: their forward gathers parameters, or prepares a reducer."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

PARALLEL_MODULE = "the forward of a data-parallel module cannot be traced"
"""The error for such a module in a trace."""

_SHARDED = "torch.distributed.fsdp._fully_shard."
_FIRST_STEPS = (
    ("torch.nn.parallel.distributed", "DistributedDataParallel", "_pre_forward"),
    ("torch.distributed._composable.replicate", "_ReplicateState", "lazy_init"),
    (_SHARDED + "_fsdp_state", "FSDPState", "_root_pre_forward"),
    (_SHARDED + "_fsdp_param_group", "FSDPParamGroup", "pre_forward"),
    (_SHARDED + "_fsdp_param_group", "FSDPParamGroup", "post_forward"),  # all that a later module of a group may call
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel", "forward"),
)
"""What the forward of such a module calls first: the file, the class and the method."""


@contextlib.contextmanager
def refused_parallel_modules() -> Iterator[None]:
    """Inside, in this thread, a data-parallel module raises when it is called, and its state stays what it was."""
    refusal = _Refusal(threading.get_ident())
    with contextlib.ExitStack() as stack:
        for file, owner, name in _FIRST_STEPS:
            kind = getattr(sys.modules.get(file), owner, None)
            if kind is not None:
                stack.enter_context(mock.patch.object(kind, name, refusal.of(getattr(kind, name))))
        yield


class _Refusal:
    """Refuses modules in one thread; `was_raised`: what follows is a hook that torch calls after an error, too."""

    def __init__(self, thread: int) -> None:
        self.thread, self.was_raised = thread, False

    def of(self, method: Callable) -> Callable:
        @functools.wraps(method)
        def refuse_or_run(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self.thread or (self.was_raised and method.__name__ == "post_forward"):
                return method(owner, *args, **kwargs)
            if method.__name__ == "_root_pre_forward":  # called after the state has noted that the forward runs
                owner._training_state = type(owner._training_state).IDLE
            self.was_raised = True
            raise RuntimeError(PARALLEL_MODULE)

        return refuse_or_run
