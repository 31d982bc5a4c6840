"""The version counters of results that the function changed in place before it returned them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from aotgrad.analysis.views import DATA_STEP
from aotgrad.ir import AliasOfIntermediate, Capture, CustomFunctionView, NonAlias, OutputAliasInfo, UnsafeViewAlias
from aotgrad.slots import ForwardResult, IntermediateBase, UserOutput


def versions_of_results(capture: Capture, outputs: Sequence[OutputAliasInfo]) -> tuple[tuple[ForwardResult, int], ...]:
    """The version of every result that was changed in place; a base shares its counter with its views."""
    highest: dict[ForwardResult, int] = {}
    for slot, value in results_with_values(capture, outputs):
        version = 0 if value.is_inference() else value._version
        highest[slot] = max(version, highest.get(slot, 0))
    return tuple((slot, version) for slot, version in highest.items() if version)


def results_with_values(
    capture: Capture, outputs: Sequence[OutputAliasInfo]
) -> Iterator[tuple[ForwardResult, torch.Tensor]]:
    """The traced tensor of each output that the graph returns itself or as a view of a returned base."""
    for position, (info, value) in enumerate(zip(outputs, capture.outputs, strict=True)):
        match info:
            case AliasOfIntermediate(base, replay) if DATA_STEP not in replay.steps:
                yield IntermediateBase(base), value
            case NonAlias() | UnsafeViewAlias() | CustomFunctionView(index=None):
                yield UserOutput(position), value
