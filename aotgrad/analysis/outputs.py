"""What each output is: fresh, an input, a view of an input, a view of something that is not returned, ...

In: a `Capture` and the `InputAliasInfo`s. Out: one `OutputAliasInfo` per flat output, and the intermediate bases that
the graph must return so that views which share memory in eager share it here.

    def f(x): y = x * 2; return y[0], y[1]      two AliasOfIntermediate(base=0), one BaseInfo
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.analysis.storage import first_positions, group_by_key
from aotgrad.analysis.views import chain_from, detaches, replay_by_geometry, replay_of_chain
from aotgrad.errors import UnsupportedAliasingError, UnsupportedOutputError
from aotgrad.ir import (
    AliasOfInput,
    AliasOfIntermediate,
    AliasOfIntermediateBaseIsUserOutput,
    BaseInfo,
    Capture,
    ConstantOutput,
    CustomFunctionView,
    Geometry,
    InputAliasInfo,
    IsInput,
    NonAlias,
    OutputAliasInfo,
    SymOutput,
    UnsafeViewAlias,
    ViewReplay,
    ViewStep,
)

SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
CONSTANTS = (
    *(type(None), bool, int, float, complex, str, bytes, enum.Enum, range, slice, type(Ellipsis)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def analyze_outputs(
    capture: Capture, inputs: Sequence[InputAliasInfo | None]
) -> tuple[tuple[OutputAliasInfo, ...], tuple[BaseInfo, ...]]:
    """Classify every flat output.

    Raises:
        UnsupportedOutputError: an output is an object that cannot be made again on every call.
        UnsupportedAliasingError: an alias that no view op and no geometry describes.
    """
    return _Outputs(capture, inputs).classify()


class _Outputs:
    """The outputs of one capture, classified group by group."""

    def __init__(self, capture: Capture, inputs: Sequence[InputAliasInfo | None]) -> None:
        self.capture = capture
        self.inputs = inputs
        self.infos: dict[int, OutputAliasInfo] = {}
        self.bases: list[BaseInfo] = []

    def classify(self) -> tuple[tuple[OutputAliasInfo, ...], tuple[BaseInfo, ...]]:
        input_of_storage = first_positions([_storage_or_none(value) for value in self.capture.arguments])
        fresh: dict[int, int] = {}
        for position, value in enumerate(self.capture.outputs):
            if not isinstance(value, torch.Tensor):
                self.infos[position] = describe_value(position, value)
            elif (owner := input_of_storage.get(_storage_or_none(value))) is not None:
                self.infos[position] = self.alias_of_input(position, value, owner)
            else:
                fresh[position] = _storage_or_none(value) or id(value)
        for group in group_by_key(fresh):
            self.classify_group(group)
        return tuple(self.infos[position] for position in range(len(self.capture.outputs))), tuple(self.bases)

    # -- outputs that share memory with an input

    def alias_of_input(self, position: int, value: torch.Tensor, owner: int) -> OutputAliasInfo:
        same = [i for i, argument in enumerate(self.capture.arguments) if argument is value]
        if same:
            return IsInput(same[0])
        argument = self.capture.arguments[owner]
        if is_custom_function_view(value, stop=argument.grad_fn):
            return CustomFunctionView(value.requires_grad)
        current = self.capture.trace.node_of(argument)
        root, steps = chain_from(self.capture.trace.node_of(value), stops={current})
        if root is current:
            return AliasOfInput(owner, self.replay(position, value, argument, steps))
        return AliasOfInput(owner, self.replay_strided(position, value, argument))

    # -- outputs that share memory with each other

    def classify_group(self, group: tuple[int, ...]) -> None:
        if len(group) == 1:
            self.infos[group[0]] = self.single(self.capture.outputs[group[0]])
            return
        members = []
        for position in group:
            value = self.capture.outputs[position]
            if is_custom_function_view(value, stop=None):
                self.infos[position] = CustomFunctionView(value.requires_grad)
            else:
                members.append(position)
        if members:
            self.classify_views(members)

    def single(self, value: torch.Tensor) -> OutputAliasInfo:
        _, steps = chain_from(self.capture.trace.node_of(value))
        return UnsafeViewAlias(value.requires_grad) if steps else NonAlias(value.requires_grad)

    def classify_views(self, members: Sequence[int]) -> None:
        """The first output that is the base itself serves as base; if none is, the base becomes an extra result."""
        chains = {p: chain_from(self.capture.trace.node_of(self.capture.outputs[p])) for p in members}
        root = chains[members[0]][0]
        own_base = next((p for p in members if chains[p][0] is root and not chains[p][1]), None)
        if own_base is not None:
            self.infos[own_base] = NonAlias(self.capture.outputs[own_base].requires_grad)
            base = self.capture.outputs[own_base]
        else:
            base = self.add_base(root, [self.capture.outputs[p] for p in members])
        for position in members:
            if position != own_base:
                self.infos[position] = self.view_of(position, base, own_base, root, chains[position])

    def add_base(self, root: fx.Node, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """Register the intermediate base `root`; returns it as a live tensor (or its fake, unknown to autograd)."""
        attached = [v._base for v in values if v._base is not None and v._base.requires_grad]
        live = next((base for base in attached if self.capture.trace.node_of(base) is root), None)
        if live is None and any(value.requires_grad for value in values):
            live = next((v for v in values if v.requires_grad and v._base is None), None)
        self.bases.append(BaseInfo(live is not None and live.requires_grad, root, live))
        return root.meta["val"] if live is None else live

    def view_of(
        self, position: int, base: torch.Tensor, output: int | None, root: fx.Node, chain: tuple[fx.Node, tuple[ViewStep, ...]]
    ) -> OutputAliasInfo:
        value = self.capture.outputs[position]
        if chain[0] is root:
            replay = self.replay(position, value, base, chain[1])
        else:
            replay = self.replay_strided(position, value, base)
        if output is None:
            return AliasOfIntermediate(len(self.bases) - 1, replay)
        return AliasOfIntermediateBaseIsUserOutput(output, replay)

    # -- replays

    def replay(self, position: int, value: torch.Tensor, base: torch.Tensor, steps: tuple[ViewStep, ...]) -> ViewReplay:
        return replay_of_chain(steps, self.grad_mode_for(position, value, base, detaches(steps)))

    def replay_strided(self, position: int, value: torch.Tensor, base: torch.Tensor) -> ViewReplay:
        if value.dtype != base.dtype:
            raise UnsupportedAliasingError(
                f"output {position} shares memory with a tensor of another dtype ({value.dtype} and {base.dtype}) in a "
                "way that no recorded view explains; return a clone() of it"
            )
        grad_mode = self.grad_mode_for(position, value, base, detached=False)
        return replay_by_geometry(Geometry.of(value), grad_mode, "its recorded chain does not start at the base's current value")

    def grad_mode_for(self, position: int, value: torch.Tensor, base: torch.Tensor, detached: bool) -> bool | None:
        """The grad mode that gives the replayed view the same `requires_grad`; `None` if the caller's own does."""
        may_require_grad = base.requires_grad and not detached
        if value.requires_grad and not may_require_grad:
            raise UnsupportedAliasingError(
                f"output {position} requires grad, but shares memory with a tensor that does not (a detached alias on "
                "which requires_grad_() was called?); return a clone() of it"
            )
        natural = may_require_grad and self.capture.grad_mode_before
        return None if natural == value.requires_grad else value.requires_grad


