"""One graph through one backend, beside eager.

In: a module of functional ops, inputs, and a backend. Out: how it fails, or `None`.

    check(module, inputs, "inductor")           raises an AssertionError that says what differs
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from aotgrad import torch_compat
from aotgrad.backends.base import AnyBackend, Backend
from aotgrad.backends.registry import as_backend
from aotgrad.debug.programs import Program, copied, copy_module, with_inputs
from aotgrad.ir import BoxedCallable, GraphHalf, Partition
from aotgrad.slots import GraphSignature, Primal, UserOutput

TOLERANCES = {torch.float64: 1e-7, torch.complex128: 1e-7, torch.float16: 1e-2, torch.bfloat16: 4e-2}
TOLERANCE = 1e-4
"""By dtype, and for the others: how far a result may be off, relative to the largest number of it. Kernels sum in other
orders than eager does, so a small difference is no failure."""


@dataclass(frozen=True)
class Failure:
    """How a backend fails.

    Attributes:
        kind: the name of an exception, which is `error` then; or `"differs"`; or, if it was tried in a process of its own,
            the name of the signal that ended it, `"exits"` or `"hangs"`.
        text: more about it.
    """

    kind: str
    text: str
    error: Exception | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple:
        """Without the error, which may be of a kind that cannot go to another process."""
        return Failure, (self.kind, self.text)


def check(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    backend: AnyBackend,
    tolerance: float | None = None,
    dynamic: bool = False,
) -> None:
    """Raise if a backend fails for a module, or returns something else than eager: what a repro script does.

    Args:
        module: of functional ATen ops; returns a list or tuple of tensors.
        inputs: what it is called with.
        backend: a name, a `Backend`, or a compiler `(fx.GraphModule, example_inputs) -> callable`.
        tolerance: how far a result may be off, relative to its largest number; by dtype, if `None`.
        dynamic: whether it is compiled for symbolic sizes.

    Raises:
        AssertionError: says how it fails.

    Example:
        >>> class Double(torch.nn.Module):
        ...     def forward(self, x):
        ...         return (torch.ops.aten.mul.Tensor(x, 2),)
        >>> check(Double(), [torch.ones(3)], "eager")
    """
    graph = module if isinstance(module, fx.GraphModule) else fx.symbolic_trace(module)
    failure = failure_of(graph, inputs, backend, tolerance, dynamic)
    if failure is not None:
        raise AssertionError(f"{failure.kind}: {failure.text}") from failure.error


def failure_of(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    backend: AnyBackend,
    tolerance: float | None = None,
    dynamic: bool = False,
) -> Failure | None:
    """How a backend fails for a graph, see `check`; `None` if it does not."""
    program = Program(module, tuple(inputs))
    torch.manual_seed(0)
    expected = program()
    try:
        compiled = compile_alone(program, as_backend(backend), dynamic)
        torch.manual_seed(0)
        with torch.no_grad():
            results = compiled([copied(value) for value in inputs])
    except Exception as error:
        return Failure(type(error).__name__, str(error), error)
    for position, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        problem = difference(result, wanted, tolerance)
        if problem is not None and not is_noise(result, wanted, program, position):
            return Failure("differs", f"output {position} {problem}")
    return None


def is_noise(result: Any, expected: Any, program: Program, position: int) -> bool:
    """Whether eager itself is about as far from what it computes in double precision, as where large numbers cancel."""
    tensors = isinstance(result, torch.Tensor) and isinstance(expected, torch.Tensor)
    if not tensors or not expected.dtype.is_floating_point or kind_of(result) != kind_of(expected):
        return False
    exact = with_inputs(program, lambda _, value: in_double_precision(value))
    try:
        torch.manual_seed(0)
        reference = exact()[position]
    except RuntimeError:  # an op that has no kernel for it, or a graph that fixes dtypes
        return False
    ours, theirs = largest(result - reference), largest(expected - reference)
    return bool(result.isfinite().all()) and ours <= NOISE * theirs


NOISE = 10
"""Times the error of eager: what another order of sums may make of it."""


def in_double_precision(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.dtype.is_floating_point
    return value.double() if is_float else value


def compile_alone(program: Program, backend: Backend, dynamic: bool = False) -> BoxedCallable:
    """What the backend makes of a graph without a backward; `dynamic`: for other sizes, too."""
    module = copy_module(program.module)
    mode = torch_compat.new_fake_mode()
    if dynamic:
        fakes = torch_compat.symbolic_inputs(mode, program.inputs)
    else:
        fakes = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in program.inputs]
    FakeTensorProp(module, mode).propagate_dont_convert_inputs(*fakes)
    inputs = tuple(Primal(k) for k in range(len(fakes)))
    outputs = tuple(UserOutput(k) for k in range(len(program.returned)))
    half = GraphHalf(module, GraphSignature(inputs, outputs))
    return backend.compile(Partition(half, None, ()), frozenset()).forward


def difference(result: Any, expected: Any, tolerance: float | None) -> str | None:
    """How a result differs from eager's, or `None`."""
    if not isinstance(expected, torch.Tensor) or not isinstance(result, torch.Tensor):
        same = type(result) is type(expected) and result == expected
        return None if same else f"is {result!r} and not {expected!r}"
    if (kind := kind_of(result)) != (wanted := kind_of(expected)):
        return f"is {kind} and not {wanted}"
    if not expected.dtype.is_floating_point and not expected.dtype.is_complex:
        return None if torch.equal(result, expected) else f"differs in {int((result != expected).sum())} elements"
    if not torch.equal(result.isfinite(), expected.isfinite()):
        return "has infinities or NaNs elsewhere"
    finite = expected.isfinite()
    error, size = largest((result - expected)[finite]), largest(expected[finite])
    allowed = TOLERANCES.get(expected.dtype, TOLERANCE) if tolerance is None else tolerance
    if error <= allowed * max(size, 1e-6) or math.isclose(error, 0.0):
        return None
    return f"is off by {error:.3g}, its largest number is {size:.3g}"


def kind_of(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"


def largest(values: torch.Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
