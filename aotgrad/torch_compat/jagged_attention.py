"""Attention on jagged nested tensors as one op of a graph, where torch computes it row by row.

    scaled_dot_product_attention(q, k, v)    ->    aotgrad_jagged::attention(q.values(), ..., q.offsets(), ...)

Without a fused kernel, torch splits the values into rows, whose lengths a trace does not know, and makes nested tensors of
the strided layout, which cannot be traced. The op does the same when it runs. Its backward computes the attention weights a
second time, as those of fused kernels do. Gradients of gradients, which torch does not have here, are those of dense rows.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nested._internal import sdpa
from torch.nested._internal.nested_tensor import NestedTensor, nested_view_from_values_offsets
from torch.nn.attention import SDPBackend


class JaggedAttention:
    """Handles attention in a trace."""

    functions = (torch.nn.functional.scaled_dot_product_attention,)

    def handle(self, function: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        found = _attention_by_rows(*args, **kwargs)
        return call(*args, **kwargs) if found is None else found


def _attention_by_rows(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The attention as one op; `None` where torch does not compute it row by row, or raises."""
    if attn_mask is not None or is_causal or not all(map(_has_ragged_elements, (query, key, value))):
        return None
    query, key, value, _ = sdpa._autocast(query, key, value, None)
    sdpa._validate_sdpa_input(query, key, value)
    if sdpa._select_sdp_backend(query, key, value, None, dropout_p, False, enable_gqa) is not SDPBackend.MATH:
        return None
    rows = [each.transpose(1, 2) for each in (query, key, value)]
    operands = [each.values() for each in rows], [each.offsets() for each in rows], dropout_p, scale
    ops = torch.ops.aotgrad_jagged
    values = ops.attention(*operands) if dropout_p == 0 else ops.attention_with_dropout(*operands)[0]
    lengths = {"min_seqlen": query._maybe_min_seqlen, "max_seqlen": query._maybe_max_seqlen}
    return nested_view_from_values_offsets(values, query.offsets(), **lengths).transpose(1, 2)


def _has_ragged_elements(tensor: Any) -> bool:
    """Whether a tensor is nested, of size (rows, heads, elements, width) with different numbers of elements."""
    return isinstance(tensor, NestedTensor) and tensor.dim() == 4 and tensor._ragged_idx == 2


_Tensors = Sequence[torch.Tensor]


def _attend(tensors: _Tensors, offsets: _Tensors, dropout: float, scale: float | None) -> torch.Tensor:
    """The attention of values of size (elements, heads, width)."""
    query, key, value = map(_strided, tensors, offsets)
    found, _ = torch._scaled_dot_product_attention_math(query, key, value, None, dropout, False, scale=scale)
    return found.transpose(1, 2).contiguous().values().view(-1, tensors[0].size(1), tensors[2].size(2))


