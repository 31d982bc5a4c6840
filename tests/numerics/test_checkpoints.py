"""`torch.utils.checkpoint` around regions that are not repeatable: eager recomputes the region in the backward.

The recomputation repeats its writes, once for each backward that needs a value of the region, and as far as eager runs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint as torchs_checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts, set_checkpoint_early_stop

import aotgrad
from aotgrad.errors import UnsupportedMutationError

from .against_eager import ALL, COMPILERS, compiled
from .test_backward_effects import (
    EVERY,
    WITHOUT_DYNAMO,
    Doubles,
    assert_alike,
    each_result,
    in_turn,
    once,
    only_forward,
    retained,
    total,
)

checkpoint = functools.partial(torchs_checkpoint, use_reentrant=False)


def x_and_buffer() -> list[Tensor]:
    return [torch.randn(3, 3, dtype=torch.double).requires_grad_(), torch.rand(3, 3, dtype=torch.double) + 1]


every_backend = pytest.mark.parametrize("backend", EVERY)


# --- Writes --------------------------------------------------------------------------------------------------------------


def counts(x, buffer):
    def region(h):
        buffer.add_(1)
        return h.exp() * 2

    return checkpoint(region, x.cos()).sin()


def reads_and_counts(x, buffer):
    """The backward reads a value that the region left behind, or received."""

    def region(h):
        y = (h * buffer).sin()
        buffer.mul_(2)
        return (y * buffer).cos()

    return checkpoint(region, x.cos()).sin()


def counts_at_the_end(x, buffer):
    """Eager stops running the region as soon as it has all saved values."""

    def region(h):
        y = h.exp()
        buffer.add_(1)
        return y

    return checkpoint(region, x.cos()).sin()


def counts_to_the_end(x, buffer):
    def region(h):
        y = h.exp()
        buffer.add_(1)
        return y

    return checkpoint(region, x.cos(), early_stop=False).sin()


def counts_in_two_regions(x, buffer):
    def region(h):
        buffer.add_(h.detach())
        return (h * buffer).exp()

    return checkpoint(region, checkpoint(region, x.cos()).sin()).sin()


def counts_between_regions_that_do_not(x, buffer):
    """The backward is traced twice, since it writes; so are the regions that write nothing."""

    def region(h):
        buffer.add_(1)
        return (h * buffer).exp()

    def repeatable(h):
        return h.sin().exp()

    return checkpoint(repeatable, checkpoint(region, checkpoint(repeatable, x.cos()))).sin()


def counts_in_a_region_within(x, buffer):
    def inner(h):
        buffer.add_(1)
        return (h * buffer).cos()

    def outer(h):
        buffer.mul_(2)
        return checkpoint(inner, h.sin()).sin()

    return checkpoint(outer, x.cos()).sin()


def counts_and_returns_two(x, buffer):
    """Each result depends on values of the region; both together recompute it once."""

    def region(h):
        buffer.add_(1)
        return (h * buffer).exp(), h.sin() * buffer

    first, second = checkpoint(region, x.cos())
    return first.sin(), second.cos()


def counts_beside_what_needs_nothing(x, buffer):
    """No backward of the first result needs a value of the region."""

    def region(h):
        buffer.add_(1)
        return h + 1, h.sin()

    return checkpoint(region, x.cos())


def normalizes(x, buffer):
    def region(h):
        return F.batch_norm(h, buffer[0], buffer[1], training=True).sin()

    return checkpoint(region, x.cos()).sin()


def drops_and_counts(x, buffer):
    def region(h):
        buffer.add_(1)
        return F.dropout(h * buffer, 0.5).sin()

    return checkpoint(region, F.dropout(x, 0.2)).sin()


def counts_beside_a_custom_function(x, buffer):
    """The region writes, and the backward of a function in it."""

    def region(h):
        buffer.mul_(2)
        return Doubles.apply(h.exp(), buffer).sin()

    return checkpoint(region, x.cos()).sin()


PROGRAMS = (
    counts,
    reads_and_counts,
    counts_at_the_end,
    counts_to_the_end,
    counts_in_two_regions,
    counts_between_regions_that_do_not,
    counts_in_a_region_within,
    counts_and_returns_two,
    counts_beside_what_needs_nothing,
    normalizes,
)
USES = (once, retained, only_forward, in_turn, each_result)


@every_backend
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_a_region_writes_once_more(function: Callable, use: Callable, backend: str) -> None:
    assert_alike(function, use, x_and_buffer, backend)


@torch.library.custom_op("aotgrad_tests::add_to_a_copy", mutates_args=("copy",))
def add_to_a_copy(x: Tensor, copy: Tensor) -> None:
    copy.add_(x)


def changes_a_product(x, buffer):
    def region(h):
        return (h * 2).mul_(3).sin().exp()

    return checkpoint(region, x.cos()).sin()


def changes_a_copy(x, buffer):
    def region(h):
        copy = buffer.clone()
        copy.add_(h.detach())
        return (h.sin() * copy).exp()

    return checkpoint(region, x.cos()).sin()


def has_an_op_change_a_copy(x, buffer):
    def region(h):
        copy = buffer.clone()
        add_to_a_copy(h.detach(), copy)
        return (h.sin() * copy).exp()

    return checkpoint(region, x.cos()).sin()


def changes_a_row(x, buffer):
    def region(h):
        y = h.sin() * buffer
        y[0] = h[1].cos()
        return y.exp()

    return checkpoint(region, x.cos()).sin()


def transposes_in_place(x, buffer):
    def region(h):
        return (h.sin().t_() * buffer).exp()

    return checkpoint(region, x.cos()).sin()


def rectifies_in_place(x, buffer):
    def region(h):
        return F.relu((h @ buffer).sub_(1), inplace=True).sin()

    return checkpoint(region, checkpoint(region, x.cos())).sin()


CHANGING_THEIR_OWN = (
    *(changes_a_product, changes_a_copy, has_an_op_change_a_copy, changes_a_row),
    *(transposes_in_place, rectifies_in_place),
)


@every_backend
@pytest.mark.parametrize("use", [once, retained])
@pytest.mark.parametrize("function", CHANGING_THEIR_OWN)
def test_a_region_changes_what_it_has_made(function: Callable, use: Callable, backend: str) -> None:
    assert_alike(function, use, x_and_buffer, backend)


def exp_of_sin(h):
    return h.sin().exp()


def changes_a_result(x, buffer):
    y = checkpoint(exp_of_sin, x.cos())
    y += x
    return y.sin()


def changes_a_row_of_a_result(x, buffer):
    y = checkpoint(exp_of_sin, x.cos())
    y[0].mul_(2)
    return y.sin()


def changes_one_of_two_results(x, buffer):
    y, z = checkpoint(lambda h: (h.exp(), h.exp().t()), x.cos())
    z.relu_()
    return y * z, checkpoint(exp_of_sin, z)


@every_backend
@pytest.mark.parametrize("use", [once, retained, only_forward])
@pytest.mark.parametrize("function", [changes_a_result, changes_a_row_of_a_result, changes_one_of_two_results])
def test_the_result_of_a_region_is_changed(function: Callable, use: Callable, backend: str) -> None:
    assert_alike(function, use, x_and_buffer, backend)


def adds_to_the_buffer(buffer):
    def hook(gradient):
        buffer.add_(gradient)

    return hook


def writes_in_a_hook(x, buffer):
    y = x.cos()
    y.register_hook(adds_to_the_buffer(buffer))
    return checkpoint(exp_of_sin, y).sin()


def keeps_the_sine():
    return create_selective_checkpoint_contexts([torch.ops.aten.sin.default])


def writes_in_a_hook_beside_a_policy(x, buffer):
    y = x.cos()
    y.register_hook(adds_to_the_buffer(buffer))
    return checkpoint(exp_of_sin, y, context_fn=keeps_the_sine).sin()


def counts_before_a_policy(x, buffer):
    def region(h):
        buffer.add_(1)
        return (h * buffer).exp()

    return checkpoint(exp_of_sin, checkpoint(region, x.cos()), context_fn=keeps_the_sine).sin()


@every_backend
@pytest.mark.parametrize("function", [writes_in_a_hook, writes_in_a_hook_beside_a_policy, counts_before_a_policy])
def test_the_backward_writes_beside_a_region(function: Callable, backend: str) -> None:
    """Its trace runs more than once, and so do the reads of what a region has saved."""
    assert_alike(function, once, x_and_buffer, backend)


def normalizes_within(x, buffer):
    def inner(h):
        return F.batch_norm(h, buffer[0], buffer[1], training=True).cos()

    def outer(h):
        y = F.batch_norm(h.sin(), buffer[2], buffer[1], training=True)
        return checkpoint(inner, y).sin()

    return checkpoint(outer, x.cos()).sin()


def counts_around_a_count(x, buffer):
    """The other results of the outer region need only its own values."""

    def inner(h):
        buffer[0].add_(1)
        return (h * buffer[0].clone()).exp()

    def outer(h):
        buffer[1].add_(1)
        return checkpoint(inner, h.sin()).cos(), (h * buffer[1].clone()).sin()

    return checkpoint(outer, x.cos())


def of_the_inner(function: Callable, args: Sequence[Tensor]) -> Any:
    outputs = function(*args)
    total(outputs[0]).backward()
    return outputs


def of_the_outer(function: Callable, args: Sequence[Tensor]) -> Any:
    outputs = function(*args)
    total(outputs[1]).backward()
    return outputs


@every_backend
@pytest.mark.parametrize("use", [once, retained, in_turn])
def test_batch_norms_in_a_region_and_in_one_within(use: Callable, backend: str) -> None:
    assert_alike(normalizes_within, use, x_and_buffer, backend)


@every_backend
@pytest.mark.parametrize("use", [once, retained, of_the_inner])
def test_counts_in_a_region_and_in_one_within(use: Callable, backend: str) -> None:
    assert_alike(counts_around_a_count, use, x_and_buffer, backend)


@pytest.mark.xfail(strict=True, reason="the nodes of nested regions are one segment, which runs the inner region once more")
@every_backend
@pytest.mark.parametrize("use", [each_result, of_the_outer])
def test_counts_where_the_region_within_is_not_needed(use: Callable, backend: str) -> None:
    assert_alike(counts_around_a_count, use, x_and_buffer, backend)


@pytest.mark.parametrize("backend", WITHOUT_DYNAMO)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_beside_a_custom_function(use: Callable, backend: str) -> None:
    assert_alike(counts_beside_a_custom_function, use, x_and_buffer, backend)


@pytest.mark.parametrize("backend", ["nop", "dynamo"])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_sizes_that_change(function: Callable, backend: str) -> None:
    assert_alike(function, retained, x_and_buffer, backend, dynamic=True)


@pytest.mark.parametrize("backend", ["nop", "dynamo"])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_in_many_segments(function: Callable, backend: str) -> None:
    assert_alike(function, retained, x_and_buffer, backend, options={"grad_segments": 3})


def test_an_early_stop_that_is_turned_off() -> None:
    def function(x, buffer):
        with set_checkpoint_early_stop(False):
            return counts_at_the_end(x, buffer)

    assert_alike(function, once, x_and_buffer, "nop")


# --- Wanted gradients ----------------------------------------------------------------------------------------------------


def one_by_one(function: Callable, args: Sequence[Tensor]) -> Any:
    """The gradient of each input in a backward of its own, and the version of the buffer after it."""
    outputs, found = function(*args), []
    for leaf in args:
        if leaf.requires_grad:
            for output in (total(outputs), total(outputs[0])):
                (gradient,) = torch.autograd.grad(output, leaf, retain_graph=True, allow_unused=True)
                found += [gradient, args[1]._version, args[1].clone()]
    return outputs, found


def two_leaves_and_a_buffer() -> list[Tensor]:
    return [*x_and_buffer(), torch.randn(3, 3, dtype=torch.double).requires_grad_()]


def adds_what_needs_nothing(x, buffer, w):
    def region(h, w):
        buffer.add_(1)
        return h.exp() + w

    return checkpoint(region, x.cos(), w * 2)


def needs_values_for_both(x, buffer, w):
    def region(h, w):
        buffer.add_(1)
        return h.exp() + w.sin()

    return checkpoint(region, x.cos(), w * 2).sin()


def needs_values_behind_a_sum(x, buffer, w):
    def region(h, w):
        buffer.add_(1)
        return ((h.exp() * buffer).cos() + w).sin()

    return checkpoint(region, x.cos(), w * 2).sin()


def returns_a_sum_between(x, buffer, w):
    """Two nodes need values of the region, and the value between them is returned, too."""

    def region(h, w):
        buffer.add_(1)
        between = h.exp() + w
        return between, between.sin()

    return checkpoint(region, x.cos(), w * 2)


@pytest.mark.parametrize("backend", ["nop", "eager", "dynamo"])
@pytest.mark.parametrize(
    "function",
    [adds_what_needs_nothing, needs_values_for_both, needs_values_behind_a_sum, returns_a_sum_between],
    ids=lambda function: function.__name__,
)
def test_a_gradient_that_needs_no_value_of_the_region(function: Callable, backend: str) -> None:
    assert_alike(function, one_by_one, two_leaves_and_a_buffer, backend)


# --- Modules -------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A residual block, checkpointed as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def region(self, x):
        self.count.add_(1)
        return x + self.second(self.norm(self.first(x)).relu())

    def forward(self, x):
        return checkpoint(self.region, x)


def trained(compile: Callable) -> list[Tensor]:
    """Four steps, one without a backward; parameters are replaced on the way."""
    torch.manual_seed(3)
    blocks = nn.Sequential(nn.Linear(4, 4), Block(), Block()).double()
    step, found = compile(blocks), []
    for k in range(4):
        if k == 2:
            blocks[1].first.weight = nn.Parameter(torch.randn(4, 4).double())
        loss = (step(torch.randn(5, 4).double()) ** 2).sum()
        if k != 1:
            loss.backward()
        with torch.no_grad():
            for parameter in blocks.parameters():
                parameter -= 0.1 * (0 if parameter.grad is None else parameter.grad)
        found += [loss.detach(), *(value.clone() for value in blocks.state_dict().values())]
        found += [torch.tensor(buffer._version) for buffer in blocks.buffers()]
    return found


@every_backend
def test_a_batch_norm(backend: str) -> None:
    def compile(module: nn.Module) -> Callable:
        if backend in WITHOUT_DYNAMO:
            return aotgrad.aot_module(module, COMPILERS[backend])
        return compiled(module, backend)

    for mine, eager in zip(trained(compile), trained(lambda module: module), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-5)


# --- Random numbers that differ -----------------------------------------------------------------------------------------


def draws_anew(x, buffer):
    """The gradient uses another mask than the result."""
    settings = {"preserve_rng_state": False}
    return checkpoint(lambda h: F.dropout(h.exp(), 0.5) * torch.rand_like(h), x.cos(), **settings).sin()


def draws_anew_and_writes(x, buffer):
    def region(h):
        buffer.add_(torch.rand_like(buffer))
        return F.dropout(h.exp() * buffer, 0.5)

    return F.dropout(checkpoint(region, x.cos(), preserve_rng_state=False), 0.5)


def draws_anew_for_two_results(x, buffer):
    def region(h):
        return F.dropout(h.exp(), 0.5), F.dropout(h.sin(), 0.5)

    first, second = checkpoint(region, x.cos(), preserve_rng_state=False)
    return first.sin(), second.sin()


def draws_anew_within_what_draws_again(x, buffer):
    def region(h):
        inner = checkpoint(lambda h: F.dropout(h.exp(), 0.5), F.dropout(h, 0.2), preserve_rng_state=False)
        return F.dropout(inner.sin(), 0.3)

    return checkpoint(region, x.cos())


def draws_again_for_other_values(x, buffer):
    """The region redraws the same numbers, and reads a value that has changed since."""
    w = buffer * 2
    y = checkpoint(lambda h: F.dropout(h * w, 0.5) * torch.rand_like(h * w), x.cos())
    w.add_(1)
    return y


DRAWING = (
    drops_and_counts,
    draws_anew,
    draws_anew_and_writes,
    draws_anew_for_two_results,
    draws_anew_within_what_draws_again,
    draws_again_for_other_values,
)


def then_the_next_numbers(use: Callable, function: Callable, args: Sequence[Tensor]) -> Any:
    return use(function, args), torch.rand(3)


@pytest.mark.parametrize("backend", ["nop", "eager", "dynamo"])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("function", DRAWING, ids=lambda function: function.__name__)
def test_numbers_are_drawn_as_in_eager(function: Callable, use: Callable, backend: str) -> None:
    assert_alike(function, functools.partial(then_the_next_numbers, use), x_and_buffer, backend)


@pytest.mark.parametrize("backend", ["aot_inductor", "inductor"])
def test_inductor_draws_anew(backend: str) -> None:
    """The gradient uses another mask than the value."""

    def function(x):
        return checkpoint(lambda h: F.dropout(h * 1, 0.5), x, preserve_rng_state=False)

    x = torch.ones(1000, requires_grad=True)
    y = compiled(function, backend)(x)
    (first,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (second,) = torch.autograd.grad(y.sum(), x)
    for one, other in ((y, first), (y, second), (first, second)):
        assert {0, 2} == {*one.unique().tolist()} and 300 < (one != other).sum() < 700


# --- use_reentrant=True --------------------------------------------------------------------------------------------------

reentrant = functools.partial(torchs_checkpoint, use_reentrant=True)


def runs_all_of_it(x, buffer):
    """The region is always recomputed, and to its end."""

    def region(h):
        y = h + 1
        buffer.add_(1)
        return y

    return reentrant(region, x.cos()).sin()


def returns_two_that_it_counts(x, buffer):
    def region(h):
        buffer.add_(1)
        return (h * buffer).exp(), h.sin()

    return reentrant(region, x.cos())


def returns_two(x, buffer):
    """It receives zeros for an undefined gradient."""
    return reentrant(lambda h: (h.exp() * buffer, h.sin()), x.cos())


def returns_one_in_a_tuple(x, buffer):
    return reentrant(lambda h: (h.exp() * buffer,), x.cos())


def returns_its_argument(x, buffer):
    return reentrant(lambda h: h, x.cos()) * 2


def drops(x, buffer):
    return reentrant(lambda h: F.dropout(h.exp(), 0.5), x.cos())


def drops_anew(x, buffer):
    return reentrant(lambda h: F.dropout(h.exp(), 0.5), x.cos(), preserve_rng_state=False)


REENTRANT = (
    runs_all_of_it,
    returns_two_that_it_counts,
    returns_two,
    returns_one_in_a_tuple,
    returns_its_argument,
    drops,
    drops_anew,
)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("backend", ["nop", "eager", "dynamo"])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("function", REENTRANT, ids=lambda function: function.__name__)
def test_reentrant(function: Callable, use: Callable, backend: str) -> None:
    assert_alike(function, functools.partial(then_the_next_numbers, use), x_and_buffer, backend)


# Dynamo does not distinguish arguments of the region from its closure.
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("backend", WITHOUT_DYNAMO)
def test_reentrant_without_an_argument_that_requires_grad(backend: str) -> None:
    """Then the closure of the region gets no gradient."""

    def function(x, buffer):
        return reentrant(lambda h: h.exp() * x, buffer) + x

    assert_alike(function, retained, x_and_buffer, backend)


# --- A region that is compiled -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ALL)
def test_a_compiled_region_that_is_recomputed_counts_again(backend: str) -> None:
    """Eager stops the recomputation when the region saves the last value, by an error; it has counted by then."""

    def region(x, buffer):
        buffer.add_(1)
        return x.sin().exp()

    def results(function: Callable) -> list[Tensor]:
        torch.manual_seed(0)
        x, buffer = x_and_buffer()
        checkpoint(lambda x: function(x, buffer), x).sum().backward()
        return [buffer, x.grad]

    torch.testing.assert_close(results(compiled(region, backend)), results(region))


def counts_before(x, buffer):
    buffer.add_(1)
    return x.sin().exp()


def counts_afterwards(x, buffer):
    y = x.sin().exp()
    buffer.add_(1)
    return y * 2


def counts_after_what_saves_its_result(x, buffer):
    y = x.sigmoid()
    buffer.mul_(2)
    return y


def normalizes_last(x, buffer):
    return F.batch_norm(x.sin(), buffer[0], buffer[1], training=True)


def adds_a_value_with_a_gradient(x, buffer):
    y = x.sin()
    buffer.add_(y)
    return y.exp()


def adds_one_afterwards(x, buffer):
    y = x.sin().exp()
    buffer.add_(y)
    return y * 2


def adds_to_a_part(x, buffer):
    buffer[0].add_(x[0].sin())
    return x.exp()


def overwrites_with_a_gradient(x, buffer):
    buffer.copy_(x.cos())
    return x.sin().exp()


def changes_both(x, buffer):
    """The backward starts at a segment that saves nothing; the one that saves is made before the write."""
    buffer.sigmoid_()
    x.mul_(2)
    return x.sigmoid() * 3


CHANGES_IN_A_COMPILED_REGION = [
    counts_before,
    counts_afterwards,
    counts_after_what_saves_its_result,
    normalizes_last,
    adds_a_value_with_a_gradient,
    adds_one_afterwards,
    adds_to_a_part,
    overwrites_with_a_gradient,
    changes_both,
]


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("function", CHANGES_IN_A_COMPILED_REGION)
@pytest.mark.parametrize("backend", ALL)
def test_a_compiled_region_writes_again_what_eager_does(function: Callable, early_stop: bool, backend: str) -> None:
    """Eager repeats what comes before the last saved tensor. Also the history of what it has written is repeated."""

    def results(function: Callable) -> list[Any]:
        torch.manual_seed(0)
        leaf, buffer = x_and_buffer()
        x = leaf * 1
        with set_checkpoint_early_stop(early_stop):
            y = checkpoint(lambda: function(x, buffer))
        y.sum().backward(retain_graph=True)
        written = buffer.clone()
        found = [y, x, written, x._version, buffer._version, x.requires_grad, buffer.requires_grad]
        if buffer.requires_grad:
            (gradient,) = torch.autograd.grad(buffer.sum(), x, retain_graph=True, allow_unused=True)
            found.append(gradient)
        return found

    for mine, eager in zip(results(compiled(function, backend)), results(function), strict=True):
        torch.testing.assert_close(mine, eager)


@pytest.mark.parametrize("backend", ALL)
def test_a_compiled_region_that_would_be_stopped_between_two_writes(backend: str) -> None:
    def function(x, buffer):
        buffer.add_(1)
        y = x.sin().exp()
        buffer.add_(1)
        return y * 2

    under_test = compiled(function, backend)
    x, buffer = x_and_buffer()
    y = checkpoint(lambda x: under_test(x, buffer), x)
    before = buffer.clone()
    with pytest.raises(UnsupportedMutationError, match="stops it between two writes"):
        y.sum().backward()
    assert torch.equal(buffer, before)
    with set_checkpoint_early_stop(False):
        checkpoint(lambda x: under_test(x, buffer), x).sum().backward()
    torch.testing.assert_close(buffer, before + 4)
    torch.testing.assert_close(x.grad, 2 * x.cos() * x.sin().exp())


class AssignsACount(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        return x.sin().exp()


@pytest.mark.xfail(strict=True, reason="the checkpoint ends the repeated call before its results are assigned")
@pytest.mark.parametrize("backend", ["nop", "aot_inductor"])
def test_a_compiled_module_that_is_recomputed_assigns_again(backend: str) -> None:
    def count_of(module: nn.Module) -> Any:
        checkpoint(module, torch.ones(2).requires_grad_()).sum().backward()
        return module.count

    under_test = aotgrad.aot_module(AssignsACount(), COMPILERS[backend], options={"min_graph_ops": 0})
    torch.testing.assert_close(count_of(under_test), count_of(AssignsACount()))
