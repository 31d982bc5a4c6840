"""Functions that branch on values, or return data-dependent results: a plan holds for calls with the same answers."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.errors import CaptureError, HigherOrderError

from .against_eager import INDUCTOR, assert_like_eager, assert_matches, leaf, non_leaf, plain

SMALL = {"min_graph_ops": 0, "verify": True}


@pytest.fixture
def compiled(halves, eagers_numbers) -> Callable:
    def compile(function: Callable, **settings):
        options = {**SMALL, **settings.pop("options", {})}
        return aotgrad.aot_function(function, halves, options=options, **settings)

    return compile


def filled(value: float, make: Callable = leaf) -> Callable:
    def arguments():
        tensor = make(3)
        with torch.no_grad():
            tensor.fill_(value)
        return (tensor,)

    return arguments


LAPACK = "LAPACK rounds by where its arguments lie in memory"


@pytest.fixture
def assert_all_like_eager(compiled, halves) -> Callable:
    def check(
        function: Callable, *made: Callable, plans: int | None = None, raises=None, values_close="", **settings
    ) -> None:
        """Compare calls of one compiled function with several arguments, twice each; `raises`: the error of the last one."""
        under_test = compiled(function, **settings)
        close = values_close or ("" if halves is aotgrad.nop else INDUCTOR)
        for make in (*made, *made):
            error = raises if make is made[-1] else None
            assert_like_eager(function, make, under_test, compilations=None, raises=error, values_close=close)
        if plans is not None:
            assert len(under_test.plans()) == plans

    return check


def value_lines(function) -> list[str]:
    return [line for plan in function.plans() for line in plan.guards.lines() if line.startswith("values: ")]


# --- Branches --------------------------------------------------------------------------------------------------------


def branch(x):
    y = x * 2
    return y.sin() if y.sum() > 0 else y.cos() * x


def test_both_ways_of_a_branch_have_a_plan(assert_all_like_eager):
    assert_all_like_eager(branch, filled(1), filled(-1), filled(2), plans=2)


@pytest.mark.parametrize("make", [leaf, non_leaf, plain])
def test_a_branch_after_a_change_of_the_argument(assert_all_like_eager, make):
    def function(x):
        x = x.mul_(2) if not (x.is_leaf and x.requires_grad) else x * 2
        return x * 3 if x.sum() > 3 else x.add_(1).sin()

    assert_all_like_eager(function, filled(1, make), filled(-1, make), plans=2)


def test_a_number_is_compared_and_computed_with(assert_all_like_eager):
    def function(x):
        largest = x.max().item()
        return x * largest if largest > 1.5 else x + largest

    assert_all_like_eager(function, filled(1), filled(2), filled(3), filled(float("nan")), plans=2)


def test_a_loop_that_values_end(assert_all_like_eager):
    def function(x):
        while x.abs().max() > 1:
            x = x / 2
        return x

    assert_all_like_eager(function, filled(0.5), filled(3), filled(3.5), plans=2)


def test_an_error_for_some_values_is_eagers(assert_all_like_eager):
    def function(x):
        if (x <= 0).any():
            raise ValueError("not positive")
        return x.log()

    assert_all_like_eager(function, filled(1), filled(2), filled(-1), plans=1, raises=ValueError)


def test_a_branch_with_symbolic_sizes(assert_all_like_eager):
    def sized(size, value):
        return lambda: (torch.full((size,), value, requires_grad=True),)

    assert_all_like_eager(branch, sized(3, 1.0), sized(4, 1.0), sized(5, -1.0), sized(6, -1.0), plans=2, dynamic=True)


def test_a_branch_on_memory_that_arguments_share(assert_all_like_eager):
    def function(x, y):
        x.mul_(2)
        return y * 3 if y.sum() > 0 else y + 1

    def overlapping(value):
        def arguments():
            base = torch.full((4,), value)
            return base[:3], base[1:]

        return arguments

    assert_all_like_eager(function, overlapping(1.0), overlapping(-1.0), plans=2)


SWITCH = torch.tensor([1.0])
LONG_SWITCH = torch.ones(3)
READ_A_SWITCH = {
    "a number": lambda x: x * SWITCH.item(),
    "a branch": lambda x: x * 2 if SWITCH > 0 else x * 3,
    "a branch on what is computed": lambda x: x * 2 if (SWITCH * 2).sum() > 0 else x * 3,
    "a branch on more": lambda x: x * 2 if LONG_SWITCH.sum() > 0 else x * 3,
    "a comparison": lambda x: x * 2 if torch.equal(SWITCH, torch.ones(1)) else x * 3,
    "a place": lambda x: x.narrow(0, ((SWITCH + 1) / 2).long().squeeze(), 1) * 2,
    "a literal, too": lambda x: x * torch.tensor(2.0).item() if torch.tensor(0.5) > SWITCH else x,
}


@pytest.mark.parametrize("name", READ_A_SWITCH)
def test_a_tensor_that_is_closed_over_is_read_at_every_call(halves, compiled, name):
    f, x = compiled(READ_A_SWITCH[name]), torch.arange(4.0)
    for _ in range(3):
        assert_matches(f(x), READ_A_SWITCH[name](x), halves)
        SWITCH.neg_()
        LONG_SWITCH.neg_()
    SWITCH.fill_(1)
    LONG_SWITCH.fill_(1)


def test_a_literal_is_no_value_that_changes(compiled):
    f, x = compiled(lambda x: x * 2 if torch.tensor(2.0) > 1 else x), torch.ones(2)
    assert torch.equal(f(x), x * 2)
    assert value_lines(f) == []


def test_a_literal_that_a_number_multiplies_is_read(assert_all_like_eager):
    def f(x):
        factor = torch.tensor(1.0)
        factor *= x.max().item()
        return x * factor.item()

    assert_all_like_eager(f, filled(2.0), filled(3.0), plans=1)


@pytest.mark.parametrize("make_tensor", [torch.tensor, torch.as_tensor])
def test_a_tensor_of_a_number_has_one_plan(assert_all_like_eager, make_tensor):
    assert_all_like_eager(lambda x: x * make_tensor(x.max().item(), dtype=x.dtype), filled(2.0), filled(3.0), plans=1)


def test_a_branch_on_a_buffer(halves):
    class Warmup(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            self.steps += 1
            return self.layer(x) if self.steps > 2 else x * 2

    torch.manual_seed(0)
    eager = Warmup()
    torch.manual_seed(0)
    under_test = aotgrad.aot_module(Warmup(), halves, options=SMALL)
    x = torch.ones(2, 3)
    for _ in range(4):
        assert_matches(under_test(x), eager(x), halves)
    assert len(under_test.plans()) == 2
    assert under_test.steps.item() == 4


def test_a_covariance_whose_weights_are_checked(assert_all_like_eager):
    def arguments():
        return leaf(3, 2), torch.tensor([1, 2])

    def negative():
        return leaf(3, 2), torch.tensor([-1, 2])

    function = lambda x, weights: torch.cov(x, fweights=weights)  # noqa: E731
    for dynamic in (False, True):
        assert_all_like_eager(function, arguments, negative, plans=1, raises=RuntimeError, dynamic=dynamic)


# --- Python values that are returned -----------------------------------------------------------------------------------


@pytest.mark.parametrize("compare", [torch.equal, torch.allclose])
def test_a_bool_that_is_returned(assert_all_like_eager, compare):
    def function(x, y):
        return compare(x, y), x * 2

    def pair(difference):
        return lambda: (torch.ones(3), torch.ones(3) + difference)

    assert_all_like_eager(function, pair(0), pair(1), pair(2), plans=2)


def test_a_size_that_is_returned(assert_all_like_eager):
    assert_all_like_eager(lambda x: torch.zeros(int(x.sum())), filled(1), filled(2), plans=2)


def test_the_rank_decides_how_many_residuals_there_are(assert_all_like_eager):
    def function(a, b):
        return torch.linalg.lstsq(a, b, driver="gelsd")[:3]

    def system(scale):
        return lambda: (torch.randn(5, 3) * scale, torch.randn(5, 2))

    assert_all_like_eager(function, system(1), system(0), plans=2, values_close=LAPACK)


# --- Places and sizes --------------------------------------------------------------------------------------------------


def at(start):
    return lambda: (leaf(3), torch.tensor(start))


def test_one_plan_for_all_places(halves, assert_all_like_eager):
    """Before torch 2.14, Inductor's gradient of a slice has its position as a constant."""
    plans = 1 if halves is aotgrad.nop or torch.__version__ >= "2.14" else 2
    assert_all_like_eager(lambda x, k: x.narrow(0, k, 2) * 2, at(0), at(1), plans=plans)


