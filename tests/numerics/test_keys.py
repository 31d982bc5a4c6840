"""The dependencies of a plan, one at a time: changed for the second call, and restored for the third."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import aotgrad
from aotgrad.errors import AOTGradError, CaptureError
from tests.device import TYPE

from .against_eager import assert_like_eager, leaf, non_leaf, plain

# --- Tensors ---------------------------------------------------------------------------------------------------------


class Own(torch.Tensor):
    """A subclass without rules of its own."""


def describe(x):
    """Depends on every property of a tensor."""
    changed = x * 2
    facts = (tuple(x.shape), x.stride(), x.dtype, str(x.device), x.requires_grad, x.is_conj(), x.is_neg(), x.is_contiguous())
    return changed, facts, torch.zeros_like(x)


TENSORS: dict[str, tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]] = {
    "size": (lambda: plain(3, 2), lambda: plain(3, 4)),
    "rank": (lambda: plain(3), lambda: plain(3, 1)),
    "stride": (lambda: plain(3, 2), lambda: plain(2, 3).t()),
    "expanded": (lambda: plain(3, 2), lambda: plain(3, 1).expand(3, 2)),
    "channels last": (lambda: plain(2, 3, 4, 5), lambda: plain(2, 3, 4, 5).to(memory_format=torch.channels_last)),
    "dtype": (lambda: plain(3), lambda: plain(3, dtype=torch.float64)),
    "requires_grad": (lambda: plain(3), lambda: leaf(3)),
    "leaf": (lambda: leaf(3), lambda: non_leaf(3)),
    "parameter": (lambda: leaf(3), lambda: nn.Parameter(torch.ones(3))),
    "conjugate bit": (lambda: plain(3, dtype=torch.complex64), lambda: plain(3, dtype=torch.complex64).conj()),
    "negative bit": (lambda: plain(3), lambda: plain(3, dtype=torch.complex64).conj().imag),
    "empty": (lambda: plain(3), lambda: plain(0)),
    "no dimensions": (lambda: plain(1), lambda: plain()),
    "inference tensor": (lambda: plain(3), lambda: inference_tensor()),
}


def inference_tensor() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3)


@pytest.mark.parametrize("dynamic", [False, None, True])
@pytest.mark.parametrize("what", TENSORS)
def test_a_tensor_of_another_kind(what: str, dynamic: bool | None) -> None:
    first, second = TENSORS[what]
    under_test = aotgrad.aot_function(describe, aotgrad.nop, dynamic=dynamic)
    for make in (first, second, first, second):
        assert_like_eager(describe, lambda make=make: (make(),), under_test, compilations=None)


def test_a_subclass_is_treated_as_eager_does_or_refused() -> None:
    under_test = aotgrad.aot_function(lambda x: x * 2, aotgrad.nop)
    assert torch.equal(under_test(torch.ones(2)), torch.full((2,), 2.0))
    try:
        result = under_test(torch.ones(2).as_subclass(Own))
    except AOTGradError:
        return
    assert type(result) is Own


# --- Python values ---------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Settings:
    scale: float
    names: tuple[str, ...] = ()


class Scale:
    """An object that is hashed by identity and changes."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


def scaled(x, value):
    """Depends on the type and all content of `value`."""
    if isinstance(value, Scale):
        return value(x)
    if isinstance(value, slice):
        return x[value] * 1
    if isinstance(value, Settings):
        return x * value.scale, value.names
    if isinstance(value, functools.partial):
        return value(x)
    if isinstance(value, torch.dtype):
        return x.to(value) * 1
    if isinstance(value, torch.device):
        return torch.ones(2, device=value).device.type, x * 1
    if isinstance(value, (float, complex)) and value == 0:
        return torch.full((2,), 1.0) / torch.tensor(value), str(value), x * 1
    return x * 1, repr(value)


