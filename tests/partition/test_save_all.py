"""Every crossing value is saved; a view is saved as its base."""

from __future__ import annotations

import torch

from aotgrad.partition.decision import Objective
from aotgrad.partition.graphs import analyze_joint
from aotgrad.partition.save_all import save_all
from tests.partition.joints import grad, hand_made, joint_of


def reasons(joint) -> dict[str, str]:
    return {node.name: reason for node, reason in save_all(analyze_joint(joint), Objective()).saved.items()}


def test_bases_are_saved_and_not_their_views():
    assert reasons(joint_of(lambda x, w: x.sin().view(-1) @ w, grad(2, 3), grad(6))) == {
        "primals_1": "needed by cos in the backward; every value that crosses is saved",
        "primals_2": "needed by mul in the backward; every value that crosses is saved",
        "sin": "needed by mul_1 in the backward; every value that crosses is saved",
    }


def test_a_value_that_is_itself_a_gradient():
    joint = hand_made(lambda x, t: ([x.sin(), x.exp()], [x.exp()]), [torch.randn(3)], [torch.ones(3)])
    assert reasons(joint) == {"primals_1": "needed by exp_1 in the backward; every value that crosses is saved"}
    joint = hand_made(lambda x, t: ([x.sin()], [x]), [torch.randn(3)], [torch.ones(3)])
    assert reasons(joint) == {"primals_1": "is itself a gradient; every value that crosses is saved"}
