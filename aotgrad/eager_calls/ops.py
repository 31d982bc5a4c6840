"""The operators that stand for an eager call and its backward in a graph.

    tape = aotgrad.eager_call(number, inputs, sizes)
    results = aotgrad.eager_call_results(number, tape, sizes)
    gradients = aotgrad.eager_call_backward(number, tape, kept, gradients, sizes)
    aotgrad.eager_call_kept(number, tape)

A call has an effect, since nobody knows what the function does: it runs once, in its place. `kept` are the inputs and
results that its autograd graph has saved: as arguments of the backward, they are saved values, whose versions are checked.
`eager_call_kept` does nothing: a backward with it keeps the tape for gradients of gradients.
`sizes` are the numbers that fill the forms of the call: its symbolic sizes and strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
from torch.fx.node import has_side_effect

from aotgrad import torch_compat
from aotgrad.eager_calls.call import CALLS, EagerCall
from aotgrad.eager_calls.tape import Tape
from aotgrad.errors import HigherOrderError

_operators = torch.library.Library("aotgrad", "FRAGMENT")
_operators.define("eager_call(int number, Tensor[] inputs, SymInt[] sizes) -> Tensor")
_operators.define("eager_call_results(int number, Tensor tape, SymInt[] sizes) -> Tensor[]")
_operators.define(
    "eager_call_backward(int number, Tensor tape, Tensor[] kept, Tensor?[] gradients, SymInt[] sizes) -> Tensor[]"
)
_operators.define("eager_call_kept(int number, Tensor tape) -> ()")


def _run(number: int, inputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    return CALLS[number].run(inputs, sizes)


def _results(number: int, tape: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    return CALLS[number].results(Tape.of(tape))


def _run_backward(
    number: int, tape: torch.Tensor, kept: Any, gradients: Sequence[torch.Tensor | None], sizes: Sequence[int]
) -> list[torch.Tensor]:
    return CALLS[number].run_backward(Tape.of(tape), gradients)


def _fake(number: int, inputs: Sequence[torch.Tensor], sizes: Sequence[Any]) -> torch.Tensor:
    return torch.empty(1, dtype=torch.uint8)


def _fake_results(number: int, tape: torch.Tensor, sizes: Sequence[Any]) -> list[torch.Tensor]:
    return [form.filled(sizes).empty() for form in CALLS[number].outputs]


def _fake_backward(
    number: int, tape: torch.Tensor, kept: Any, gradients: Sequence[torch.Tensor | None], sizes: Sequence[Any]
) -> list[torch.Tensor]:
    forms = CALLS[number].forms_of_gradients([gradient is not None for gradient in gradients])
    return [form.filled(sizes).empty() for form in forms]


def _keep(number: int, tape: torch.Tensor) -> None:
    pass


KERNELS = {
    "eager_call": (_run, _fake),
    "eager_call_results": (_results, _fake_results),
    "eager_call_backward": (_run_backward, _fake_backward),
    "eager_call_kept": (_keep, _keep),
}
for _name, (_kernel, _meta) in KERNELS.items():
    _operators.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"aotgrad::{_name}", _meta, lib=_operators)

CALL: Any = torch.ops.aotgrad.eager_call.default
CALL_RESULTS: Any = torch.ops.aotgrad.eager_call_results.default
CALL_BACKWARD: Any = torch.ops.aotgrad.eager_call_backward.default
CALL_KEPT: Any = torch.ops.aotgrad.eager_call_kept.default
has_side_effect(CALL)
has_side_effect(CALL_KEPT)


def is_eager_call(target: Any) -> bool:
    """Whether an op belongs to an eager call."""
    return target in (CALL, CALL_RESULTS, CALL_BACKWARD, CALL_KEPT)


def called_by(node: fx.Node) -> EagerCall:
    """The call that a node of `CALL` makes."""
    number: Any = node.args[0]
    return CALLS[number]


def reasons_of_eager_calls(graph: fx.Graph) -> dict[fx.Node, str]:
    """The calls in a graph, and their backwards, with the reasons why their functions are not traced."""
    nodes = (node for node in graph.nodes if node.op == "call_function" and is_eager_call(node.target))
    calls = ((node, CALLS[node.args[0]].invocation) for node in nodes)
    return {node: f"{call.name} is not traced: {call.reason}" for node, call in calls}


Differentiate = Callable[["SizedCall", torch.Tensor, Sequence[torch.Tensor], Sequence[Any]], Sequence[torch.Tensor]]
"""Records the backward of a call as a call: of the call, its tape, its inputs and the gradients of its results."""


@dataclass(frozen=True)
class SizedCall:
    """A call in a trace, with the numbers that fill its forms there."""

    call: EagerCall
    sizes: Sequence[Any] = ()


class Recorded(torch.autograd.Function):
    """An eager call in a trace, with its backward; under `create_graph`, the backward is an eager call itself."""

    @staticmethod
    def forward(ctx: Any, sized: SizedCall, differentiate: Differentiate, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        call, sizes = sized.call, list(sized.sizes)
        tape = CALL(call.number, list(inputs), sizes)
        outputs = CALL_RESULTS(call.number, tape, sizes)
        ctx.sized, ctx.differentiate, ctx.inputs = sized, differentiate, inputs
        ctx.versions = hidden_versions(inputs)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(value for value, has in zip(outputs, call.differentiable, strict=True) if not has))
        kept = [*(inputs[k] for k in call.kept_inputs), *(outputs[k] for k in call.kept_outputs)]
        ctx.save_for_backward(tape, *kept)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        sized: SizedCall = ctx.sized
        call = sized.call
        tape, *kept = ctx.saved_tensors
        given = [value if has else None for value, has in zip(gradients, call.differentiable, strict=True)]
        wanted = call.wanted([value is not None for value in given])
        if not wanted:
            return (None,) * (2 + len(call.inputs))
        if torch.is_grad_enabled():
            reject_changed_inputs(call, ctx.versions, ctx.inputs)
            results = ctx.differentiate(sized, tape, ctx.inputs, given)
        else:
            results = CALL_BACKWARD(call.number, tape, kept, given, list(sized.sizes))
        found = dict(zip(wanted, results, strict=True))
        return (None, None, *(found.get(k) for k in range(len(call.inputs))))


def hidden_versions(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """The versions of traced tensors; the trace does not note that they are read."""
    with torch_compat.unobserved():
        return list(map(torch_compat.version_of, tensors))


def reject_changed_inputs(call: EagerCall, versions: Sequence[int | None], inputs: Sequence[torch.Tensor]) -> None:
    """Raise if the function around a call changes one of its inputs later: it has lost its history.

    Raises:
        HigherOrderError
    """
    if versions != hidden_versions(inputs):
        raise HigherOrderError(
            f"a gradient of a gradient passes {call.invocation.name}, which is not traced, and one of its arguments is "
            "changed in place later; pass a clone()"
        )
