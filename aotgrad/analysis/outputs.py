"""Classifies the outputs: fresh, an input, a view of an input, a view of something that is not returned, ...

In: a `Capture` and the `InputAliasInfo`s. Out: one `OutputAliasInfo` per flat output, and the intermediate bases that the
graph must return, so that views share memory as in eager.

    def f(x): y = x * 2; return y[0], y[1]      two AliasOfIntermediate(base=0), one BaseInfo
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx as fx

from aotgrad import ir, torch_compat
from aotgrad.analysis.history import (
    is_custom_function_view,
    is_inside_nested_tensor,
    reject_forbidden_view,
    stops_before,
    view_history,
)
from aotgrad.analysis.storage import first_positions, group_by_key
from aotgrad.analysis.views import (
    DATA_STEP,
    DETACH_STEP,
    chain_from,
    detaches,
    replay_by_geometry,
    replay_of_chain,
    with_own_version,
    without_detaches,
    without_prefix,
)
from aotgrad.errors import UnsupportedAliasingError, UnsupportedOutputError, add_note
from aotgrad.graph.geometry import Geometry
from aotgrad.subclasses.passages import TracedView

CONSTANTS = (
    *(torch.Size, type(None), bool, int, float, complex, str, bytes, enum.Enum, range, slice, type(Ellipsis)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def new_leaves(capture: ir.Capture) -> frozenset[int]:
    """The outputs that are new leaves and require grad.

    Raises:
        UnsupportedOutputError: one is an `nn.Parameter`.
    """
    arguments = set(map(id, capture.arguments))
    outputs = enumerate(capture.outputs[: capture.returned])
    tensors = ((k, value) for k, value in outputs if torch_compat.is_functional(value) and id(value) not in arguments)
    found = {k: value for k, value in tensors if is_new_leaf(value)}
    if any(torch_compat.is_parameter(value) for value in found.values()):
        raise UnsupportedOutputError(
            "the function makes an nn.Parameter and returns it; return the tensor after requires_grad_(), or make the "
            "parameter of it outside of the compiled function"
        )
    return frozenset(found)


def analyze_outputs(
    capture: ir.Capture, inputs: Sequence[ir.InputAliasInfo | None], is_derivative: bool = False
) -> tuple[tuple[ir.OutputAliasInfo, ...], tuple[ir.BaseInfo, ...]]:
    """Classify every flat output.

    Args:
        is_derivative: the outputs are gradients. An output that shares its memory with no other output is then not a view,
            as in a first backward. A view of a hidden tensor would cost an op and an autograd node.

    Raises:
        UnsupportedOutputError: an output is an object that no call can recreate.
        UnsupportedAliasingError: no view op and no geometry describes an alias.
    """
    try:
        return _Outputs(capture, inputs, is_derivative).classify()
    except UnsupportedAliasingError as error:
        if capture.returned < len(capture.outputs):
            add_note(error, f"output {capture.returned} and later are views of inputs, used after a write, and not returned")
        raise


class _Outputs:
    """The outputs of one capture, classified group by group."""

    def __init__(self, capture: ir.Capture, inputs: Sequence[ir.InputAliasInfo | None], is_derivative: bool) -> None:
        self.capture = capture
        self.inputs = inputs
        self.is_derivative = is_derivative
        self.infos: dict[int, ir.OutputAliasInfo] = {}
        self.bases: list[ir.BaseInfo] = []

    def classify(self) -> tuple[tuple[ir.OutputAliasInfo, ...], tuple[ir.BaseInfo, ...]]:
        for position, value in enumerate(self.capture.outputs):
            reject_forbidden_view(position, value)
        owners = self.owners()
        fresh: dict[int, int] = {}
        first_of = first_positions([id(value) for value in self.capture.outputs])
        assigned = {id(self.capture.arguments[k]): k for k in self.capture.assigned}
        for position, value in enumerate(self.capture.outputs):
            if not torch_compat.any_functional([value]):
                self.infos[position] = describe_value(position, value)
            elif (first := first_of[id(value)]) != position:
                self.infos[position] = ir.IsOutput(first)
            elif id(value) in assigned:
                self.infos[position] = ir.IsInput(assigned[id(value)])
            elif found := owners.get(_storage_or_none(value)):
                self.infos[position] = self.alias_of_input(position, value, found)
            else:
                fresh[position] = _storage_or_none(value) or id(value)
        for group in group_by_key(fresh):
            self.classify_group(group)
        self.reject_counters_of_their_own()
        for position in self.infos:
            self.reject_hook_on_the_way(position)
        return tuple(self.infos[position] for position in range(len(self.capture.outputs))), tuple(self.bases)

    def info(self, owner: int) -> ir.InputAliasInfo:
        """The `InputAliasInfo` of a tensor argument."""
        info = self.inputs[owner]
        assert info is not None, f"input {owner} is a number"
        return info

    # -- outputs that share memory with an input

    def owners(self) -> dict[int | None, tuple[int, ...]]:
        """The arguments in each storage."""
        order = (k for k in sorted(self.capture.convention.order) if k not in self.capture.assigned)
        storages = {k: _storage_or_none(self.capture.arguments[k]) for k in order}
        groups = group_by_key({k: storage for k, storage in storages.items() if storage is not None})
        return {storages[group[0]]: group for group in groups}

    def alias_of_input(self, position: int, value: torch.Tensor, owners: Sequence[int]) -> ir.OutputAliasInfo:
        same = [k for k in owners if self.capture.arguments[k] is value]
        if same:
            return ir.IsInput(same[0])
        owner, steps = self.nearest(value, owners)
        argument = self.capture.arguments[owner]
        if is_custom_function_view(value, stops=self.histories(argument)):
            return ir.CustomFunctionView(
                value.requires_grad, owner, None if steps is None else replay_of_chain(steps, False)
            )
        root, _ = chain_from(self.capture.trace.node_of(argument))
        if (parent := self.view_of_output(position, value, root)) is not None:
            return parent
        self.reject_view_of_a_reshaped_output(position, value)
        if not steps:  # laid out as the input is now: made before the input's size or stride changed
            return self.alias_before_metadata(position, value, owners)
        is_older = position in self.capture.older_views and self.info(owner).mutation is not ir.MutationType.METADATA_ONLY
        made = ir.Made.BEFORE_WRITES if is_older else ir.Made.AFTER_CHANGES
        return ir.AliasOfInput(owner, self.replay(position, value, argument, steps), made)

    def histories(self, argument: torch.Tensor) -> set[Any]:
        """Where histories of inputs begin: of `argument` now, and of all inputs before the call."""
        return {argument.grad_fn, *(state.grad_fn for state in self.capture.before if state is not None)}

    def nearest(self, value: torch.Tensor, owners: Sequence[int]) -> tuple[int, tuple[ir.ViewStep, ...] | None]:
        """The argument whose current value a view was recorded from, and the steps; else one with the same memory."""
        node_of = self.capture.trace.node_of
        for owner in owners:
            current = node_of(self.capture.arguments[owner])
            root, steps = chain_from(node_of(value), stops={current})
            if root is current:
                return owner, steps
        found = None
        for owner in owners:
            root, moved = chain_from(node_of(self.capture.arguments[owner]))
            steps = without_prefix(self.steps_from(root, value), moved)
            if steps:
                return owner, steps
            if steps is not None:  # laid out as this argument, but another tensor
                found = found or (owner, steps)
        return found or (owners[0], None)

    def alias_before_metadata(self, position: int, value: torch.Tensor, owners: Sequence[int]) -> ir.AliasOfInput:
        """A view of an input, made before the input's size or stride changed."""
        for owner in owners:
            argument = self.capture.arguments[owner]
            root = self.capture.placeholder_of(owner)  # not the current value, which may have another dtype or size
            made_for = self.capture.views_made_for(owner)
            steps = without_prefix(self.steps_from(root, value), self.steps_from(root, argument)[:made_for])
            if steps is not None:
                reject_order_of_changes(position, steps, value, self.info(owner))
                return ir.AliasOfInput(owner, self.replay(position, value, argument, steps), ir.Made.BEFORE_METADATA)
        raise UnsupportedAliasingError(
            f"output {position} shares memory with input {self.capture.convention.argument_of(owners[0])} in a way that no "
            "recorded view explains; return a clone() of it"
        )

    def steps_from(self, root: fx.Node, value: torch.Tensor) -> tuple[ir.ViewStep, ...]:
        """The views from a storage's current value to `value`: recorded in the graph, or replayed."""
        found, steps = chain_from(self.capture.trace.node_of(value), stops={root})
        if found is not root:
            found, steps = chain_from(self.capture.trace.replay_views(value, root), stops={root})
        return steps

    def view_of_output(self, position: int, value: torch.Tensor, root: fx.Node) -> ir.AliasOfOutput | None:
        """The alias of another output, if one lies between `value` and its base and is an alias, too; else `None`."""
        parent = self.parent_of(position, value)
        if parent is None:
            return None
        live = self.capture.outputs[parent]
        rest = without_prefix(self.steps_from(root, value), self.steps_from(root, live))
        return None if not rest else ir.AliasOfOutput(parent, self.replay(position, value, live, rest))

    def reject_view_of_a_reshaped_output(self, position: int, value: torch.Tensor) -> None:
        """Raise for a view of an output whose geometry changed after the view was made.

        Raises:
            UnsupportedAliasingError: names both outputs.
        """
        parent = self.parent_of(position, value)
        if parent is not None and value._base is self.capture.outputs[parent]:
            raise UnsupportedAliasingError(
                f"output {position} is a view of output {parent}, whose size or stride was changed in place (t_, "
                "unsqueeze_, ...) after the view was made; make the view after that change, or use t(), ... instead"
            )

    def parent_of(self, position: int, value: torch.Tensor) -> int | None:
        """The nearest other output that `value` is a view of, by its history, or else by its `_base`."""
        storage = _storage_or_none(value)
        others = {
            k: other
            for k, other in enumerate(self.capture.outputs)
            if isinstance(other, torch.Tensor)
            and other is not value
            and _storage_or_none(other) == storage  # results of one op have one history
            and all(other is not argument for argument in self.capture.arguments)
        }
        made = {other.grad_fn: k for k, other in reversed(others.items()) if other.grad_fn is not None}
        for node in view_history(value):
            if node in made:
                return made[node]
        return next((k for k, other in others.items() if value._base is other), None)

    # -- outputs that share memory with each other

    def classify_group(self, group: tuple[int, ...]) -> None:
        if len(group) == 1 and not says_it_is_a_view(self.capture.outputs[group[0]]):
            self.infos[group[0]] = self.single(group[0])
            return
        members = []
        for position in group:
            value = self.capture.outputs[position]
            base = value if value._base is None else value._base
            if is_custom_function_view(value, stops={base.grad_fn}):
                self.infos[position] = ir.CustomFunctionView(value.requires_grad, None, None)
            elif is_view_of_a_wrapper(value) or (self.is_derivative and len(group) == 1 and may_be_fresh(value)):
                self.infos[position] = self.single(position)
            else:
                members.append(position)
        if members:
            self.classify_views(members)

    def single(self, position: int) -> ir.OutputAliasInfo:
        value = self.capture.outputs[position]
        if value.layout is not torch.strided and value.requires_grad:
            raise UnsupportedOutputError(
                f"an output that requires grad has the layout {value.layout}; return a dense tensor, or detach() it"
            )
        root, steps = chain_from(self.capture.trace.node_of(value))
        if root.meta["val"].layout is not torch.strided and steps:
            self.reject_alias_of_a_sparse_tensor(position, root)
        has_history = value.requires_grad and not is_new_leaf(value)
        return ir.UnsafeViewAlias(has_history) if steps else ir.NonAlias(has_history)

    def reject_alias_of_a_sparse_tensor(self, position: int, root: fx.Node) -> None:
        """Raise for values, indices, ... of a sparse tensor that the caller also has.

        Raises:
            UnsupportedAliasingError: names the output.
        """
        returned = [self.capture.trace.node_of(v) for v in self.capture.outputs if torch_compat.any_functional([v])]
        if root.op == "placeholder" or root in returned:
            raise UnsupportedAliasingError(
                f"output {position} shares memory with a sparse tensor that is an input or is returned too; return a clone()"
            )

    def classify_views(self, members: Sequence[int]) -> None:
        """Classify views of one base: one of the outputs if it is the base of the others, or else an extra result."""
        base, root = self.find_base([self.capture.outputs[position] for position in members])
        own_base = next((p for p in members if self.capture.outputs[p] is base), None)
        if own_base is not None:
            self.infos[own_base] = ir.NonAlias(self.capture.outputs[own_base].grad_fn is not None)
        else:
            self.bases.append(ir.BaseInfo(base is not None and base.requires_grad, root, base))
        counted = self.most_shared_counter(members) if base is None else base
        for position in members:
            if position != own_base:
                live = root.meta["val"] if base is None else base
                self.infos[position] = self.view_of(position, live, own_base, root, counted)

    def find_base(self, values: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, fx.Node]:
        """The tensor that `values` are views of, and its node: the first made, and one that autograd tracks if possible.

        If every value is detached from the others, there is no live tensor, and only the node is known.
        """
        candidates = [value if value._base is None else value._base for value in values]
        if all(base is candidates[0] for base in candidates):
            return candidates[0], self.capture.trace.node_of(candidates[0])
        roots = [(base, *chain_from(self.capture.trace.node_of(base))) for base in candidates]
        tracked = [(base, steps) for base, _, steps in roots if base.requires_grad]
        attached = tracked or [(base, steps) for base, _, steps in roots if not detaches(steps)]
        if not attached:
            return None, roots[0][1]
        base, _ = min(attached, key=lambda pair: len(pair[1]))
        return base, self.capture.trace.node_of(base)

    def most_shared_counter(self, members: Sequence[int]) -> torch.Tensor:
        """An output that shares its version counter with most of the others, as the unknown base does."""
        values = [self.capture.outputs[position] for position in members]
        return max(values, key=lambda value: sum(shares_version(value, other) for other in values))

    def reject_counters_of_their_own(self) -> None:
        """Raise for outputs that share a version counter with each other, but not with their base.

        Raises:
            UnsupportedAliasingError: names the outputs.
        """
        own = [k for k, info in self.infos.items() if not isinstance(info, ir.AliasOfOutput) and counts_alone(info)]
        for one, other in itertools.combinations(own, 2):
            if shares_version(self.capture.outputs[one], self.capture.outputs[other]):
                raise UnsupportedAliasingError(
                    f"outputs {one} and {other} are views of one `.data` alias that is not returned; return that too, use "
                    "detach() in its place, or return clones"
                )

    def reject_hook_on_the_way(self, position: int) -> None:
        """Raise for a view whose replay skips a view that the function hooks.

        Raises:
            UnsupportedAliasingError: names the output.
        """
        value, info = self.capture.outputs[position], self.infos[position]
        if not self.capture.hooked_nodes or not isinstance(info, ir.REPLAYED_VIEWS):
            return
        parent = self.capture.outputs[info.output] if isinstance(info, ir.AliasOfOutput) else value._base
        stops = {None if parent is None else parent.grad_fn, *self.histories(value)}
        between = itertools.takewhile(lambda node: node not in stops, view_history(value))
        if self.capture.hooked_nodes.intersection(between):
            raise UnsupportedAliasingError(
                f"output {position} is a view of a view that the function hooks and does not return; return that one, too, "
                "or register the hook outside of the compiled function"
            )

    def view_of(
        self, position: int, base: torch.Tensor, output: int | None, root: fx.Node, counted: torch.Tensor
    ) -> ir.OutputAliasInfo:
        value = self.capture.outputs[position]
        storage, own = chain_from(root)
        parent = self.view_of_output(position, value, storage)
        if parent is not None and parent.output != output:
            return parent
        steps = without_prefix(self.steps_from(storage, value), own)
        replay = (
            self.replay_strided(position, value, base, Geometry.of(value))
            if steps is None or (output is not None and not steps)  # the output has the geometry that its base got later
            else self.replay(position, value, base, steps, counted)
        )
        if output is None:
            return ir.AliasOfIntermediate(len(self.bases) - 1, replay)
        return ir.AliasOfIntermediateBaseIsUserOutput(output, replay)

    # -- replays

    def replay(
        self,
        position: int,
        value: torch.Tensor,
        base: torch.Tensor,
        steps: tuple[ir.ViewStep, ...],
        counted: torch.Tensor | None = None,
    ) -> ir.ViewReplay:
        """The recorded chain. Autograd says whether it detaches, since some traces record `detach` as `alias`.

        An alias by `.data` has another version counter than `counted`, which is the base or shares its counter.
        """
        if value._base is base and value.requires_grad and value.grad_fn is not None:
            steps = without_detaches(steps)
        detached = base.requires_grad and (not value.requires_grad or is_new_leaf(value))
        if detached and not detaches(steps):
            steps = (DETACH_STEP, *steps)
        if not shares_version(value, base if counted is None else counted):
            steps = with_own_version(steps, value._base is not None)
        elif is_reshaped_alias(value, steps):
            steps = (*steps, DETACH_STEP)
        return replay_of_chain(steps, self.grad_mode_for(position, value, base, detached or detaches(steps)))

    def replay_strided(self, position: int, value: torch.Tensor, base: torch.Tensor, geometry: Geometry) -> ir.ViewReplay:
        if (value.dtype, value.is_conj(), value.is_neg()) != (base.dtype, base.is_conj(), base.is_neg()):
            raise UnsupportedAliasingError(
                f"output {position} shares memory with a tensor of another dtype ({value.dtype} and {base.dtype}), or one "
                "that is conjugated or negated, in a way that no recorded view explains; return a clone() of it"
            )
        of_another = value._base is not None and value._base is not base
        detached = (base.requires_grad and not value.requires_grad) or (of_another and not base.requires_grad)
        grad_mode = self.grad_mode_for(position, value, base, detached)
        is_alias = value._base is None and not value.requires_grad
        reason = "its recorded chain does not start at the base's current value"
        return replay_by_geometry(geometry, detached, is_alias, grad_mode, reason)

    def grad_mode_for(self, position: int, value: torch.Tensor, base: torch.Tensor, detached: bool) -> bool | None:
        """The grad mode that gives the replayed view the same history; `None` if the caller's own mode does.

        A view made under `no_grad` has no `grad_fn`, although torch reports its base's `requires_grad` for it.
        """
        may_require_grad = base.requires_grad and not detached
        if value.requires_grad and not may_require_grad and not is_new_leaf(value):
            raise UnsupportedAliasingError(
                f"output {position} requires grad, but shares memory with a tensor that does not (a view of a detached "
                "alias on which requires_grad_() was called?); return that alias, too, or a clone() of the view"
            )
        if stops_before(value, base):
            raise UnsupportedAliasingError(
                f"output {position} is a view of a view that was made under no_grad, which stops its gradient; make both "
                "views in the same grad mode, or return a clone() of it"
            )
        natural = self.capture.grad_mode_before
        if not may_require_grad:
            # Autograd forbids a view made under no_grad if its base comes to require grad later.
            wanted = not torch_compat.made_under_no_grad(value) if value._base is not None else natural
            return None if natural == wanted else wanted
        has_history = value.grad_fn is not None
        return None if natural == has_history else has_history


