"""Stage results -> the steps that make views and return the user's outputs.

In: `StageResults`. Out: `MakeView` steps by output, and the steps at the end of a call. Outputs that are views of one
tensor are replayed in the order of eager; the pieces of one `split` come from one call.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from aotgrad import ir, torch_compat
from aotgrad.runtime.stage_results import StageResults, result_name
from aotgrad.runtime.steps import (
    AssignData,
    CallMethod,
    ConvertToInference,
    MakeView,
    Pieces,
    RestoreGradMode,
    ReturnValue,
    StartVersion,
    Step,
)
from aotgrad.slots import IntermediateBase, ReturnedWrapper, UserOutput


class ViewSteps:
    """The steps that make views and return outputs."""

    def __init__(self, results: StageResults) -> None:
        self.results, self.capture, self.meta, self.inputs = results, results.capture, results.meta, results.inputs

    # -- views

    @functools.cached_property
    def all_views(self) -> dict[int, MakeView]:
        """The replays by output, each after the one that it is a view of."""
        views = dict(self.separate_views())
        for number, group in enumerate(self.piece_groups(views)):
            for index in group:
                pieces = Pieces(f"pieces_{number}", steps_to_pieces(views[index].replay))
                views[index] = replace(views[index], pieces=pieces)
        return views

    def separate_views(self) -> Iterator[tuple[int, MakeView]]:
        infos = self.meta.outputs
        parents = [info.output if isinstance(info, ir.AliasOfOutput) else None for info in infos]
        for index in order_after_parents(parents, [node_age(value) for value in self.capture.outputs]):
            if (replay := replay_of(infos[index])) is not None and replay.steps:
                is_leaf = index in self.meta.new_leaves
                yield index, MakeView(f"output_{index}", self.base_name(infos[index]), replay, is_leaf=is_leaf)

    def piece_groups(self, views: Mapping[int, MakeView]) -> list[list[int]]:
        """The outputs that are pieces of one view. A piece that is returned twice is two tensors, in two groups."""
        groups, times = defaultdict[Any, list[int]](list), Counter[Any]()
        for index, view in views.items():
            if steps := steps_to_pieces(view.replay):
                whole = comparable((view.base, steps, view.replay.grad_mode, is_made_first(self.meta.outputs[index])))
                piece = comparable((view.base, view.replay.steps))
                groups[whole, times[piece]].append(index)
                times[piece] += 1
        return [group for group in groups.values() if len(group) > 1]

    @functools.cached_property
    def reshaped_views(self) -> set[int]:
        """The views that were made between a change of the input's size or stride, and a write to it."""
        infos = enumerate(self.meta.outputs)
        older = [(k, info) for k, info in infos if isinstance(info, ir.AliasOfInput) and info.made is ir.Made.BEFORE_WRITES]
        return {k for k, info in older if self.meta.info(info.index).mutation.metadata}

    def first_views(self) -> Iterator[MakeView]:
        """Views of inputs that change after the view is made."""
        first = {k for k, info in enumerate(self.meta.outputs) if is_made_first(info)} - self.reshaped_views
        return (view for index, view in self.all_views.items() if index in first)

    def reshaped_views_of(self, name: str) -> Iterator[MakeView]:
        return (view for k, view in self.all_views.items() if k in self.reshaped_views and view.base == name)

    def later_views(self) -> Iterator[tuple[int, MakeView]]:
        """The views that are made after the graph has run and inputs have their new geometry."""
        return ((k, view) for k, view in self.all_views.items() if not is_made_first(self.meta.outputs[k]))

    def custom_views(self) -> Iterator[MakeView]:
        for index, info in enumerate(self.meta.outputs):
            if isinstance(info, ir.CustomFunctionView) and info.index is not None and info.remake is not None:
                yield MakeView(result_name(UserOutput(index)), self.inputs[info.index], info.remake)

    def base_name(self, info: ir.OutputAliasInfo) -> str:
        match info:
            case ir.AliasOfInput(index):
                return self.inputs[index]
            case ir.AliasOfIntermediate(base):
                return result_name(IntermediateBase(base))
            case ir.AliasOfIntermediateBaseIsUserOutput(output):
                return result_name(UserOutput(output))
            case ir.AliasOfOutput(output):
                return self.alias_name(output)
        raise AssertionError(info)

    def alias_name(self, index: int) -> str:
        """The variable that holds an output which is an alias."""
        info: Any = self.meta.outputs[index]
        return f"output_{index}" if isinstance(info, ir.GRAPH_OUTPUTS) or info.replay.steps else self.base_name(info)

    # -- results of the graph

    def inference_results(self) -> Iterator[ConvertToInference]:
        """Results made under an inner `inference_mode`."""
        for index, (info, value) in enumerate(zip(self.meta.outputs, self.capture.outputs, strict=True)):
            if isinstance(info, ir.NonAlias | ir.UnsafeViewAlias) and value.is_inference():
                yield ConvertToInference(result_name(UserOutput(index)))

    def new_leaves(self) -> Iterator[CallMethod]:
        """Results that start a history of their own."""
        for index in sorted(self.meta.new_leaves):
            if isinstance(self.meta.outputs[index], ir.GRAPH_OUTPUTS):
                yield CallMethod(result_name(UserOutput(index)), "requires_grad_", ())

    # -- the end of a call

    def outputs(self, made_before: Container[int]) -> Iterator[Step]:
        """Make the views that are not among `made_before`, and return all outputs."""
        yield from (view for index, view in self.later_views() if index not in made_before)
        yield from self.versions_of_data_aliases()
        yield from self.hooks_of_views()
        yield from self.kept_gradients()
        yield from (self.returned(index) for index in range(self.capture.returned))

    def versions_of_data_aliases(self) -> Iterator[StartVersion]:
        """An alias by `.data` counts its own versions: the function may have changed it."""
        for index, (info, value) in enumerate(zip(self.meta.outputs, self.capture.outputs, strict=True)):
            steps = replay.steps if (replay := replay_of(info)) is not None else ()
            if any(step.op is torch.ops.aten.data.default for step in steps) and value._version:
                yield StartVersion(f"output_{index}", value._version)

    def hooks_of_views(self) -> Iterator[CallMethod]:
        for hook in self.capture.output_hooks:
            yield CallMethod(self.return_value(hook.index).value, hook.method, hook.arguments)

    def kept_gradients(self) -> Iterator[CallMethod]:
        """Results on which the function called `retain_grad`, and that are no leaves; for inputs, it is among `hooks`."""
        for index, (info, value) in enumerate(zip(self.meta.outputs, self.capture.outputs, strict=True)):
            if isinstance(value, torch.Tensor) and value.retains_grad and not isinstance(info, ir.IsInput | ir.IsOutput):
                yield CallMethod(self.return_value(index).value, "retain_grad", ())

    def returned(self, index: int) -> ReturnValue:
        """An output; in place of its first part, a wrapper that is assembled already."""
        slot = ReturnedWrapper(index)
        wrapped = slot in self.results.wrappers or slot in self.results.wrapper_views
        return ReturnValue(result_name(slot), is_name=True) if wrapped else self.return_value(index)

    def return_value(self, index: int) -> ReturnValue:
        info = self.meta.outputs[index]
        match info:
            case ir.ConstantOutput(value):
                return ReturnValue(value, is_name=False)
            case ir.IsOutput(first):
                return self.return_value(first)
            case ir.IsInput(position):
                return ReturnValue(self.inputs[position], is_name=True)
            case ir.NonAlias() | ir.UnsafeViewAlias() | ir.CustomFunctionView() | ir.SymOutput():
                return ReturnValue(result_name(UserOutput(index)), is_name=True)
        assert isinstance(info, ir.REPLAYED_VIEWS), info
        return ReturnValue(self.alias_name(index), is_name=True)

    def assignments(self) -> Iterator[AssignData]:
        for index, output in self.capture.assigned.items():
            yield AssignData(self.inputs[index], self.return_value(output).value)

    def detached_inputs(self) -> Iterator[CallMethod]:
        """Detach inputs after their uses have their history, and before views are made: these are views of detached ones."""
        for index in sorted(self.capture.ended):
            if not self.results.is_leaf(index):
                yield CallMethod(self.inputs[index], "detach_", ())

    def ended_leaves(self) -> Iterator[CallMethod]:
        """Leaves that no longer require grad. Their views are made before, each under the grad mode that it needs."""
        for index in sorted(self.capture.ended):
            if self.results.is_leaf(index):
                yield CallMethod(self.inputs[index], "requires_grad_", (False,))

    def grad_mode(self) -> Iterator[RestoreGradMode]:
        if self.meta.grad_mode_after is not None:
            yield RestoreGradMode(self.meta.grad_mode_after)


