"""A second process reads what the first compiled: equal results, and no stage runs."""

from __future__ import annotations

import pytest
import torch
from functorch.experimental.control_flow import map as functorch_map
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

import aotgrad

from .conftest import compiled
from .programs import PROGRAMS, outcome, run_in_another_process, run_in_processes

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning"),
]

MISS, HIT = {"cache_misses": 1, "compilations": 1}, {"cache_hits": 1}


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_second_start_compiles_nothing_and_computes_the_same(name, counted):
    expected = outcome(name, lambda function: function)
    assert same(outcome(name, compiled), expected)
    assert counted() == MISS
    assert same(outcome(name, compiled), expected)
    assert counted() == HIT


class Checkpointed(nn.Module):
    """A recurrent layer, whose kernel computes a workspace again in the backward."""

    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(4, 8)

    def forward(self, x):
        return checkpoint(lambda x: self.inner(x)[0].sin(), x, use_reentrant=False).sum()


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
@torch._dynamo.config.patch(allow_rnn=True)
def test_a_workspace_is_computed_in_a_restored_backward(counted):
    torch.manual_seed(0)
    model, x = Checkpointed(), torch.randn(5, 2, 4)
    expected = torch.autograd.grad(model(x), [*model.parameters()])
    for counts in (MISS, HIT):
        assert same(torch.autograd.grad(compiled(model)(x), [*model.parameters()]), expected)
        assert counted() == counts


def test_another_process_finds_what_this_one_made(counted, tmp_path):
    expected = outcome("mlp", compiled)
    found, counters = run_in_another_process("mlp", "aotgrad_eager", tmp_path)
    assert same(found, expected)
    assert counters == {**HIT, "graphs": 2}


def test_two_processes_at_once(counted, tmp_path):
    found = run_in_processes("writes", "aotgrad_eager", [tmp_path / "one.pt", tmp_path / "other.pt"])
    assert same(found[0][0], found[1][0])
    assert not any(counters.get("cache_failures") for _, counters in found)
    assert same(outcome("writes", compiled), found[0][0])
    assert counted() == HIT


@pytest.mark.parametrize(("name", "graphs"), [("mlp", 2), ("writes", 3)])
def test_inductor_in_two_processes(name, graphs, tmp_path):
    first, counters = run_in_another_process(name, "aotgrad", tmp_path)
    assert counters == {**MISS, "artefact_misses": graphs, "graphs": graphs}
    second, counters = run_in_another_process(name, "aotgrad", tmp_path)
    assert counters == {**HIT, "artefact_hits": graphs, "graphs": graphs}
    assert same(first, second)


