"""What the name "inductor" means to `torch.compile`, and to Dynamo when it looks up a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx
from torch._dynamo.backends import registry

Compile = Callable[[fx.GraphModule, Sequence[Any], Mapping[str, Any]], Callable]
"""Compiles a graph of Dynamo's, with the user's settings for Inductor."""


def named_inductor(config: dict[str, Any], dynamic: bool | None) -> Any:
    """What `torch.compile` currently creates for "inductor"; unpickles a `_StandIn`."""
    made = torch._TorchCompileInductorWrapper("default", None, dynamic)
    made.config.update(config)
    return made


class _StandIn(torch._TorchCompileInductorWrapper):
    """What `torch.compile` creates for "inductor": checks mode and options as usual, but compiles with `compiler`."""

    current_compiler: Callable[[], Compile]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.compiler = self.current_compiler()

    def __call__(self, model_: fx.GraphModule, inputs_: Sequence[Any], *, config_patches: Any = None) -> Callable:
        return self.compiler(model_, inputs_, {**self.config, **(config_patches or {})})

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.compiler == other.compiler and super().__eq__(other)

    __hash__ = None

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce__(self) -> tuple:
        return named_inductor, (self.config, self.dynamic)


def take_inductors_name(compiler: Callable[[], Compile]) -> Callable[[], None]:
    """Give the name "inductor" another meaning.

    Args:
        compiler: called at each `torch.compile`; the compiled function keeps the compiler that it returns.

    Returns:
        A function that undoes it. It leaves alone what others have replaced since.
    """

    def inductor(model_: fx.GraphModule, inputs_: Sequence[Any], config_patches: Any = None) -> Callable:
        return compiler()(model_, inputs_, config_patches or {})

    inductor._tags = ()  # pyright: ignore[reportFunctionMemberAccess]: every backend has them
    stand_in = type("Inductor", (_StandIn,), {"current_compiler": staticmethod(compiler)})
    usual, known = torch._TorchCompileInductorWrapper, registry.lookup_backend("inductor")
    torch._TorchCompileInductorWrapper, registry._COMPILER_FNS["inductor"] = stand_in, inductor

    def undo() -> None:
        if torch._TorchCompileInductorWrapper is stand_in:
            torch._TorchCompileInductorWrapper = usual
        if registry._COMPILER_FNS.get("inductor") is inductor:
            registry._COMPILER_FNS["inductor"] = known

    return undo
