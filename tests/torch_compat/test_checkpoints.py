"""Feature tests of `aotgrad/torch_compat/checkpoints.py`."""

import contextlib
import functools

import pytest
import torch
import torch._higher_order_ops.wrap as wrapped_regions
import torch.utils.checkpoint

from aotgrad import torch_compat as compat

kept = torch.ops.higher_order.tag_activation_checkpoint
checkpoint = torch.utils.checkpoint.checkpoint


def leaf() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def test_a_region_that_dynamo_keeps_runs_like_any_code():
    region, saved = torch.fx.symbolic_trace(lambda x: x.exp().sin()), []
    for context in (contextlib.nullcontext, compat.plain_checkpoints):
        x, packed = leaf(), []
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda t, packed=packed: packed.append(t) or t, lambda t: t),
            context(),
        ):
            (first,) = torch.autograd.grad(kept(region, x).sum(), x)
        assert torch.allclose(first, x.exp().cos() * x.exp())
        saved.append(len(packed))
    assert saved[1] == 2
    assert wrapped_regions.tag_activation_checkpoint_impl.__name__ == "tag_activation_checkpoint_impl"


def test_it_runs_as_one_is_told_to():
    region, seen, x = torch.fx.symbolic_trace(lambda x: x.exp().sin()), [], leaf()

    def run(of_torch, region, args, settings):
        seen.append((settings, compat.has_own_policy(region)))
        return of_torch(region, *args, **settings)

    with compat.run_kept_regions(run):
        assert torch.equal(kept(region, x, preserve_rng_state=False), x.exp().sin())
    assert seen == [({"preserve_rng_state": False}, False)]
    region.meta["_checkpoint_context_fn"] = None
    assert compat.has_own_policy(region)


def test_its_saved_values_are_read_any_number_of_times():
    region, x = torch.fx.symbolic_trace(lambda x: x.exp().sin()), leaf()
    keeps = functools.partial(torch.utils.checkpoint.create_selective_checkpoint_contexts, [torch.ops.aten.exp.default])
    region.meta["_checkpoint_context_fn"] = keeps
    with compat.report_regions(lambda function, keeps: (function, lambda: None)):
        y = kept(region, x).sum()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(y, x, retain_graph=True)
        assert torch.equal(gradient, x.exp().cos() * x.exp())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_it_runs_again_in_the_backward_and_may_change_what_it_closes_over(use_reentrant):
    def counted(x, count):
        count.add_(1)
        return x.exp()

    region, count, x = torch.fx.symbolic_trace(counted), torch.zeros(()), leaf()
    settings = {"preserve_rng_state": True, "use_reentrant": use_reentrant}
    with compat.report_regions(lambda function, keeps: (function, lambda: None)):
        y = compat.run_checkpointed(region, [x, count], settings, {1})
    assert count == 1
    torch.autograd.grad(y.sum(), x)
    assert count == 2


def test_a_region_is_noted_and_what_it_runs_again():
    events, x = [], leaf()

    def note(function, keeps_state):
        events.append(("begins", keeps_state))
        return functools.partial(again, function), lambda: events.append("ends")

    def again(function, *args):
        events.append("again")
        return function(*args)

    with compat.report_regions(note):
        y = checkpoint(lambda x: x.exp(), x, use_reentrant=False, preserve_rng_state=False)
        assert compat.saves_packed_values(y.grad_fn)
        checkpoint(lambda x: x.exp(), x, use_reentrant=False)
    z = checkpoint(lambda x: x.exp(), x, use_reentrant=False)
    assert events == [("begins", False), "ends", ("begins", True), "ends"]
    torch.autograd.grad((y + z).sum(), x)
    assert events[-1] == "again"
    assert events.count("again") == 1
    assert not compat.saves_packed_values(x.exp().grad_fn)


def test_saved_values_of_a_region_are_recomputed_once():
    runs, x = [], leaf()

    def region(x):
        runs.append(1)
        return x.exp().exp().exp()

    y = checkpoint(region, x, use_reentrant=False)
    nodes = [y.grad_fn, y.grad_fn.next_functions[0][0], y.grad_fn.next_functions[0][0].next_functions[0][0]]
    with torch.utils.checkpoint.GraphExecGroup() as around:
        with compat.recomputed_once():
            values = [node._saved_result for node in nodes]
        assert torch._C._get_graph_exec_group() is around
    assert torch.equal(values[0], y)
    assert torch.equal(values[2], x.exp())
    assert len(runs) == 2


def test_a_reentrant_region_is_one_node():
    x = leaf()
    with compat.report_regions(lambda function, keeps: (function, lambda: None)):
        first, second = checkpoint(lambda x: (x.exp(), x.sin()), x, use_reentrant=True)
        with pytest.raises(RuntimeError, match=compat.REENTRANT_WITHOUT_GRADIENT):
            checkpoint(lambda x: x.detach(), x, use_reentrant=True)
        with pytest.warns(UserWarning, match="None of the inputs"):
            assert not checkpoint(lambda y: y * x, x.detach(), use_reentrant=True).requires_grad
    assert first.grad_fn is second.grad_fn
    assert torch.equal(torch.autograd.grad(first.sum(), x)[0], x.exp())
    assert torch.utils.checkpoint.CheckpointFunction.__name__ == "CheckpointFunction"


def test_the_size_of_a_random_state():
    assert torch.get_rng_state().nbytes == compat.RANDOM_STATE_BYTES["cpu"]


def test_a_policy_of_new_nodes_is_restored():
    policy = torch.utils.checkpoint.CheckpointPolicy
    with torch.fx.traceback.preserve_node_meta():
        torch.fx.traceback.current_meta["recompute"] = policy.MUST_SAVE
        with compat.kept_policy():
            torch.fx.traceback.current_meta |= {"recompute": policy.PREFER_RECOMPUTE, "ac_graph_id": 3}
        left = torch.fx.traceback.current_meta
        assert (left["recompute"], "ac_graph_id" in left) == (policy.MUST_SAVE, False)


def test_a_node_keeps_the_policy_of_the_user():
    policy, graph = torch.utils.checkpoint.CheckpointPolicy, torch.fx.Graph()
    plain, kept_by_user = graph.placeholder("plain"), graph.placeholder("kept_by_user")
    kept_by_user.meta["recompute"] = policy.MUST_SAVE
    for node in (plain, kept_by_user):
        compat.tag_recomputed(node, 2)
    tags = [(node.meta["recompute"], node.meta["ac_graph_id"]) for node in (plain, kept_by_user)]
    assert tags == [(policy.PREFER_RECOMPUTE, 2), (policy.MUST_SAVE, 2)]


def test_a_hook_stops_the_recomputation_when_it_has_what_was_saved():
    stopped = []

    def region(x):
        try:
            return x.exp()
        except compat.RecomputationStop:
            stopped.append(1)
            raise

    checkpoint(region, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()
    assert stopped == [1]
