"""What running values again costs on a backend that fuses ops into kernels, in bytes of memory traffic.

In: the ops of a joint graph as ints, an `Op` each. Out: for each value of the forward, the traffic that the backward
gains if the value runs again in it, and that the forward gains if the value is saved. No torch.

A value is *materialized* when it runs again if its kernel must write it to memory: results of contractions and
reductions, what a contraction reads, and what would read too many tensors (`MAX_READS`). Other values are *transparent*:
each kernel that reads one computes it on the fly, and reads its *leaves* in place of it, which are the materialized
values that it is made of.

    materialized    reads its leaves once and is written          leaves + bytes
    transparent     k kernels read leaves in place of the value   k x (leaves - bytes), less what its parents are charged
    both            work within kernels                           a share of the traffic of the op by itself, never nothing

Which kernels the backward will have is not known before it is compiled. Two of its ops count as one kernel if they run
over the same number of elements and have the same depth, the number of materialized steps before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

MAX_READS = 8  # tensors that a kernel of Inductor's computes a value from before it stores it
MAX_READS_IF_SHARED = 4  # the same, for a value with several readers
SHARE_WITHIN_KERNELS = 50  # of its own traffic, an op within a kernel costs one part in so many


class Kind(Enum):
    """How an op runs."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    ALONE = "in a kernel of its own"
    FREE = "an item of a tuple, a number: no kernel"


@dataclass(frozen=True)
class Op:
    """One op and its result.

    Attributes:
        kind: how it runs.
        reads: the ops whose results it reads, looked up through views.
        bytes: of its result.
        alone: bytes that it moves in a kernel of its own.
        elements: that its kernel runs over.
        is_backward: whether it depends on what only the backward has.
        is_returned: whether its result is one of the graph's.
    """

    kind: Kind
    reads: tuple[int, ...]
    bytes: int
    alone: int
    elements: int
    is_backward: bool
    is_returned: bool


@dataclass(frozen=True)
class Traffic:
    """In bytes: `rerun`, if the value runs again in the backward; `saving`, if the forward saves it."""

    rerun: int
    saving: int


def traffic_of_each(ops: Sequence[Op]) -> list[Traffic]:
    """What each op of the forward costs to run again and to save; ops are numbered so that what an op reads comes first."""
    users = _users(ops)
    kernels = _kernels(ops)
    materialized = _materialized(ops, users)
    readers = _reading_kernels(ops, users, kernels, materialized)
    leaves = _leaves(ops, materialized)
    rerun = _rerun(ops, materialized, readers, leaves)
    written = _written_anyway(ops, users)
    return [Traffic(again, 0 if is_written else op.bytes) for op, again, is_written in zip(ops, rerun, written, strict=True)]


def _users(ops: Sequence[Op]) -> list[list[int]]:
    users: list[list[int]] = [[] for _ in ops]
    for number, op in enumerate(ops):
        for read in op.reads:
            users[read].append(number)
    return users


def _kernels(ops: Sequence[Op]) -> list[tuple[int, int]]:
    """(depth, elements) of each op's kernel."""
    depths: list[int] = []
    for op in ops:
        depth = max((depths[read] + (ops[read].kind is Kind.ALONE) for read in op.reads), default=0)
        depths.append(depth)
    return [(depth, op.elements) for depth, op in zip(depths, ops, strict=True)]


def _materialized(ops: Sequence[Op], users: Sequence[Sequence[int]]) -> list[bool]:
    """Whether a value is written to memory when it runs again; only what the backward does with it counts."""
    materialized: list[bool] = []
    leaf_count: list[int] = []
    for number, op in enumerate(ops):
        count = sum(1 if materialized[read] else leaf_count[read] for read in op.reads)
        shared = len(users[number]) > 1
        alone = op.kind in (Kind.ALONE, Kind.REDUCTION, Kind.FREE)
        read_alone = any(ops[user].is_backward and ops[user].kind is Kind.ALONE for user in users[number])
        many = count > MAX_READS or (shared and count > MAX_READS_IF_SHARED)
        materialized.append(alone or read_alone or many)
        leaf_count.append(count)
    return materialized


def _reading_kernels(
    ops: Sequence[Op],
    users: Sequence[Sequence[int]],
    kernels: Sequence[tuple[int, int]],
    materialized: Sequence[bool],
) -> list[set[tuple[int, int]]]:
    """The backward's kernels that read each value, itself or through transparent values that run again."""
    readers: list[set[tuple[int, int]]] = [set() for _ in ops]
    for number in range(len(ops) - 1, -1, -1):
        for user in users[number]:
            if ops[user].is_backward:
                readers[number].add(kernels[user])
            elif not materialized[user]:
                readers[number] |= readers[user]
    return readers


def _leaves(ops: Sequence[Op], materialized: Sequence[bool]) -> list[frozenset[int]]:
    leaves: list[frozenset[int]] = []
    for op in ops:
        found: set[int] = set()
        for read in op.reads:
            found |= {read} if materialized[read] else leaves[read]
        leaves.append(frozenset(found))
    return leaves


def _rerun(
    ops: Sequence[Op],
    materialized: Sequence[bool],
    readers: Sequence[set[tuple[int, int]]],
    leaves: Sequence[frozenset[int]],
) -> list[int]:
    rerun: list[int] = []
    charged: list[int] = []
    for number, op in enumerate(ops):
        leaf_bytes = sum(ops[leaf].bytes for leaf in leaves[number])
        parents = sum(charged[read] for read in op.reads if not materialized[read])
        inlined = max(0, len(readers[number]) * max(0, leaf_bytes - op.bytes) - parents)
        stored = op.alone if op.kind is Kind.ALONE else leaf_bytes + op.bytes
        chosen = stored if materialized[number] else min(inlined, stored)
        charged.append(0 if materialized[number] else chosen + parents)
        rerun.append(0 if op.kind is Kind.FREE else chosen + max(1, op.alone // SHARE_WITHIN_KERNELS))
    return rerun


def _written_anyway(ops: Sequence[Op], users: Sequence[Sequence[int]]) -> list[bool]:
    """Whether the forward writes a value to memory whatever is saved."""
    written = []
    for number, op in enumerate(ops):
        forward = [ops[user] for user in users[number] if not ops[user].is_backward]
        read_alone = any(user.kind is Kind.ALONE for user in forward)
        shared = len(forward) > 1 and len(op.reads) > MAX_READS_IF_SHARED
        stored = op.kind in (Kind.ALONE, Kind.REDUCTION, Kind.FREE)
        written.append(stored or read_alone or shared or op.is_returned)
    return written
