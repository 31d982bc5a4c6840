"""The contract of the analysis: indices are in range; each view names its base and the ops that replay it."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree

from aotgrad import ir, torch_compat
from aotgrad.graph import op_table
from aotgrad.printing import type_text
from aotgrad.verify.common import Problems


def check_meta(meta: ir.ViewAndMutationMeta) -> Problems:
    """Check that indices are in range, and that each view names its base and the ops that replay it."""
    for index, info in enumerate(meta.inputs):
        if info is not None:
            yield from (f"input {index} {problem}" for problem in check_input_alias(info))
    for index, info in enumerate(meta.outputs):
        yield from (f"output {index} {problem}" for problem in check_output_alias(meta, index, info))
    used = {info.base for info in meta.outputs if isinstance(info, ir.AliasOfIntermediate)}
    for index in set(range(len(meta.bases))) - used:
        yield f"intermediate base {index} ({meta.bases[index].node.name}) is the base of no output"


def check_input_alias(info: ir.InputAliasInfo) -> Problems:
    if info.mutation.metadata != (info.geometry is not None):
        yield f"is {info.mutation.value} and its new geometry is {info.geometry}"
    if info.version_bumps < 0:
        yield f"raises its version by {info.version_bumps}"


def check_output_alias(meta: ir.ViewAndMutationMeta, position: int, info: ir.OutputAliasInfo) -> Problems:
    match info:
        case ir.IsInput(index) | ir.AliasOfInput(index):
            if not 0 <= index < len(meta.inputs) or meta.inputs[index] is None:
                yield f"is an alias of input {index}, which is not a tensor"
        case ir.IsOutput(index):
            if not 0 <= index < position or isinstance(meta.outputs[index], ir.IsOutput):
                yield f"is output {index}, which is not an earlier, distinct output"
        case ir.AliasOfIntermediate(base):
            if not 0 <= base < len(meta.bases):
                yield f"is a view of base {base}; there are {len(meta.bases)} bases"
        case ir.AliasOfIntermediateBaseIsUserOutput(output):
            if not 0 <= output < len(meta.outputs) or not isinstance(meta.outputs[output], ir.NonAlias):
                yield f"is a view of output {output}, which is not returned by the graph"
        case ir.AliasOfOutput(output):
            if not 0 <= output < len(meta.outputs) or not hasattr(meta.outputs[output], "replay"):
                yield f"is a view of output {output}, which is not an alias"
        case ir.ConstantOutput(value):
            if torch_compat.is_traced(value):
                yield f"is a traced tensor, but constant: {type_text(value)}"
    for step in replay_steps(info):
        yield from check_view_step(step)


def replay_steps(info: ir.OutputAliasInfo) -> tuple[ir.ViewStep, ...]:
    replay = getattr(info, "replay", None)
    return () if replay is None else replay.steps


def check_view_step(step: ir.ViewStep) -> Problems:
    if op_table.writes(step.op):
        yield f"is replayed with {step.op}, which writes"
    if holds_tensor((step.args, dict(step.kwargs))):
        yield f"is replayed with {step.op} on a traced tensor"


def holds_tensor(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))
