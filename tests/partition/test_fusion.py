"""The cost of recomputing values within fused kernels, on ops as ints."""

from __future__ import annotations

import tracemalloc

from aotgrad.partition.fusion import Kind, Op, traffic_of_each


def op(*reads: int, size: int = 1000, kind: Kind = Kind.POINTWISE, backward: bool = False, elements: int = 250) -> Op:
    return Op(kind, reads, size, 0, elements, backward, False)


def argument(size: int = 1000) -> Op:
    return op(size=size, kind=Kind.FREE)


def rerun(*ops: Op) -> list[int]:
    return [each.rerun for each in traffic_of_each(ops)]


def test_a_value_of_many_tensors_stays_within_the_one_kernel_that_reads_it():
    """Sizes as in a normalization: the input, and a number for each row, or column, of four more."""
    made = [argument(), argument(8), argument(8), argument(8), argument(8), op(0, 1, 2, 3, 4)]
    readers = [op(5, backward=True), op(5, backward=True)]
    assert rerun(*made, *readers)[5] == 32 + 1
    elsewhere = op(5, backward=True, elements=500)
    assert rerun(*made, readers[0], elsewhere)[5] == 1032 + 1000 + 1


def test_what_is_written_once_is_read_by_what_is_made_of_it():
    """A sum of two values that four kernels need is written; its product with a number per row costs them that number."""
    made = [argument(), argument(), argument(8), op(0, 1), op(3, 2)]
    readers = [op(4, backward=True, elements=elements) for elements in (250, 500, 750, 1000)]
    costs = rerun(*made, *readers)
    assert costs[3] == 3 * 1000 + 1
    assert costs[4] == 4 * 8 + 1


def test_costs_of_a_long_sum_take_memory_in_proportion_to_its_length():
    """In a sum of many parameters, each partial sum is made of all terms before it."""

    def peak(terms: int) -> int:
        sums = [op(k, terms + k - 1 if k else 0) for k in range(terms)]
        ops = [op(kind=Kind.FREE) for _ in range(terms)] + sums + [op(2 * terms - 1, backward=True)]
        tracemalloc.start()
        try:
            traffic_of_each(ops)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(2000) < 6 * peak(500)
