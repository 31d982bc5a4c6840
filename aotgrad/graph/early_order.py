"""The order of a program in which blocks of ops run as soon as what they need is there. There is no torch in it.

    early_order("abcxyz", {"x": "a", "y": "x", "z": "b"}, [Block("xy")], small=())       a x y b c z

The other ops keep their order. Small ones, which take no memory worth mentioning, run earlier where a block needs them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

AnyOp = TypeVar("AnyOp")


@dataclass(frozen=True)
class Block:
    """Ops that run together, in order, and what else must have run before they do."""

    members: Sequence
    after: Collection = ()


def early_order(
    ops: Sequence[AnyOp], operands: Mapping[AnyOp, Iterable[AnyOp]], blocks: Iterable[Block], small: Collection[AnyOp]
) -> list[AnyOp]:
    """The ops in the new order.

    Args:
        ops: in their order: after their operands.
        operands: of each op that has some.
        blocks: they have no op in common.
        small: ops whose operands are small, too.
    """
    order: dict[AnyOp, None] = {}
    ready: list[Block] = []
    waiting: dict[AnyOp, list[tuple[Block, set[AnyOp]]]] = {}
    for block in blocks:
        needed = {operand for member in block.members for operand in operands.get(member, ())}
        needed = needed.union(block.after).difference(block.members, small)
        for op in needed:
            waiting.setdefault(op, []).append((block, needed))

    def run(op: AnyOp) -> None:
        if op in order:
            return
        for operand in operands.get(op, ()):
            run(operand)
        order[op] = None
        for block, needed in waiting.get(op, ()):
            needed.remove(op)
            if not needed:
                ready.append(block)

    for op in ops:
        run(op)
        while ready:
            for member in ready.pop(0).members:
                run(member)
    return list(order)