def _strided(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """A nested tensor of the strided layout, of size (rows, heads, elements, width)."""
    rows = values.split(offsets.diff().tolist())
    return torch.nested.as_nested_tensor(list(rows)).transpose(1, 2).contiguous()


def _attend_with_dropout(tensors: _Tensors, *settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention, and the state of the random generator before it draws."""
    state = _generator_of(tensors[0]).get_state()
    return _attend(tensors, *settings), state


def _attend_dense(tensors: _Tensors, offsets: _Tensors, dropout: float, scale: float | None) -> torch.Tensor:
    """The attention by ops that have all derivatives."""
    rows = [
        [row.transpose(0, 1) for row in values.split(some.diff().tolist())]
        for values, some in zip(tensors, offsets, strict=True)
    ]
    factor = 1 / math.sqrt(tensors[0].size(2)) if scale is None else scale
    weights = [(query @ key.mT * factor).softmax(-1) for query, key in zip(rows[0], rows[1], strict=True)]
    if dropout:
        sizes = [each.numel() for each in weights]
        noise = tensors[0].new_empty(sum(sizes)).bernoulli_(1 - dropout).div_(1 - dropout).split(sizes)
        weights = [each * some.view_as(each) for each, some in zip(weights, noise, strict=True)]
    return torch.cat([(each @ value).transpose(0, 1) for each, value in zip(weights, rows[2], strict=True)])


def _differentiate(tensors: _Tensors, order: int, *settings: Any) -> list[torch.Tensor]:
    """The derivative of that order; each is the vector-Jacobian product of the one before, whose tangents come last."""
    attend, (*given, state) = (_attend if order == 1 else _attend_dense), settings
    with _above_autograd(), _drawn_from(_generator_of(tensors[0]), state):
        leaves = [each.detach().requires_grad_() for each in tensors]
        found = _derivative(lambda *some: attend(some, *given), order, leaves)
    return [each.detach() for each in found]


def _derivative(attend: Callable[..., torch.Tensor], order: int, tensors: _Tensors) -> _Tensors:
    if order == 0:
        return (attend(*tensors),)
    count = _count_of(order - 1)
    inputs, tangents = tensors[:count], tensors[count:]
    results = _derivative(attend, order - 1, inputs)
    return torch.autograd.grad(results, inputs, tangents, create_graph=True, materialize_grads=True)


def _count_of(order: int) -> int:
    """The number of tensors that a derivative depends on: those of the function that it is a derivative of, and tangents."""
    return (3, 4)[order] if order < 2 else _count_of(order - 1) + _count_of(order - 2)


def _generator_of(tensor: torch.Tensor) -> torch.Generator:
    """The default generator of the device of a tensor."""
    return torch.default_generator if tensor.device.type == "cpu" else torch.cuda.default_generators[tensor.device.index]


@contextlib.contextmanager
def _drawn_from(generator: torch.Generator, state: torch.Tensor | None) -> Iterator[None]:
    """Inside, the generator starts from a state, if there is one; restores it afterwards."""
    before = None if state is None else generator.get_state()
    if state is not None:
        generator.set_state(state)
    try:
        yield
    finally:
        if before is not None:
            generator.set_state(before)


@contextlib.contextmanager
def _above_autograd() -> Iterator[None]:
    """Inside, ops have gradients, although the graph runs below autograd."""
    keys = torch._C.DispatchKey
    autograd = torch._C.DispatchKeySet(keys.AutogradFunctionality)
    for key in (keys.AutogradOther, keys.AutogradNestedTensor, keys.ADInplaceOrView):
        autograd = autograd.add(key)
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with (
        torch._C._ForceDispatchKeyGuard(included, excluded - autograd),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        yield


def _fake_attention(tensors: _Tensors, *_: Any) -> torch.Tensor:
    query, _key, value = tensors
    return query.new_empty(query.size(0), query.size(1), value.size(2))


def _fake_attention_with_dropout(tensors: _Tensors, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    size = _generator_of(tensors[0]).get_state().size(0)
    return _fake_attention(tensors), torch.empty(size, dtype=torch.uint8)


def _fake_derivative(tensors: _Tensors, order: int, *_: Any) -> list[torch.Tensor]:
    return [each.new_empty(each.size()) for each in tensors[: _count_of(order - 1)]]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    tensors, offsets, *settings = inputs
    ctx.settings = settings
    states = output[1:] if isinstance(output, tuple) else ()
    ctx.save_for_backward(*tensors, *offsets, *states)
    ctx.mark_non_differentiable(*states)


def _backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> tuple[Any, ...]:
    tensors, offsets, states = ctx.saved_tensors[:3], ctx.saved_tensors[3:6], ctx.saved_tensors[6:]
    derive = torch.ops.aotgrad_jagged.attention_derivative
    return derive([*tensors, gradient], 1, offsets, *ctx.settings, *(states or (None,))), [None] * 3, None, None


def _save_of_derivative(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    tensors, ctx.order, offsets, *settings, state = inputs
    ctx.settings = settings
    ctx.save_for_backward(*tensors, *offsets, state)


def _backward_of_derivative(ctx: Any, gradients: _Tensors) -> tuple[Any, ...]:
    count = _count_of(ctx.order)
    tensors, (*offsets, state) = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
    derive = torch.ops.aotgrad_jagged.attention_derivative
    return derive([*tensors, *gradients], ctx.order + 1, offsets, *ctx.settings, state), None, [None] * 3, *[None] * 3


_OPERANDS = "Tensor[] tensors, Tensor[] offsets, float dropout, float? scale"

_definitions = torch.library.Library("aotgrad_jagged", "FRAGMENT")
_definitions.define(f"attention({_OPERANDS}) -> Tensor")
_definitions.define(f"attention_with_dropout({_OPERANDS}) -> (Tensor, Tensor)", tags=torch.Tag.nondeterministic_seeded)
_definitions.define(
    "attention_derivative(Tensor[] tensors, int order, Tensor[] offsets, float dropout, float? scale, Tensor? state) "
    "-> Tensor[]"
)


def _implement(name: str, kernel: Callable, fake: Callable, backward: Callable, save: Callable) -> None:
    _definitions.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"aotgrad_jagged::{name}", fake, lib=_definitions)
    torch.library.register_autograd(f"aotgrad_jagged::{name}", backward, setup_context=save, lib=_definitions)


_implement("attention", _attend, _fake_attention, _backward, _save)
_implement("attention_with_dropout", _attend_with_dropout, _fake_attention_with_dropout, _backward, _save)
_implement("attention_derivative", _differentiate, _fake_derivative, _backward_of_derivative, _save_of_derivative)
