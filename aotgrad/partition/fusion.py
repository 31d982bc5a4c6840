"""What running values again costs on a backend that fuses ops into kernels, in bytes of memory traffic.

In: the ops of a joint graph as ints, an `Op` each. Out: for each value of the forward, the traffic that the backward
gains if the value runs again in it, and that the forward gains if the value is saved. No torch.

A value is *materialized* when it runs again if its kernel must write it to memory: results of contractions and
reductions, what a contraction reads, what several kernels read and would read too many tensors for (`MAX_READS`), and what
costs less to write once than in each kernel. Other values are *transparent*: each kernel that reads one computes it on the
fly, and reads its *leaves* in place of it, which are the materialized values that it is made of.

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
    materialized = _materialized(ops, users, kernels)
    readers = _reading_kernels(ops, users, kernels, materialized)
    rerun = _rerun(ops, materialized, readers)
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


def _materialized(ops: Sequence[Op], users: Sequence[Sequence[int]], kernels: Sequence[tuple[int, int]]) -> list[bool]:
    """Whether a value is written to memory when it runs again; only what the backward does with it counts.

    One that reads too many tensors stays within a kernel that all of its readers are in.
    """
    stored = [
        op.kind in (Kind.ALONE, Kind.REDUCTION, Kind.FREE) or _is_read_alone(ops, users[k]) for k, op in enumerate(ops)
    ]
    readers = _reading_kernels(ops, users, kernels, stored)
    leaf_count: list[int] = []
    for number, op in enumerate(ops):
        count = sum(1 if stored[read] else leaf_count[read] for read in op.reads)
        many = count > MAX_READS or (len(users[number]) > 1 and count > MAX_READS_IF_SHARED)
        stored[number] |= many and len(readers[number]) > 1
        leaf_count.append(1 if many else count)
    return stored


def _is_read_alone(ops: Sequence[Op], users: Sequence[int]) -> bool:
    """Whether an op of the backward reads a value that shares no kernel."""
    return any(ops[user].is_backward and ops[user].kind is Kind.ALONE for user in users)


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


def _rerun(ops: Sequence[Op], materialized: Sequence[bool], readers: Sequence[set[tuple[int, int]]]) -> list[int]:
    """What each op costs to run again. A value that costs less to write once than in each kernel is a leaf, too."""
    rerun: list[int] = []
    charged: list[int] = []
    made_of: list[frozenset[int]] = []  # what a kernel reads that computes the value
    for number, op in enumerate(ops):
        leaves = frozenset().union(*(made_of[read] for read in op.reads))
        leaf_bytes = sum(ops[leaf].bytes for leaf in leaves)
        parents = sum(charged[read] for read in op.reads)
        inlined = max(0, len(readers[number]) * max(0, leaf_bytes - op.bytes) - parents)
        stored = op.alone if op.kind is Kind.ALONE else leaf_bytes + op.bytes
        is_written = materialized[number] or stored < inlined
        chosen = stored if is_written else inlined
        charged.append(0 if is_written else chosen + parents)
        made_of.append(frozenset({number}) if is_written else leaves)
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