VALUES = {
    "int": (1, 2),
    "int and float": (1, 1.0),
    "int and bool": (1, True),
    "signs of zero": (0.0, -0.0),
    "complex signs of zero": (complex(0.0, 0.0), complex(0.0, -0.0)),
    "nan": (float("nan"), 1.0),
    "infinity": (float("inf"), float("-inf")),
    "string": ("a", "b"),
    "none": (None, 0),
    "enum": (Colour.RED, Colour.BLUE),
    "dataclass": (Settings(2.0), Settings(3.0)),
    "dataclass with a number of another type": (Settings(2.0, ("a",)), Settings(2, ("a",))),
    "slice": (slice(0, 2), slice(1, 3)),
    "dtype": (torch.float32, torch.float64),
    "device": (torch.device("cpu"), torch.device("meta")),
    "size": (torch.Size([1]), torch.Size([2])),
    "size and tuple": (torch.Size([1]), (1,)),
    "partial": (functools.partial(torch.mul, other=2), functools.partial(torch.mul, other=3)),
    "nested": ({"a": [1, (2, None)]}, {"a": [1, (3, None)]}),
    "list and tuple": ([1, 2], (1, 2)),
    "keys": ({"a": 1}, {"b": 1}),
    "set": ({1, 2}, {1, 3}),
    "callable object": (Scale(2), Scale(3)),
}


@pytest.mark.parametrize("what", VALUES)
def test_another_python_value(what: str) -> None:
    under_test = aotgrad.aot_function(scaled, aotgrad.nop)
    first, second = VALUES[what]
    for value in (first, second, first, second):
        assert_like_eager(scaled, lambda value=value: (leaf(3), value), under_test, compilations=None)
    assert len(under_test.plans()) == 2


def test_an_object_that_is_changed() -> None:
    under_test = aotgrad.aot_function(scaled, aotgrad.nop)
    scale, x = Scale(2), torch.ones(3)
    for factor in (2, 5, 2):
        scale.factor = factor
        assert torch.equal(under_test(x, scale), x * factor)
    assert len(under_test.plans()) == 2


def test_an_object_that_the_function_changes_is_changed_at_every_call() -> None:
    def count(x, counter):
        counter.factor += 1
        return x * counter.factor

    under_test = aotgrad.aot_function(count, aotgrad.nop)
    counter = Scale(0)
    assert [under_test(torch.ones(()), counter).item() for _ in range(3)] == [1, 2, 3]
    counter.factor = 0
    assert under_test(torch.ones(()), counter).item() == 1
    assert counter.factor == 1


@pytest.mark.parametrize("change", [lambda d, x: d.update(b=x), lambda d, x: d["items"].append(x), lambda d, x: d.pop("a")])
def test_a_container_that_the_function_changes_is_refused(change: Callable) -> None:
    def function(given, x):
        change(given, x * 2)
        return x * 3

    given = {"a": torch.ones(1), "items": []}
    with pytest.raises(CaptureError, match="changes a list, dict or other container"):
        aotgrad.aot_function(function, aotgrad.nop)(given, torch.ones(2))
    assert list(given) == ["a", "items"]
    assert given["items"] == []


def test_a_module_that_is_compiled_as_a_function() -> None:
    dropout = nn.Dropout(1.0)
    under_test = aotgrad.aot_function(dropout, aotgrad.nop)
    x = torch.ones(3)
    assert torch.equal(under_test(x), torch.zeros(3))
    dropout.eval()
    assert torch.equal(under_test(x), x)
    dropout.train()
    assert torch.equal(under_test(x), torch.zeros(3))


# --- Global state ----------------------------------------------------------------------------------------------------


def surroundings(x):
    """Depends on the global state. Its gradient has one term, so the order of a sum does not matter."""
    y, z = x @ x.detach(), x.detach()[None]
    attended = nn.functional.scaled_dot_product_attention(z, z, z)
    return y, attended, torch.ones(2), torch.tensor(1.5), torch.is_grad_enabled(), z.sin()


@contextlib.contextmanager
def default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def default_device():
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def matmul_precision():
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


