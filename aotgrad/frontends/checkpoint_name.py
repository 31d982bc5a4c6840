"""Names for values inside a function, so that options can say what is saved of them."""

from __future__ import annotations

import torch
import torch.fx.traceback


def checkpoint_name(x: torch.Tensor, name: str) -> torch.Tensor:
    """Name a value inside a function: `options={"checkpoint_policies": {name: "offload"}}` says what happens to it.

    The result equals the argument, as a view of it, and is differentiable. Without a policy for the name, and in eager, the
    name has no effect. Compiled graphs have no op for it. Several values may have one name.

    Args:
        x: any tensor.
        name: of the value, for the option `checkpoint_policies`.

    Examples:
        >>> import aotgrad
        >>> def f(x, w):
        ...     return checkpoint_name(x @ w, "product").sin().sum()
        >>> g = aotgrad.aot_function(f, "eager", options={"checkpoint_policies": {"product": "save"}})
        >>> g(torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)).requires_grad
        True

    Source: the idea is `jax.ad_checkpoint.checkpoint_name`.
    """
    with torch.fx.traceback.annotate({"checkpoint_name": name}):
        return x.view_as(x)
