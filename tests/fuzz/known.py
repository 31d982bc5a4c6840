"""Known differences from eager, each with the strict expected failure or the document that states it.

As narrow as possible: a predicate on one line of difference. `compare` finds by itself what Dynamo does without aotgrad.
"""

from __future__ import annotations

import re

from tests.fuzz.program import Block, Program, Round, source

FREED_BY_WRITES = (r"raised nothing; eager: RuntimeError: Trying to backward through the graph a second time",)
"""A view of what nobody can see is no view here, so that the caller's own writes to it save nothing."""

CHECKED_BY_KERNELS = (
    r"raised nothing; eager: RuntimeError: setStorage: sizes .* are out of bounds for storage of size",
    r"raised nothing; eager: NotImplementedError: \"\w+\" not implemented for",
    r"raised nothing; eager: RuntimeError: shape mismatch: value tensor of shape .* cannot be broadcast to indexing result",
    r"raised nothing; eager: RuntimeError: self.stride\(-1\) must be 1 to view \w+ as \w+ \(different element sizes\)",
)
"""Torch's shape functions let pass what its kernels refuse; where nobody needs the result, no kernel runs. The stride of a
dimension of one position is no reason to refuse a view."""

KEPT_GRADIENT_OF_ONE_OF_SEVERAL = (r"raised RuntimeError: out != nullptr INTERNAL ASSERT FAILED .*; eager: nothing",)
"""A defect of torch's: `retain_grad()` on a result of an autograd node with several, then a change of it in place. What are
several nodes in eager may be one here. `test_fuzz.py` shows it without aotgrad."""

KNOWN = (*FREED_BY_WRITES, *CHECKED_BY_KERNELS, *KEPT_GRADIENT_OF_ONE_OF_SEVERAL)

WITH_A_BUDGET = (
    r"raised RuntimeError: one of the variables needed for gradient computation has been modified by an .*; eager: nothing",
    r"raised RuntimeError: A view was created in no_grad mode and its base or another view of its base .*; eager: nothing",
)
"""With a memory budget values are made again from inputs and outputs that eager would not save (docs/partition.md)."""

LEADING_NOWHERE = (
    r"raised RuntimeError: Trying to backward through the graph a second time .*; eager: nothing",
    r"raised RuntimeError: A view was created in no_grad mode and its base or another view of its base .*; eager: nothing",
    r"raised nothing; eager: RuntimeError: one of the variables needed for gradient computation has been modified by an",
    r"raised nothing; eager: RuntimeError: Output \d+ of \w+ is a view of a view which was created in no_grad mode",
    r"raised RuntimeError: one of the variables needed for gradient computation has been modified by an .*; eager: nothing",
)
"""A view of a leaf that was made under `no_grad` requires grad, but its gradient leads nowhere: what eager checks then
depends on what each op saves of it (docs/gradients.md)."""

OF_LISTS = (
    r"raised nothing; eager: RuntimeError: one of the variables needed for gradient computation has been modified by an",
    r"raised nothing; eager: RuntimeError: Output \d+ of \w+ is a view and its base or another view of its base has been",
    r"raised nothing; eager: RuntimeError: A view was created in no_grad mode and its base or another view of its base has",
    r"raised nothing; eager: RuntimeError: Trying to backward through the graph a second time",
    r"raised RuntimeError: one of the variables needed for gradient computation has been modified by an .*; eager: nothing",
)
"""The autograd nodes of ops on lists (`_foreach_add`) do not show what they have saved (docs/gradients.md)."""

OF_DATA = (
    r"raised nothing; eager: RuntimeError: one of the variables needed for gradient computation has been modified by an",
    r"raised nothing; eager: RuntimeError: Output \d+ of \w+ is a view and its base or another view of its base has been",
)
"""A value that the function changed through `.data` after eager has saved it is saved by itself (docs/gradients.md)."""


DROPPED_BEHIND_DYNAMO = (r"raised nothing; eager: RuntimeError: Tensor must have a storage_offset divisible by 2",)
"""Dynamo has no guard for the place of an input in its storage, so that no op checks it whose result nobody needs.
`test_fuzz.py` shows it without aotgrad."""

HIDDEN_FROM_DYNAMO = (
    r"raised nothing; eager: RuntimeError: A view was created in no_grad mode and its base or another view of its base has",
)
"""Dynamo leaves out what nobody reads."""


def known_differences(program: Program, round: Round, way: str = "eager") -> tuple[str, ...]:
    """Allowed differences in a round of a program under one way of compiling: regular expressions of lines."""
    has_budget = "memory_budget" in program.options
    statements = (*round.setup, *program.body)
    contexts = (round.context, *(statement.context for statement in statements if isinstance(statement, Block)))
    has_hidden_views = any("no_grad" in context for context in contexts)
    found = (*KNOWN, *(WITH_A_BUDGET if has_budget else ()), *(LEADING_NOWHERE if has_hidden_views else ()))
    body = source(program.body)
    if way == "dynamo":
        found = (*found, *DROPPED_BEHIND_DYNAMO, *(HIDDEN_FROM_DYNAMO if has_hidden_views else ()))
    return (*found, *(OF_LISTS if "_foreach" in body else ()), *(OF_DATA if ".data." in body else ()))


def is_known(line: str, known: tuple[str, ...]) -> bool:
    """Whether a line that `compare` found is one of the known differences."""
    return any(re.match(pattern, line) for pattern in known)
