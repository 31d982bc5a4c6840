"""Passes over graphs: each takes a graph with its signature and returns one that computes the same.

    JOINT            the passes that every joint graph goes through before it is partitioned
    register(...)    passes of your own, on joint, forward or backward graphs

base                   the interface of a pass, and pipelines of passes
registry               passes of users
checked                runs a user's pass and checks the result
rewrite                rewrites a graph in one sweep
ops                    facts about nodes
memory                 which replacements a caller could notice

Passes that simplify:

common_subexpressions  computes equal calls once
equal_numbers          computes equal numbers of a training step once
constants              evaluates what depends on numbers alone
dead_code              removes what nothing needs
effects                unwraps effectful ops
functional             checks that no op writes
leftovers              removes leftovers of functionalization
peephole               rewrites single nodes
repeated_draws         merges random ops with equal numbers
repeated_effects       removes effects that have already happened

Passes for speed or memory:

batch_mm               batches small matrix products
bucket_collectives     merges small collectives
late_waits             waits late for collectives
overlap_collectives    starts collectives early
overlap_copies         places copies to the host and back
early_updates          updates inputs as soon as possible
input_mutations        writes to mutated inputs inside the graph

Values from elsewhere, and wishes of the user:

guarded_values         values that the guard has computed
known_values           values that an earlier graph has computed
kept_tapes             autograd graphs of eager calls, kept for gradients of gradients
checkpoint_names       policies of named values

Calls that a backend keeps whole:

kept_calls             folds each call into one node
fold_call              replaces the nodes
parts_of_call          finds the nodes of a call
backward_of_call       finds the nodes of its backward
"""

from __future__ import annotations

from aotgrad.passes.base import Hook, Pass
from aotgrad.passes.batch_mm import BatchMM
from aotgrad.passes.bucket_collectives import BucketCollectives
from aotgrad.passes.checkpoint_names import CheckpointNames
from aotgrad.passes.common_subexpressions import CommonSubexpressionElimination
from aotgrad.passes.constants import ConstantPropagation
from aotgrad.passes.dead_code import DeadCodeElimination
from aotgrad.passes.early_updates import EarlyUpdates
from aotgrad.passes.effects import UnwrapEffects
from aotgrad.passes.functional import CheckFunctional
from aotgrad.passes.late_waits import LateWaits
from aotgrad.passes.leftovers import RemoveLeftovers
from aotgrad.passes.overlap_collectives import OverlapCollectives
from aotgrad.passes.overlap_copies import OverlapCopies
from aotgrad.passes.peephole import Peephole
from aotgrad.passes.registry import register_pass as register
from aotgrad.passes.registry import registered, unregister
from aotgrad.passes.repeated_draws import RemoveRepeatedDraws

JOINT: tuple[Pass, ...] = (
    UnwrapEffects(),
    DeadCodeElimination(),
    RemoveLeftovers(),
    ConstantPropagation(),
    Peephole(),
    CommonSubexpressionElimination(),
    DeadCodeElimination(),
    RemoveRepeatedDraws(),
    CheckFunctional(),
)
"""The built-in passes of a joint graph, in order."""

TIDY: tuple[Pass, ...] = (DeadCodeElimination(), CheckFunctional())
"""The passes that run after a user's passes on a joint graph."""

COMMUNICATING: tuple[Pass, ...] = (LateWaits(),)
"""The passes of each half, and of each variant of a backward, where a graph has collectives."""

__all__ = [
    "COMMUNICATING",
    "JOINT",
    "TIDY",
    "BatchMM",
    "BucketCollectives",
    "CheckFunctional",
    "CheckpointNames",
    "CommonSubexpressionElimination",
    "ConstantPropagation",
    "DeadCodeElimination",
    "EarlyUpdates",
    "Hook",
    "LateWaits",
    "OverlapCollectives",
    "OverlapCopies",
    "Pass",
    "Peephole",
    "RemoveLeftovers",
    "RemoveRepeatedDraws",
    "UnwrapEffects",
    "register",
    "registered",
    "unregister",
]
