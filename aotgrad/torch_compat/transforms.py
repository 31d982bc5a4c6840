"""The transforms of `torch.func`, batched backwards and forward mode: which are active, and what they wrap."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch import eager_transforms, pyfunctorch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from aotgrad.torch_compat.contexts import function_modes, only_places_tensors

_innermost_transform = torch._C._functorch.peek_interpreter_stack
_key_is_included = torch._C._dispatch_tls_is_dispatch_key_included
"""Global state that every call reads."""


VMAP_MODE = torch._C._dispatch_key_parse("VmapMode")
"""The key of the legacy `vmap` of `is_grads_batched=True`, which is not that of `torch.func`."""


def in_vmap_mode() -> bool:
    """Whether this thread is inside a batched backward."""
    return _key_is_included(VMAP_MODE)


def transform_is_open() -> bool:
    """Whether this thread is inside a `torch.func` transform or a batched backward."""
    return _innermost_transform() is not None or _key_is_included(VMAP_MODE)


def older_vmaps() -> int:
    """How many batched backwards are nested.

    A device thread of autograd has the key of the thread that called the backward, but not its count: then it is one.
    """
    return max(_count_of_this_thread(), int(in_vmap_mode()))


def _count_of_this_thread() -> int:
    """The batched backwards that were opened in this thread."""
    is_included = in_vmap_mode()
    count = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()  # excludes the key at 0
    torch._C._dispatch_tls_set_dispatch_key_included(VMAP_MODE, is_included)
    return count


def is_transformed(values: Sequence[Any]) -> bool:
    """Whether a `torch.func` transform is open in this thread, or one of `values` is a dual number."""
    if transform_is_open():
        return True
    if forward_ad._current_level < 0:
        return False
    return any(isinstance(t, torch.Tensor) and forward_ad.unpack_dual(t).tangent is not None for t in values)


def dispatch_transformed(
    usual: Callable[[list], Any], otherwise: Callable[..., Any], in_vmap_mode: Callable[[], bool]
) -> Callable[..., Any]:
    """A function of values: `usual` of their list, or `otherwise(*values)` if they may be transformed."""
    innermost_transform = _innermost_transform

    def call(*values: Any) -> Any:
        if innermost_transform() is not None or in_vmap_mode() or forward_ad._current_level >= 0:
            return otherwise(*values)
        taken = [*values]
        del values  # only the list holds them now, so each can be freed when it is dead
        return usual(taken)

    return call


def open_transforms() -> tuple[str, ...]:
    """The open transforms: `"older vmap"`, then those of `torch.func`: `"vmap"`, `"grad"`, `"jvp"`, ..."""
    interpreters = torch._C._functorch.get_interpreter_stack() or ()
    return (*["older vmap"] * older_vmaps(), *(interpreter.key().name.lower() for interpreter in interpreters))


def only_forward_mode() -> bool:
    """Whether forward mode is on, at most one `jvp` is open, and no other transform or trace of `make_fx`."""
    in_reach = open_transforms() in ((), ("jvp",)) and get_proxy_mode() is None
    return in_reach and torch._C._is_fwd_grad_enabled()


def jvp_is_open() -> bool:
    """Whether a `jvp` transform is open."""
    return "jvp" in open_transforms()


def open_vmaps() -> int:
    """How many `vmap`s of `torch.func` are open."""
    return open_transforms().count("vmap")


def forward_mode_is_open() -> bool:
    """Whether this thread is inside a forward-mode level, or a `jvp`, which opens one."""
    return forward_ad._current_level >= 0


def forward_mode_level() -> contextlib.AbstractContextManager:
    """A forward-mode level: a new one, unless one is open; torch allows only one."""
    return contextlib.nullcontext() if forward_ad._current_level >= 0 else forward_ad.dual_level()


@dataclass(frozen=True)
class Dual:
    """A value and its tangent, or `None`."""

    primal: Any
    tangent: torch.Tensor | None


def unpack_dual(value: Any) -> Dual:
    """The parts of a dual number, below an open `jvp` transform if there is one."""
    if not isinstance(value, torch.Tensor):
        return Dual(value, None)
    primal, tangent = forward_ad.unpack_dual(value)
    if tangent is None:
        return Dual(below_jvp(value), None)
    return Dual(below_jvp(primal), below_jvp(tangent))


def below_jvp(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a `jvp` transform wraps; zero tensors become real zeros."""
    if torch._C._functorch.is_gradtrackingtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return torch.zeros_like(tensor, memory_format=torch.preserve_format) if tensor._is_zerotensor() else tensor


def pack_dual(dual: Dual, level: int | None) -> Any:
    """A dual number for the `jvp` transform at `level`; `None`: for the open forward-mode level."""
    values = [dual.primal, dual.tangent]
    if level is not None:
        values = [torch._C._functorch._wrap_for_grad(v, level) if isinstance(v, torch.Tensor) else v for v in values]
    primal, tangent = values
    return primal if tangent is None else forward_ad.make_dual(primal, tangent)


