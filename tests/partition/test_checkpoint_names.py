"""Names of values and policies of checkpoints say what is saved, recomputed and offloaded."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import aotgrad
from aotgrad import checkpoint_name
from aotgrad.errors import OptionError

POLICIES = ["save", "recompute", "offload"]


def layers(x, w, v):
    h = checkpoint_name(x @ w, "product")
    return (checkpoint_name(h.sin(), "sine") @ v).cos().sum()


def arguments():
    torch.manual_seed(0)
    return [torch.randn(8, 8, requires_grad=True) for _ in range(3)]


def gradients(f):
    args = arguments()
    y = f(*args)
    y.backward()
    return [y.detach(), *(arg.grad for arg in args)]


def where(f, *args, backend="eager", **policies):
    """What happens to the values of the forward."""
    report = aotgrad.explain(f, backend=backend, options={"checkpoint_policies": policies})(*args)
    rows = {"save": report.saved, "offload": report.offloaded, "recompute": report.recomputed}
    return {row.name: what for what, found in rows.items() for row in found if row.name not in ("x", "w", "v")}


def test_in_eager_it_is_a_differentiable_identity():
    x = torch.randn(3, requires_grad=True)
    y = checkpoint_name(x, "x")
    assert torch.equal(x, y) and torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.ones(3))
    assert torch.autograd.gradcheck(
        lambda x: checkpoint_name(x, "x").sin(), torch.randn(3, dtype=torch.double).requires_grad_()
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_values_are_those_of_eager(backend, policy):
    options = {"checkpoint_policies": {"product": policy, "sine": policy}}
    found = gradients(aotgrad.aot_function(layers, backend, options=options))
    torch.testing.assert_close(found, gradients(layers))


@pytest.mark.parametrize("policy", POLICIES)
def test_behind_dynamo(policy):
    torch.compiler.reset()
    options = {"checkpoint_policies": {"product": policy}, "cache": False}
    found = gradients(torch.compile(layers, backend="aotgrad_eager", fullgraph=True, options=options))
    torch.testing.assert_close(found, gradients(layers))


def test_each_policy_is_followed():
    assert where(layers, *arguments())["mm"] == "save"
    for policy in POLICIES:
        assert where(layers, *arguments(), product=policy)["mm"] == policy
        assert where(layers, *arguments(), sine=policy)["sin"] == policy


def test_the_policy_reaches_the_partition_behind_dynamo():
    report = aotgrad.explain(layers, dynamo=True, options={"checkpoint_policies": {"product": "offload"}})(*arguments())
    assert [row.name for row in report.graphs[0].offloaded] == ["mm"]


def test_in_a_module_several_values_have_one_name():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return checkpoint_name(self.linear(x).tanh(), "block")

    model = nn.Sequential(Block(), Block(), nn.Linear(8, 1))
    found = where(model, torch.randn(8, 8), block="offload")
    assert [name for name, what in found.items() if what == "offload"] == ["tanh", "tanh_1"]


def test_names_leave_no_op_in_the_graph():
    def plain(x, w, v):
        return ((x @ w).sin() @ v).cos().sum()

    def targets(f):
        compiled = aotgrad.aot_function(f, "eager", options={"checkpoint_policies": {"product": "save"}})
        compiled(*arguments())
        partition = compiled.plans()[0].executable.partition
        return [node.target for half in (partition.forward, partition.backward) for node in half.module.graph.nodes]

    assert [str(t) for t in targets(layers)] == [str(t) for t in targets(plain)]


def test_what_the_caller_holds_stays_on_the_device():
    def f(x, w):
        h = checkpoint_name(x @ w, "product")
        return h, h.sin().sum()

    x, w, _ = arguments()
    report = aotgrad.explain(f, options={"checkpoint_policies": {"product": "offload"}})(x, w)
    assert not report.offloaded
    assert "cannot leave the device" in " ".join(row.reason for row in report.saved)


def test_a_name_is_part_of_the_cache_key(tmp_path, monkeypatch):
    monkeypatch.setenv("AOTGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("AOTGRAD_VERIFY", "0")
    for policy in [*POLICIES, *POLICIES]:
        options = {"checkpoint_policies": {"product": policy}, "cache": True}
        found = gradients(aotgrad.aot_function(layers, "eager", options=options))
        torch.testing.assert_close(found, gradients(layers))
    assert aotgrad.counters["cache_hits"] >= 3


@pytest.mark.parametrize("given", [{"h": "sav"}, {1: "save"}, "save", ["h"]], ids=str)
def test_other_policies_are_refused(given):
    with pytest.raises(OptionError, match="legal is a dictionary from names to 'save', 'recompute', 'offload'"):
        aotgrad.Options(checkpoint_policies=given)


# --- Policies of torch.utils.checkpoint ------------------------------------------------------------------------------

OFFLOADS = [policy for policy in CheckpointPolicy if policy.name.endswith("CPU_OFFLOAD")]


def checkpointed(policy):
    def choose(ctx, op, *args, **kwargs):
        return policy if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE

    def f(x, w, v):
        context_fn = functools.partial(create_selective_checkpoint_contexts, choose)
        return checkpoint(lambda x: ((x @ w).sin() @ v).cos(), x, use_reentrant=False, context_fn=context_fn).sum()

    return f


@pytest.mark.skipif(not OFFLOADS, reason="this torch has no policy that offloads")
@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
def test_a_policy_that_offloads(backend):
    torch.compiler.reset()
    f = checkpointed(OFFLOADS[0])
    assert_offloads_products(f)
    torch.testing.assert_close(gradients(torch.compile(f, backend=backend, options={"cache": False})), gradients(layers))


def assert_offloads_products(f):
    report = aotgrad.explain(f, dynamo=True)(*arguments())
    assert [row.name for row in report.graphs[0].offloaded] == ["mm", "mm_1"]
    assert "tagged to be offloaded" in report.graphs[0].offloaded[0].reason
