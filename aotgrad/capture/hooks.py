"""What a function told autograd about its arguments: hooks, and to keep a gradient.

In: the traced arguments after the run. Out: `InputHook`s, which each call registers again on the caller's tensors. There a
hook sees what it sees in eager: the whole gradient, with what comes from outside of the function.

    def f(x): x.register_hook(print); return x.sin()        ->  InputHook(0, "register_hook", (print,))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.ir import InputHook


def take_hooks(arguments: Sequence[Any]) -> tuple[InputHook, ...]:
    """The hooks of arguments, which are removed there.

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


def hooks_of(tensor: torch.Tensor) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The hooks of a tensor, which are removed, as methods that register them and their arguments."""
    yield from (("register_hook", (hook,)) for hook in torch_compat.pop_hooks(tensor))
    hooks = torch_compat.pop_post_accumulate_hooks(tensor)
    yield from (("register_post_accumulate_grad_hook", (hook,)) for hook in hooks)
    if tensor.retains_grad:
        yield "retain_grad", ()


def reject_traced(hook: InputHook) -> None:
    """Raises CaptureError for a hook that uses tensors of the trace."""
    if any(map(uses_the_trace, hook.arguments)):
        raise CaptureError(
            f"a hook that the function gives to {hook.method}() of an argument uses a tensor of the function, which is not "
            "there when the hook runs; register it outside of the compiled function"
        )


def uses_the_trace(hook: Callable) -> bool:
    """Whether a hook holds tensors or autograd nodes of the trace, as far as its closure and arguments show."""
    held = [hook, getattr(hook, "__self__", None), *vars(hook).values()] if hasattr(hook, "__dict__") else [hook]
    held += [getattr(hook, name, None) for name in ("__defaults__", "__kwdefaults__", "func", "args", "keywords")]
    held += [cell.cell_contents for cell in getattr(hook, "__closure__", None) or () if not is_empty(cell)]
    return any(torch_compat.is_traced(leaf) or is_node(leaf) for leaf in pytree.tree_leaves(held))


def is_empty(cell: Any) -> bool:
    """Whether a variable of a closure has no value yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def is_node(value: Any) -> bool:
    return isinstance(value, torch.autograd.graph.Node)
