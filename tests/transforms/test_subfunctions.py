"""Parts of a function: how results are put into groups, and how one that is given takes the place of a computed one."""

from __future__ import annotations

import pytest
import torch

from aotgrad.ir import BackwardSegment, SavingNodes
from aotgrad.plan_cache.entry import NotCompiled
from aotgrad.slots import Gradient, Primal, SegmentBoundary, Tangent, UpdatedInput, UserOutput
from aotgrad.transforms.subfunctions import (
    SubFunction,
    SubstituteResults,
    complete,
    depths,
    group_by_properties,
    keep_results,
    subfunctions_of,
)

SAVES = (SavingNodes(1, 1),)


def segment(tangent, *gradients, saves=True):
    return BackwardSegment((Tangent(tangent),), tuple(map(Gradient, gradients)), saving=SAVES if saves else ())


def of_two(*segments, separate):
    return subfunctions_of(segments, [UserOutput(0), UserOutput(1)], separate)


def test_a_result_that_another_one_passes_gradients_through_comes_first():
    segments = [segment(UserOutput(0), UserOutput(1)), segment(UserOutput(1), Primal(0))]
    for separate in (False, True):
        assert of_two(*segments, separate=separate) == (SubFunction((1,), ()), SubFunction((0,), (1,)))


def test_results_are_told_apart_only_where_a_backward_may_come_to_one_after_another():
    segments = [segment(UserOutput(0), Primal(0)), segment(UserOutput(1), Primal(0))]
    assert of_two(*segments, separate=False) == (SubFunction((0, 1), ()),)
    assert of_two(*segments, separate=True) == (SubFunction((0,), ()), SubFunction((1,), ()))


@pytest.mark.parametrize("saves", [False, True])
def test_results_with_a_trunk_that_saves_something_are_one_part(saves):
    heads = [segment(UserOutput(k), SegmentBoundary(0)) for k in range(2)]
    parts = of_two(*heads, segment(SegmentBoundary(0), Primal(0), saves=saves), separate=True)
    assert len(parts) == (1 if saves else 2)


def test_gradients_through_the_new_value_of_an_input_are_refused():
    with pytest.raises(NotCompiled):
        subfunctions_of([segment(UserOutput(0), UpdatedInput(0))], [UserOutput(0)], False)


def test_levels_count_the_longest_way():
    assert depths([[1, 2], [2], [], [0]]) == [2, 1, 0, 3]


def test_groups_of_items_with_something_in_common():
    assert group_by_properties([4, 5, 6, 7], ["a", "b", "a", ""]) == [[4, 6, 7], [5]]
    assert group_by_properties([1, 2], ["", ""]) == [[1, 2]]
    with pytest.raises(NotCompiled):
        group_by_properties([0, 1, 2], ["a", "ab", "b"])


def test_a_result_that_is_given_takes_the_place_of_what_a_call_returned():
    x, given = torch.ones(4), torch.full((2,), 5.0)
    with SubstituteResults({(1, 1): given}):
        first, second = x.exp().chunk(2)  # call 0 is `exp`, call 1 is `chunk`
    assert torch.equal(first, x.exp()[:2]) and second is given


def test_a_result_of_another_shape_cannot_be_given():
    with SubstituteResults({(0, 0): torch.ones(3)}), pytest.raises(NotCompiled):
        torch.ones(2).exp()


def test_tensors_of_other_parts_are_filled_in():
    tensors = {k: torch.tensor(k) for k in range(3)}
    value = {"a": [tensors[0], 7], "b": (tensors[1], tensors[2])}
    partial = keep_results((1,), value)
    assert partial["b"][0] is tensors[1] and not isinstance(partial["a"][0], torch.Tensor)
    found = complete(partial, tensors)
    assert found["a"] == [tensors[0], 7] and found["b"][1] is tensors[2]
