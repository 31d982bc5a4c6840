"""Tensors of symbolic numbers, which `torch.tensor` would make of the number's value in the trace.

torch.as_tensor(x.sum().item())         scalar_tensor(item)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch


class SymbolicLiterals:
    """A handler of calls that make a tensor of a symbolic float."""

    functions = (torch.tensor, torch.as_tensor)

    def handle(self, _: Any, call: Callable[..., Any], /, data: Any, **options: Any) -> Any:
        if not isinstance(data, torch.SymFloat) or options.keys() - {"dtype", "device"}:
            return call(data, **options)
        dtype, number = options.get("dtype") or torch.get_default_dtype(), cast(float, data)
        return torch.scalar_tensor(number, dtype=dtype, device=options.get("device"))
