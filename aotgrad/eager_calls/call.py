"""What an eager call calls, and what it returns.

    call = EagerCall.learn(Invocation(function, "sample", "it is marked", ...), example_inputs)
    call.outputs            the forms of its results: f32[2, 3]

The function runs once on example inputs, forward and backward, to learn the forms of its results and which gradients it has.
Later runs must return the same: anything else is an error.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.eager_calls.forms import DenseForm, FormOfGradient, Structure
from aotgrad.eager_calls.memory import (
    UNCHANGED,
    Alias,
    AliasKind,
    ArgumentBefore,
    ArgumentWrite,
    OutsideMemory,
    find_aliases,
    still_held,
)
from aotgrad.eager_calls.modules import module_copies, modules_among
from aotgrad.eager_calls.tape import Tape
from aotgrad.eager_calls.wrappers import WrapperParts, tensors_in_parts
from aotgrad.errors import CaptureError, EagerCallError

CALLS: weakref.WeakValueDictionary[int, EagerCall] = weakref.WeakValueDictionary()
"""The calls that graphs refer to, by number. A trace keeps its own alive."""

KNOWN: weakref.WeakValueDictionary[tuple, EagerCall] = weakref.WeakValueDictionary()
"""The same calls, by the keys of their invocations and the forms of their inputs: each is learnt once."""

_call_numbers = itertools.count()


@dataclass(frozen=True)
class FinishedRun:
    """What a run did.

    Attributes:
        leaves: its inputs.
        arguments: what the function got for them; now with their new values.
        writes: how each argument was changed.
        new: the tensors with memory of their own that it has made.
        structure: of what the function returned, with one of `aliases` for each tensor.
    """

    leaves: tuple[torch.Tensor, ...]
    arguments: tuple[torch.Tensor, ...]
    writes: tuple[ArgumentWrite, ...]
    new: tuple[torch.Tensor, ...]
    structure: Structure
    aliases: tuple[Alias, ...]

    @classmethod
    def of_new(cls, leaves: tuple[torch.Tensor, ...], results: Any) -> FinishedRun:
        """Of a run that changes nothing and returns new tensors."""
        structure, new = Structure.of(results)
        aliases = (Alias.of(value, len(leaves) + k, value) for k, value in enumerate(new))
        return cls(leaves, leaves, (UNCHANGED,) * len(leaves), tuple(new), structure, tuple(aliases))

    def tape(self, changed: Collection[int], sizes: Sequence[int] = ()) -> Tape:
        """The tape whose results are the new tensors, then the new values of arguments."""
        return Tape(self.leaves, (*self.new, *(self.arguments[k] for k in sorted(changed))), tuple(sizes))


def changed_among(writes: Sequence[ArgumentWrite]) -> tuple[int, ...]:
    """The arguments that are changed."""
    return tuple(k for k, write in enumerate(writes) if write.kind)


@dataclass(frozen=True)
class Invocation:
    """A function and how it is called; its tensors come later.

    Attributes:
        spec, constants: the structure of the arguments, and those that are no tensors, by position.
        positions: where the others are among the distinct tensors of the call, and then the parameters and buffers of the
            modules among the constants.
        needs: which distinct tensors require grad.
        autocast: the state of autocast around the call.
    """

    function: Callable
    name: str
    reason: str
    spec: Any
    constants: tuple[tuple[int, Any], ...]
    positions: tuple[int, ...]
    needs: tuple[bool, ...]
    grad_mode: bool
    autocast: torch_compat.AutocastState

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for calls of one function in one way."""
        constants = tuple((k, constant_identity(value)) for k, value in self.constants)
        return self.function, self.spec, constants, self.positions, self.needs, self.grad_mode, self.autocast

    def users_values(self) -> list[Any]:
        """The function, and its arguments that are no tensors."""
        return [self.function, *(value for _, value in self.constants)]

    def fake_results(self, fake: Callable, inputs: Sequence[torch.Tensor]) -> tuple[Structure, list[Any]] | None:
        """What another function returns for fake inputs in its place, see `Structure.of`; `None` for wrappers."""
        results = replace(self, function=fake)._call(inputs)
        return None if tensors_in_parts(results) else Structure.of(results)

    def run(self, inputs: Sequence[torch.Tensor], copied: Collection[int], looks_closely: bool = False) -> FinishedRun:
        """Run the function in eager.

        Args:
            copied: the arguments that it gets as copies, since it may change them.
            looks_closely: whether it is found out which copies it has changed in a hidden way.

        Raises:
            EagerCallError: it does or returns something that has no place in a graph.
        """
        leaves = [value.detach().requires_grad_(needed) for value, needed in zip(inputs, self.needs, strict=True)]
        with torch_compat.above_autograd(), torch.enable_grad():
            arguments = [own_copy(leaf) if k in copied else leaf for k, leaf in enumerate(leaves)]
        compared = [leaf if looks_closely and k in copied else None for k, leaf in enumerate(leaves)]
        before = list(map(ArgumentBefore.of, arguments, compared))
        with torch_compat.above_autograd(), torch.set_grad_enabled(self.grad_mode), torch_compat.autocast_as(self.autocast):
            structure, values = Structure.of(self._call(arguments))
        self._check(values, leaves)
        writes = tuple(each.write(self.name) for each in before)
        with torch_compat.above_autograd():
            new, aliases = find_aliases(self.name, arguments, values)
        return FinishedRun(tuple(leaves), tuple(arguments), writes, tuple(new), structure, tuple(aliases))

    def _call(self, tensors: Sequence[torch.Tensor]) -> Any:
        constants, given = dict(self.constants), [tensors[k] for k in self.positions]
        count = self.spec.num_leaves - len(constants)
        modules = modules_among(constants.values())
        with module_copies(modules, given[count:], self.name) as copies:
            constants |= {k: copies[value] for k, value in constants.items() if isinstance(value, torch.nn.Module)}
            rest = iter(given[:count])
            leaves = [constants[k] if k in constants else next(rest) for k in range(self.spec.num_leaves)]
            args, kwargs = WrapperParts.assembled(pytree.tree_unflatten(leaves, self.spec))
            return WrapperParts.within(self.function(*args, **kwargs))

    def _check(self, values: Sequence[Any], leaves: Sequence[torch.Tensor]) -> None:
        kinds = [type(value).__name__ for value in values if not isinstance(value, torch.Tensor)]
        if kinds:
            raise EagerCallError(f"{self.name}, which is not traced, returns a {kinds[0]}; let it return tensors only")
        if any(value.layout is not torch.strided for value in values):
            raise EagerCallError(f"{self.name}, which is not traced, returns a sparse tensor; let it return dense tensors")
        if any(leaf.grad is not None for leaf in leaves):
            raise EagerCallError(
                f"{self.name}, which is not traced, calls backward(), and the gradients would be lost; use "
                "torch.autograd.grad in it"
            )