class CountingMode(torch.utils._python_dispatch.TorchDispatchMode):
    """Sees every op, and changes one."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) * 2 if func is torch.ops.aten.sin.default else func(*args, **(kwargs or {}))


class FunctionMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.Tensor.sin else result


STATE = {
    "no grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast to bfloat16": lambda: torch.autocast(TYPE, torch.bfloat16),
    "autocast to float16": lambda: torch.autocast(TYPE, torch.float16),
    "default dtype": default_dtype,
    "device of a block": lambda: torch.device("cpu"),
    "deterministic": deterministic,
    "matmul precision": matmul_precision,
    "attention kernel": lambda: sdpa_kernel(SDPBackend.MATH),
    "dispatch mode": CountingMode,
    "function mode": FunctionMode,
}


def test_tensors_without_data() -> None:
    under_test = aotgrad.aot_function(describe, aotgrad.nop)
    for device in ("cpu", "meta", "cpu"):
        result, facts, zeros = under_test(torch.ones(3, device=device))
        assert (result.device.type, zeros.device.type, facts[3], result.shape) == (device, device, device, (3,))


@pytest.mark.parametrize("around", [default_device, lambda: torch.device("meta")])
def test_another_default_device(around: Callable) -> None:
    under_test = aotgrad.aot_function(lambda x: (x * 2, torch.ones(2), torch.tensor(1.0)), aotgrad.nop)
    for context, device in ((contextlib.nullcontext, "cpu"), (around, "meta"), (contextlib.nullcontext, "cpu")):
        x = torch.ones(2)
        with context():
            assert [value.device.type for value in under_test(x)] == ["cpu", device, device]


@pytest.mark.parametrize("what", STATE)
def test_another_global_state(what: str) -> None:
    under_test = aotgrad.aot_function(surroundings, aotgrad.nop)
    for around in (contextlib.nullcontext, STATE[what], contextlib.nullcontext, STATE[what]):
        assert_like_eager(surroundings, lambda: (leaf(4, 4),), under_test, around=around, compilations=None)


def test_autocast_is_told_apart_by_its_dtype() -> None:
    under_test = aotgrad.aot_function(lambda x: x @ x, aotgrad.nop)
    dtypes = []
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        with torch.autocast(TYPE, dtype):
            dtypes.append(under_test(torch.ones(2, 2)).dtype)
    assert dtypes == [torch.bfloat16, torch.float16, torch.bfloat16]


# --- Transforms and other traces -------------------------------------------------------------------------------------


def test_forward_mode_gradients() -> None:
    under_test = aotgrad.aot_function(torch.sin, aotgrad.nop)
    x = torch.ones(3)
    under_test(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones(3))
        tangent = torch.autograd.forward_ad.unpack_dual(under_test(dual)).tangent
    assert torch.equal(tangent, x.cos())


TRANSFORMS = {
    "vmap": lambda f: torch.vmap(f)(torch.arange(6.0).view(2, 3)),
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(torch.ones(3)),
    "jvp": lambda f: torch.func.jvp(f, (torch.ones(3),), (torch.ones(3),)),
    "make_fx": lambda f: torch.fx.experimental.proxy_tensor.make_fx(f)(torch.ones(3))(torch.arange(3.0)),
    "fake tensors": lambda f: f(torch._subclasses.FakeTensorMode().from_tensor(torch.ones(3))).shape,
    "torch.compile": lambda f: torch.compile(lambda x: f(x) * 2, backend="eager", fullgraph=True)(torch.ones(3)),
    "aot_function": lambda f: aotgrad.aot_function(lambda x: f(x) * 2, aotgrad.nop)(torch.ones(3)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_inside_of_a_transform_a_compiled_function_is_the_function(transform: str) -> None:
    def function(x):
        return (x * 2).sin()

    torch._dynamo.reset()
    under_test = aotgrad.aot_function(function, aotgrad.nop)
    for _ in range(2):
        results = [torch.utils._pytree.tree_leaves(TRANSFORMS[transform](f)) for f in (under_test, function)]
        assert len(results[0]) == len(results[1])
        assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(*results, strict=True))
        under_test(torch.ones(3))


# --- Storages that are freed between calls ---------------------------------------------------------------------------


def test_a_storage_that_is_freed_and_filled_again() -> None:
    """Sharded training does this with its parameters."""
    under_test = aotgrad.aot_function(lambda w, x: (w * x).sum(), aotgrad.nop)
    w, x = leaf(4), plain(4)
    for value in (1.0, 2.0, 3.0):
        storage = w.untyped_storage()
        size = storage.size()
        storage.resize_(0)
        storage.resize_(size)
        with torch.no_grad():
            w.fill_(value)
        w.grad = None
        under_test(w, x).backward()
        assert torch.equal(w.grad, x)
    assert len(under_test.plans()) == 1


def test_a_storage_that_is_freed_inside_is_refused_or_freed() -> None:
    def free(x):
        y = x * 2
        x.untyped_storage().resize_(0)
        return y

    x = torch.ones(3)
    try:
        result = aotgrad.aot_function(free, aotgrad.nop)(x)
    except (AOTGradError, RuntimeError):
        assert torch.equal(x, torch.ones(3))
    else:
        assert torch.equal(result, torch.full((3,), 2.0))
        assert x.untyped_storage().size() == 0
