"""Real inputs -> fake tensors and symbolic numbers, in one `FakeTensorMode`.

Under Dynamo the mode and the symbols are Dynamo's, so its shape guards cover what the trace learns. Otherwise the mode
is new and sizes are static, or symbolic with `dynamic=True`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.graph.symbols import SYMBOLIC_NUMBERS
from aotgrad.ir import InputHint, InputSpec, SymInput, TensorInput
from aotgrad.torch_compat import FakeTensor, FakeTensorMode


def find_fake_mode(args: Sequence[Any]) -> FakeTensorMode:
    """Dynamo's mode, or the mode of an input that is already fake, or a new mode."""
    context = torch_compat.tracing_context()
    if context is not None and context.fake_mode is not None:
        return context.fake_mode
    for arg in args:
        if isinstance(arg, FakeTensor):
            return arg.fake_mode
    return torch_compat.new_fake_mode()


def make_input_specs(mode: FakeTensorMode, args: Sequence[Any], hints: Sequence[InputHint]) -> tuple[InputSpec, ...]:
    """One `InputSpec` per argument.

    Raises:
        CaptureError: for an argument that is neither a tensor nor a symbolic number.
    """
    whole = fakes_of_whole_storages(mode, args, hints)
    pairs = zip(args, hints, strict=True)
    return tuple(_input_spec(mode, index, arg, hint, whole.get(index)) for index, (arg, hint) in enumerate(pairs))


def fakes_of_whole_storages(
    mode: FakeTensorMode, args: Sequence[Any], hints: Sequence[InputHint]
) -> dict[int, torch.Tensor]:
    """Fakes, by index, of the arguments that fill a whole storage and share it with no other argument."""
    if torch_compat.tracing_context() is not None:
        return {}
    pairs = enumerate(zip(args, hints, strict=True))
    whole = {k: arg for k, (arg, hint) in pairs if not hint.dynamic_dims and torch_compat.is_whole_storage(arg)}
    uses = Counter(torch_compat.storage_id(arg) for arg in args if torch_compat.has_storage(arg))
    return {k: torch_compat.fake_of_whole(mode, arg) for k, arg in whole.items() if uses[torch_compat.storage_id(arg)] == 1}


def _input_spec(mode: FakeTensorMode, index: int, arg: Any, hint: InputHint, fake: torch.Tensor | None) -> InputSpec:
    name = f"primals_{index + 1}"
    if isinstance(arg, torch.Tensor):
        known = arg if hint.fake is None else hint.fake
        fake = checked_fake(mode, index, known, hint.dynamic_dims) if fake is None else fake
        return TensorInput(
            *(name, fake, arg.requires_grad, arg.is_leaf, hint.static),
            is_view=torch_compat.is_differentiable_view(arg),
            is_view_of_leaf=torch_compat.is_view_of_leaf(arg),
            is_converted_view=torch_compat.is_converted_view(arg),
            is_forbidden_after_a_write=torch_compat.is_forbidden_after_a_write(arg),
            part=hint.part,
            path=hint.path,
            is_used=hint.is_used,
        )
    if isinstance(arg, SYMBOLIC_NUMBERS):
        return SymInput(name, arg)
    raise CaptureError(f"argument {name} is of type {type(arg).__name__}; a graph takes tensors and symbolic numbers only")


def checked_fake(mode: FakeTensorMode, index: int, tensor: torch.Tensor, dynamic_dims: frozenset[int]) -> torch.Tensor:
    """`fake_tensor`, or an error that names the argument."""
    kinds = {
        "nested": tensor.is_nested,
        "quantized": tensor.is_quantized,
        "MKL-DNN": tensor.is_mkldnn,
        "differentiable compressed sparse": tensor.requires_grad and tensor.layout in torch_compat.COMPRESSED_LAYOUTS,
    }
    kind = next((name for name, holds in kinds.items() if holds), None)
    if kind is not None:
        raise CaptureError(
            f"tensor argument {index} is a {kind} tensor, which cannot be traced; pass its parts as plain tensors"
        )
    return fake_tensor(mode, index, tensor, dynamic_dims)


def fake_tensor(mode: FakeTensorMode, index: int, tensor: torch.Tensor, dynamic_dims: frozenset[int]) -> torch.Tensor:
    """A detached fake of `tensor`, with Dynamo's symbols if there are any; never an inference tensor."""
    with torch_compat.normal_mode():
        if isinstance(tensor, FakeTensor) and tensor.fake_mode is mode:  # behind Dynamo, a caller's fakes have another mode
            fake = tensor
        else:
            fake = torch_compat.negated_as(convert(mode, index, tensor, dynamic_dims), tensor)
        with mode:
            return torch_compat.detached_fake(fake)


def convert(mode: FakeTensorMode, index: int, tensor: torch.Tensor, dynamic_dims: frozenset[int]) -> FakeTensor:
    context = torch_compat.dynamo_symbolic_context(torch_compat.tracing_context(), tensor)
    if not tensor.is_leaf or is_view_of_another_dtype(tensor):
        # Making a fake reads `.grad`, which warns for non-leaves, and views a whole base as the other dtype.
        tensor = tensor.detach()
    if context is not None:
        return mode.from_tensor(tensor, symbolic_context=context, source=context.tensor_source)
    if dynamic_dims:
        # A detached view has no base. The base's sizes would be symbols that no argument has.
        return torch_compat.dynamic_fake(mode, tensor.detach(), dynamic_dims, index)
    return mode.from_tensor(tensor, static_shapes=True)


def is_view_of_another_dtype(tensor: torch.Tensor) -> bool:
    return tensor._base is not None and tensor._base.dtype != tensor.dtype
