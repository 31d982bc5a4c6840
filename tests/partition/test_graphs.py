"""The half of each node (forward, backward, unclaimed), and the owner of each memory."""

from __future__ import annotations

import pytest
import torch

from aotgrad.errors import PartitionError
from aotgrad.partition.graphs import analyze_joint
from aotgrad.slots import UserOutput
from tests.partition.joints import as_joint, grad, hand_made, joint_of


def names(nodes) -> set[str]:
    return {node.name for node in nodes}


def test_unclaimed_values_depend_on_no_tangent():
    analysis = analyze_joint(joint_of(lambda x: x.sin(), grad(3)))
    assert names(analysis.forward) == {"primals_1", "sin"}
    assert names(analysis.unclaimed) == {"cos"}
    assert names(analysis.backward) == {"mul"}


def test_views_share_the_memory_of_their_base():
    analysis = analyze_joint(joint_of(lambda x: x.exp().t().split(2)[1].sin(), grad(3, 4)))
    base = {node.name: owner.name for node, owner in analysis.base.items()}
    assert base["t"] == base["split"] == base["getitem_1"] == "exp"


def test_items_of_a_tuple_own_their_memory():
    analysis = analyze_joint(joint_of(lambda x: x.sort()[0], grad(4)))
    base = {node.name: owner.name for node, owner in analysis.base.items()}
    assert base["getitem"] == "getitem" and base["getitem_1"] == "getitem_1"


def test_an_item_that_only_the_backward_needs_is_handed_over_by_the_forward():
    analysis = analyze_joint(joint_of(lambda x: x.sort()[0], grad(4)))
    assert "getitem_1" in names(analysis.forward)


def test_sizes_are_read_in_the_forward():
    analysis = analyze_joint(joint_of(lambda x: x.sum(0).expand(x.shape[0], 5), grad(3, 5), dynamic=True))
    numbers = {node for node in analysis.forward | analysis.unclaimed if isinstance(node.meta.get("val"), torch.SymInt)}
    assert numbers and numbers <= analysis.forward


def test_a_random_op_that_only_the_backward_needs_stays_in_the_forward():
    analysis = analyze_joint(
        hand_made(lambda x, t: ([x.sin()], [t * torch.rand_like(x)]), [torch.randn(3)], [torch.ones(3)])
    )
    assert "rand_like" in names(analysis.forward)


def test_a_random_op_of_the_backward_stays_there():
    def build(x, t):
        g = t * 2
        return [x.sin()], [g * (torch.rand_like(x) > 0.5)]

    analysis = analyze_joint(hand_made(build, [torch.randn(3)], [torch.ones(3)]))
    assert {"rand_like", "gt"} <= names(analysis.backward)


def test_a_random_op_that_nobody_reads_stays():
    """Otherwise later ops would draw other numbers than in eager."""
    joint = hand_made(lambda x, t: ([x.sin(), torch.rand_like(x)][:1], [t]), [torch.randn(3)], [torch.ones(3)])
    assert "rand_like" in names(analyze_joint(joint).forward)


def test_effects_stay_where_they_were_traced():
    def build(x, t):
        torch.ops.aten._assert_async.default(x.sum() > -1e9)
        y = x.sin()
        x.copy_(y)
        g = t * 2
        torch.ops.aten._assert_async.default(g.sum() < 1e9)
        return [y], [g]

    analysis = analyze_joint(hand_made(build, [torch.randn(3)], [torch.ones(3)]))
    assert {"_assert_async", "copy_"} <= names(analysis.forward)
    assert "_assert_async_1" in names(analysis.backward)
    assert names(analysis.copied) == {"primals_1"}


def test_the_caller_holds_outputs_and_parameters():
    joint = joint_of(lambda x, w: (x @ w).exp().view(-1), grad(2, 3), grad(3, 4), static=[1])
    assert names(analyze_joint(joint).held) == {"primals_2", "exp"}


def test_crossing_values_are_bases_and_sizes():
    joint = joint_of(lambda x: (x.exp().t() * 2).sin(), grad(2, 3))
    assert names(analyze_joint(joint).crossing) == {"exp", "mul"}


def test_a_result_that_depends_on_a_tangent_is_refused():
    joint = hand_made(lambda x, t: ([x * t], [t]), [torch.randn(3)], [torch.ones(3)])
    with pytest.raises(PartitionError, match="depend on a tangent: mul"):
        analyze_joint(joint)


def test_a_signature_of_another_length_is_refused():
    joint = joint_of(lambda x: x.sin(), grad(3))
    with pytest.raises(PartitionError, match="returns 2 values but its signature has 3"):
        analyze_joint(as_joint(joint.module, 1, [UserOutput(0), UserOutput(1)], [UserOutput(0)]))
