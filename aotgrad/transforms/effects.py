"""Reruns a function op by op, without the effects that it had when it ran first.

In a trace, a pass removes these effects: `remove_repeated_effects`.

    with EffectSuppression():
        y = f(x)            prints nothing
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aotgrad.graph import op_table
from aotgrad.passes.repeated_effects import reject_repeated_effect
from aotgrad.torch_compat import TorchDispatchMode


class EffectSuppression(TorchDispatchMode):
    """While this is active, ops that print or check do nothing.

    Raises:
        HigherOrderError: a custom op has an effect and a result.
    """

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, op: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if op_table.is_pure_effect(op):
            return None
        reject_repeated_effect(op)
        return op(*args, **(kwargs or {}))