@dataclass(frozen=True)
class Vmap:
    """An open `vmap`; `is_older`: the legacy one of a batched backward."""

    level: int
    is_older: bool

    def unwrap(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor outside of the `vmap`, with the batch as its first dimension."""
        if self.is_older:
            return torch._remove_batch_dim(tensor, self.level, 0, 0)
        return torch._C._functorch.get_unwrapped(tensor).movedim(torch._C._functorch.maybe_get_bdim(tensor), 0)

    def wrap(self, tensor: torch.Tensor) -> torch.Tensor:
        """The inverse of `unwrap`."""
        add = torch._add_batch_dim if self.is_older else torch._C._functorch._add_batch_dim
        return add(tensor, 0, self.level)


def is_batched(value: Any) -> bool:
    """Whether a `vmap` has wrapped a tensor."""
    functorch = torch._C._functorch
    return isinstance(value, torch.Tensor) and (
        functorch.is_batchedtensor(value) or functorch.is_legacy_batchedtensor(value)
    )


def is_wrapped(value: Any) -> bool:
    """Whether a transform has wrapped a tensor."""
    return is_batched(value) or (isinstance(value, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value))


def only_transforms(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether only `vmap`, `grad` and `jvp` of `torch.func` observe the ops of a call with these arguments."""
    kinds = open_transforms()
    return bool(
        kinds
        and {"vmap", "grad", "jvp"}.issuperset(kinds)
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._get_tracing_state() is None
        and (not torch._C._len_torch_function_stack() or all(map(only_places_tensors, function_modes())))
        and {FunctionalTensor, FakeTensor}.isdisjoint(type(innermost(tensor)) for tensor in tensors)
    )


def innermost(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that transforms have wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def is_tracked(tensor: torch.Tensor) -> bool:
    """Whether a tensor requires grad, itself or at the level of a `grad` that wraps it."""
    while not tensor.requires_grad and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def below_gradient(tensors: Sequence[torch.Tensor], wanted: Sequence[int]) -> list[torch.Tensor]:
    """The tensors of a backward, unwrapped from the transform that the backward belongs to.

    `wanted` are the positions of those whose gradients it computes.
    """
    functorch = torch._C._functorch
    ends = [functorch.maybe_get_level(tensors[k]) for k in wanted if functorch.is_gradtrackingtensor(tensors[k])]

    def is_inside(tensor: torch.Tensor) -> bool:
        return functorch.is_gradtrackingtensor(tensor) and functorch.maybe_get_level(tensor) in ends

    return [functorch.get_unwrapped(tensor) if is_inside(tensor) else tensor for tensor in tensors]


def is_differentiated(value: Any) -> bool:
    """Whether a value is a dual tensor, or one that a transform has wrapped."""
    if not isinstance(value, torch.Tensor) or is_wrapped(value):
        return isinstance(value, torch.Tensor)
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(value).tangent is not None


def gradients_inside(
    function: Callable[..., Sequence[torch.Tensor]], primals: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The gradients of `torch.func.vjp`, but `None` where it returns zeros for an undefined gradient."""
    functorch = torch._C._functorch
    with eager_transforms.grad_increment_nesting() as level, torch.enable_grad():
        wrapped = [functorch._wrap_for_grad(primal, level) for primal in primals]
        eager_transforms._create_differentiable(wrapped, level)
        results = zip(function(*wrapped), cotangents, strict=True)
        pairs = [(result, cotangent) for result, cotangent in results if result.requires_grad]
        if not pairs:
            return [None] * len(primals)
        outputs, given = zip(*pairs, strict=True)
        found = torch.autograd.grad(outputs, wrapped, given, allow_unused=True, create_graph=True)
        return [None if g is None else functorch._unwrap_for_grad(g, level) for g in found]


def only_vmap(values: Sequence[Any]) -> Vmap | None:
    """The open `vmap` if it is the only transform, and no other one has wrapped one of `values`; else `None`."""
    if not all(is_batched(value) or not is_wrapped(value) for value in values):
        return None
    match open_transforms():
        case ("vmap",):
            return Vmap(torch._C._functorch.maybe_current_level(), is_older=False)
        case ("older vmap",):
            return Vmap(1, is_older=True)
        case _:
            return None


@contextlib.contextmanager
def outside_transforms() -> Iterator[int | None]:
    """Suspend every transform; yields the level of the innermost one of `torch.func`, or `None`."""
    innermost = torch._C._functorch.maybe_current_level()
    is_included, count = in_vmap_mode(), _count_of_this_thread()
    with pyfunctorch.temporarily_clear_interpreter_stack():
        for _ in range(count):
            torch._C._vmapmode_decrement_nesting()
        torch._C._dispatch_tls_set_dispatch_key_included(VMAP_MODE, False)
        try:
            yield innermost
        finally:
            for _ in range(count):
                torch._C._vmapmode_increment_nesting()
            torch._C._dispatch_tls_set_dispatch_key_included(VMAP_MODE, is_included)
