"""What an eager call calls, and what it returns.

    call = EagerCall.learn(Invocation(function, "sample", "it is marked", ...), example_inputs)
    call.outputs            the forms of its results: f32[2, 3]

The function runs once on example inputs, forward and backward, to learn the forms of its results and which gradients it has.
Later runs must return the same: anything else is an error.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.eager_calls.tape import Tape
from aotgrad.errors import CaptureError, EagerCallError

CALLS: weakref.WeakValueDictionary[int, EagerCall] = weakref.WeakValueDictionary()
"""The calls that graphs refer to, by number. A trace keeps its own alive."""

KNOWN: weakref.WeakValueDictionary[tuple, EagerCall] = weakref.WeakValueDictionary()
"""The same calls, by the keys of their invocations and the forms of their inputs: each is learnt once."""

_call_numbers = itertools.count()


@dataclass(frozen=True)
class DenseForm:
    """What a graph knows of a tensor."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> DenseForm:
        return cls(tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype, tensor.device)

    def empty(self) -> torch.Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)

    def admits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has this form, strides aside."""
        return (tuple(tensor.size()), tensor.dtype, tensor.device) == (self.size, self.dtype, self.device)

    def laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a tensor with the strides of this form."""
        return tensor if tuple(tensor.stride()) == self.stride else self.empty().copy_(tensor)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.size)}".removeprefix("torch.")


@dataclass(frozen=True)
class Structure:
    """The structure of the results of a function: a pytree whose leaves are tensors and `None`."""

    spec: Any
    is_tensor: tuple[bool, ...]

    @classmethod
    def of(cls, results: Any) -> tuple[Structure, list[Any]]:
        """The structure of some results, and the leaves that are not `None`."""
        leaves, spec = pytree.tree_flatten(results)
        given = [leaf for leaf in leaves if leaf is not None]
        return cls(spec, tuple(leaf is not None for leaf in leaves)), given

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> Any:
        rest = iter(tensors)
        return pytree.tree_unflatten([next(rest) if given else None for given in self.is_tensor], self.spec)


