"""Runs a function eager and compiled on equal inputs, and compares all observable results.

    assert_like_eager(lambda x: x.mul_(2).sin(), lambda: (leaf(3) * 1,), "nop")

Compared after the call: values bit for bit, dtype, shape, stride, `requires_grad`, `is_leaf`, presence of a `grad_fn`,
identity of `_base`, shared storages, outputs that are inputs, the version counters of the inputs, the pytree and the
types of its leaves. Then, optionally, the effects of the caller's further use of the outputs. Then the gradients of
every leaf behind the inputs, `None` included, for fixed random cotangents.

Every function is called twice on fresh inputs, so that the second call runs a cached plan.

One relation is not compared: a view of an intermediate that nobody else can see may come back as a tensor with no `_base`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import aotgrad
from aotgrad.backends.base import AnyBackend
from aotgrad.backends.eager import compile_eager
from aotgrad.backends.interpreter import compile_interpreter

COMPILERS: Mapping[str, AnyBackend] = {
    "nop": aotgrad.nop,
    "eager": compile_eager,
    "interpreter": compile_interpreter,
    "aot_inductor": "inductor",
}
DYNAMO_BACKENDS = {"dynamo": "aotgrad_eager", "inductor": "aotgrad"}

AOT = ("nop", "eager", "interpreter")
"""Without Dynamo in front: `aot_function` with each compiler whose results are exact."""

EXACT = (*AOT, "dynamo")
"""Every way whose results are exact."""

THROUGH_INDUCTOR = ("aot_inductor", "inductor")
"""Inductor compiles the halves: without Dynamo in front, and with it."""

ALL = (*EXACT, *THROUGH_INDUCTOR)

THREE_TERMS = "a gradient of three terms, two of which meet inside the function, is summed in another order"
"""A reason for `gradients_close`."""

INDUCTOR = "Inductor fuses and reorders floating point arithmetic"
"""A reason for `values_close`."""

Function = Callable[..., Any]
MakeArguments = Callable[[], tuple]
Caller = Callable[[Any, tuple], Any]
Cotangent = Callable[[Tensor], Tensor]


# --- Inputs ----------------------------------------------------------------------------------------------------------


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A random leaf that requires grad."""
    return torch.randn(shape, dtype=dtype).requires_grad_()


