"""The function that is traced: one step of training, as a function of its state.

In: traced values of the state, and the user's arguments. Out: a `Results` dictionary: what the user's function returns,
and what the state holds afterwards that it did not hold before. Changes in place are changes of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import torch
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.plan_cache.assigned_state import ModuleContents
from aotgrad.plan_cache.outside_values import watched_values
from aotgrad.subclasses.forms import form_of, is_wrapper, parts_of
from aotgrad.training_step.optimizer_calls import recorded_calls, separate_fused_updates
from aotgrad.training_step.refusals import (
    RefusedHooks,
    refused_calls,
    reject_assigned,
    reject_gradients,
    reject_history,
    reject_pending,
    reject_removed,
    reject_sparse,
)
from aotgrad.training_step.scaler_state import OF_ONE_UPDATE
from aotgrad.training_step.state import Snapshot, State, gradients_of
from aotgrad.training_step.swap import restored_objects, swapped


class Results(TypedDict):
    """What a step returns.

    Attributes:
        returned: the result of the user's function.
        gradients: the new `.grad` of tensors, by place.
        entries: the new entries of optimizers' states, by optimizer, place of the parameter, and name.
        attributes: the new attributes of optimizers and scalers, by object and name.
        assigned: what was assigned to buffers and attributes of modules, by module and name.
    """

    returned: Any
    gradients: Mapping[int, torch.Tensor | None]
    entries: Mapping[tuple[int, int, Hashable], Any]
    attributes: Mapping[tuple[int, str], Any]
    assigned: Mapping[tuple[int, str], Any]


@dataclass(frozen=True)
class RanEagerly:
    """What the user's function returned where it ran itself, with all its effects."""

    returned: Any


