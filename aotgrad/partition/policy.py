"""What may be done with each forward value that the backward needs: save it, recompute it, or either.

In: a `JointAnalysis` and a node. Out: a `Verdict` with a printable reason. Costs play no part: a verdict says what is
correct, and which ops are never worth recomputing.

    mm      saved                "result of mm, never recomputed"
    sin     saved or recomputed  "sin is cheap"
    view    free                 "a view of mm"

A tensor that the caller can write to (an input, an output) is saved only if the backward itself reads it. Then eager
saves it, too, and also raises if it was overwritten before the backward. Recomputing other values from it would raise
where eager does not. A memory budget allows that (`Rules`), and so does a checkpoint, as in eager. Inputs that the caller
does not have (`JointGraph.private_inputs`) may always be saved.

A tag (`tags`) wins over everything but correctness: ops with effects run once even if they are tagged, except collectives,
a value that may not be saved is recomputed, and one that cannot leave the device is saved there. Costs never recompute a
collective: they may differ between ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.partition import random_state, tags
from aotgrad.partition.graphs import JointAnalysis
from aotgrad.partition.offload_costs import can_leave


class Choice(Enum):
    """What may be done with a value."""

    SAVE = "save"
    OFFLOAD = "offload"
    RECOMPUTE = "recompute"
    EITHER = "save or recompute"
    NEITHER = "neither"
    FREE = "free"


@dataclass(frozen=True)
class Verdict:
    """The allowed choices for one value, and the reason."""

    choice: Choice
    reason: str

    @property
    def savable(self) -> bool:
        return self.choice in (Choice.SAVE, Choice.OFFLOAD, Choice.EITHER)

    @property
    def leaves(self) -> bool:
        """Whether the value waits on the host in any case."""
        return self.choice is Choice.OFFLOAD

    @property
    def recomputable(self) -> bool:
        return self.choice in (Choice.RECOMPUTE, Choice.EITHER, Choice.FREE)


@dataclass(frozen=True)
class Rules:
    """What the choice is allowed to do.

    Attributes:
        expensive: recompute contractions, reductions and unknown ops, not only cheap ops.
        unread: recompute values from inputs and outputs that the backward of eager does not read.
        random: recompute random ops from a recorded state of their generator.
    """

    expensive: bool = False
    unread: bool = False
    random: bool = False


CAUTIOUS = Rules()
"""Save nothing that eager does not need, and recompute nothing that takes noticeable time."""

FREE_HAND = Rules(expensive=True, unread=True, random=True)
"""For a memory budget. As with a checkpoint, the inputs of recomputed values must not be overwritten before then."""


def judge(analysis: JointAnalysis, node: fx.Node, rules: Rules = CAUTIOUS) -> Verdict:
    """The verdict on a forward or unclaimed value."""
    if node in analysis.copied:
        return Verdict(Choice.SAVE, "the input is overwritten after the forward, so a copy of its old value is kept")
    if node.op == "get_attr" and node not in analysis.closed_over:
        return Verdict(Choice.FREE, "a constant of both graphs")
    if analysis.is_view(node):
        return Verdict(Choice.FREE, f"a view of {analysis.base[node].name}")
    tagged = analysis.tagged.get(node)
    if tagged is tags.RECOMPUTE:
        rules = FREE_HAND
    may_save = _may_save(analysis, node, rules)
    if tagged is tags.OFFLOAD and may_save:
        if can_leave(analysis, node):
            return Verdict(Choice.OFFLOAD, "tagged to be offloaded")
        return Verdict(Choice.SAVE, "tagged to be offloaded, but it cannot leave the device")
    rerun = None if _is_redone_collective(analysis, node) else _reason_to_run_once(analysis, node, rules)
    if rerun is not None:
        return Verdict(Choice.SAVE if may_save else Choice.NEITHER, rerun)
    if node in analysis.made_of_nothing:
        return Verdict(Choice.RECOMPUTE, "a constant that only the backward needs")
    if tagged is tags.RECOMPUTE:
        return Verdict(Choice.RECOMPUTE, "tagged to be recomputed, or in a checkpoint")
    if node in analysis.held and node in analysis.crossing and not rules.unread:
        return Verdict(Choice.SAVE, "held by the caller, and saved in eager too")
    if tagged is tags.SAVE and may_save:
        return Verdict(Choice.SAVE, "tagged to be saved, or read outside of its checkpoint")
    return Verdict(Choice.EITHER if may_save else Choice.RECOMPUTE, _reason_to_recompute(analysis, node))


def _is_redone_collective(analysis: JointAnalysis, node: fx.Node) -> bool:
    """Whether a checkpoint runs a collective, or its wait, a second time, as eager does on every rank."""
    is_functional = op_table.communicates(node.target) and not op_table.writes_first_argument(node.target)
    return is_functional and analysis.tagged.get(node) is tags.RECOMPUTE


def _may_save(analysis: JointAnalysis, node: fx.Node, rules: Rules) -> bool:
    if op_table.is_tuple_value(node) or op_table.is_object(node):
        return False
    is_others = node in analysis.primals or node in analysis.held or node in analysis.closed_over
    if op_table.is_symbolic_value(node) or not is_others:
        return True
    if node in analysis.primals and analysis.primals[node].index in analysis.joint.private_inputs:
        return True
    in_eager = node in analysis.crossing or node in analysis.saved_in_eager
    return rules.unread or in_eager or node in analysis.read_by_checkpoints


def _reason_to_run_once(analysis: JointAnalysis, node: fx.Node, rules: Rules) -> str | None:
    """Why the node may not be recomputed in the backward, or `None` if it may."""
    if node in analysis.primals:
        return "an input of the graph"
    if node in analysis.closed_over:
        return "a tensor that the function has closed over"
    name = op_table.short_name(node.target)
    if op_table.has_effect(node.target):
        return f"{name} has effects, so it runs once"
    if op_table.position_of_workspace(node.target) is not None and analysis.tagged.get(node) is not tags.RECOMPUTE:
        return f"{name} has a workspace of unknown size, so it runs once"
    if op_table.draws(node):
        may_rerun = rules.random and random_state.can_record(node)
        return None if may_rerun else f"{name} would draw other random numbers the second time"
    if op_table.is_opaque(node.target):
        return f"{name} runs a graph of its own, never recomputed"
    if node in analysis.unclaimed or op_table.is_getitem(node.target):
        return None
    if op_table.is_symbolic_value(node):
        return None if op_table.computes_sizes(node.target) else f"a number read by {name}"
    return None if rules.expensive or op_table.is_cheap(node.target) else f"result of {name}, never recomputed"


def _reason_to_recompute(analysis: JointAnalysis, node: fx.Node) -> str:
    if node in analysis.unclaimed:
        return "only the backward needs it"
    if op_table.is_getitem(node.target):
        return f"an item of {node.args[0]}"
    if op_table.is_symbolic_value(node):
        return "arithmetic on sizes"
    name = op_table.short_name(node.target)
    if op_table.draws(node):
        return f"{name} redraws the same numbers from the recorded state"
    return f"{name} is cheap" if op_table.is_cheap(node.target) else f"result of {name}"