def plain(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A random tensor that does not require grad."""
    return torch.randn(shape, dtype=dtype)


def non_leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A random tensor that requires grad and has a history, so it may change in place."""
    return leaf(*shape, dtype=dtype) * 1


# --- Compiling -------------------------------------------------------------------------------------------------------


def compiled(function: Function, backend: str, *, dynamic: bool = False, fullgraph: bool = True, **options: Any) -> Function:
    """Compile `function` with `backend`: a key of `COMPILERS` or `DYNAMO_BACKENDS`."""
    options["options"] = {"min_graph_ops": 0, **options.get("options", {})}
    if backend in COMPILERS:
        return aotgrad.aot_function(function, COMPILERS[backend], dynamic=dynamic, **options)
    torch._dynamo.reset()
    return torch.compile(function, backend=DYNAMO_BACKENDS[backend], fullgraph=fullgraph, dynamic=dynamic, **options)


def assert_like_eager(
    function: Function,
    make_args: MakeArguments,
    backend: str | Function,
    *,
    around: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    caller: Caller | None = None,
    cotangent: Cotangent | None = None,
    raises: type[Exception] | None = None,
    dynamic: bool = False,
    compilations: int | None = 1,
    gradients_close: str = "",
    values_close: str = "",
    inductor_rtol: float = 1e-5,
    **options: Any,
) -> None:
    """Compare a compiled function with eager.

    Args:
        function: the function to compile.
        make_args: makes the arguments; under the same seed it returns equal inputs with equal sharing of memory and
            history.
        backend: see `compiled`; or a compiled function.
        around: makes the context of the call; the backward runs outside of it.
        caller: gets the outputs and the arguments after the call, may mutate them, and may return tensors (a pytree) to
            differentiate too.
        cotangent: makes the cotangent of a tensor; random by default.
        raises: eager's error in the call, in `caller` or in the backward; the compiled function must raise the same.
        dynamic: compile with symbolic sizes.
        compilations: number of plans that the two calls make; not counted if `None`.
        gradients_close: the reason why the last bits of gradients may differ; without a reason they may not.
        values_close: the reason why the last bits of everything may differ.
        inductor_rtol: tolerance of Inductor's results; larger where eager rounds to half precision between two ops.
        **options: for `aot_function` or `torch.compile`.
    """
    scenario = Scenario(make_args, around, caller, cotangent or random_cotangent)
    expected = scenario.run(function, seed=1, catch=True)
    raised = expected.facts.get("raised")
    assert raised is raises, f"eager raised {raised}, the test says {raises}"
    before = aotgrad.counters["compilations"]
    under_test = compiled(function, backend, dynamic=dynamic, **options) if isinstance(backend, str) else backend
    tolerance = Tolerance.of(gradients_close, values_close or closeness(backend), inductor_rtol)
    with torch._inductor.config.patch(fallback_random=True):
        for call in ("first call", "second call"):
            actual = scenario.run(under_test, seed=1, catch=raised is not None)
            assert_same(actual, expected, tolerance, f"{call}, {backend}")
    if compilations is not None and "raised in the call" not in expected.facts:
        assert aotgrad.counters["compilations"] - before == compilations


def closeness(backend: str | Function) -> str:
    """The reason why a backend's values differ from eager's in the last bits; empty if they do not."""
    return INDUCTOR if backend in THROUGH_INDUCTOR else ""


# --- Observing -------------------------------------------------------------------------------------------------------


@dataclass
class Record:
    """Observations of one run: `facts` are compared with `==`, `values` as tensors (or `None`)."""

    facts: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Tensor | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """The setting of the function, equal for the eager and the compiled run."""

    make_args: MakeArguments
    around: Callable[[], contextlib.AbstractContextManager]
    caller: Caller | None
    cotangent: Cotangent

    def run(self, function: Function, seed: int, catch: bool) -> Record:
        """Call the function on fresh inputs and differentiate; record its error if `catch`."""
        torch.manual_seed(seed)
        args = self.make_args()
        record = Record()
        inputs = [value for value in pytree.tree_leaves(args) if isinstance(value, Tensor)]
        origins = leaves_behind(inputs)
        versions = [version_of(value) for value in inputs]
        stage = "in the call"
        try:
            with kept_grad_mode(record), self.around():
                outputs = function(*args)
            observe(record, "after the call", inputs, outputs)
            stage = "by the caller"
            changed = [value for value, version in zip(inputs, versions, strict=True) if version_of(value) != version]
            roots = [outputs, [value for value in changed if not value.is_leaf]]
            if self.caller is not None:
                roots.append(self.caller(outputs, args))
                observe(record, "after the caller", inputs, outputs)
            stage = "in the backward"
            self.differentiate(roots, seed)
            observe_version_counters(record, inputs, outputs)
        except Exception as error:
            if not catch:
                raise
            record.facts["raised"] = type(error)
            record.facts[f"raised {stage}"] = str(error) if stage == "in the call" else True
            record.values.update(snapshot("after the error, input", inputs))
            # The frames of the traceback hold the tensors of this run.
            error.__traceback__ = None
        record.values.update({f"gradient {k}": copied(origin.grad) for k, origin in enumerate(origins)})
        return record

    def differentiate(self, roots: Any, seed: int) -> None:
        wanted = distinct(value for value in pytree.tree_leaves(roots) if is_differentiable(value))
        torch.manual_seed(seed + 1)
        if wanted:
            torch.autograd.backward(wanted, [self.cotangent(value) for value in wanted])


def random_cotangent(value: Tensor) -> Tensor:
    """Contiguous, as most gradients of functions of the output are."""
    return torch.randn(value.shape, dtype=value.dtype, device=value.device)


def is_differentiable(value: Any) -> bool:
    """Whether a backward can start here: not at a view made under `no_grad`, although its `requires_grad` is true."""
    if not isinstance(value, Tensor) or not value.requires_grad or value.is_inference():
        return False
    return value.grad_fn is not None or value._base is None


def distinct(values: Iterator[Tensor]) -> list[Tensor]:
    return list({id(value): value for value in values}.values())


@contextlib.contextmanager
def kept_grad_mode(record: Record) -> Iterator[None]:
    """Record the grad mode after the call, and restore the previous one."""
    before = torch.is_grad_enabled()
    try:
        yield
    finally:
        record.facts["grad mode afterwards"] = torch.is_grad_enabled()
        torch.set_grad_enabled(before)


def leaves_behind(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The leaves of the histories of `tensors`, in a fixed order; gradients accumulate there."""
    found = {id(tensor): tensor for tensor in tensors if tensor.is_leaf and tensor.requires_grad}
    stack = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        parents = [parent for parent, _ in node.next_functions if parent is not None and parent not in seen]
        seen.update(parents)
        stack.extend(parents)
    return list(found.values())


def observe(record: Record, when: str, inputs: Sequence[Tensor], outputs: Any) -> None:
    """Record everything observable of the inputs and outputs of a call."""
    leaves, structure = pytree.tree_flatten(outputs)
    named = {f"input {k}": value for k, value in enumerate(inputs)}
    record.facts[f"{when}, structure"] = structure
    for position, value in enumerate(leaves):
        if isinstance(value, Tensor):
            named[f"output {position}"] = value
        else:
            record.facts[f"{when}, output {position}"] = (type(value), value)
    relations = Relations(named)
    for name, value in named.items():
        for what, fact in {**properties(value), **relations.of(name)}.items():
            record.facts[f"{when}, {name}: {what}"] = fact
    for k, value in enumerate(inputs):
        record.facts[f"{when}, input {k}: version"] = version_of(value)
    record.values.update({f"{when}, {name}": copied(value) for name, value in named.items()})


def observe_version_counters(record: Record, inputs: Sequence[Tensor], outputs: Any) -> None:
    """Record which tensors share a version counter, as a view does with its base."""
    tensors = [value for value in (*inputs, *pytree.tree_leaves(outputs)) if isinstance(value, Tensor)]
    counting = [value for value in tensors if not value.is_inference()]
    for position, value in enumerate(counting):
        before = [other._version for other in counting]
        torch.autograd.graph.increment_version(value)
        together = [k for k, other in enumerate(counting) if other._version != before[k]]
        record.facts[f"counts its versions together with, tensor {position}"] = together


def version_of(value: Tensor) -> int | None:
    return None if value.is_inference() else value._version


def properties(value: Tensor) -> dict[str, Any]:
    return {
        "type": type(value),
        "dtype": value.dtype,
        "shape": tuple(value.shape),
        "stride": value.stride() if value.layout is torch.strided else None,
        "storage offset": value.storage_offset() if value.layout is torch.strided else None,
        "requires_grad": value.requires_grad,
        "is_leaf": value.is_leaf,
        "has a grad_fn": value.grad_fn is not None,
        "is_inference": value.is_inference(),
        "is_conj": value.is_conj(),
        "is_neg": value.is_neg(),
    }


@dataclass(frozen=True)
class Relations:
    """Relations between tensors: same object, shared storage, view and base."""

    named: Mapping[str, Tensor]

    def of(self, name: str) -> dict[str, Any]:
        value = self.named[name]
        return {
            "is": self.first(lambda other: other is value),
            "storage of": self.first(lambda other: storage_of(other) == storage_of(value)),
            "base": self.base_of(value),
        }

    def base_of(self, value: Tensor) -> str | None:
        base = value._base
        if base is None:
            return None
        visible = self.first(lambda other: other is base)
        if visible is not None:
            return visible
        viewers = [name for name, other in self.named.items() if other._base is base]
        return f"hidden, of {viewers}" if any(self.named[name] is not value for name in viewers) else None

    def first(self, condition: Callable[[Tensor], bool]) -> str | None:
        return next((name for name, other in self.named.items() if condition(other)), None)


def storage_of(value: Tensor) -> int:
    return value.untyped_storage()._cdata if value.layout is torch.strided else id(value)


def snapshot(prefix: str, tensors: Sequence[Tensor]) -> dict[str, Tensor | None]:
    return {f"{prefix} {k}": copied(tensor) for k, tensor in enumerate(tensors)}


def copied(value: Tensor | None) -> Tensor | None:
    """A detached copy that keeps the strides."""
    if value is None:
        return None
    with torch.no_grad():
        return value.detach().clone()


# --- Comparing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tolerance:
    """Allowed relative differences, of gradients and of other values."""

    gradients: float
    values: float

    @classmethod
    def of(cls, gradients_close: str, values_close: str, rtol: float) -> Tolerance:
        """Values may differ only for a reason; then `rtol` applies."""
        if values_close:
            return cls(rtol, rtol)
        return cls(1e-6 if gradients_close else 0.0, 0.0)

    def rtol(self, name: str) -> float:
        return self.gradients if name.startswith("gradient") else self.values

    @property
    def exact(self) -> bool:
        return self.values == 0


def assert_same(actual: Record, expected: Record, tolerance: Tolerance, where: str) -> None:
    """All differences of two records at once."""
    differences = [*different_facts(actual, expected, tolerance), *different_values(actual, expected, tolerance)]
    assert not differences, "\n  ".join([f"differs from eager ({where})", *differences])


def different_facts(actual: Record, expected: Record, tolerance: Tolerance) -> Iterator[str]:
    for name in dict.fromkeys(itertools.chain(expected.facts, actual.facts)):
        if name.endswith("storage offset") and not tolerance.exact:
            continue
        got, wanted = actual.facts.get(name, "absent"), expected.facts.get(name, "absent")
        if got != wanted:
            yield f"{name}: {got}, eager has {wanted}"


def different_values(actual: Record, expected: Record, tolerance: Tolerance) -> Iterator[str]:
    for name in dict.fromkeys(itertools.chain(expected.values, actual.values)):
        got, wanted = actual.values.get(name), expected.values.get(name)
        if (got is None) != (wanted is None):
            yield f"{name}: {got}, eager has {wanted}"
        elif got is not None and (difference := describe_difference(got, wanted, tolerance.rtol(name))):
            yield f"{name}: {difference}"


def describe_difference(got: Tensor, wanted: Tensor, rtol: float) -> str | None:
    if (got.shape, got.dtype, got.layout) != (wanted.shape, wanted.dtype, wanted.layout):
        return f"{got.dtype}{list(got.shape)}, eager has {wanted.dtype}{list(wanted.shape)}"
    if strides_with_extent(got) != strides_with_extent(wanted):
        return f"strides {got.stride()}, eager has {wanted.stride()}"
    if rtol == 0:
        same = torch.equal(bits(got), bits(wanted))
    else:
        same = torch.allclose(got, wanted, rtol=rtol, atol=rtol, equal_nan=True)
    return None if same else f"{got.tolist()}, eager has {wanted.tolist()}"


def strides_with_extent(value: Tensor) -> list[int] | None:
    """Strides of dimensions with several elements; the others are arbitrary in a copy."""
    if value.layout is not torch.strided:
        return None
    return [stride for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1]


def bits(value: Tensor) -> Tensor:
    """The bytes of a tensor: tells -0.0 from 0.0, and one NaN equals itself."""
    if value.layout is not torch.strided:
        value = value.to_dense()
    return value.resolve_conj().resolve_neg().flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def assert_matches(
    found: Any, expected: Any, compiler: AnyBackend, close: str = "", inductor_rtol: float | None = None
) -> None:
    """Assert equal trees of tensors, numbers and other values; up to rounding if `compiler` is Inductor or `close` says why.

    `compiler` may be a key of `COMPILERS` or `DYNAMO_BACKENDS`; `inductor_rtol` as for `assert_like_eager`.
    """
    actual, structure = pytree.tree_flatten(found)
    wanted, wanted_structure = pytree.tree_flatten(expected)
    assert structure == wanted_structure, f"{found}, eager has {expected}"
    exact = compiler is aotgrad.nop or compiler in EXACT
    rtol = None if close else 0.0 if exact else inductor_rtol
    for got, other in zip(actual, wanted, strict=True):
        if isinstance(other, Tensor | float) and not (isinstance(other, float) and rtol == 0):
            torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(other), rtol=rtol, atol=rtol, equal_nan=True)
        else:
            assert got == other, f"{found}, eager has {expected}"
