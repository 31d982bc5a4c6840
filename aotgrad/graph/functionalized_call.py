"""The target of a node for a call that changes arguments in place, though the node changes none: it returns new values.

batch_norm(x, mean, var, training=True)                   changes `mean` and `var`
y, mean_1, var_1 = batch_norm_functional(x, mean, var, training=True)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx as fx
import torch.utils._pytree as pytree


@dataclass(frozen=True)
class FunctionalizedCall:
    """The target of a node for a call of a kept function that changes arguments in place.

    The node has the arguments of the call and changes none of them. It returns a tuple: what the function returns, then the
    new value of each changed argument. Calling this runs the function on copies of these arguments.

    Attributes:
        function: the kept function.
        changed: the arguments that it changes, named as in `KeptBackward.inputs`: `"args[1]"`, `"kwargs['running_var']"`.
        reads_changed: whether what the function returns depends on the values that these had before.
    """

    function: Any
    changed: tuple[str, ...]
    reads_changed: bool = True

    @property
    def __name__(self) -> str:
        return f"{getattr(self.function, '__name__', 'kept')}_functional"

    def __str__(self) -> str:
        return self.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        copies: dict[str, Any] = {}

        def with_copy(path: tuple, value: Any) -> Any:
            name = place_in_call(path)
            if name in self.changed:
                value = copies[name] = value.clone()
            return value

        args, kwargs = pytree.tree_map_with_path(with_copy, (args, kwargs))
        result = self.function(*args, **kwargs)
        results = result if isinstance(result, (tuple, list)) else (result,)
        return (*results, *(copies[name] for name in self.changed))

    def old_values(self, node: fx.Node) -> list[Any]:
        """The changed arguments of a node with this target."""
        leaves, _ = pytree.tree_flatten_with_path((tuple(node.args), dict(node.kwargs)))
        return [value for path, value in leaves if place_in_call(path) in self.changed]

    def is_new_value(self, position: int, results: Sequence[Any]) -> bool:
        """Whether one of the results of a node is the new value of an argument."""
        return position >= len(results) - len(self.changed)


def place_in_call(path: tuple) -> str:
    """Where a value is in the arguments of a call: `args[0]`, `kwargs['bias']`."""
    return ("args", "kwargs")[path[0].idx] + pytree.keystr(path[1:])
