"""Guards on the tensors of a call and on dictionaries, in C++, and on the symbolic sizes of a trace."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


class ShapeGuards:
    """The symbolic guards of a trace, evaluated on real tensors. `text` is their source, where `t0` is tensor 0."""

    def __init__(self, conditions: Sequence[str], count: int) -> None:
        from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

        self.conditions = [re.sub(r"L\['(t\d+)'\]", r"\1", condition) for condition in conditions]
        self.text = " and ".join(f"({condition})" for condition in self.conditions)  # one may be an `or`
        self.holds = eval(f"lambda {', '.join(f't{k}' for k in range(count))}: {self.text}", dict(SYMPY_INTERP))

    def __call__(self, tensors: Sequence[torch.Tensor]) -> bool:
        return self.holds(*tensors)


def shape_guards(fakes: Sequence[FakeTensor]) -> ShapeGuards | None:
    """The symbolic guards of the trace of `fakes`, or `None` if it has none."""
    from torch._dynamo.source import LocalSource

    sources = [LocalSource(f"t{k}") for k in range(len(fakes))]
    guards = fakes[0].fake_mode.shape_env.produce_guards(fakes, sources, ignore_static=False)
    return ShapeGuards(guards, len(fakes)) if guards else None


class TensorGuard:
    """Dtype, device, layout, sizes, strides, requires_grad, dispatch keys and number of tensors, in one C++ call.

    The keys are those that an op would see; a dispatch mode, a `torch.func` transform, `torch.jit.trace` and inference mode
    change them. Symbolic sizes and strides of the fakes are not compared.

    Attributes:
        is_one_call: all tensors are strided. Sparse tensors are compared in Python.
        fastest: `check`, or the function that `make_check(tensors, sizes, strides)` returns, which takes a sequence.
        argument: how `fastest` takes the tensors, as code.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], fakes: Sequence[FakeTensor], make_check: Callable[..., Any] | None = None
    ) -> None:
        from torch._C._dynamo.guards import TensorGuards

        self.count, self.fakes = len(tensors), fakes
        self.flags = [_flags(tensor) for tensor in tensors]
        self.inference = [tensor.is_inference() for tensor in tensors]
        self.sparse = tuple((k, _sparse_key(t)) for k, t in enumerate(tensors) if t.layout is not torch.strided)
        self.strided = tuple(k for k, t in enumerate(tensors) if t.layout is torch.strided)
        sizes = [[_static(size) for size in fakes[k].size()] for k in self.strided]
        steps = [[_static(step) for step in fakes[k].stride()] for k in self.strided]
        chosen = [tensors[k] for k in self.strided]
        self.guards = TensorGuards(*chosen, dynamic_dims_sizes=sizes, dynamic_dims_strides=steps) if chosen else None
        self.is_one_call = self.guards is not None and not self.sparse
        self.check = self.guards.check if self.guards and self.is_one_call else self.check_mixed
        ours = make_check(chosen, sizes, steps) if make_check and self.is_one_call else None
        self.fastest, self.argument = (ours, "tensors") if ours else (self.check, "*tensors")

    def check_mixed(self, *tensors: torch.Tensor) -> bool:
        if any(_sparse_key(tensors[k]) != key for k, key in self.sparse) or len(set(map(id, tensors))) != len(tensors):
            return False
        return self.guards is None or self.guards.check(*(tensors[k] for k in self.strided))

    def __call__(self, *tensors: torch.Tensor) -> bool:
        return len(tensors) == self.count and self.check(*tensors)

    def failure(self, tensors: Sequence[torch.Tensor]) -> str:
        """Which tensor differs, and how; empty if none does."""
        if len(tensors) != self.count:
            return f"{len(tensors)} distinct tensors in place of {self.count}"
        if self(*tensors):
            return ""
        if self.guards is None or self.check_strided(tensors):
            return "a sparse tensor differs"
        names = [f"tensor argument {k}" for k in self.strided]
        return str(self.guards.check_verbose(*(tensors[k] for k in self.strided), tensor_check_names=names))

    def lines(self) -> Iterator[str]:
        """What is checked for each tensor, a line each."""
        for k, (fake, flags) in enumerate(zip(self.fakes, self.flags, strict=True)):
            layout = f"strides {tuple(fake.stride())}" if fake.layout is torch.strided else str(fake.layout)
            yield " ".join([f"tensor {k}: {fake.dtype} {tuple(fake.shape)} {layout} {fake.device}", *flags])

    def check_strided(self, tensors: Sequence[torch.Tensor]) -> bool:
        return self.guards is None or self.guards.check(*(tensors[k] for k in self.strided))


def _flags(tensor: torch.Tensor) -> list[str]:
    """The unusual properties of a tensor, in words."""
    special = {
        type(tensor).__name__: type(tensor) is not torch.Tensor,
        "requires_grad": tensor.requires_grad,
        "conjugate": tensor.is_conj(),
        "negative": tensor.is_neg(),
    }
    return [name for name, holds in special.items() if holds]


def _static(size: Any) -> int | None:
    """A number, also that of a symbol that the trace has specialized; `None` if it is still symbolic."""
    return size if isinstance(size, int) else size.node.maybe_as_int()


def _sparse_key(tensor: torch.Tensor) -> tuple:
    flags = (tensor.requires_grad, tensor.dtype, tensor.device, tensor.layout)
    return (type(tensor), tuple(tensor.shape), *flags, tensor.layout is torch.sparse_coo and tensor.is_coalesced())


class DictVersions:
    """Checks in one C++ call that dictionaries are unchanged, and that objects still have the same `__dict__`.

    Correct where `versions_are_counted`, except for the order of an `OrderedDict`.
    """

    def __init__(self, objects: Sequence[Any], tables: Sequence[dict]) -> None:
        from torch._C._dynamo.guards import RootGuardManager
        from torch._dynamo.guards import GuardManagerType

        self.watched, self.native = [*objects, *tables], RootGuardManager()
        plain = GuardManagerType.GUARD_MANAGER
        for k, value in enumerate(self.watched):
            name, table = f"watched[{k}]", value
            manager = self.native.list_getitem_manager(k, name, value, plain)
            if k < len(objects):
                name, table = f"{name}.__dict__", value.__dict__
                manager = manager.get_generic_dict_manager(name, table, plain)
            _add_dict_version_guard(manager, table, [name])

    def hold(self) -> bool:
        return self.native.check(self.watched)


def versions_are_counted() -> bool:
    """Whether this Python counts the changes of a dictionary. Later versions report changes, but not all of them."""
    return sys.implementation.name == "cpython" and sys.version_info < (3, 12)


def _add_dict_version_guard(manager: Any, table: dict, text: list[str]) -> None:
    """Newer versions of torch also take the location in the user's code."""
    try:
        manager.add_dict_version_guard(table, text, None)
    except TypeError:
        manager.add_dict_version_guard(table, text)
