"""The callables: every entry of torch's databases, with its sample inputs.

subject = find_subjects("cpu")["add"]
call = subject.calls(OF_BACKENDS["float32"], most=2)[0]
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
from torch.utils import _pytree as pytree

from aotgrad import torch_compat
from aotgrad.conformance.variants import CallVariant, Compilation, First, OperatorForm

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
class SampleCall:
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

    def calls(self, variant: CallVariant, most: int) -> list[SampleCall]:
        """At most `most` sample calls, spread evenly; none if the variant does not apply."""
        ...


@dataclass(frozen=True)
class Operator:
    """An entry of the database of operators or of higher-order operators."""

    info: Any
    device: str
    is_higher_order: bool = False

    @property
    def name(self) -> str:
        return self.info.formatted_name

    def calls(self, variant: CallVariant, most: int) -> list[SampleCall]:
        dtype, function = self.dtype(variant), self.form(variant.form)
        if dtype is None or function is None or self.is_higher_order != (variant.compilation is Compilation.DYNAMO):
            return []
        torch.manual_seed(SEED)
        random.seed(SEED)
        samples = list(self.info.sample_inputs(self.device, dtype, requires_grad=self.differentiates(variant, dtype)))
        calls = (operator_call(function, sample, variant) for sample in spread(samples, most))
        return [call for call in calls if call is not None]

    def dtype(self, variant: CallVariant) -> torch.dtype | None:
        return next((dtype for dtype in variant.dtypes if self.info.supports_dtype(dtype, self.device)), None)

    def differentiates(self, variant: CallVariant, dtype: torch.dtype) -> bool:
        if variant.form is OperatorForm.OUT or (
            variant.form is OperatorForm.IN_PLACE and not self.info.supports_inplace_autograd
        ):
            return False
        return self.info.supports_autograd and dtype in self.info.supported_backward_dtypes(self.device)

    def form(self, form: OperatorForm) -> Callable | None:
        match form:
            case OperatorForm.FUNCTION:
                return self.info.op
            case OperatorForm.IN_PLACE:
                return self.info.inplace_variant
            case OperatorForm.OUT:
                return self.info.op if self.info.supports_out else None


def operator_call(function: Callable, sample: Any, variant: CallVariant) -> SampleCall | None:
    """The call of one sample; `None` if the variant equals the plain call or does not exist."""
    tensors, rebuild = flat_tensors((sample.input, sample.args, sample.kwargs))
    call = SampleCall(OperatorFunction(function, rebuild, sample.output_process_fn_grad), tensors)
    match variant.form:
        case OperatorForm.FUNCTION:
            return with_first(call, variant.first)
        case OperatorForm.IN_PLACE:
            return replace(call, changed=frozenset({0})) if isinstance(sample.input, Tensor) else None
        case OperatorForm.OUT:
            return out_call(function, rebuild, tensors)


def with_first(call: SampleCall, first: First) -> SampleCall | None:
    match first:
        case First.PLAIN:
            return call
        case _ if not call.tensors:
            return None
        case First.NON_CONTIGUOUS:
            tensor = call.tensors[0]
            other = torch_compat.noncontiguous_like(tensor) if tensor.layout is torch.strided else tensor
            return replace(call, tensors=(other, *call.tensors[1:]))
        case First.NO_GRAD:
            if not any(tensor.requires_grad for tensor in (*call.tensors[1:], *call.function.state)):
                return None
            return replace(call, tensors=(call.tensors[0].detach(), *call.tensors[1:]))


def out_call(function: Callable, rebuild: Callable, tensors: Sequence[Tensor]) -> SampleCall | None:
    """The out= form; its tensors follow the others, with the sizes of eager's results."""
    tensors = tuple(tensor.detach() for tensor in tensors)
    (first, args, kwargs) = rebuild(tensors)
    results, spec = pytree.tree_flatten(function(first, *args, **kwargs))
    if "out" in kwargs or not results or not all(isinstance(result, Tensor) for result in results):
        return None
    outs = tuple(torch.zeros_like(result) for result in results)
    positions = frozenset(range(len(tensors), len(tensors) + len(outs)))
    return SampleCall(OutFunction(function, rebuild, spec, len(tensors)), (*tensors, *outs), positions)


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

    info: Any
    device: str
    training: bool

    @property
    def name(self) -> str:
        return f"{self.info.name} ({'training' if self.training else 'evaluation'})"

    def calls(self, variant: CallVariant, most: int) -> list[SampleCall]:
        dtype = next((dtype for dtype in variant.dtypes if dtype in self.info.dtypes), None)
        if dtype is None or variant.form is not OperatorForm.FUNCTION or variant.compilation is Compilation.DYNAMO:
            return []
        torch.manual_seed(SEED)
        make = self.info.module_inputs_func
        samples = make(self.info, device=self.device, dtype=dtype, requires_grad=True, training=self.training)
        usable = [sample for sample in samples if sample.forward_input is not None]
        calls = (with_first(self.call(sample, dtype), variant.first) for sample in spread(usable, most))
        return [call for call in calls if call is not None]

    def call(self, sample: Any, dtype: torch.dtype) -> SampleCall:
        module = self.info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        module.to(self.device, dtype).train(self.training)
        inputs: Any = sample.forward_input
        tensors, rebuild = flat_tensors((inputs.args, inputs.kwargs))
        return SampleCall(ModuleFunction(module, rebuild), tensors)


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
def find_subjects(device: str) -> dict[str, Subject]:
    """Every subject of torch's databases by its name."""
    modules = [Module(info, device, training) for info in torch_compat.module_database() for training in (True, False)]
    operators = [Operator(info, device) for info in torch_compat.operator_database()]
    higher_order = [Operator(info, device, is_higher_order=True) for info in torch_compat.higher_order_database()]
    return {subject.name: subject for subject in (*operators, *modules, *higher_order)}