def is_new_leaf(value: torch.Tensor) -> bool:
    """Whether an output that is no input is a leaf that requires grad.

    A view made under `no_grad` is none: it has no `grad_fn` either, and reports what its base requires.
    """
    is_leaf = value.requires_grad and value.grad_fn is None
    return is_leaf and (value._base is None or not value._base.requires_grad)


def is_reshaped_alias(value: torch.Tensor, steps: Sequence[ir.ViewStep]) -> bool:
    """Whether a detached tensor had its size or stride changed in place: such a tensor is no view."""
    if value._base is not None or value.requires_grad or value.is_inference() or not steps:
        return False
    return steps[-1].op not in (DETACH_STEP.op, torch.ops.aten.view.dtype)


def says_it_is_a_view(value: torch.Tensor) -> bool:
    """Whether a tensor is a view for autograd (results of `_unsafe_view` and `detach` are not) that can be replayed."""
    base = value._base
    return base is not None and value.layout is base.layout is torch.strided


def may_be_fresh(value: torch.Tensor) -> bool:
    """Whether a view may be returned as a fresh tensor: autograd can differentiate its history, and its values are plain."""
    has_own_history = value.grad_fn is not None or not value.requires_grad
    return has_own_history and not (value.is_conj() or value.is_neg() or is_inside_nested_tensor(value))


