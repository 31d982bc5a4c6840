"""`torch.utils.checkpoint`: regions that the backward recomputes, and those that Dynamo keeps as one op."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
import torch._higher_order_ops.wrap as wrapped_regions
import torch.fx.traceback as fx_traceback
import torch.utils._pytree as pytree
import torch.utils.checkpoint
from torch.utils._python_dispatch import TorchDispatchMode


@contextlib.contextmanager
def plain_checkpoints() -> Iterator[None]:
    """In this thread, run the checkpointed regions that Dynamo keeps as ordinary code.

    Torch recomputes such a region in one backward only; a function whose gradients are differentiated has two.
    """

    def run(checkpoint: Callable[..., Any], region: torch.fx.GraphModule, args: Sequence[Any], settings: Any) -> Any:
        with torch.fx.traceback.preserve_node_meta():
            return torch.fx.Interpreter(region).run(*args)

    with _regions_run_by(run):
        yield


_RunKept = Callable[[Callable[..., Any], torch.fx.GraphModule, Sequence[Any], dict[str, Any]], Any]
"""`(torch's implementation, region, arguments, checkpoint settings)` -> what the region returns."""


@contextlib.contextmanager
def run_kept_regions(run: _RunKept) -> Iterator[None]:
    """In this thread, let `run` execute the checkpointed regions that Dynamo keeps."""
    with _regions_run_by(run):
        yield


def has_own_policy(region: torch.fx.GraphModule) -> bool:
    """Whether the user's policy decides which values of a region that Dynamo keeps are saved."""
    return "_checkpoint_context_fn" in region.meta


def run_checkpointed(
    region: torch.fx.GraphModule, args: Sequence[Any], settings: dict[str, Any], closed_over: Collection[int]
) -> Any:
    """Run a region that Dynamo keeps under an ordinary checkpoint, so that the backward recomputes it.

    Only arguments at the positions `closed_over` may be mutated before that.
    """

    def interpreted(*passed: Any) -> Any:
        rest = iter(passed)
        values = [value if k in closed_over else next(rest) for k, value in enumerate(args)]
        with torch.fx.traceback.preserve_node_meta():
            return torch.fx.Interpreter(region).run(*values)

    passed = [value for k, value in enumerate(args) if k not in closed_over]
    return torch.utils.checkpoint.checkpoint(interpreted, *passed, **settings)


@contextlib.contextmanager
def recomputed_once() -> Iterator[None]:
    """Inside, regions are recomputed once, although what their nodes saved is read outside of a backward.

    By default each read of a saved value recomputes its whole region. A second read of one value is an error.
    """
    around = torch._C._get_graph_exec_group()
    torch._C._set_graph_exec_group(None)
    try:
        with torch.utils.checkpoint.GraphExecGroup():
            yield
    finally:
        torch._C._set_graph_exec_group(around)


def tag_recomputed(node: torch.fx.Node, region: int) -> None:
    """Give a node the number of its region, and the policy of a region whose user has none."""
    node.meta.setdefault("recompute", torch.utils.checkpoint.CheckpointPolicy.PREFER_RECOMPUTE)
    node.meta["ac_graph_id"] = region


@contextlib.contextmanager
def kept_policy() -> Iterator[None]:
    """Restore at the end the policy of new nodes: `create_selective_checkpoint_contexts` leaves its last one behind."""
    names = ("recompute", "ac_graph_id")
    before = {name: fx_traceback.current_meta[name] for name in names if name in fx_traceback.current_meta}
    try:
        yield
    finally:
        for name in names:
            fx_traceback.current_meta.pop(name, None)
        fx_traceback.current_meta.update(before)


RecomputationStop: type[BaseException] = torch.utils.checkpoint._StopRecomputationError
"""Ends the recomputation of a region: a saved-tensor hook raises it when it has all that the region has saved."""


_Rerun = Callable[..., Any]

_GENERATOR = next(  # the first is torch 2.15's
    name
    for name in ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    if hasattr(torch.utils.checkpoint, name)
)
"""The generator around a region, which recomputes it. Its second and third argument, by position or name, are
`preserve_rng_state` and `context_fn`."""


class _ReturnedTogether(torch.autograd.Function):
    """Returns the results of a region from one autograd node, which gets all gradients, or zeros.

    Its backward always unpacks a value of the region, so the region is always recomputed.
    """

    @staticmethod
    def forward(ctx: Any, *outputs: Any) -> Any:
        ctx.save_for_backward(next(filter(_requires_grad, outputs)))
        results = tuple(value.view_as(value) if _requires_grad(value) else value for value in outputs)
        return results[0] if len(results) == 1 else results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _ = ctx.saved_tensors
        return gradients