def test_one_plan_for_all_places_without_a_gradient(assert_all_like_eager):
    def arguments(start):
        return lambda: (plain(3), torch.tensor(start))

    assert_all_like_eager(lambda x, k: x.narrow(0, k, 2) * 2, arguments(0), arguments(1), plans=1)


def test_a_place_outside_is_eagers_error(assert_all_like_eager):
    assert_all_like_eager(lambda x, k: x.narrow(0, k, 2) * 2, at(0), at(5), raises=IndexError)


def test_a_view_at_a_place_is_a_view(assert_all_like_eager):
    assert_all_like_eager(lambda x, k: x.narrow(0, k, 2), at(0), at(1), plans=2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_loss_whose_saved_values_are_sized_by_targets(assert_all_like_eager, dynamic):
    def function(x, targets, lengths, target_lengths):
        return nn.functional.ctc_loss((x * 2).log_softmax(-1), targets, lengths, target_lengths) * 2

    def arguments():
        return leaf(12, 2, 5), torch.randint(1, 5, (2, 4)), torch.tensor([12, 10]), torch.tensor([4, 3])

    assert_all_like_eager(function, arguments, dynamic=dynamic)


def test_results_that_are_written_where_the_caller_says(assert_all_like_eager):
    def function(x, indices, mean):
        torch.nonzero(x > 1, out=indices)
        torch.linalg.lstsq(x.view(2, 2), x.view(2, 2), out=(mean, *(torch.empty(0, dtype=t) for t in RESULTS)))
        return indices * 2, mean * 2

    def arguments():
        return torch.tensor([2.0, 0.0, 0.0, 4.0]), torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 2)

    assert_all_like_eager(function, arguments, plans=1, values_close=LAPACK)


