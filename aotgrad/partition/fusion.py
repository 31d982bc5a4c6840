"""The cost of recomputing values on a backend that fuses ops into kernels, in bytes of memory traffic.

In: the ops of a joint graph as ints, an `Op` each. Out: for each value of the forward, the additional traffic of the
backward if it recomputes the value, and of the forward if it saves the value. No torch.

A recomputed value is *materialized* if its kernel must write it to memory: results and arguments of contractions, results
of reductions, values for which several kernels would each read too many tensors (`MAX_READS`), and values that cost less
to write once than to compute in each kernel. Other values are *transparent*: each kernel that reads one computes it on the
fly. It reads the *leaves* instead: the materialized values that the transparent one is computed from.

    materialized    reads its leaves once and is written          leaves + bytes
    transparent     k kernels read leaves in place of the value   k x (leaves - bytes), minus what its parents are charged
    both            work within kernels                           a share of the traffic of the op by itself, never nothing

The kernels of the backward are not known before it is compiled. Two of its ops count as one kernel if they run over the
same number of elements and have the same depth, which is the number of materialized steps before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

MAX_READS = 8  # the most tensors that an Inductor kernel reads for one value before it stores the value
MAX_READS_IF_SHARED = 4  # the same, for a value with several readers
MOST_LEAVES = 64  # of one value, so that the costs of long sums take time and memory in proportion to their length
SHARE_WITHIN_KERNELS = 50  # an op within a kernel costs this fraction (1/50) of its own traffic


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
        elements: the number that its kernel runs over.
        is_backward: whether it depends on values that only the backward has.
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
    """Bytes: `rerun` if the backward recomputes the value, `saving` if the forward saves it."""

    rerun: int
    saving: int


def traffic_of_each(ops: Sequence[Op]) -> list[Traffic]:
    """The cost of recomputing and of saving each op of the forward. Ops are in topological order."""
    users = _users(ops)
    kernels = _kernels(ops)
    materialized = _materialized(ops, users, kernels)
    readers = _reading_kernels(ops, users, kernels, materialized)
    rerun = _rerun(ops, materialized, readers)
    written = _written_anyway(ops, users)
    return [
        Traffic(recomputed, 0 if is_written else op.bytes)
        for op, recomputed, is_written in zip(ops, rerun, written, strict=True)
    ]


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
    """Whether each value is written to memory when it is recomputed; only its use in the backward counts.

    A value that reads too many tensors is not written if all of its readers are in one kernel.
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
    """Whether an op of the backward that shares no kernel reads a value."""
    return any(ops[user].is_backward and ops[user].kind is Kind.ALONE for user in users)


def _reading_kernels(
    ops: Sequence[Op],
    users: Sequence[Sequence[int]],
    kernels: Sequence[tuple[int, int]],
    materialized: Sequence[bool],
) -> list[set[tuple[int, int]]]:
    """The backward's kernels that read each value, directly or through recomputed transparent values."""
    readers: list[set[tuple[int, int]]] = [set() for _ in ops]
    for number in range(len(ops) - 1, -1, -1):
        for user in users[number]:
            if ops[user].is_backward:
                readers[number].add(kernels[user])
            elif not materialized[user]:
                readers[number] |= readers[user]
    return readers


def _rerun(ops: Sequence[Op], materialized: Sequence[bool], readers: Sequence[set[tuple[int, int]]]) -> list[int]:
    """The cost of recomputing each op. A value that costs less to write once than in each kernel is a leaf, too."""
    rerun: list[int] = []
    charged: list[int] = []
    made_of: list[tuple[frozenset[int], int]] = []  # what a kernel reads to compute the value, and its bytes
    for number, op in enumerate(ops):
        parts = [made_of[read] for read in op.reads]
        known, known_bytes = max(parts, key=lambda part: len(part[0]), default=(frozenset(), 0))
        leaves = known.union(*(part for part, _ in parts))
        leaf_bytes = known_bytes + sum(ops[leaf].bytes for leaf in leaves - known)
        parents = sum(charged[read] for read in op.reads)
        inlined = max(0, len(readers[number]) * max(0, leaf_bytes - op.bytes) - parents)
        stored = op.alone if op.kind is Kind.ALONE else leaf_bytes + op.bytes
        is_written = materialized[number] or stored < inlined or len(leaves) > MOST_LEAVES
        chosen = stored if is_written else inlined
        charged.append(0 if is_written else chosen + parents)
        made_of.append((frozenset({number}), op.bytes) if is_written else (leaves, leaf_bytes))
        rerun.append(0 if op.kind is Kind.FREE else chosen + max(1, op.alone // SHARE_WITHIN_KERNELS))
    return rerun


def _written_anyway(ops: Sequence[Op], users: Sequence[Sequence[int]]) -> list[bool]:
    """Whether the forward writes each value to memory even if it is not saved."""
    written = []
    for number, op in enumerate(ops):
        forward = [ops[user] for user in users[number] if not ops[user].is_backward]
        read_alone = any(user.kind is Kind.ALONE for user in forward)
        shared = len(forward) > 1 and len(op.reads) > MAX_READS_IF_SHARED
        stored = op.kind in (Kind.ALONE, Kind.REDUCTION, Kind.FREE)
        written.append(stored or read_alone or shared or op.is_returned)
    return written