def is_view_of_a_wrapper(value: torch.Tensor) -> bool:
    """Whether an output is a plain view of a wrapper subclass, such as a row of a nested tensor; no view of a part replays
    it."""
    return value._base is not None and not torch_compat.any_functional([value._base])


def shares_version(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two traced tensors share a version counter; inference tensors have none."""
    return one.is_inference() or other.is_inference() or torch_compat.share_version(one, other)


def counts_alone(info: ir.OutputAliasInfo) -> bool:
    """Whether an output is an alias with another version counter than its base."""
    replay = getattr(info, "replay", None)
    return replay is not None and DATA_STEP in replay.steps


def reject_order_of_changes(
    position: int, steps: Sequence[ir.ViewStep], value: torch.Tensor, info: ir.InputAliasInfo
) -> None:
    """Raise for a view that can be made neither before nor after all changes of its input.

    Raises:
        UnsupportedAliasingError: names the output.
    """
    forbids_changes = value.requires_grad and (value.grad_fn is None or any(step.item is not None for step in steps))
    if info.mutation.data and forbids_changes:
        raise UnsupportedAliasingError(
            f"output {position} is a view of an input that is changed in place and whose size or stride is changed after "
            "the view was made, under no_grad or as one of several views (split, unbind, ...); return a clone() of it"
        )


def describe_value(position: int, value: Any) -> ir.OutputAliasInfo:
    """A symbolic number, or a constant of this plan, such as a tensor that the function closed over."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return ir.SymOutput()
    if isinstance(value, torch.Tensor) and torch_compat.is_traced(value):
        raise UnsupportedAliasingError(
            f"output {position} is a view of a tensor that is no argument of the function; pass that as an argument, or "
            "return a clone() of the view"
        )
    if isinstance(value, TracedView):
        return ir.ConstantOutput(None)
    if isinstance(value, (torch.Tensor, *CONSTANTS)) or torch_compat.is_opaque_value(value):
        return ir.ConstantOutput(value)
    raise UnsupportedOutputError(
        f"output {position} is a {type(value).__module__}.{type(value).__qualname__}; a compiled function returns tensors, "
        "numbers, strings, None, and lists, tuples, dicts, namedtuples or registered pytrees of them; return its tensors, "
        "or register the class by torch.utils._pytree.register_pytree_node"
    )


def _storage_or_none(value: Any) -> int | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return torch_compat.storage_id(value)