def own_copy(leaf: torch.Tensor) -> torch.Tensor:
    """A copy of an argument that may be changed, with the history of the argument. Nobody may change an expanded tensor."""
    form = DenseForm.of(leaf)
    return leaf if form.is_expanded else form.copy_of(leaf)


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

    def users_values(self) -> list[Any]:
        """See `Invocation`."""
        return self.of.invocation.users_values()

    def run(self, inputs: Sequence[torch.Tensor], copied: Collection[int], looks_closely: bool = False) -> FinishedRun:
        """Compute the gradients of the inputs that get one, with their history. It changes nothing."""
        first = 1 + len(self.of.inputs)
        pairs = zip(inputs[first:], self.needs[first:], strict=True)
        leaves = [value.detach().requires_grad_(needed) for value, needed in pairs]
        rest, tape, wanted = iter(leaves), Tape.of(inputs[0]), self.of.wanted(self.defined)
        given = [next(rest) if defined else None for defined in self.defined]
        found = tape.gradients(given, wanted, create_graph=True)
        with torch_compat.above_autograd(), torch.enable_grad():
            gradients = [self.of.checked_gradient(tape, k, value) for k, value in zip(wanted, found, strict=True)]
        return FinishedRun.of_new((inputs[0], *tape.leaves, *leaves), gradients)


COMPARED_BY_VALUE = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
"""Types of arguments that are compared by value; others are by identity, while the call keeps them alive."""


def constant_identity(value: Any) -> tuple[type, Any]:
    return type(value), repr(value) if type(value) in COMPARED_BY_VALUE else id(value)