def test_gradients_of_gradients_are_traced_when_they_are_asked_for(counted):
    def second_order(function):
        x = torch.linspace(-1, 1, 6, requires_grad=True)
        (first,) = torch.autograd.grad((function(x) ** 2).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    def function(x):
        return x.sin() * x.exp()

    expected = second_order(function)
    for _ in range(2):
        torch.testing.assert_close(second_order(compiled(function)), expected)
    assert counted()["cache_hits"] == 1


def test_gradients_of_gradients_with_a_symbolic_number(counted):
    """The retrace knows the symbolic number of an argument, like the first trace."""

    def second_order(transform):
        torch.manual_seed(0)
        norm = torch.nn.BatchNorm1d(3)
        x = torch.randn(4, 3, requires_grad=True)
        (first,) = torch.autograd.grad((transform(norm)(x) ** 3).sum(), x, create_graph=True)
        return [*torch.autograd.grad((first**2).sum(), x), *norm.buffers()]

    def with_symbolic_numbers(norm):
        torch._dynamo.reset()
        return torch.compile(norm, backend="aotgrad_eager", dynamic=True)

    expected = second_order(lambda norm: norm)
    for _ in range(2):
        torch.testing.assert_close(second_order(with_symbolic_numbers), expected)
    assert counted()["cache_hits"] == 1


def test_gradients_of_gradients_while_another_kernel_of_attention_is_on(counted):
    """The retrace uses the kernels that were on when the function was compiled."""

    def second_order(function):
        torch.manual_seed(0)
        q, k, v = (torch.randn(1, 2, 4, 8, requires_grad=True) for _ in range(3))
        result = function(q, k, v)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            (first,) = torch.autograd.grad(result.sum(), q, create_graph=True)
            return torch.autograd.grad(first.sum(), [q, k])

    def function(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q.sin(), k, v).cos()

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = second_order(function)
    for _ in range(2):
        for found, wanted in zip(second_order(compiled(function)), expected, strict=True):
            torch.testing.assert_close(found, wanted)
    assert counted()["cache_hits"] == 1


def test_only_the_gradients_that_are_wanted(counted):
    def function(x, y):
        return (x.sin() * y).sum(), (x * y.cos()).sum()

    def gradients(function):
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        first, second = function(x, y)
        return [*torch.autograd.grad(first, x, retain_graph=True), *torch.autograd.grad(second, [x, y])]

    expected = gradients(function)
    for _ in range(2):
        assert same(gradients(compiled(function)), expected)
    assert counted()["cache_hits"] == 1


def test_a_backward_under_autocast_and_one_that_is_batched(counted):
    def function(x, w):
        return (x @ w).sin()

    def jacobian(function):
        x, w = torch.randn(2, 3, requires_grad=True), torch.randn(3, 2)
        y = function(x, w)
        (rows,) = torch.autograd.grad(y, x, torch.eye(4).view(4, 2, 2), is_grads_batched=True, retain_graph=True)
        with torch.autocast("cpu"):
            return [rows, *torch.autograd.grad(y, x, torch.ones(2, 2))]

    torch.manual_seed(0)
    expected = jacobian(function)
    for _ in range(2):
        torch.manual_seed(0)
        for found, wanted in zip(jacobian(compiled(function)), expected, strict=True):
            torch.testing.assert_close(found, wanted)
    assert counted()["cache_hits"] == 1


def test_anomaly_mode_names_the_line_as_it_is_now(tmp_path):
    """The same function on another line: its graph is found, and the message names the new line."""
    source = "import torch\n{}\ndef function(x):\n    y = x * 2\n    return (y.sqrt() * 0).sum()\n"
    for empty_lines in (0, 5):
        path = tmp_path / "moved.py"
        path.write_text(source.format("\n" * empty_lines))
        namespace: dict = {}
        exec(compile(path.read_text(), str(path), "exec"), namespace)
        x = torch.zeros(2, requires_grad=True)
        with pytest.warns(UserWarning), pytest.raises(RuntimeError) as raised, torch.autograd.detect_anomaly():
            compiled(namespace["function"])(x).backward()
        assert f'moved.py", line {empty_lines + 5}' in str(raised.value)


def test_aot_function_keeps_nothing(folder, counted):
    aotgrad.aot_function(lambda x: x.sin(), aotgrad.nop)(torch.ones(2))
    assert not folder.exists() and counted() == {"compilations": 1}


def test_the_option_turns_it_off(folder, counted):
    for _ in range(2):
        compiled(lambda x: x.sin(), cache=False)(torch.ones(2))
    assert not folder.exists() and counted() == {"compilations": 2}


def test_overlaps_that_the_entry_was_not_made_for(counted):
    def function(one, other):
        one.add_(1)
        return other * 2

    separate, memory = (torch.ones(3), torch.ones(3)), torch.ones(4)
    for make in (lambda: separate, lambda: (memory[:3], memory[1:])):
        expected = function(*(value.clone() for value in make())) if make() is separate else None
        one, other = make()
        found = compiled(function)(one, other)
        assert expected is None or torch.equal(found, expected)
    assert torch.equal(memory, torch.tensor([2.0, 2.0, 2.0, 1.0]))
    assert torch.equal(found, torch.tensor([4.0, 4.0, 2.0]))


# --- Symbolic sizes --------------------------------------------------------------------------------------------------


def rows(x, w):
    """Views, a changed input, sizes as results, and arithmetic on sizes."""
    x.mul_(2)
    hidden = (x @ w).tanh() * x.shape[0]
    return hidden.view(-1)[1:], hidden.t(), hidden.sum(0) / x.shape[1], x.shape[0] + 1, x[:, None].expand(-1, 3, -1)


def step(function, count):
    torch.manual_seed(0)
    x, w = torch.randn(count, 3), torch.randn(3, count + 1, requires_grad=True)
    results = function(x, w)
    sum(result.square().sum() for result in results[:3]).backward()
    assert results[3] == count + 1
    return [*results[:3], results[4], x, w.grad]


@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
def test_one_entry_for_many_sizes(backend, counted):
    for expected in (MISS, HIT):
        torch._dynamo.reset()
        compiled = torch.compile(rows, backend=backend, dynamic=True)
        for count in (4, 7, 5):
            for found, wanted in zip(step(compiled, count), step(rows, count), strict=True):
                torch.testing.assert_close(found, wanted)
                assert found.stride() == wanted.stride() and (found._base is None) == (wanted._base is None)
        assert counted() == expected


def test_sizes_that_change_after_a_start_with_static_ones(counted):
    for expected in ({"cache_misses": 2, "compilations": 2}, {"cache_hits": 2}):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: (x.sin() * x.shape[0]).exp(), backend="aotgrad_eager")
        for count in (4, 7, 5):
            x = torch.linspace(0, 1, count)
            torch.testing.assert_close(compiled(x), (x.sin() * count).exp())
        assert counted() == expected


