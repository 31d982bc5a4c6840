"""Budgets from the public API: gradients equal eager's at every budget, and ops that must run once do."""

from __future__ import annotations

import functools
import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import aotgrad
from aotgrad.backends.eager import compile_eager
from aotgrad.errors import OptionError, PartitionError
from aotgrad.options import budget_of
from aotgrad.partition import Objective, min_cut_rematerialization_partition, partition
from aotgrad.slots import Saved
from tests.numerics.against_eager import assert_like_eager, leaf, plain
from tests.partition.joints import grad, hand_made, joint_of, node_names, targets

BUDGETS = (1.0, 0.8, 0.5, 0.2, 0.0)


def within(joint, budget, **objective):
    return partition(joint, min_cut_rematerialization_partition, Objective(budget, **objective))


def run_again(halves) -> set[str]:
    return set(node_names(halves.forward.module)) & set(node_names(halves.backward.module))


# --- Gradients -------------------------------------------------------------------------------------------------------


def dropouts(x, w, v):
    h = F.dropout(torch.relu(x @ w), 0.3)
    return F.dropout(torch.tanh(h @ v) * h, 0.4).sin()


@pytest.mark.parametrize("of", ["saved", "peak"])
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("backend", ["eager", "interpreter", "dynamo"])
def test_gradients_through_dropout(budget, of, backend):
    options = {"memory_budget": budget, "memory_budget_of": of}
    make = lambda: (leaf(96, 64), leaf(64, 96), leaf(96, 96))  # noqa: E731  (masks are larger than a generator's state)
    assert_like_eager(dropouts, make, backend, options=options)


def test_masks_are_drawn_again_from_the_recorded_state():
    joint = joint_of(dropouts, grad(96, 64), grad(64, 96), grad(96, 96))
    halves = within(joint, 0.0)
    states = [value for value in halves.saved if value.slot.name.endswith("_state")]
    assert [value.saved_bytes for value in states] == [5056, 5056]
    assert targets(halves.backward.module).count("draw_again") == 2
    assert {value.reason for value in halves.recomputed if "bernoulli" in value.name} == {
        "bernoulli redraws the same numbers from the recorded state, and holding it would take 36864 bytes"
    }


def test_a_mask_that_is_smaller_than_a_state_is_saved():
    joint = joint_of(dropouts, grad(4, 4), grad(4, 4), grad(4, 4))
    assert not any(value.slot.name.endswith("_state") for value in within(joint, 0.0).saved)


def test_the_generator_ends_where_eager_leaves_it():
    x, w, v = leaf(96, 64), leaf(64, 96), leaf(96, 96)
    f = aotgrad.aot_function(dropouts, compile_eager, options={"memory_budget": 0.0})
    after = []
    for fn in (dropouts, f):
        torch.manual_seed(3)
        fn(x, w, v).sum().backward()
        after.append(torch.rand(4))
    assert torch.equal(*after)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("budget", BUDGETS)
def test_gradients_through_dropout_on_a_gpu(budget):
    make = lambda: tuple(t.detach().cuda().requires_grad_() for t in (leaf(96, 64), leaf(64, 96), leaf(96, 96)))  # noqa: E731
    assert_like_eager(dropouts, make, "eager", options={"memory_budget": budget})


class Net(nn.Module):
    """Batch norm, which writes buffers in the forward, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)

    def forward(self, x):
        return F.dropout(self.second(F.gelu(self.norm(self.first(x)))), 0.2).sum()


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_module_that_writes_buffers(budget):
    torch.manual_seed(0)
    ours, theirs = Net(), Net()
    theirs.load_state_dict(ours.state_dict())
    compiled = aotgrad.aot_module(ours, compile_eager, options={"memory_budget": budget})
    for step in range(3):
        x = torch.randn(2, 3, 12, 12)
        for model in (theirs, compiled):
            torch.manual_seed(step)
            model(x).backward()
    for (name, expected), actual in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad, rtol=0, atol=0, msg=name)
    for expected, actual in zip(theirs.buffers(), ours.buffers(), strict=True):
        assert torch.equal(expected, actual)


@pytest.mark.parametrize("budget", [0.5, 0.0])
def test_symbolic_sizes(budget):
    make = lambda: (leaf(96, 64), leaf(64, 96), leaf(96, 96))  # noqa: E731
    assert_like_eager(dropouts, make, "eager", dynamic=True, options={"memory_budget": budget})


@pytest.mark.parametrize("budget", [None, 0.5, 0.0])
def test_sizes_that_depend_on_data(budget):
    def fn(x, w):
        kept = x[x.sum(1) > 0]
        return torch.tanh(torch.relu(kept @ w) @ w).exp().sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert_like_eager(fn, lambda: (leaf(96, 64), leaf(64, 64)), "dynamo", options={"memory_budget": budget})


class Ops(TorchDispatchMode):
    """Records the names of the ops that run, with the shapes of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.ran.append((str(func.overloadpacket), tuple(result.shape)))
        return result


