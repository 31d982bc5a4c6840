"""Compares a backend with eager on one graph.

In: a module of functional ops, inputs, and a backend. Out: how the backend fails, or `None`.

    check_backend(module, inputs, "inductor")           raises an AssertionError that says what differs
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
from aotgrad.backends.base import AnyBackend, PartitionCompiler
from aotgrad.backends.registry import as_backend
from aotgrad.debug.programs import ConcreteProgram, copy_value, with_inputs
from aotgrad.graph.copies import copy_graph_module
from aotgrad.graph.kept_calls import KeptBackward
from aotgrad.ir import BoxedCallable, GraphHalf, Partition
from aotgrad.slots import Primal, SlotSignature, UserOutput

TOLERANCES = {torch.float64: 1e-7, torch.complex128: 1e-7, torch.float16: 1e-2, torch.bfloat16: 4e-2}
TOLERANCE = 1e-4
"""The allowed error by dtype, and for other dtypes, relative to the largest element of a result. Kernels may sum in another
order than eager, so a small difference is not a failure."""


@dataclass(frozen=True)
class BackendFailure:
    """How a backend fails.

    Attributes:
        kind: the name of the exception `error`, or `"differs"`. In a separate process also the name of the signal that
            ended it, `"exits"` or `"hangs"`.
        text: the details.
    """

    kind: str
    text: str
    error: Exception | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple:
        """Pickle without the error, which may not be picklable."""
        return BackendFailure, (self.kind, self.text)


def check_backend(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    backend: AnyBackend,
    tolerance: float | None = None,
    dynamic: bool = False,
) -> None:
    """Raise if a backend fails for a module, or differs from eager. Repro scripts call it.

    Args:
        module: a module of functional ATen ops; returns a list or tuple of tensors.
        inputs: its inputs.
        backend: a name, a `Backend`, or a compiler `(fx.GraphModule, example_inputs) -> callable`.
        tolerance: the allowed error relative to the largest element of a result; by dtype, if `None`.
        dynamic: compile for symbolic sizes.

    Raises:
        AssertionError: the backend fails; the message says how.

    Examples:
        >>> class Double(torch.nn.Module):
        ...     def forward(self, x):
        ...         return (torch.ops.aten.mul.Tensor(x, 2),)
        >>> check_backend(Double(), [torch.ones(3)], "eager")
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
) -> BackendFailure | None:
    """How a backend fails for a graph; `None` if it does not. Arguments as for `check_backend`."""
    program = ConcreteProgram(module, tuple(inputs))
    torch.manual_seed(0)
    with torch_compat.noted_draws() as drawn_in_eager:
        expected = program()
    try:
        compiled = compile_alone(program, as_backend(backend), dynamic)
        torch.manual_seed(0)
        given = [copy_value(value) for value in inputs]
        with torch.no_grad(), torch_compat.noted_draws() as drawn:
            results = compiled([*given])  # `given` stays, so that writes to it are seen
    except Exception as error:
        return BackendFailure(type(error).__name__, str(error), error)
    for position, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        problem = difference(result, wanted, tolerance)
        if problem is not None and not is_noise(result, wanted, program, position):
            return BackendFailure("differs", f"output {position} {problem}")
    moves = drawn and not drawn_in_eager
    return BackendFailure("differs", "the graph moves a random generator, and in eager it moves none") if moves else None


def is_noise(result: Any, expected: Any, program: ConcreteProgram, position: int) -> bool:
    """Whether eager has a similar error compared with double precision, for example where large numbers cancel."""
    tensors = isinstance(result, torch.Tensor) and isinstance(expected, torch.Tensor)
    if not tensors or not expected.dtype.is_floating_point or tensor_kind(result) != tensor_kind(expected):
        return False
    exact = with_inputs(program, lambda _, value: in_double_precision(value))
    try:
        torch.manual_seed(0)
        reference = exact()[position]
    except RuntimeError:  # an op has no kernel for double, or the graph fixes dtypes
        return False
    ours, theirs = largest(result - reference), largest(expected - reference)
    return bool(result.isfinite().all()) and ours <= NOISE * theirs


NOISE = 10
"""The allowed ratio to the error of eager, for another order of sums."""


def in_double_precision(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.dtype.is_floating_point
    return value.double() if is_float else value


def compile_alone(program: ConcreteProgram, backend: PartitionCompiler, dynamic: bool = False) -> BoxedCallable:
    """The compiled graph, without a backward; `dynamic`: for symbolic sizes."""
    module = copy_graph_module(program.module)
    mode = torch_compat.new_fake_mode()
    if dynamic:
        fakes = torch_compat.symbolic_inputs(mode, program.inputs)
    else:
        fakes = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in program.inputs]
    FakeTensorProp(module, mode).propagate_dont_convert_inputs(*fakes)
    for node in module.graph.nodes:
        if isinstance(node.target, KeptBackward):
            FakeTensorProp(node.target.graph, mode).propagate_dont_convert_inputs(*(arg.meta["val"] for arg in node.args))
    inputs = tuple(Primal(k) for k in range(len(fakes)))
    outputs = tuple(UserOutput(k) for k in range(len(program.returned)))
    half = GraphHalf(module, SlotSignature(inputs, outputs), is_checked=True)
    return backend.compile_partition(Partition(half, None, ()), frozenset()).forward


def difference(result: Any, expected: Any, tolerance: float | None) -> str | None:
    """How a result differs from eager's, or `None`."""
    if not isinstance(expected, torch.Tensor) or not isinstance(result, torch.Tensor):
        same = type(result) is type(expected) and result == expected
        return None if same else f"is {result!r} and not {expected!r}"
    if (kind := tensor_kind(result)) != (wanted := tensor_kind(expected)):
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


def tensor_kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"


def largest(values: torch.Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
