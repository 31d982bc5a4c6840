"""Hooks that a function registers on its arguments or on views that it returns, and `retain_grad` of arguments.

In: the traced arguments and outputs after the run. Out: `InputHook`s and `OutputHook`s, which each call registers on the
caller's tensors. There a hook sees the whole gradient, as in eager, including gradients from outside the function.

    def f(x): x.register_hook(print); return x.sin()        ->  InputHook(0, "register_hook", (print,))
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.ir import InputHook, OutputHook


class HookRecords:
    """A handler of calls that records which autograd nodes the function hooks. Hooks of its arguments are not recorded.

    The hooks become part of the graph. Where the trace cuts the backward and no gradient arrives, they are not called.
    """

    functions = (torch.Tensor.register_hook, torch_compat.GRAD_FN)

    def __init__(self, arguments: Sequence[Any], announce: Callable[[Any, Any], None]) -> None:
        self.asked_for_nodes = False
        self.arguments = {id(argument) for argument in arguments}
        self.nodes: set[Any] = set()
        self.node_of = WeakIdKeyDictionary()
        self.announce = announce

    def handle(self, function: Any, call: Callable[..., Any], /, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if function is torch.Tensor.register_hook and id(tensor) not in self.arguments:
            return self.register(call, tensor, *args, **kwargs)
        self.asked_for_nodes |= function == torch_compat.GRAD_FN
        return call(tensor, *args, **kwargs)

    def register(self, call: Callable[..., Any], tensor: torch.Tensor, hook: Callable) -> Any:
        if not torch_compat.was_hooked(tensor):  # reading the history could otherwise create a new one
            self.node_of[tensor] = tensor.grad_fn
            self.nodes.add(tensor.grad_fn)
        return call(tensor, TensorHook(hook, functools.partial(self.announce, self.node_of[tensor])))

    def hooked_nodes(self, live: Iterable[Any]) -> frozenset[Any]:
        """The autograd nodes behind live tensors that have hooks of their own. Wraps these hooks in `NodeHook`."""
        if not self.asked_for_nodes:
            return frozenset()
        stack: list[Any] = [value.grad_fn for value in live if isinstance(value, torch.Tensor)]
        found: dict[Any, bool] = {}
        while stack:
            node = stack.pop()
            if node is not None and node not in found:
                wrap = functools.partial(NodeHook, functools.partial(self.announce, node))
                found[node] = torch_compat.wrap_node_hooks(node, wrap)
                stack += [successor for successor, _ in node.next_functions]
        return frozenset(node for node, is_hooked in found.items() if is_hooked)


@dataclass(frozen=True)
class NodeHook:
    """A hook of an autograd node, called only if a gradient arrives. First, `announce` gets the values that it holds."""

    announce: Callable[[Any], None]
    hook: Callable

    def __call__(self, *gradients: Sequence[torch.Tensor | None]) -> Any:
        arrived = [gradient for gradient in gradients[-1] if gradient is not None]
        if not arrived:
            return None
        self.announce([*pytree.tree_leaves(gradients), *held_by(self.hook)])
        return self.hook(*gradients)


@dataclass(frozen=True)
class TensorHook:
    """A hook of a tensor, called only if a gradient arrives. First, `announce` gets the values that it holds."""

    hook: Callable
    announce: Callable[[Any], None]

    def __call__(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        if gradient is None:
            return None
        self.announce([gradient, *held_by(self.hook)])
        return self.hook(gradient)


def take_hooks(arguments: Sequence[Any]) -> tuple[InputHook, ...]:
    """Remove the hooks of arguments and return them.

    Raises:
        CaptureError: a hook uses tensors of the trace.
    """
    hooks: list[InputHook] = []
    for index, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor):
            hooks += [InputHook(index, *hook) for hook in hooks_of(argument)]
    for hook in hooks:
        reject_traced(hook)
    return tuple(hooks)


def take_hooks_of_views(outputs: Sequence[Any], arguments: Sequence[Any]) -> tuple[OutputHook, ...]:
    """Remove the hooks of returned views and return them: the views are replayed after the graph has run.

    Raises:
        CaptureError: a hook uses tensors of the trace.
    """
    others = {id(argument) for argument in arguments}
    views = [(k, v) for k, v in enumerate(outputs) if isinstance(v, torch.Tensor) and v._base is not None]
    hooks = [(k, hook) for k, view in views if id(view) not in others for hook in hooks_of_view(view)]
    taken = tuple(OutputHook(k, "register_hook", (hook,)) for k, hook in hooks)
    for hook in taken:
        reject_traced(hook)
    return taken


def hooks_of_view(view: torch.Tensor) -> list[Callable]:
    """The hooks of a view's current history. Hooks from before an in-place change belong to the old history."""
    try:
        view.grad_fn  # noqa: B018  (creates a new history, without hooks, if its base was changed)
    except (RuntimeError, IndexError, ValueError):
        return []  # the analysis refuses such a view
    return [hook.hook if isinstance(hook, TensorHook) else hook for hook in torch_compat.pop_hooks(view)]


def hooks_of(tensor: torch.Tensor) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Remove the hooks of a tensor. Yields the method that registers each, and its arguments."""
    yield from (("register_hook", (hook,)) for hook in torch_compat.pop_hooks(tensor))
    hooks = torch_compat.pop_post_accumulate_hooks(tensor)
    yield from (("register_post_accumulate_grad_hook", (hook,)) for hook in hooks)
    if tensor.retains_grad:
        yield "retain_grad", ()


def reject_traced(hook: InputHook | OutputHook) -> None:
    """Raises CaptureError for a hook that uses tensors of the trace."""
    owner = "an argument" if isinstance(hook, InputHook) else "a view that it returns"
    if any(map(uses_the_trace, hook.arguments)):
        raise CaptureError(
            f"a hook that the function gives to {hook.method}() of {owner} uses a tensor of the function, which does not "
            "exist when the hook runs; register it outside of the compiled function"
        )


def uses_the_trace(hook: Callable) -> bool:
    """Whether a hook holds tensors or autograd nodes of the trace, as far as `held_by` finds them."""
    return any(torch_compat.is_traced(leaf) or is_node(leaf) for leaf in held_by(hook))


def held_by(hook: Callable) -> list[Any]:
    """What a hook holds in its closure, attributes and bound arguments."""
    held = [hook, getattr(hook, "__self__", None), *vars(hook).values()] if hasattr(hook, "__dict__") else [hook]
    held += [getattr(hook, name, None) for name in ("__defaults__", "__kwdefaults__", "func", "args", "keywords")]
    held += [cell.cell_contents for cell in getattr(hook, "__closure__", None) or () if not is_empty(cell)]
    return pytree.tree_leaves(held)


def is_empty(cell: Any) -> bool:
    """Whether a closure variable has no value yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def is_node(value: Any) -> bool:
    return isinstance(value, torch.autograd.graph.Node)