@dataclass(frozen=True)
class Invocation:
    """A function and how it is called; its tensors come later.

    Attributes:
        spec, constants: the structure of the arguments, and those that are no tensors, by position.
        state: the names of the parameters and buffers of the modules among the constants, which are tensors, too.
        needs: which tensors require grad.
        autocast: the state of autocast around the call.
    """

    function: Callable
    name: str
    reason: str
    spec: Any
    constants: tuple[tuple[int, Any], ...]
    state: tuple[str, ...]
    needs: tuple[bool, ...]
    grad_mode: bool
    autocast: torch_compat.AutocastState

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for calls of one function in one way."""
        constants = tuple((k, constant_identity(value)) for k, value in self.constants)
        return self.function, self.spec, constants, self.state, self.needs, self.grad_mode, self.autocast

    def run(self, inputs: Sequence[torch.Tensor]) -> tuple[Tape, Structure]:
        """Run the function in eager; returns its results with their history, and their structure.

        Raises:
            EagerCallError: it returns something else than tensors, changes an argument, or returns memory of one.
        """
        leaves = [value.detach().requires_grad_(needed) for value, needed in zip(inputs, self.needs, strict=True)]
        versions = [torch_compat.version_of(leaf) for leaf in leaves]
        with torch_compat.above_autograd(), torch.set_grad_enabled(self.grad_mode), torch_compat.autocast_as(self.autocast):
            structure, values = Structure.of(self._call(leaves))
        if versions != [torch_compat.version_of(leaf) for leaf in leaves]:
            raise EagerCallError(f"{self.name}, which is not traced, changes an argument in place; change a clone() in it")
        self._check(values, leaves)
        return Tape(tuple(leaves), tuple(values)), structure

    def _call(self, tensors: Sequence[torch.Tensor]) -> Any:
        constants, rest = dict(self.constants), iter(tensors)
        leaves = [constants[k] if k in constants else next(rest) for k in range(self.spec.num_leaves)]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        if not self.state:
            return self.function(*args, **kwargs)
        holder = ModuleHolder(self.function, modules_among(constants.values()))
        state = dict(zip(self.state, rest, strict=True))
        return torch.func.functional_call(holder, state, args, kwargs, tie_weights=False)

    def _check(self, values: Sequence[Any], inputs: Sequence[torch.Tensor]) -> None:
        kinds = [type(value).__name__ for value in values if not isinstance(value, torch.Tensor)]
        if kinds:
            raise EagerCallError(f"{self.name}, which is not traced, returns a {kinds[0]}; let it return tensors only")
        if any(value.layout is not torch.strided for value in values):
            raise EagerCallError(f"{self.name}, which is not traced, returns a sparse tensor; let it return dense tensors")
        places = [torch_compat.storage_id(value) for value in (*inputs, *values)]
        if any(place in places[:k] for k, place in enumerate(places[len(inputs) :], len(inputs))):
            raise EagerCallError(
                f"{self.name}, which is not traced, returns an argument, a view of one, or two results in the same memory; "
                "let it return a clone()"
            )


@dataclass(frozen=True)
class Differentiation:
    """The backward of a call, as a function that has a backward itself: of the tape, the inputs and the gradients.

    It reads the tape only, whose leaves are the inputs. `defined`: which results have a gradient.
    """

    of: EagerCall
    defined: tuple[bool, ...]
    needs: tuple[bool, ...]

    @property
    def name(self) -> str:
        return self.of.invocation.name

    @property
    def reason(self) -> str:
        return self.of.invocation.reason

    @property
    def key(self) -> tuple[Any, ...]:
        return self.of.number, self.defined, self.needs

    def run(self, inputs: Sequence[torch.Tensor]) -> tuple[Tape, Structure]:
        """Compute the gradients of the inputs that get one, with their history."""
        first = 1 + len(self.of.inputs)
        pairs = zip(inputs[first:], self.needs[first:], strict=True)
        leaves = [value.detach().requires_grad_(needed) for value, needed in pairs]
        rest, tape, wanted = iter(leaves), Tape.of(inputs[0]), self.of.wanted(self.defined)
        given = [next(rest) if defined else None for defined in self.defined]
        found = tape.gradients(given, wanted, create_graph=True)
        with torch_compat.above_autograd():
            gradients = [self.of.checked_gradient(k, value) for k, value in zip(wanted, found, strict=True)]
        structure, results = Structure.of(gradients)
        return Tape((inputs[0], *tape.leaves, *leaves), tuple(results)), structure


COMPARED_BY_VALUE = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
"""Types of arguments that are compared by value; others are by identity, while the call keeps them alive."""


def constant_identity(value: Any) -> tuple[type, Any]:
    return type(value), repr(value) if type(value) in COMPARED_BY_VALUE else id(value)


class ModuleHolder(torch.nn.Module):
    """Calls a function that uses modules; they are its parts, so that others can stand for their parameters and buffers."""

    def __init__(self, function: Callable, modules: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.function, self.parts = function, torch.nn.ModuleList(modules)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def modules_among(values: Iterable[Any]) -> list[torch.nn.Module]:
    return [value for value in values if isinstance(value, torch.nn.Module)]


def named_state(modules: Sequence[torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters and buffers of modules, by the names that a `ModuleHolder` has for them; each module's once."""
    for path, module in torch.nn.ModuleDict({"parts": torch.nn.ModuleList(modules)}).named_modules():
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        yield from ((f"{path}.{name}", tensor) for name, tensor in tensors)