RESULTS = (torch.float32, torch.int64, torch.float32)


def test_a_size_that_the_backward_needs_too(assert_all_like_eager):
    """A tangent has the sizes of its output."""

    def pairs(size):
        return lambda: (torch.rand(size, requires_grad=True),)

    assert_all_like_eager(lambda x: torch.combinations(x, 2), pairs(4), pairs(4), plans=1)


def test_a_check_of_the_users_own_is_kept(assert_all_like_eager):
    def function(x, k):
        n = k.item()
        torch._check(n < 3, lambda: "too large")
        return x * n

    assert_all_like_eager(function, at(1), at(2), at(7), plans=1, raises=RuntimeError)


# --- Random numbers ------------------------------------------------------------------------------------------------------


def test_a_layer_that_is_dropped_at_random(halves, compiled):
    def function(x):
        y = nn.functional.dropout(x, 0.5)
        return nn.functional.dropout(y * 2, 0.5) if torch.rand(()) < 0.5 else y

    f, x = compiled(function), torch.ones(8)
    for seed in range(10):
        torch.manual_seed(seed)
        expected, after = function(x), torch.rand(1)
        torch.manual_seed(seed)
        assert_matches([f(x), torch.rand(1)], [expected, after], halves)
    assert len(f.plans()) == 2


# --- Gradients -------------------------------------------------------------------------------------------------------


def second_gradient(function, x):
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    return torch.autograd.grad((first * first).sum(), x)[0]


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_gradients_of_gradients(compiled, value):
    f, x = compiled(branch), torch.full((3,), value, requires_grad=True)
    f(-x)
    torch.testing.assert_close(second_gradient(f, x), second_gradient(branch, x))


