"""Orders in which blocks of ops run as soon as they can."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aotgrad.graph.early_order import Block, early_order


def test_a_block_runs_behind_what_it_reads():
    order = early_order("abcxyz", {"x": "a", "y": "x", "z": "b"}, [Block("xy"), Block("z")], small=())
    assert "".join(order) == "axybzc"


def test_a_block_waits_for_what_must_run_before():
    assert "".join(early_order("abcx", {"x": "a"}, [Block("x", after="b")], small=())) == "abxc"


def test_small_ops_run_where_a_block_needs_them():
    assert "".join(early_order("abnx", {"x": "an"}, [Block("x")], small="n")) == "anxb"


def test_a_block_that_reads_only_small_ops_keeps_its_place():
    assert "".join(early_order("nabx", {"x": "n"}, [Block("x")], small="n")) == "nabx"


def test_a_block_that_leads_to_its_own_operand_is_not_moved():
    """As two updates of a parameter, with a gradient between them."""
    assert "".join(early_order("abxcy", {"x": "a", "c": "x", "y": "cx"}, [Block("xy")], small=())) == "abxcy"


@st.composite
def programs(draw):
    count = draw(st.integers(1, 12))
    operands = {k: draw(st.sets(st.integers(0, k - 1))) if k else set() for k in range(count)}
    owner = [draw(st.integers(0, 3)) for _ in range(count)]
    blocks = [[k for k in range(count) if owner[k] == b] for b in (1, 2, 3)]
    small = set()
    for k in range(count):
        if not owner[k] and operands[k] <= small and draw(st.booleans()):
            small.add(k)
    return count, operands, [Block(block) for block in blocks if block], small


@given(programs())
def test_every_op_runs_once_after_its_operands(program):
    count, operands, blocks, small = program
    order = early_order(range(count), operands, blocks, small)
    assert sorted(order) == list(range(count))
    place = {op: k for k, op in enumerate(order)}
    assert all(place[operand] < place[op] for op, found in operands.items() for operand in found)
    moved = small.union(*(block.members for block in blocks))
    others = [op for op in order if op not in moved]
    assert others == sorted(others)