def describe_value(position: int, value: Any) -> OutputAliasInfo:
    """A symbolic number, or a constant of this plan."""
    if isinstance(value, SYMBOLIC_NUMBERS):
        return SymOutput()
    if isinstance(value, CONSTANTS):
        return ConstantOutput(value)
    raise UnsupportedOutputError(
        f"output {position} is a {type(value).__module__}.{type(value).__qualname__}; a compiled function returns tensors, "
        "numbers, strings, None, and lists, tuples, dicts, namedtuples or registered pytrees of them"
    )


def is_custom_function_view(value: torch.Tensor, stop: Any) -> bool:
    """Whether the history of an alias leads through a user's `autograd.Function` before it reaches `stop`."""
    node = value.grad_fn if value.requires_grad else None
    while node is not None and node is not stop:
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        if not _is_view_node(node):
            return False
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def _is_view_node(node: Any) -> bool:
    return any(word in node.name() for word in VIEW_NODE_NAMES)


VIEW_NODE_NAMES = (
    *("Alias", "AsStrided", "Chunk", "Conj", "Diagonal", "Expand", "Imag", "Narrow", "NegView", "Permute", "Real"),
    *("Reshape", "Select", "Slice", "Split", "Squeeze", "TBackward", "Transpose", "Unbind", "Unfold", "Unsqueeze", "View"),
)
"""Autograd nodes of view ops, by part of their name: autograd offers no other way to tell."""


def _storage_or_none(value: Any) -> int | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return torch_compat.storage_id(value)
