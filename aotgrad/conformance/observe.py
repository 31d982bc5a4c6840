"""Runs a call and its backward, twice, and records everything observable.

first, second = observe_calls(call)
first.facts["output 0"]["dtype"], first.values["gradient 1"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from aotgrad import torch_compat
from aotgrad.conformance.subjects import SEED, Function, SampleCall

SCALES = 1.0, 1 - 2**-6
"""What multiplies the numbers of each call. A backend that keeps something from call to call may fail in the second one,
return what was right in the first, or write over the results and arguments of the first."""

SCALED_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}


@dataclass(frozen=True)
class Observation:
    """Observations of a run.

    Attributes:
        facts: by name: flags, aliases, Python values.
        values: outputs, arguments after the call, gradients; `None` where there is no gradient. They are no copies, so
            that a later call which writes to them is noticed; only of parameters and buffers, which later calls may change.
        draws: whether a random generator has moved.
    """

    facts: dict[str, Any]
    values: dict[str, Tensor | None]
    draws: bool = False


def observe_calls(
    call: SampleCall, compile: Callable[[Function], Callable] | None = None, seed: int = SEED
) -> tuple[Observation, ...]:
    """Run a call for each of `SCALES`, compiled or in eager, on fresh copies of its tensors, but with one state."""
    function = call.function.fresh()
    run = function if compile is None else compile(function)
    return tuple(observe_call(call, run, function.state, scale, seed) for scale in SCALES)


def observe_call(call: SampleCall, run: Callable, state: Sequence[Tensor], scale: float, seed: int) -> Observation:
    """Run a call and take the gradients of all that require grad."""
    leaves = fresh(call.tensors, scale)
    arguments = [leaf * 1 if k in call.changed and leaf.requires_grad else leaf for k, leaf in enumerate(leaves)]
    torch.manual_seed(seed)
    with torch_compat.noted_draws() as drawn:
        results, structure = pytree.tree_flatten(run(*arguments))
        outputs = [result for result in results if isinstance(result, Tensor)]
        gradients = gradients_of_leaves(outputs, [*leaves, *state])
    of_the_call = [*named("output", outputs), *named("argument", arguments)]
    seen = [*of_the_call, *named("parameter", state)]
    facts = {"structure": structure, **python_values(results)}
    facts |= {name: observed_facts(tensor, arguments) for name, tensor in seen}
    values = {name: tensor.detach() for name, tensor in of_the_call}
    values |= {name: copied(tensor) for name, tensor in named("parameter", state)}
    facts |= {f"dtype of {name}": gradient.dtype for name, gradient in gradients.items() if gradient is not None}
    return Observation(facts, {**values, **gradients}, bool(drawn))


def named(what: str, tensors: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
    return ((f"{what} {k}", tensor) for k, tensor in enumerate(tensors))


def python_values(results: Sequence[Any]) -> dict[str, Any]:
    others = ((f"result {k}", result) for k, result in enumerate(results) if not isinstance(result, Tensor))
    return {name: (type(value), repr(value)) for name, value in others}


def observed_facts(tensor: Tensor, arguments: Sequence[Tensor]) -> dict[str, Any]:
    """Every fact except values and strides."""
    return {
        "type": type(tensor),
        "dtype": tensor.dtype,
        "layout": tensor.layout,
        "shape": tuple(tensor.shape),
        "requires_grad": tensor.requires_grad,
        "leaf": tensor.is_leaf,
        "conj": tensor.is_conj(),
        "neg": tensor.is_neg(),
        "is argument": [k for k, argument in enumerate(arguments) if argument is tensor],
        "memory of argument": [k for k, argument in enumerate(arguments) if overlaps_storage_of(argument, tensor)],
    }


def overlaps_storage_of(one: Tensor, other: Tensor) -> bool:
    if not (one.layout is other.layout is torch.strided) or one.numel() == 0:
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def gradients_of_leaves(outputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> dict[str, Tensor | None]:
    wanted = {f"gradient {k}": leaf for k, leaf in enumerate(leaves) if leaf.requires_grad}
    differentiable = [output for output in outputs if output.requires_grad]
    if not differentiable or not wanted:
        return {}
    tangents = [tangent(k, output) for k, output in enumerate(differentiable)]
    gradients = torch.autograd.grad(differentiable, list(wanted.values()), tangents, allow_unused=True)
    return dict(zip(wanted, gradients, strict=True))


def tangent(position: int, output: Tensor) -> Tensor:
    """Random numbers that depend only on the position, in the layout of the output."""
    generator = torch.Generator().manual_seed(position)
    values = torch.rand(output.shape, dtype=output.dtype, generator=generator, device="cpu") + 0.5
    return torch.empty_like(output).copy_(values) if output.layout is torch.strided else values.to(output.device).to_sparse()


def fresh(tensors: Sequence[Tensor], scale: float = 1.0) -> list[Tensor]:
    """Leaves with the same flags and strides, and values multiplied by `scale`; identical tensors stay identical."""
    copies = {id(tensor): scaled(copied(tensor), scale).requires_grad_(tensor.requires_grad) for tensor in tensors}
    return [copies[id(tensor)] for tensor in tensors]


def scaled(tensor: Tensor, scale: float) -> Tensor:
    """The tensor, multiplied in place, with the elements of its storage that it leaves out."""
    if scale != 1 and type(tensor) is Tensor and tensor.dtype in SCALED_DTYPES:
        whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        (whole.set_(tensor.untyped_storage()) if tensor.layout is torch.strided else tensor).mul_(scale)
    return tensor


def copied(tensor: Tensor) -> Tensor:
    """A copy with the same strides."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided or type(tensor) is not Tensor or tensor.is_conj() or tensor.is_neg():
        return tensor.clone()
    storage = tensor.untyped_storage().clone()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        storage, tensor.storage_offset(), tensor.size(), tensor.stride()
    )