def test_the_backward_runs_in_the_order_of_eagers_engine():
    """The backward holds no more own memory at once than eager's."""

    def loss(x, *weights):
        for weight in weights:
            x = torch.tanh(x @ weight) * x
        return x.sum()

    arguments = leaf(4, 8), leaf(8, 8), leaf(8, 8), leaf(8, 8)
    result = loss(*arguments)
    with Ops() as eager:
        torch.autograd.grad(result, arguments)
    halves = within(joint_of(loss, *(argument.detach().requires_grad_() for argument in arguments)), 1.0)
    with torch.no_grad(), Ops() as ours:
        forward, *saved = halves.forward.module(*arguments)
        ours.ran.clear()
        halves.backward.module(*saved, torch.ones_like(forward))
    products = [[ran for ran in mode.ran if ran[0] in ("aten.mm", "aten.tanh_backward")] for mode in (eager, ours)]
    assert products[0] == products[1]
    assert len(products[0]) == 9


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_inductor_within_a_budget():
    def fn(x, w):
        for _ in range(3):
            x = torch.tanh(F.gelu(x @ w)) + x
        return x.sum()

    assert_like_eager(fn, lambda: (leaf(16, 8), leaf(8, 8)), "inductor", options={"memory_budget": 0.3, "min_graph_ops": 0})


@pytest.mark.parametrize(("budget", "raises"), [(None, False), (0.0, True)])
def test_an_input_that_changes_before_the_backward(budget, raises):
    """Eager does not need `x` in the backward. A budget does, as a checkpoint does, and reports it."""
    x, y = torch.randn(8, 1), grad(64)
    wide = aotgrad.aot_function(
        lambda x, y: (torch.tanh(x.expand(8, 64) * 2) * y).sum(), compile_eager, options={"memory_budget": budget}
    )
    loss = wide(x, y)
    x.zero_()
    if raises:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    else:
        loss.backward()


# --- What must run once ----------------------------------------------------------------------------------------------


def tagged(policy, name, **meta):
    joint = joint_of(lambda x, w: ((x @ w).sin() @ w).cos(), grad(8, 8), grad(8, 8))
    for node in joint.module.graph.nodes:
        if node.name == name:
            node.meta.update(recompute=policy, **meta)
    return joint


@pytest.mark.parametrize("budget", [None, *BUDGETS])
def test_what_must_be_saved_is_saved_at_every_budget(budget):
    halves = within(tagged(CheckpointPolicy.MUST_SAVE, "mm"), budget)
    assert "mm" not in run_again(halves)
    assert "mm" in {value.slot.name for value in halves.saved}


@pytest.mark.parametrize("partition_fn", [aotgrad.default_partition, aotgrad.min_cut_rematerialization_partition])
@pytest.mark.parametrize("policy", [CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE])
def test_what_must_be_recomputed_is_recomputed_without_a_budget(policy, partition_fn):
    halves = partition(tagged(policy, "mm"), partition_fn)
    assert "mm" in run_again(halves)
    reasons = {value.name: value.reason for value in halves.recomputed}
    assert reasons["mm"] == "tagged to be recomputed, or in a checkpoint"


def test_what_is_preferably_saved_is_the_last_to_run_again():
    def fn(x, v, w):
        return (torch.relu(x @ v) * torch.relu(x @ w)).sum()

    for name, other in (("mm", "mm_1"), ("mm_1", "mm")):
        joint = joint_of(fn, grad(32, 8), grad(8, 32), grad(8, 32), static=[0, 1, 2])
        (node,) = [node for node in joint.module.graph.nodes if node.name == name]
        node.meta["recompute"] = CheckpointPolicy.PREFER_SAVE
        assert run_again(within(joint, 0.5)) & {name, other} == {other}


@pytest.mark.parametrize("budget", [None, *BUDGETS])
def test_effects_run_once(budget):
    def fn(x):
        h = x.sin()
        torch.ops.aten._assert_async.msg(h.sum() < 1e9, "finite")
        return h.exp()

    halves = within(joint_of(fn, grad(8)), budget)
    assert targets(halves.backward.module).count("aten._assert_async.msg") == 0
    assert targets(halves.forward.module).count("aten._assert_async.msg") == 1


# --- Checkpoints, under Dynamo ---------------------------------------------------------------------------------------


def saved_in_forward(fn, *args) -> list[torch.Tensor]:
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        fn(*args)
    return saved


def block(x, w):
    return F.dropout(torch.tanh(x @ w) @ w, 0.2).sin()


def two_checkpoints(x, w):
    x = checkpoint(block, x, w, use_reentrant=False)
    return checkpoint(block, x, w, use_reentrant=False).sum()


@pytest.mark.parametrize("partitioner", ["min_cut", "save_all"])
def test_checkpoint_regions(partitioner):
    make = lambda: (leaf(96, 96), leaf(96, 96))  # noqa: E731
    assert_like_eager(two_checkpoints, make, "dynamo", options={"partitioner": partitioner})
    torch._dynamo.reset()
    compiled = torch.compile(two_checkpoints, backend="aotgrad_eager", options={"partitioner": partitioner})
    shapes = [tuple(t.shape) for t in saved_in_forward(compiled, *make())]
    assert sorted(shapes) == [(96, 96)] * 3 + [(5056,)] * 2  # x, w, the value between the two; two states