@dataclass(frozen=True, eq=False)
class EagerCall:
    """An invocation with what it returns.

    Attributes:
        outputs, structure: the forms of the results, and their structure.
        differentiable: which results have a gradient.
        gradients: for each result, the inputs that get a gradient from it.
        kept_inputs, kept_outputs: those that the autograd graph has saved, so that nobody may change them.
    """

    number: int
    invocation: Invocation | Differentiation
    inputs: tuple[DenseForm, ...]
    outputs: tuple[DenseForm, ...]
    structure: Structure
    differentiable: tuple[bool, ...]
    gradients: tuple[frozenset[int], ...]
    kept_inputs: tuple[int, ...]
    kept_outputs: tuple[int, ...]

    @classmethod
    def learn(cls, invocation: Invocation | Differentiation, examples: Sequence[torch.Tensor]) -> EagerCall:
        """Run an invocation, forward and backward, on example inputs, to learn what it returns.

        Raises:
            CaptureError: it cannot be a part of a graph.
        """
        try:
            tape, structure = invocation.run(examples)
        except EagerCallError as error:
            raise CaptureError(str(error)) from error
        if tape.closes_over_a_leaf():
            raise CaptureError(
                f"{invocation.name}, which is not traced, computes with a tensor that requires grad and is no argument of "
                "it, so it would get no gradient; pass it as an argument"
            )
        kept = {torch_compat.storage_id(value) for value in tape.saved()}
        call = cls(
            next(_call_numbers),
            invocation,
            tuple(map(DenseForm.of, tape.leaves)),
            tuple(map(DenseForm.of, tape.results)),
            structure,
            tuple(value.requires_grad for value in tape.results),
            tuple(tape.inputs_reached(k) for k in range(len(tape.results))),
            tuple(k for k, value in enumerate(tape.leaves) if torch_compat.storage_id(value) in kept),
            tuple(k for k, value in enumerate(tape.results) if torch_compat.storage_id(value) in kept),
        )
        CALLS[call.number] = call
        return call

    def wanted(self, defined: Sequence[bool]) -> list[int]:
        """The inputs that get a gradient if these results have one."""
        return sorted({k for given, inputs in zip(defined, self.gradients, strict=True) if given for k in inputs})

    def run(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Call the function; returns the tensor that stands for its tape.

        Raises:
            EagerCallError: the results have other forms than when the function was compiled.
        """
        tape, structure = self.invocation.run(inputs)
        found = tuple(value.requires_grad for value in tape.results)
        pairs = itertools.zip_longest(self.outputs, tape.results)
        fits = all(form and value is not None and form.admits(value) for form, value in pairs)
        if not fits or structure != self.structure or found != self.differentiable:
            have, had = (", ".join(map(str, forms)) for forms in (map(DenseForm.of, tape.results), self.outputs))
            raise EagerCallError(
                f"{self.invocation.name}, which is not traced, returns {have}, but returned {had} when the function around "
                "it was compiled; size, dtype and requires_grad of its results must depend on those of its arguments only"
            )
        return tape.as_tensor()

    def results(self, tape: Tape) -> list[torch.Tensor]:
        """The results of a call without their history."""
        return [form.laid_out(value.detach()) for form, value in zip(self.outputs, tape.results, strict=True)]

    def run_backward(self, tape: Tape, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """The gradients of the `wanted` inputs.

        Raises:
            EagerCallError: one of them is missing or has another form.
        """
        wanted = self.wanted([gradient is not None for gradient in gradients])
        found = tape.gradients(gradients, wanted)
        return [self.checked_gradient(k, value).detach() for k, value in zip(wanted, found, strict=True)]

    def checked_gradient(self, position: int, value: torch.Tensor | None) -> torch.Tensor:
        """The gradient of an input, laid out as the input."""
        form = self.inputs[position]
        if value is None or not form.admits(value):
            given = "None" if value is None else str(DenseForm.of(value))
            name = self.invocation.name
            raise EagerCallError(f"{name}, which is not traced, returns {given} as the gradient of a {form}")
        return form.laid_out(value)

    def forms_of_gradients(self, defined: Sequence[bool]) -> Iterator[DenseForm]:
        return (self.inputs[k] for k in self.wanted(defined))
