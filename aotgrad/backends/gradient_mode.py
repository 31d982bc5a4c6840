"""Halves with ops that compute more in the gradient mode: they run in it, as they were traced.

    mkldnn_rnn_layer(...)[3]        the workspace that its backward reads; undefined outside of the mode

A training step and a backward run outside of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.ir import BoxedCallable, CompileBackward, Compiled, GraphHalf


def in_gradient_mode(compiled: Compiled, forward: GraphHalf) -> Compiled:
    """`compiled`, whose halves run in the gradient mode if a workspace is computed in them."""
    if not forward.calls_any(op_table.WORKSPACE_POSITIONS):
        return compiled
    return replace(compiled, forward=run_in_mode(compiled.forward, forward)).with_backward(BackwardInGradientMode)


@dataclass(frozen=True)
class BackwardInGradientMode:
    """Compiles a backward, which may compute a workspace again."""

    compile: CompileBackward

    def __call__(self, half: GraphHalf) -> BoxedCallable:
        return run_in_mode(self.compile(half), half)


def run_in_mode(function: BoxedCallable, half: GraphHalf) -> BoxedCallable:
    if not half.calls_any(op_table.WORKSPACE_POSITIONS) or not any(map(is_workspace, half.module.graph.nodes)):
        return function

    def run(args: list) -> Any:
        with torch.enable_grad():
            return function(args)

    run._boxed_call = True
    return run


def is_workspace(node: fx.Node) -> bool:
    """Whether a node is the workspace of an op."""
    if not op_table.is_getitem(node.target):
        return False
    source, index = node.args
    assert isinstance(source, fx.Node)
    return bool(index == op_table.position_of_workspace(source.target))
