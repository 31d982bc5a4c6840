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

A kernel of the backward that reads a leaf in any case reads it once. A materialized value is computed by such a kernel, or
by one that reads the value and need not load it then. A negative cost counts as a cost of saving the value.

The kernels of the backward are not known before it is compiled. Two of its ops count as one kernel if they run over the
same number of elements and have the same depth, which is the number of materialized steps before them. A reduction over
other dimensions than the last ones has a kernel of its own, which computes its transparent arguments again.
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


FUSED = (Kind.POINTWISE, Kind.REDUCTION)


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
        is_across: whether it reduces other dimensions than the last ones. Its kernel loops in an order of its own.
    """

    kind: Kind
    reads: tuple[int, ...]
    bytes: int
    alone: int
    elements: int
    is_backward: bool
    is_returned: bool
    is_across: bool = False


@dataclass(frozen=True)
class Kernel:
    """What ops of one kernel have in common."""

    depth: int
    elements: int
    is_across: bool


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
    direct = _reading_kernels(ops, users, kernels, materialized, recomputed=False)
    readers = _reading_kernels(ops, users, kernels, materialized)
    alone = [_is_read_alone(ops, each) for each in users]
    rerun = _rerun(ops, materialized, readers, direct, alone)
    written = _written_anyway(ops, users)
    return [
        Traffic(rerun=_share(op) + max(0, again), saving=(0 if is_written else op.bytes) + max(0, -again))
        for op, again, is_written in zip(ops, rerun, written, strict=True)
    ]


def _share(op: Op) -> int:
    """What work within a kernel costs."""
    return 0 if op.kind is Kind.FREE else max(1, op.alone // SHARE_WITHIN_KERNELS)


def _users(ops: Sequence[Op]) -> list[list[int]]:
    users: list[list[int]] = [[] for _ in ops]
    for number, op in enumerate(ops):
        for read in op.reads:
            users[read].append(number)
    return users


def _kernels(ops: Sequence[Op]) -> list[Kernel]:
    depths: list[int] = []
    for op in ops:
        depth = max((depths[read] + (ops[read].kind is Kind.ALONE) for read in op.reads), default=0)
        depths.append(depth)
    return [Kernel(depth, op.elements, op.is_across) for depth, op in zip(depths, ops, strict=True)]


def _materialized(ops: Sequence[Op], users: Sequence[Sequence[int]], kernels: Sequence[Kernel]) -> list[bool]:
    """Whether each value is written to memory when the backward computes it; only its use in the backward counts.

    A value that reads too many tensors is not written if all of its readers are in one kernel.
    """
    stored = [
        op.kind is not Kind.POINTWISE or _is_read_alone(ops, users[k]) or (op.is_backward and op.is_returned)
        for k, op in enumerate(ops)
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
    """Whether an op of the backward that shares no kernel reads a value, or only such ops do."""
    alone = [user for user in users if ops[user].kind is Kind.ALONE]
    return any(ops[user].is_backward for user in alone) or len(alone) == len(users)


def _reading_kernels(
    ops: Sequence[Op],
    users: Sequence[Sequence[int]],
    kernels: Sequence[Kernel],
    materialized: Sequence[bool],
    recomputed: bool = True,
) -> list[set[Kernel]]:
    """The backward's fused kernels that read each value, through transparent values of the backward and recomputed ones."""
    readers: list[set[Kernel]] = [set() for _ in ops]
    for number in range(len(ops) - 1, -1, -1):
        for user in users[number]:
            op = ops[user]
            if not materialized[user] and (op.is_backward or recomputed):
                readers[number] |= readers[user]
            elif op.is_backward and op.kind in FUSED:
                readers[number].add(kernels[user])
    return readers


def _rerun(
    ops: Sequence[Op],
    materialized: Sequence[bool],
    readers: Sequence[set[Kernel]],
    direct: Sequence[set[Kernel]],
    alone: Sequence[bool],
) -> list[int]:
    """The cost of recomputing each op. A value that costs less to write once than in each kernel is a leaf, too."""
    rerun: list[int] = []
    charged: list[int] = []
    made_of: list[tuple[frozenset[int], int]] = []  # what a kernel reads to compute the value, and its bytes
    for number, op in enumerate(ops):
        if op.is_backward or op.kind is Kind.FREE:
            rerun.append(0)
            charged.append(0)
            made_of.append((frozenset({number}), op.bytes))
            continue
        parts = [made_of[read] for read in op.reads]
        known, known_bytes = max(parts, key=lambda part: len(part[0]), default=(frozenset(), 0))
        leaves = known.union(*(part for part, _ in parts))
        leaf_bytes = known_bytes + sum(ops[leaf].bytes for leaf in leaves - known)
        parents = sum(charged[read] for read in op.reads)
        overlap = _Overlap(ops, leaves, direct)
        more = {kernel: leaf_bytes - overlap.of(kernel) - op.bytes for kernel in readers[number]}
        total = sum(bytes if kernel in direct[number] else max(0, bytes) for kernel, bytes in more.items())
        inlined = max(total - parents, min(0, total))
        stored = leaf_bytes + op.bytes - overlap.most(op, readers[number], alone[number])
        stored = op.alone if op.kind is Kind.ALONE else stored
        is_written = materialized[number] or stored < inlined or len(leaves) > MOST_LEAVES
        chosen = stored if is_written else inlined
        charged.append(0 if is_written else max(0, chosen) + parents)
        made_of.append((frozenset({number}), op.bytes) if is_written else (leaves, leaf_bytes))
        rerun.append(chosen)
    return rerun


@dataclass(frozen=True)
class _Overlap:
    """The bytes among `leaves` that kernels of the backward read in any case."""

    ops: Sequence[Op]
    leaves: frozenset[int]
    direct: Sequence[set[Kernel]]

    def of(self, kernel: Kernel) -> int:
        return sum(self.ops[leaf].bytes for leaf in self.leaves if kernel in self.direct[leaf])

    def most(self, op: Op, readers: set[Kernel], is_read_alone: bool) -> int:
        """What is not moved if the best kernel of the backward computes the value of `op`, and writes it for others."""
        if op.is_across:
            return 0
        hosts = readers.union(*(self.direct[leaf] for leaf in self.leaves))
        fitting = [host for host in hosts if host.elements == op.elements and not host.is_across]
        spared = {
            host: op.bytes * (host in readers) + op.bytes * (not is_read_alone and readers == {host}) for host in fitting
        }
        return max((self.of(host) + spared[host] for host in fitting), default=0)


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