@dataclass(frozen=True)
class TracedStep:
    """Calls the user's function with traced values in place of the state.

    Attributes:
        function: the user's.
        state: the objects that it may change.
        grad_mode: the mode of the call.
        keep_gradients: whether gradients stay after the step.
        fuses: whether the backend fuses ops.
        new_entries: of optimizers' states, noted while the function is traced.
    """

    function: Callable
    state: State
    grad_mode: bool
    keep_gradients: bool
    fuses: bool
    new_entries: set[Hashable] = field(default_factory=set, compare=False)

    def creates_state(self) -> bool:
        """Whether the traced step is one that an optimizer takes once: it makes entries of its state."""
        return bool(self.new_entries)

    def __call__(
        self,
        tensors: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        numbers: torch.Tensor,
        args: tuple,
        kwargs: dict[str, Any],
    ) -> Results:
        found = self.state.read()
        pairs = Pairs.of(found, tensors, gradients)
        reject_pending(self.state.scalers)
        contents = [ModuleContents.of(lifted.module, lifted.names) for lifted in self.state.modules]
        with (
            restored_objects(self.state.optimizers, self.state.scalers, contents),
            torch_compat.default_foreach(pairs.real),
            swapped(pairs.real, pairs.leaves),
        ):
            give_gradients(found)
            found.numbers.put([number.item() for number in numbers.unbind()])
            if self.fuses and not any(scaler.is_enabled() for scaler in self.state.scalers):
                separate_fused_updates(self.state.optimizers)
            before = PythonSide.of(self.state, found)
            with RefusedHooks(pairs.real):
                returned = self.run(*pairs.inside((args, kwargs)))
            reject_pending(self.state.scalers)
            reject_gradients(torch_compat.closed_over_in_trace(), (args, kwargs), self.function)
            after = PythonSide.of(self.state, found)
            self.new_entries.update(after.entries.keys() - before.entries.keys())
            changes = after.since(before)
            assigned = {(k, name): value for k, each in enumerate(contents) for name, value in each.assigned().items()}
            reject_history(assigned, pairs.real)
            results = pairs.outside(Results(returned=returned, assigned=assigned, **self.checked(changes)), (args, kwargs))
        for k, lifted in enumerate(self.state.modules):
            lifted.note_assigned([name for number, name in assigned if number == k])
        pairs.count_versions()
        return results

    def run(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call the function. Raises CaptureError for what a plan would not repeat."""
        state = self.state
        with (
            refused_calls(state.optimizers, state.scalers, self.function),
            recorded_calls(state.optimizers),
            watched_values(self.function, state.objects),
            torch.set_grad_enabled(self.grad_mode),
        ):
            return self.function(*args, **kwargs)

    def checked(self, changes: dict[str, dict]) -> dict[str, dict]:
        """Changes of the Python side, after a check; without gradients that are not kept."""
        reject_assigned(changes.pop("hyperparameters"))
        gradients = changes["gradients"]
        reject_sparse(gradients.values())
        return changes if self.keep_gradients else {**changes, "gradients": dict.fromkeys(gradients)}

    def run_eagerly(self, *args: Any, **kwargs: Any) -> RanEagerly:
        """Run the user's function in place of a plan."""
        with torch.set_grad_enabled(self.grad_mode):
            returned = self.function(*args, **kwargs)
        for tensor in () if self.keep_gradients else self.state.read().tensors:
            tensor.grad = None
        return RanEagerly(returned)

    def key_of(self, found: Snapshot) -> Hashable:
        """What a plan depends on besides its arguments and guards."""
        return (("grad mode", self.grad_mode), ("gradients that are there", found.has_gradient), found.key)


def give_gradients(found: Snapshot) -> None:
    """Let the leaves of the trace have the traced gradients."""
    for tensor, gradient in zip(found.tensors, found.gradients, strict=True):
        if gradient is not None:
            tensor.grad = gradient


@dataclass(frozen=True)
class PythonSide:
    """The Python side of the state: which objects are where."""

    gradients: dict[int, Any]
    entries: dict[tuple[int, int, Hashable], Any]
    attributes: dict[tuple[int, str], Any]
    hyperparameters: dict[tuple[int, int, str], Any]

    @classmethod
    def of(cls, state: State, found: Snapshot) -> PythonSide:
        places = {id(tensor): place for place, tensor in enumerate(found.tensors)}
        entries, attributes, hyperparameters = {}, {}, {}
        for k, owner in enumerate(state.with_attributes):
            attributes |= {(k, name): value for name, value in vars(owner).items() if name != OF_ONE_UPDATE}
        for k, optimizer in enumerate(state.optimizers):
            for parameter, values in optimizer.state.items():
                entries |= {(k, places[id(parameter)], name): value for name, value in values.items()}
            for number, group in enumerate(optimizer.param_groups):
                hyperparameters |= {(k, number, name): value for name, value in group.items()}
        gradients = dict(enumerate(gradients_of(found.tensors)))
        return cls(gradients, entries, attributes, hyperparameters)

    def since(self, before: PythonSide) -> dict[str, dict]:
        """What has become another object. Raises CaptureError if an entry of an optimizer's state is gone."""
        reject_removed(before.entries.keys() - self.entries.keys())
        return {
            name: {place: value for place, value in now.items() if value is not vars(before)[name].get(place, before)}
            for name, now in vars(self).items()
        }


def leaf_of(argument: torch.Tensor) -> torch.Tensor:
    """A leaf of the same value; of a wrapper, one around leaves of its parts."""
    if not is_wrapper(argument):
        return torch_compat.same_functional(argument)
    form = form_of(argument)
    with torch.no_grad():
        return form.assemble([torch_compat.same_functional(part) for part in parts_of(form, argument)])


@dataclass(frozen=True)
class Pairs:
    """The tensors of the state, with the arguments of the trace that stand for them, and leaves of the same value.

    A leaf has no history and shows no hook or gradient to the trace, which is about the tensors' values only.
    """

    real: Sequence[torch.Tensor]
    arguments: Sequence[torch.Tensor]
    leaves: Sequence[torch.Tensor]

    @classmethod
    def of(cls, found: Snapshot, tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> Pairs:
        real = [tensor for tensor in (*found.tensors, *found.gradients) if tensor is not None]
        arguments = [tensor for tensor in (*tensors, *gradients) if tensor is not None]
        with torch_compat.unobserved():
            leaves = [leaf_of(argument) for argument in arguments]
        for tensor, leaf in zip(real, leaves, strict=True):
            leaf.requires_grad_(tensor.requires_grad)
        return cls(real, arguments, leaves)

    def inside(self, given: Any) -> Any:
        """The user's arguments; one that belongs to the state is the object of the state."""
        real = {id(argument): tensor for tensor, argument in zip(self.real, self.arguments, strict=True)}
        return pytree.tree_map_only(torch.Tensor, lambda value: real.get(id(value), value), given)

    def outside(self, results: Any, given: Any) -> Any:
        """Results of the trace: arguments as they are, and other tensors without a history."""
        kept = {id(tensor): argument for tensor, argument in zip(self.real, self.arguments, strict=True)}
        kept = {**{id(value): value for value in pytree.tree_leaves(given)}, **kept}
        return pytree.tree_map_only(
            torch.Tensor, lambda value: kept[id(value)] if id(value) in kept else value.detach(), results
        )

    def count_versions(self) -> None:
        """Let the arguments have the versions of their leaves."""
        with torch_compat.unobserved():
            for argument, leaf in zip(self.arguments, self.leaves, strict=True):
                torch_compat.raise_version(argument, argument._version, leaf._version)