def test_gradients_of_gradients_with_symbolic_sizes(counted):
    def second_order(function, count):
        x = torch.linspace(-1, 1, count, requires_grad=True)
        (first,) = torch.autograd.grad((function(x) ** 2).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    def function(x):
        return x.sin() * x.exp() * x.shape[0]

    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="aotgrad_eager", dynamic=True)
        for count in (4, 6):
            torch.testing.assert_close(second_order(compiled, count), second_order(function, count))
    assert counted()["cache_hits"] == 1


def test_gradients_of_gradients_in_a_vmap(counted):
    def batched(function):
        x = torch.linspace(-1, 1, 3, requires_grad=True)
        y = function(x)
        gradients = torch.func.vmap(lambda t: torch.autograd.grad(y, x, t, create_graph=True)[0])(torch.eye(3))
        return gradients, torch.autograd.grad(gradients.sum(), x)[0]

    def function(x):
        return x.sin() * x.exp()

    for _ in range(2):
        torch._dynamo.reset()
        for one, other in zip(batched(torch.compile(function, backend="aotgrad_eager")), batched(function), strict=True):
            torch.testing.assert_close(one, other)
    assert counted()["cache_hits"] == 1


# --- Higher-order operators ------------------------------------------------------------------------------------------


@torch.compiler.nested_compile_region
def region(x):
    return x.sin() * 2


def with_while(x):
    count, last = while_loop(lambda k, y: k < 3, lambda k, y: (k + 1, y.sin() * 2), (torch.tensor(0), x.detach()))
    return last + x * count


HIGHER_ORDER = {
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos(), (x,)),
    "map": lambda x: functorch_map(lambda row: row.sin() * 2, x),
    "region": lambda x: region(x) + region(x + 1),
    "scan": lambda x: scan(lambda carry, row: (carry + row.sin(), carry * row), x[0] * 0, x)[1],
    "associative_scan": lambda x: associative_scan(lambda a, b: a * b + 1, x.sin(), 0, combine_mode="generic"),
    "while_loop": with_while,
}


@pytest.mark.parametrize("name", HIGHER_ORDER)
def test_a_graph_with_graphs_inside(name, counted):
    def gradient(function):
        x = torch.linspace(-1, 2, 12).view(4, 3).requires_grad_()
        result = function(x)
        return [result.detach(), *torch.autograd.grad(result.square().sum(), x)]

    expected = gradient(HIGHER_ORDER[name])
    for count in (MISS, HIT):
        for found, wanted in zip(gradient(compiled(HIGHER_ORDER[name])), expected, strict=True):
            torch.testing.assert_close(found, wanted)
        assert counted() == count


def test_a_branch_that_differs(counted):
    for factor, expected in ((2, MISS), (3, MISS), (2, HIT)):

        def function(x, factor=factor):
            return torch.cond(x.sum() > 0, lambda x: x.sin() * factor, lambda x: x.cos(), (x,))

        x = torch.ones(3, requires_grad=True)
        assert torch.equal(compiled(function)(x), x.sin() * factor)
        assert counted() == expected


def test_inductors_code_for_a_branch_is_found(counted):
    def run():
        x = torch.ones(8, requires_grad=True)
        before = aotgrad.counters["artefact_hits"]
        compiled(HIGHER_ORDER["cond"], "aotgrad")(x).sum().backward()
        torch.testing.assert_close(x.grad, 2 * torch.ones(8).cos())
        return aotgrad.counters["artefact_hits"] - before

    assert (run(), run()) == (0, 2)