@dataclass(frozen=True, eq=False)
class EagerCall:
    """An invocation with what it does.

    Attributes:
        outputs: the forms of the new tensors, then of the new values of changed arguments.
        structure, aliases, writes: see `FinishedRun`.
        differentiable: which outputs have a gradient.
        gradients: for each output, the inputs that get a gradient from it.
        gradients_of_none: the inputs that get one if that of the only differentiable output is undefined.
        kept_inputs, kept_outputs: those that the autograd graph has saved, so that nobody may change them.
        draws: the devices whose default generators the function draws from.
        outside: the memory that it uses besides.
    """

    number: int
    invocation: Invocation | Differentiation
    inputs: tuple[DenseForm, ...]
    outputs: tuple[DenseForm, ...]
    structure: Structure
    aliases: tuple[Alias, ...]
    writes: tuple[ArgumentWrite, ...]
    differentiable: tuple[bool, ...]
    gradients: tuple[frozenset[int], ...]
    gradients_of_none: frozenset[int]
    kept_inputs: tuple[int, ...]
    kept_outputs: tuple[int, ...]
    draws: frozenset[torch.device]
    outside: OutsideMemory

    @classmethod
    def learn(
        cls,
        invocation: Invocation | Differentiation,
        examples: Sequence[torch.Tensor],
        used: Callable[[], OutsideMemory] = OutsideMemory,
    ) -> EagerCall:
        """Run an invocation, forward and backward, on example inputs, to learn what it does.

        Args:
            used: the memory that ops have read and changed until now.

        Raises:
            CaptureError: it cannot be a part of a graph.
        """
        generators = torch_compat.default_generators()
        states = [generator.get_state() for generator in generators]
        try:
            run = invocation.run(examples, range(len(examples)), looks_closely=True)
        except EagerCallError as error:
            raise CaptureError(str(error)) from error
        moved = [not torch.equal(each.get_state(), state) for each, state in zip(generators, states, strict=True)]
        outside, new = used(), tuple(map(torch_compat.memory_reference, run.new))
        changed = changed_among(run.writes)
        tape = run.tape(changed)
        if tape.closes_over_a_leaf():
            raise CaptureError(
                f"{invocation.name}, which is not traced, computes with a tensor that requires grad and is no argument of "
                "it, so it would get no gradient; pass it as an argument"
            )
        kept = set(map(torch_compat.storage_id, tape.saved()))
        call = cls(
            next(_call_numbers),
            invocation,
            tuple(map(DenseForm.of, tape.leaves)),
            tuple(map(DenseForm.of, tape.results)),
            run.structure,
            run.aliases,
            run.writes,
            tuple(value.requires_grad for value in tape.results),
            tuple(tape.inputs_reached(k) for k in range(len(tape.results))),
            tape.inputs_reached_by_none(),
            tuple(k for k in kept_among(run.arguments, kept) if k not in changed),
            kept_among(tape.results, kept),
            frozenset(each.device for each, has_moved in zip(generators, moved, strict=True) if has_moved),
            outside,
        )
        del run, tape
        call = replace(call, outside=replace(outside, kept=still_held(new)))
        CALLS[call.number] = call
        return call

    def sized(
        self, inputs: Sequence[DenseForm], structure: Structure, results: Sequence[DenseForm], numbers: Sequence[int]
    ) -> EagerCall | None:
        """The call with numbers in its forms; `None` if it returns views, or if strides are not those that were learnt.

        Args:
            structure, results: those of what its fake returns.
            numbers: those of the run from which the call is known.

        Raises:
            EagerCallError: its fake returns other sizes or dtypes than the function in that run.
        """
        if any(alias.kind is not AliasKind.ITSELF for alias in self.aliases):
            return None
        if structure != self.structure:
            raise EagerCallError(f"the fake of {self.invocation.name} returns another number or pytree of tensors than it")
        by_root = {alias.root: form for alias, form in zip(self.aliases, results, strict=True)}
        new = [form for root, form in sorted(by_root.items()) if root >= len(self.inputs)]
        outputs = (*new, *(inputs[k] for k in self.changed))
        told = tuple(form.filled(numbers) for form in outputs)
        texts = [", ".join(map(str, forms)) for forms in (told, self.outputs)]
        if texts[0] != texts[1]:
            raise EagerCallError("the fake of {} returns {}, but the function {}".format(self.invocation.name, *texts))
        ran_on = tuple(form.filled(numbers) for form in inputs)
        return self.with_forms(inputs, outputs) if (*ran_on, *told) == (*self.inputs, *self.outputs) else None

    def with_forms(self, inputs: Iterable[DenseForm], outputs: Iterable[DenseForm]) -> EagerCall:
        call = replace(self, number=next(_call_numbers), inputs=tuple(inputs), outputs=tuple(outputs))
        CALLS[call.number] = call
        return call

    @property
    def changed(self) -> tuple[int, ...]:
        """The inputs that are changed."""
        return changed_among(self.writes)

    def new_values(self, outputs: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """The new values of changed inputs among the outputs, by the positions of the inputs."""
        return dict(zip(self.changed, outputs[len(outputs) - len(self.changed) :], strict=True))

    def returned(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Any:
        """What the function returns, made of the inputs after all writes, and of the new tensors."""
        roots = (*inputs, *outputs)
        return self.structure.rebuild([alias.made_of(roots[alias.root]) for alias in self.aliases])

    def touches(self, positions: Collection[int]) -> bool:
        """Whether it changes one of these inputs, or returns memory of one."""
        return not {*self.changed, *(alias.root for alias in self.aliases)}.isdisjoint(positions)

    def wanted(self, defined: Sequence[bool]) -> list[int]:
        """The inputs that get a gradient if these results have one."""
        if not any(defined):
            return sorted(self.gradients_of_none)
        return sorted({k for given, inputs in zip(defined, self.gradients, strict=True) if given for k in inputs})

    def run(self, inputs: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> torch.Tensor:
        """Call the function; returns the tensor that stands for its tape. `sizes`: the numbers of the forms.

        Raises:
            EagerCallError: it does something else than when the function around it was compiled.
        """
        inputs = [form.filled(sizes).laid_out(value) for form, value in zip(self.inputs, inputs, strict=True)]
        run = self.invocation.run(inputs, self.changed)
        if any(found.kind > known.kind for found, known in zip(run.writes, self.writes, strict=True)):
            raise EagerCallError(
                f"{self.invocation.name}, which is not traced, changes an argument in place, but did not do so, or not with "
                "a gradient, when the function around it was compiled"
            )
        tape = run.tape(self.changed, sizes)
        self._check_results(tape, run)
        return tape.as_tensor()

    def _check_results(self, tape: Tape, run: FinishedRun) -> None:
        found = tuple(value.requires_grad for value in tape.results)
        outputs = [form.filled(tape.numbers) for form in self.outputs]
        pairs = itertools.zip_longest(outputs, tape.results)
        fits = all(form and value is not None and form.admits(value) for form, value in pairs)
        if not fits or run.structure != self.structure or found != self.differentiable:
            have, known = (", ".join(map(str, forms)) for forms in (map(DenseForm.of, tape.results), outputs))
            known = f"its fake {known}" if tape.numbers else f"returned {known} when the function around it was compiled"
            raise EagerCallError(
                f"{self.invocation.name}, which is not traced, returns {have}, but {known}; size, dtype and requires_grad "
                "of its results must depend on those of its arguments only"
            )
        if run.aliases != self.aliases:
            raise EagerCallError(
                f"{self.invocation.name}, which is not traced, returns other views, or views of other tensors, than "
                "when the function around it was compiled"
            )

    def results(self, tape: Tape) -> list[torch.Tensor]:
        """The results of a call without their history."""
        pairs = zip(self.outputs, tape.results, strict=True)
        return [form.filled(tape.numbers).laid_out(value.detach()) for form, value in pairs]

    def run_backward(self, tape: Tape, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """The gradients of the `wanted` inputs.

        Raises:
            EagerCallError: one of them is missing or has another form.
        """
        wanted = self.wanted([gradient is not None for gradient in gradients])
        found = tape.gradients(gradients, wanted)
        return [self.checked_gradient(tape, k, value).detach() for k, value in zip(wanted, found, strict=True)]

    def checked_gradient(self, tape: Tape, position: int, value: torch.Tensor | None) -> torch.Tensor:
        """The gradient of an input, laid out as the input where its elements have memory of their own."""
        form = FormOfGradient.of_form(self.inputs[position]).filled(tape.numbers)
        if value is None or not form.admits(value):
            given = "None" if value is None else str(DenseForm.of(value))
            name = self.invocation.name
            raise EagerCallError(f"{name}, which is not traced, returns {given} as the gradient of a {form}")
        return form.laid_out(value)

    def forms_of_gradients(self, defined: Sequence[bool]) -> Iterator[DenseForm]:
        return (FormOfGradient.of_form(self.inputs[k]) for k in self.wanted(defined))


def kept_among(values: Sequence[torch.Tensor], kept: Collection[int]) -> tuple[int, ...]:
    """The positions of the tensors whose storages are kept."""
    return tuple(k for k, value in enumerate(values) if torch_compat.storage_id(value) in kept)
