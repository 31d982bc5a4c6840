"""The cost of recomputing values within fused kernels, on ops as ints."""

from __future__ import annotations

import tracemalloc

from aotgrad.partition.fusion import Kind, Op, traffic_of_each


def op(
    *reads: int,
    size: int = 1000,
    kind: Kind = Kind.POINTWISE,
    backward: bool = False,
    elements: int = 250,
    across: bool = False,
) -> Op:
    return Op(kind, reads, size, 0, elements, backward, False, across)


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
    assert rerun(*made, readers[0], elsewhere)[5] == 1032 + 1


def test_what_is_written_once_is_read_by_what_is_made_of_it():
    """A sum of two values that four kernels need is written; its product with a number per row costs them that number."""
    made = [argument(), argument(), argument(8), op(0, 1), op(3, 2)]
    readers = [op(4, backward=True, elements=elements) for elements in (250, 500, 750, 1000)]
    costs = rerun(*made, *readers)
    assert costs[3] == 2 * 1000 + 1
    assert costs[4] == 4 * 8 + 1


def test_what_a_kernel_reads_in_any_case_costs_nothing():
    """The argument of a product, made of a value that the kernel of its derivative reads, is only written."""
    alone = op(1, kind=Kind.ALONE, backward=True, elements=9)
    assert rerun(argument(), op(0), alone, op(0, backward=True))[1] == 1000 + 1
    assert rerun(argument(), op(0), alone, op(0, backward=True, elements=500))[1] == 2000 + 1
    assert rerun(argument(), argument(), op(0, 1), op(0, 2, backward=True))[2] == 1


def test_recomputing_that_spares_a_kernel_a_read_makes_saving_dearer():
    """A kernel reads a value and what it is made of: without the value it reads less."""
    computed = traffic_of_each([argument(), op(0), op(0, 1, backward=True)])[1]
    assert (computed.rerun, computed.saving) == (1, 1000 + 1000)


def test_a_sum_over_rows_has_a_kernel_of_its_own():
    """A product of the backward that a sum over columns and one over rows read is computed twice, with all that it reads."""
    made = [argument(), argument(), op(0, 1), op(2, backward=True)]
    along = op(3, size=10, kind=Kind.REDUCTION, backward=True)
    across = op(3, size=10, kind=Kind.REDUCTION, backward=True, across=True)
    assert rerun(*made, along, along)[2] == 1000 + 1
    assert rerun(*made, along, across)[2] == 2 * 1000 + 1


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
