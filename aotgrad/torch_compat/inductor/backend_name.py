"""What the name "inductor" means to `torch.compile`, and to Dynamo where it looks a backend up by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx
from torch._dynamo.backends import registry

Compile = Callable[[fx.GraphModule, Sequence[Any], Mapping[str, Any]], Callable]
"""Compiles a graph of Dynamo's, with settings of Inductor's that the user gave."""


def named_inductor(config: dict[str, Any], dynamic: bool | None) -> Any:
    """What `torch.compile` makes of "inductor" here and now, with a configuration: what one becomes that was pickled."""
    made = torch._TorchCompileInductorWrapper("default", None, dynamic)
    made.config.update(config)
    return made


def take_inductors_name(compiler: Callable[[], Compile]) -> Callable[[], None]:
    """Let "inductor" mean something else from now on.

    Args:
        compiler: is asked at each `torch.compile`; what was compiled keeps the compiler that it got.

    Returns:
        What undoes it. A place that somebody else has changed since is left as it is.
    """
    usual, known = torch._TorchCompileInductorWrapper, registry.lookup_backend("inductor")

    class Wrapper(usual):
        """What `torch.compile` makes of "inductor": checks mode and options as ever, and compiles with `compiler`."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.compiler = compiler()

        def __call__(self, model_: fx.GraphModule, inputs_: Sequence[Any], *, config_patches: Any = None) -> Callable:
            return self.compiler(model_, inputs_, {**self.config, **(config_patches or {})})

        def __eq__(self, other: object) -> bool:
            return type(other) is type(self) and self.compiler == other.compiler and super().__eq__(other)

        __hash__ = None

        def __deepcopy__(self, memo: Any) -> Any:
            return self

        def __reduce__(self) -> tuple:
            return named_inductor, (self.config, self.dynamic)

    def inductor(model_: fx.GraphModule, inputs_: Sequence[Any], config_patches: Any = None) -> Callable:
        return compiler()(model_, inputs_, config_patches or {})

    inductor._tags = ()  # pyright: ignore[reportFunctionMemberAccess]: every backend has them
    torch._TorchCompileInductorWrapper = Wrapper
    registry._COMPILER_FNS["inductor"] = inductor

    def undo() -> None:
        if torch._TorchCompileInductorWrapper is Wrapper:
            torch._TorchCompileInductorWrapper = usual
        if registry._COMPILER_FNS.get("inductor") is inductor:
            registry._COMPILER_FNS["inductor"] = known

    return undo
