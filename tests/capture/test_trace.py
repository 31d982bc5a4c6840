"""The function runs once, on fakes, and leaves nothing behind."""

from __future__ import annotations

import pytest
import torch

import aotgrad
from aotgrad.capture.recorder import printed_line
from aotgrad.errors import CaptureError
from aotgrad.graph.source_lines import source_line
from tests.executables import executable_of


def nodes_of(function, *specs: str, **options):
    graph = executable_of(function, *specs, **options).capture.trace.graph
    return [node for node in graph.nodes if node.op == "call_function"]


def helper(x):
    return x.cos()


def test_the_user_function_runs_once():
    calls = []

    def function(x):
        calls.append(type(x).__name__)
        return (x * x).sum()

    x = torch.ones(2, requires_grad=True)
    aotgrad.aot_function(function, aotgrad.nop)(x).backward()
    assert len(calls) == 1


def test_nodes_carry_the_innermost_line_of_the_user():
    def function(x):
        y = x.sin()
        return helper(y)

    sin, cos = nodes_of(function, "f32[2]")
    assert source_line(sin.meta["stack_trace"]) == "y = x.sin()"
    assert source_line(cos.meta["stack_trace"]) == "return x.cos()"
    assert "return helper(y)" in cos.meta["stack_trace"]
    assert "torch/" not in cos.meta["stack_trace"]


def test_nodes_made_outside_of_the_function_have_no_line():
    sizes = [node for node in nodes_of(lambda x: x.sin(), "f32[3, 4]", dynamic=True) if "sym" in node.name]
    assert all("stack_trace" not in node.meta for node in sizes)


def test_an_error_of_the_function_is_eagers_and_so_is_what_it_leaves_behind():
    def function(x):
        x.mul_(2)
        raise KeyError("name")

    x = torch.ones(2)
    compiled = aotgrad.aot_function(function, aotgrad.nop)
    with pytest.raises(KeyError, match="name"):
        compiled(x)
    assert torch.equal(x, torch.full((2,), 2.0))
    assert x._version == 1
    assert compiled.plans() == []


def test_the_next_call_after_an_error_works():
    def function(x, fails):
        if fails:
            raise ValueError("no")
        return x + 1

    compiled = aotgrad.aot_function(function, aotgrad.nop)
    with pytest.raises(ValueError, match="no"):
        compiled(torch.ones(1), True)
    assert compiled(torch.ones(1), False).item() == 2


@pytest.mark.parametrize(
    "function",
    [lambda x: x if x.sum() > 0 else -x, lambda x: x * x.sum().item(), lambda x: x[x > 0].sum()],
    ids=["branch", "item", "mask"],
)
def test_what_depends_on_a_value_is_explained_or_works(function):
    """Whatever the capture can do with it, it never bakes in a value of the first call."""
    compiled = aotgrad.aot_function(function, aotgrad.nop)
    for x in (torch.ones(3), -torch.ones(3)):
        try:
            result = compiled(x)
        except CaptureError as error:
            assert "test_trace.py" in str(error)
        else:
            torch.testing.assert_close(result, function(x))


def test_grad_mode_that_the_function_leaves_does_not_leak_out_of_the_trace():
    def function(x):
        torch.set_grad_enabled(False)
        return x + 1

    with torch.set_grad_enabled(True):
        capture = executable_of(function, "f32[2]").capture
    assert (capture.grad_mode_before, capture.grad_mode_after) == (True, False)


def test_in_place_ops_on_a_leaf_raise_as_in_eager():
    leaf = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        aotgrad.aot_function(lambda x: x.mul_(2), aotgrad.nop)(leaf)
    history = leaf * 1
    aotgrad.aot_function(lambda x: x.mul_(2), aotgrad.nop)(history)
    assert history.tolist() == [2, 2]


def test_the_line_of_a_graph_that_dynamo_made():
    def function(x):
        return x.expand(2, 3).fill_(1)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aotgrad_eager", fullgraph=True)
    with pytest.raises(
        Exception, match=r"is changed in place, at .*test_trace.py:\d+: return x.expand\(2, 3\).fill_\(1\)\. "
    ):
        compiled(torch.ones(3))


def test_the_innermost_line_of_a_printed_traceback():
    text = 'Original traceback:\n  File "a.py", line 3, in f\n    g(x)\n  File "b.py", line 4, in g\n    x.fill_(1)\n\nMore.'
    assert printed_line(text) == "b.py:4: x.fill_(1)"
    assert printed_line('  File "<stdin>", line 4, in f\n\nMore.') == "<stdin>:4: "
    assert printed_line("nothing") == "an unknown line"