REENTRANT_WITHOUT_GRADIENT = "a reentrant checkpoint returns a tensor that needs no gradient"


class _ReentrantCheckpoint:
    """Stands in for the autograd function of `use_reentrant=True`, which runs a backward inside the backward."""

    @staticmethod
    def apply(function: _Rerun, keeps_state: bool, *args: Any) -> Any:
        torch.utils.checkpoint.check_backward_validity(args)
        if not (torch.is_grad_enabled() and any(map(_requires_grad, args))):
            with torch.no_grad():
                return function(*args)

        def together(*args: Any) -> Any:
            results = function(*args)
            outputs = results if isinstance(results, tuple) else (results,)
            if any(isinstance(value, torch.Tensor) and not value.requires_grad for value in outputs):
                raise RuntimeError(REENTRANT_WITHOUT_GRADIENT)
            found = _ReturnedTogether.apply(*outputs)
            return (found,) if isinstance(results, tuple) and len(results) == 1 else found

        settings = {"use_reentrant": False, "preserve_rng_state": keeps_state, "early_stop": False}
        return torch.utils.checkpoint.checkpoint(together, *args, **settings)


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


@contextlib.contextmanager
def report_regions(note: Callable[[_Rerun, bool], tuple[_Rerun, Callable[[], None]]]) -> Iterator[None]:
    """In this thread, report checkpointed regions.

    `note(function, keeps_random_state)` is called when one begins. It returns what the backward recomputes in place of the
    function, and a callback for the end of the region.
    """
    from unittest import mock

    thread, checkpoint = threading.get_ident(), getattr(torch.utils.checkpoint, _GENERATOR)
    reentrant = torch.utils.checkpoint.CheckpointFunction

    def noted(function: _Rerun, *others: Any, **settings: Any) -> Iterator[None]:
        if threading.get_ident() != thread:
            yield from checkpoint(function, *others, **settings)
            return
        function, end = note(function, settings["preserve_rng_state"] if "preserve_rng_state" in settings else others[0])
        if "context_fn" in settings:
            settings["context_fn"] = _with_repeatable_reads(settings["context_fn"])
        else:
            others = (others[0], _with_repeatable_reads(others[1]), *others[2:])
        try:
            yield from checkpoint(function, *others, **settings)
        finally:
            end()

    class Reentrant:
        @staticmethod
        def apply(*args: Any) -> Any:
            return (_ReentrantCheckpoint if threading.get_ident() == thread else reentrant).apply(*args)

    with (
        mock.patch.object(torch.utils.checkpoint, _GENERATOR, noted),
        mock.patch.object(torch.utils.checkpoint, "CheckpointFunction", Reentrant),
    ):
        yield


@contextlib.contextmanager
def _regions_run_by(run: Callable[..., Any]) -> Iterator[None]:
    """In this thread, call `run` (see `_RunKept`) for each region that Dynamo keeps."""
    from unittest import mock

    thread, checkpoint = threading.get_ident(), getattr(wrapped_regions, "tag_activation_checkpoint_impl", None)
    if checkpoint is None:  # torch 2.11 runs it as ordinary code
        yield
        return

    def called(region: torch.fx.GraphModule, *args: Any, **settings: Any) -> Any:
        if threading.get_ident() != thread:
            return checkpoint(region, *args, **settings)
        return run(checkpoint, region, args, settings)

    with mock.patch.object(wrapped_regions, "tag_activation_checkpoint_impl", called):
        yield


def _with_repeatable_reads(context_fn: Callable[[], tuple[Any, Any]]) -> Callable[[], tuple[Any, Any]]:
    """A `context_fn` whose region may be recomputed from saved values any number of times."""
    if context_fn is torch.utils.checkpoint.noop_context_fn:
        return context_fn

    def contexts() -> tuple[Any, Any]:
        recording, reading = context_fn()
        return recording, _RepeatableReads(reading) if hasattr(reading, "storage") else reading

    return contexts


class _RepeatableReads(TorchDispatchMode):
    """Enters a mode that reads the saved values of a region, any number of times: torch gives each value out once."""

    def __init__(self, reads: Any) -> None:
        super().__init__()
        self.reads: Any = reads
        self.saved: dict[Any, Any] | None = None

    def __enter__(self) -> Any:
        if self.saved is None:
            self.saved = {key: copy.copy(values) for key, values in self.reads.storage.items()}
        else:
            self.reads.storage.update(pytree.tree_map(_saved_again, self.saved))
        return self.reads.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.reads.__exit__(*error)


def _saved_again(saved: Any) -> Any:
    """A saved value that has no history, with the version of the one that was given out."""
    if not isinstance(getattr(saved, "val", None), torch.Tensor):
        return saved
    again = copy.copy(saved)
    again.val = saved.val.detach()
    return again
