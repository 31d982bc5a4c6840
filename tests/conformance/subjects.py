"""The callables: every entry of torch's databases, with its sample inputs.

subject = find_subjects()["add"]
call = subject.calls(VARIANTS["static"], most=2)[0]
call.function(*call.tensors)
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db
from torch.testing._internal.common_utils import noncontiguous_like
from torch.testing._internal.hop_db import hop_db
from torch.utils import _pytree as pytree

from tests.conformance.variants import Backend, First, Form, Variant
from tests.device import TYPE

SEED = 0


class Function(Protocol):
    """A function of flat tensors. Its own tensors, if any, belong to a module."""

    @property
    def state(self) -> list[Tensor]: ...

    def fresh(self) -> Function:
        """A copy with unchanged state."""
        ...

    def __call__(self, *tensors: Tensor) -> Any: ...


@dataclass(frozen=True)
class Call:
    """A function of flat tensors, with its arguments.

    Attributes:
        changed: the mutated tensors; those that require grad are passed as non-leaves.
    """

    function: Function
    tensors: tuple[Tensor, ...]
    changed: frozenset[int] = frozenset()


class Subject(Protocol):
    """An operator, a higher-order operator or a module."""

    @property
    def name(self) -> str: ...

    def calls(self, variant: Variant, most: int) -> list[Call]:
        """At most `most` sample calls, spread evenly; none if the variant does not apply."""
        ...


@dataclass(frozen=True)
class Operator:
    """An entry of the database of operators or of higher-order operators."""

    info: Any
    is_higher_order: bool = False

    @property
    def name(self) -> str:
        return self.info.formatted_name

    def calls(self, variant: Variant, most: int) -> list[Call]:
        dtype, function = self.dtype(variant), self.form(variant.form)
        if dtype is None or function is None or self.is_higher_order != (variant.backend is Backend.DYNAMO):
            return []
        torch.manual_seed(SEED)
        random.seed(SEED)
        samples = list(self.info.sample_inputs(TYPE, dtype, requires_grad=self.differentiates(variant, dtype)))
        calls = (operator_call(function, sample, variant) for sample in spread(samples, most))
        return [call for call in calls if call is not None]

    def dtype(self, variant: Variant) -> torch.dtype | None:
        return next((dtype for dtype in variant.dtypes if self.info.supports_dtype(dtype, TYPE)), None)

    def differentiates(self, variant: Variant, dtype: torch.dtype) -> bool:
        if variant.form is Form.OUT or (variant.form is Form.IN_PLACE and not self.info.supports_inplace_autograd):
            return False
        return self.info.supports_autograd and dtype in self.info.supported_backward_dtypes(TYPE)

    def form(self, form: Form) -> Callable | None:
        match form:
            case Form.FUNCTION:
                return self.info.op
            case Form.IN_PLACE:
                return self.info.inplace_variant
            case Form.OUT:
                return self.info.op if self.info.supports_out else None


def operator_call(function: Callable, sample: Any, variant: Variant) -> Call | None:
    """The call of one sample; `None` if the variant equals the plain call or does not exist."""
    tensors, rebuild = flat_tensors((sample.input, sample.args, sample.kwargs))
    call = Call(OperatorFunction(function, rebuild, sample.output_process_fn_grad), tensors)
    match variant.form:
        case Form.FUNCTION:
            return with_first(call, variant.first)
        case Form.IN_PLACE:
            return replace(call, changed=frozenset({0})) if isinstance(sample.input, Tensor) else None
        case Form.OUT:
            return out_call(function, rebuild, tensors)


def with_first(call: Call, first: First) -> Call | None:
    match first:
        case First.PLAIN:
            return call
        case _ if not call.tensors:
            return None
        case First.NON_CONTIGUOUS:
            tensor = call.tensors[0]
            other = noncontiguous_like(tensor) if tensor.layout is torch.strided else tensor
            return replace(call, tensors=(other, *call.tensors[1:]))
        case First.NO_GRAD:
            if not any(tensor.requires_grad for tensor in (*call.tensors[1:], *call.function.state)):
                return None
            return replace(call, tensors=(call.tensors[0].detach(), *call.tensors[1:]))


def out_call(function: Callable, rebuild: Callable, tensors: Sequence[Tensor]) -> Call | None:
    """The out= form; its tensors follow the others, with the sizes of eager's results."""
    tensors = tuple(tensor.detach() for tensor in tensors)
    (first, args, kwargs) = rebuild(tensors)
    results, spec = pytree.tree_flatten(function(first, *args, **kwargs))
    if "out" in kwargs or not results or not all(isinstance(result, Tensor) for result in results):
        return None
    outs = tuple(torch.zeros_like(result) for result in results)
    positions = frozenset(range(len(tensors), len(tensors) + len(outs)))
    return Call(OutFunction(function, rebuild, spec, len(tensors)), (*tensors, *outs), positions)