def test_a_checkpoint_that_reads_an_input_which_eager_would_not_save():
    def fn(x):
        return checkpoint(lambda x: (x + 1).sin(), x, use_reentrant=False).sum()

    assert_like_eager(fn, lambda: (leaf(4, 4),), "dynamo")
    assert_like_eager(fn, lambda: (leaf(4, 4),), "dynamo", options={"partitioner": "save_all"})


def test_a_policy_of_the_users_own():
    def save_products(ctx, op, *args, **kwargs):
        is_product = op is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    def fn(x, w):
        contexts = functools.partial(create_selective_checkpoint_contexts, save_products)
        return checkpoint(block, x, w, use_reentrant=False, context_fn=contexts).sum()

    compiled = torch.compile(fn, backend="aotgrad_eager")
    shapes = [tuple(t.shape) for t in saved_in_forward(compiled, leaf(96, 96), leaf(96, 96))]
    assert sorted(shapes) == [(96, 96)] * 4 + [(5056,)]  # x, w and two products; one state


# --- What a budget means ---------------------------------------------------------------------------------------------


def test_fewer_bytes_for_a_smaller_budget():
    def deep(x, w):
        for _ in range(6):
            x = torch.tanh(x @ w) + x
        return x.sum()

    joint = joint_of(deep, grad(16, 16), grad(16, 16), static=[1])
    kept = [within(joint, budget).saved_bytes for budget in (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)]
    assert kept == sorted(kept, reverse=True) and kept[-1] < 0.2 * kept[0]
    for budget, bytes_kept in zip((1.0, 0.8, 0.6, 0.4, 0.2), kept, strict=False):
        assert bytes_kept <= budget * kept[0]
    assert within(joint, int(0.5 * kept[0])).saved_bytes <= 0.5 * kept[0]


def test_parameters_do_not_count():
    """The budget divides the activations, even if a table is far larger."""

    def fn(table, index, w):
        h = table[index]
        for _ in range(4):
            h = torch.tanh(h @ w)
        return h.sum()

    joint = joint_of(fn, grad(100_000, 8), torch.arange(64), grad(8, 8), static=[0, 2])
    full, half = within(joint, 1.0), within(joint, 0.5)
    assert 0.3 * full.saved_bytes < half.saved_bytes <= 0.5 * full.saved_bytes


@pytest.mark.parametrize("budget", BUDGETS)
def test_an_output_that_the_caller_holds_is_never_made_again(budget):
    joint = joint_of(lambda x, w: (x @ w).softmax(-1), grad(8, 8), grad(8, 8))
    halves = within(joint, budget)
    assert not run_again(halves) & {"mm", "_softmax"}


@pytest.mark.parametrize("budget", [None, *BUDGETS])
def test_the_old_value_of_a_changed_input(budget):
    def fn(x, y):
        z = (x.exp() * y).sin()
        x.mul_(2)
        return z

    assert_like_eager(fn, lambda: (plain(6, 6), leaf(6, 6)), "eager", options={"memory_budget": budget})


def test_budgets_are_read():
    assert [budget_of(value) for value in (None, 0.25, 0, 1, 64, "1.5GB", "2 KiB", "10b")] == [
        *(None, 0.25, 0.0, 1.0, 64, 1_500_000_000, 2048, 10)
    ]


@pytest.mark.parametrize("budget", [-1, 1.5, "lots", "5 XB", True, [1]])
def test_other_budgets_are_refused(budget):
    with pytest.raises(OptionError, match="legal values are None, a number of bytes"):
        aotgrad.Options(memory_budget=budget)


@pytest.mark.parametrize(("name", "objective"), [("memory_budget", Objective(0.5)), ("offload", Objective(host_bytes=1e9))])
def test_a_partition_function_of_the_users_own_knows_no_budget(name, objective):
    joint = hand_made(lambda x, t: ([x.sin()], [t * x.cos()]), [torch.randn(3)], [torch.ones(3)])
    with pytest.raises(PartitionError, match=f"{name} has no effect on the partition function"):
        partition(joint, lambda *args, **kwargs: None, objective)


def test_a_budget_given_with_the_function():
    joint = joint_of(lambda x, w: torch.tanh((x @ w).exp() @ w), grad(8, 8), grad(8, 8), static=[1])
    given = functools.partial(min_cut_rematerialization_partition, memory_budget=0.0)
    assert partition(joint, given).saved == within(joint, 0.0).saved


def test_recompute_all_saves_least():
    joint = joint_of(dropouts, grad(96, 64), grad(64, 96), grad(96, 96))
    least = partition(joint, aotgrad.recompute_all_partition)
    assert least.saved_bytes == within(joint, 0.0).saved_bytes
    tensors = [value for value in least.saved if isinstance(value.slot, Saved)]
    assert functools.reduce(operator.add, (value.saved_bytes for value in tensors)) == least.saved_bytes
