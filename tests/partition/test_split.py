"""Whatever is saved, the two halves compute the joint graph."""

from __future__ import annotations

import pytest
import torch

from aotgrad.partition import default_partition, min_cut_rematerialization_partition, partition
from tests.partition.cases import CASES, Case
from tests.partition.joints import joint_of, run_halves, run_joint, tangents_for

PARTITION_FNS = [default_partition, min_cut_rematerialization_partition]


def joint_of_case(case: Case):
    torch.manual_seed(0)
    inputs = case.inputs()
    return joint_of(case.fn, *inputs, static=case.static, mutated=case.mutated, dynamic=case.dynamic), inputs


@pytest.mark.parametrize("partition_fn", PARTITION_FNS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_halves_compute_the_joint_graph(case, partition_fn):
    joint, inputs = joint_of_case(case)
    halves = partition(joint, partition_fn)
    tangents = tangents_for(joint)
    torch.manual_seed(1)
    expected = run_joint(joint, inputs, tangents)
    torch.manual_seed(1)
    given = run_halves(joint, halves, inputs, tangents)
    torch.testing.assert_close(given, expected, rtol=0, atol=0)
    assert [v.stride() for v in tensors(given)] == [v.stride() for v in tensors(expected)]
    halves.forward.module.graph.lint()
    halves.backward.module.graph.lint()


def tensors(values):
    return [value for value in values if isinstance(value, torch.Tensor)]