@dataclass(frozen=True)
class Stateless:
    """A function without tensors of its own."""

    @property
    def state(self) -> list[Tensor]:
        return []

    def fresh(self) -> Function:
        return self  # type: ignore[return-value]


@dataclass(frozen=True)
class OperatorFunction(Stateless):
    """An operator as a function of its tensors only."""

    function: Callable
    rebuild: Callable
    process: Callable

    def __call__(self, *tensors: Tensor) -> Any:
        first, args, kwargs = self.rebuild(tensors)
        return self.process(self.function(first, *args, **kwargs))


@dataclass(frozen=True)
class OutFunction(Stateless):
    """The out= form of an operator, which writes to the tensors from `inputs` on."""

    function: Callable
    rebuild: Callable
    spec: Any
    inputs: int

    def __call__(self, *tensors: Tensor) -> Any:
        first, args, kwargs = self.rebuild(tensors[: self.inputs])
        out = pytree.tree_unflatten(tensors[self.inputs :], self.spec)
        return self.function(first, *args, **kwargs, out=out)


@dataclass(frozen=True)
class Module:
    """An entry of the module database, in training or in evaluation."""

    info: ModuleInfo
    training: bool

    @property
    def name(self) -> str:
        return f"{self.info.name} ({'training' if self.training else 'evaluation'})"

    def calls(self, variant: Variant, most: int) -> list[Call]:
        dtype = next((dtype for dtype in variant.dtypes if dtype in self.info.dtypes), None)
        if dtype is None or variant.form is not Form.FUNCTION or variant.backend is Backend.DYNAMO:
            return []
        torch.manual_seed(SEED)
        make = self.info.module_inputs_func
        samples = make(self.info, device=TYPE, dtype=dtype, requires_grad=True, training=self.training)
        usable = [sample for sample in samples if sample.forward_input is not None]
        calls = (with_first(self.call(sample, dtype), variant.first) for sample in spread(usable, most))
        return [call for call in calls if call is not None]

    def call(self, sample: ModuleInput, dtype: torch.dtype) -> Call:
        module = self.info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        module.to(dtype).train(self.training)
        inputs: Any = sample.forward_input
        tensors, rebuild = flat_tensors((inputs.args, inputs.kwargs))
        return Call(ModuleFunction(module, rebuild), tensors)


@dataclass(frozen=True)
class ModuleFunction:
    """A module as a function of the tensors of its forward."""

    module: nn.Module
    rebuild: Callable

    @property
    def state(self) -> list[Tensor]:
        return [*self.module.parameters(), *self.module.buffers()]

    def fresh(self) -> ModuleFunction:
        return replace(self, module=copy.deepcopy(self.module))

    def __call__(self, *tensors: Tensor) -> Any:
        args, kwargs = self.rebuild(tensors)
        return self.module(*args, **kwargs)


def flat_tensors(nested: Any) -> tuple[tuple[Tensor, ...], Callable]:
    """The tensors in nested arguments, and a function that substitutes others."""
    leaves, spec = pytree.tree_flatten(nested)
    positions = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    return tuple(leaves[k] for k in positions), functools.partial(with_tensors, leaves, spec, positions)


def with_tensors(leaves: Sequence[Any], spec: Any, positions: Sequence[int], tensors: Sequence[Tensor]) -> Any:
    replaced = list(leaves)
    for position, tensor in zip(positions, tensors, strict=True):
        replaced[position] = tensor
    return pytree.tree_unflatten(replaced, spec)


def spread(samples: Sequence[Any], most: int) -> Iterator[Any]:
    """At most `most` of them, evenly spaced, including the first.

    >>> list(spread("abcdefg", 3))
    ['a', 'c', 'e']
    """
    count = min(most, len(samples))
    return (samples[k * len(samples) // count] for k in range(count))


@functools.cache
def find_subjects() -> dict[str, Subject]:
    """Every subject by its name."""
    # The database would seed the generator in random operators, which is no part of the operator.
    setattr(common_methods_invocations, "wrapper_set_seed", lambda op, *args, **kwargs: op(*args, **kwargs))  # noqa: B010
    modules = [Module(info, training) for info in module_db for training in (True, False)]
    operators = map(Operator, common_methods_invocations.op_db)
    higher_order = (Operator(info, is_higher_order=True) for info in hop_db)
    return {subject.name: subject for subject in (*operators, *modules, *higher_order)}
