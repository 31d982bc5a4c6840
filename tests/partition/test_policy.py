"""The choices for each value, and the printed reason."""

from __future__ import annotations

import torch

from aotgrad.partition.graphs import analyze_joint
from aotgrad.partition.policy import Choice, judge
from tests.partition.joints import grad, joint_of


def verdicts(fn, *inputs, **kwargs):
    analysis = analyze_joint(joint_of(fn, *inputs, **kwargs))
    values = analysis.in_order(analysis.forward | analysis.unclaimed)
    return {node.name: judge(analysis, node) for node in values}


def test_attention_without_dropout_is_recomputed_without_a_state():
    def attend(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q.sin(), k, v).sin().sum()

    given = verdicts(attend, *(grad(1, 2, 4, 8) for _ in range(3)))
    (reason,) = (verdict.reason for name, verdict in given.items() if name.startswith("_scaled_dot_product"))
    assert "random" not in reason and "state" not in reason


def test_reasons():
    given = verdicts(lambda x, w: torch.dropout((x @ w).sin(), 0.5, True).sum(), grad(2, 3), grad(3, 4))
    text = {name: f"{verdict.choice.value}: {verdict.reason}" for name, verdict in given.items()}
    assert text["primals_1"] == "save: an input of the graph"
    assert text["mm"] == "save: result of mm, never recomputed"
    assert text["sin"] == "save or recompute: sin is cheap"
    assert text["bernoulli"] == "save: bernoulli would draw other random numbers the second time"
    assert text["cos"] == "save or recompute: only the backward needs it"
    assert text["t"] == "free: a view of primals_1"


def test_an_overwritten_input_is_saved_as_a_copy():
    verdict = verdicts(lambda x, y: (x + 1, x * y), torch.randn(3), grad(3), mutated=[0])["primals_1"]
    assert verdict.choice is Choice.SAVE and "a copy of its old value" in verdict.reason


def test_tuples_are_not_saved_but_their_items_are():
    given = verdicts(lambda x: x.sort()[0], grad(4))
    assert given["sort"].choice is Choice.NEITHER
    assert given["getitem_1"].choice is Choice.EITHER


def test_values_are_not_made_again_from_an_input_that_eager_does_not_save():
    """`x + 1` needs no `x` in its backward: a user may overwrite `x` after the forward, as in eager."""
    given = verdicts(lambda x: (x + 1).sin().sum(), grad(3))
    assert not given["primals_1"].savable
    assert given["add"].choice is Choice.EITHER


def test_an_output_that_the_backward_does_not_read_is_not_saved():
    given = verdicts(lambda x: (x * 2, (x * 2 + 1).sin()), grad(3))
    assert given["mul"].choice is Choice.RECOMPUTE