def test_a_second_gradient_after_the_argument_has_changed_takes_no_other_branch(compiled):
    f, x = compiled(lambda x: x * x * 2 if (x * 1).sum() > 0 else x * x * 3), torch.ones(3, requires_grad=True)
    y = f(x)
    with torch.no_grad():
        x.neg_()
    with pytest.raises((RuntimeError, HigherOrderError)):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_forward_mode_and_vmap(halves, compiled):
    f, x = compiled(branch), torch.ones(3)
    for value in (x, -x):
        assert_matches(torch.func.jvp(f, (value,), (x,)), torch.func.jvp(branch, (value,), (x,)), halves)


# --- Backwards that check their gradients ------------------------------------------------------------------------------


CHECKED = {
    "svd": lambda x: torch.linalg.svd(x)[0],
    "eig": lambda x: torch.linalg.eig(x)[1],
    "eigh": lambda x: torch.linalg.eigh(x + x.mH)[1],
    "svd of a batch": lambda x: torch.linalg.svd(torch.stack([x, 2 * x]))[2],
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", CHECKED)
def test_vectors_of_which_the_phase_matters_are_eagers_error(compiled, name, create_graph):
    f, x = compiled(CHECKED[name]), torch.randn(3, 3, dtype=torch.complex128, requires_grad=True)
    well = [torch.autograd.grad(function(x).abs().sum(), x, create_graph=create_graph)[0] for function in (f, CHECKED[name])]
    torch.testing.assert_close(*well)
    messages = []
    for function in (f, CHECKED[name]):
        with pytest.raises(RuntimeError) as raised:
            torch.autograd.grad(function(x).real.sum(), x, create_graph=create_graph)
        messages.append(str(raised.value).splitlines()[0])
    assert messages[0] == messages[1]
    assert "ill-defined" in messages[0]
    assert len(f.plans()) == 1


# --- The life of a plan --------------------------------------------------------------------------------------------------


def test_too_many_values_run_eagerly(compiled):
    f = compiled(lambda x: torch.zeros(int(x.sum())) + 1, options={"plan_limit": 3})
    with pytest.warns(UserWarning, match=r"values: zuf0 is 3\.0, not 2\.0"):
        assert [len(f(torch.full((1,), float(k)))) for k in range(6)] == list(range(6))
    assert len(f.plans()) == 3


def test_what_is_told_of_it(compiled):
    f = compiled(branch)
    before = aotgrad.counters["value_guards"]
    f(torch.ones(3))
    assert aotgrad.counters["value_guards"] == before + 1
    (line,) = value_lines(f)
    assert line.startswith("values: u0 == 1 is True, asked at ")
    assert line.endswith("return y.sin() if y.sum() > 0 else y.cos() * x")
    assert line in str(f.debug_state().plans[0])
    assert "values: u0 == 1 is False, not True" in f.plans()[0].guards.why_not([-torch.ones(3)])


def test_what_needs_no_answer_gets_none(compiled):
    f = compiled(lambda x: x * x.max().item())
    f(torch.ones(3))
    assert value_lines(f) == []


def test_nothing_of_the_first_call_is_kept(compiled):
    f, x = compiled(branch), torch.ones(3)
    f(x)
    kept = weakref.ref(x)
    del x
    gc.collect()
    assert kept() is None


def test_threads_that_take_different_branches(compiled):
    f, failures = compiled(branch), []

    def work(value):
        for _ in range(20):
            x = torch.full((3,), value)
            if not torch.allclose(f(x), branch(x)):
                failures.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in (1.0, -1.0, 2.0, -2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(f.plans()) == 2


def test_a_module_that_counts_in_python_is_traced_again(halves):
    class Counting(nn.Module):
        calls_so_far = 0

        def forward(self, x):
            self.calls_so_far += 1
            return branch(x)

    module, x = Counting(), torch.ones(3)
    torch.testing.assert_close(aotgrad.aot_module(module, halves, options=SMALL)(x), branch(x))
    assert module.calls_so_far == 1


def test_a_graph_without_guards_has_no_branch():
    class Branch(nn.Module):
        def forward(self, x):
            return (branch(x),)

    with pytest.raises(CaptureError, match="depends on the value of a tensor"):
        aotgrad.aot_export_module(Branch(), (torch.ones(3),), trace_joint=False)