def is_made_first(info: ir.OutputAliasInfo) -> bool:
    return isinstance(info, ir.AliasOfInput) and info.made is not ir.Made.AFTER_CHANGES


def replay_of(info: ir.OutputAliasInfo) -> ir.ViewReplay | None:
    return getattr(info, "replay", None)


def steps_to_pieces(replay: ir.ViewReplay) -> tuple[ir.ViewStep, ...]:
    """The steps up to the first op that returns several views, which takes all of them; none if there is no such op."""
    several = [k for k, step in enumerate(replay.steps) if step.item is not None][:1]
    return tuple(step for k in several for step in (*replay.steps[:k], replace(replay.steps[k], item=None)))


def comparable(value: Any) -> Any:
    """A hashable form of (nested) arguments of views. Symbolic sizes are compared by their text, which adds no guard.

    >>> comparable(("x", [2, 3]))
    ('x', (2, 3))
    """
    if isinstance(value, ir.ViewStep):
        return (value.op, comparable(value.args), comparable(value.kwargs), value.item)
    if isinstance(value, (tuple, list)):
        return tuple(map(comparable, value))
    return str(value) if torch_compat.has_symbols(value) else value


def node_age(value: Any) -> int:
    """When the autograd node of a result was made; 0 if it has none."""
    node = value.grad_fn if isinstance(value, torch.Tensor) else None
    return 0 if node is None else torch_compat.node_sequence_nr(node)


def order_after_parents(parents: Sequence[int | None], ages: Sequence[int]) -> list[int]:
    """The positions of `parents` by age, each after its parent.

    >>> order_after_parents([2, None, 1, None], [1, 5, 6, 0])
    [3, 1, 2, 0]
    """
    order: dict[int, None] = {}

    def visit(index: int) -> None:
        if index not in order:
            if (parent := parents[index]) is not None:
                visit(parent)
            order[index] = None

    for index in sorted(range(len(parents)), key=ages.__getitem__):
        visit(index)
    return list(order)
