"""Functions and backwards that cannot be compiled run eagerly if the option `on_error` is `"eager"`.

compiled = torch.compile(model, backend="aotgrad", options={"on_error": "eager"})
compiled(x)                                 a warning that names the function, and the reason
aotgrad.counters["eager_on_error"]          how many functions and backwards ran eagerly
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from aotgrad.backends.eager import compile_eager
from aotgrad.errors import short_message
from aotgrad.graph import op_table
from aotgrad.ir import BoxedCallable, CompileBackward, Compiled, GraphHalf
from aotgrad.telemetry.counters import counters


def ran_eagerly(what: str, error: Exception) -> None:
    """Count a function or backward that runs eagerly because it cannot be compiled, and warn."""
    counters["eager_on_error"] += 1
    message = f"{what} runs eagerly: it cannot be compiled, {type(error).__name__}: {short_message(error)}"
    warnings.warn(message, stacklevel=3)


def with_eager_backwards(compiled: Compiled) -> Compiled:
    """`compiled`, with backwards that run op by op if they cannot be compiled."""
    return compiled.with_backward(EagerOnError)


@dataclass(frozen=True)
class EagerOnError:
    """Compiles a backward graph, or runs it as it was traced if it cannot be compiled.

    A graph that redraws the numbers of the forward from a seed is an error: only Inductor's code can redraw them.
    """

    compile: CompileBackward

    def __call__(self, half: GraphHalf) -> BoxedCallable:
        before = half.for_backend(half.overwritable)  # backends may change a graph that they compile
        try:
            return self.compile(half)
        except Exception as error:
            if any(op_table.op_name(node.target) in op_table.DRAWN_FROM_SEED for node in before.module.graph.nodes):
                raise
            ran_eagerly("a backward", error)
        return compile_eager(before.module, [])
