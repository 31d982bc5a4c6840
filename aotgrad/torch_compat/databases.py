"""Torch's own databases of operators and modules, with sample inputs. They need the packages expecttest and numpy."""

from __future__ import annotations

from typing import Any

import torch


def operator_database() -> list[Any]:
    """An `OpInfo` for each operator. Its random operators draw as they do outside of torch's tests."""
    from torch.testing._internal import common_methods_invocations

    # The database would seed the generator in random operators, which is no part of the operator.
    setattr(common_methods_invocations, "wrapper_set_seed", lambda op, *args, **kwargs: op(*args, **kwargs))  # noqa: B010
    return list(common_methods_invocations.op_db)


def higher_order_database() -> list[Any]:
    """An `OpInfo` for each higher-order operator."""
    from torch.testing._internal.hop_db import hop_db

    return list(hop_db)


def module_database() -> list[Any]:
    """A `ModuleInfo` for each module."""
    from torch.testing._internal.common_modules import module_db

    return list(module_db)


def tolerances_of(*tensors: torch.Tensor) -> tuple[float, float]:
    """The relative and the absolute error that `torch.testing.assert_close` allows between tensors."""
    from torch.testing._comparison import default_tolerances

    return default_tolerances(*tensors)


def has_own_kernel(packet: Any) -> bool:
    """Whether a trace contains the op itself, and not the ops that it is composed of."""
    names = {f"{packet._qualified_op_name}.{overload}".removesuffix(".default") for overload in packet.overloads()}
    registered = names.intersection(torch._C._dispatch_get_all_op_names())
    return not any(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd") for name in registered)


def noncontiguous_like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the same values and gaps between them."""
    from torch.testing._internal.common_utils import noncontiguous_like

    return noncontiguous_like(tensor)
