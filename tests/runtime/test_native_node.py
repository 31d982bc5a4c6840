"""The autograd node of a compiled segment, filled and run from Python and from C++: users cannot tell which.

A class of nodes runs each kind of backward in C++ once its graph is compiled, so functions here are settled by some.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import logging
import operator
import sys
import threading
import weakref

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import aotgrad
from aotgrad import torch_compat
from aotgrad.options import native_sanitized
from aotgrad.runtime import native_node
from aotgrad.runtime.autograd import Segment
from aotgrad.runtime.backward import Backward

CALLS = 1_000 if native_sanitized() else 10_000


def product(a, b):
    return (a * b).exp() * 3


def two_results(a, b):
    return a.sin() * b, (a + b).exp()


def pair(*shape) -> list[torch.Tensor]:
    shape = shape or (3, 4)
    return [torch.rand(shape, dtype=torch.float64, requires_grad=True) for _ in range(2)]


def settled(function, inputs=None, **options):
    """A compiled function after a usual backward and one more."""
    inputs = inputs or pair()
    compiled = aotgrad.aot_function(function, aotgrad.nop, **options)
    for _ in range(2):
        results = compiled(*inputs)
        sum(each.sum() for each in (results if isinstance(results, tuple) else (results,))).backward()
    for each in inputs:
        each.grad = None
    return compiled


pytestmark = pytest.mark.usefixtures("implementation")


def test_backwards_run_in_cpp(implementation, monkeypatch):
    """All but those that do more than run a graph."""
    in_python = []
    monkeypatch.setattr(Segment, "backward", noting(in_python, Segment.backward))
    compiled, inputs = aotgrad.aot_function(two_results, aotgrad.nop), pair()
    for way in ("all", "some gradients", "the others", "one result", "expanded", "transposed", "a parameter"):
        del in_python[:]
        for _ in range(2):
            WAYS[way](compiled(*inputs), inputs, [torch.ones(3, 4, dtype=torch.float64) for _ in range(2)])
        is_unusual = way == "a parameter" or implementation == "python" or not native_node.nodes_fit()
        assert bool(in_python) is is_unusual, way


def test_derivatives_run_in_cpp(implementation, monkeypatch):
    """All but those of nodes that miss something. The first backward after one runs in Python: see `InnerValues`."""
    in_python = []
    monkeypatch.setattr(Segment, "backward", noting(in_python, Segment.backward))
    compiled, inputs = aotgrad.aot_function(two_results, aotgrad.nop), pair()
    for way in DERIVATIVES:
        for is_first in (True, False):
            del in_python[:]
            run_derivative(way, compiled, inputs)
            is_unusual = (
                way in ("under anomaly mode", "freed", "packed") or implementation == "python" or not native_node.nodes_fit()
            )
            assert is_first or bool(in_python) is is_unusual, way


def test_values_that_other_backwards_need_are_not_written_over(monkeypatch):
    """`whole_for` may choose a graph that writes over what the node has saved."""
    inputs = pair()
    backward = aotgrad.aot_function(product, aotgrad.nop)(*inputs).grad_fn.backward
    monkeypatch.setattr(backward.variants, "whole_for", lambda *_: pytest.fail("a graph was chosen"))
    monkeypatch.setattr(Backward, "frees_all", False)
    monkeypatch.setattr(Backward, "saved_needed_later", lambda *_: (0,))
    run, chooses, _, _, later = native_node.graph_for(backward, [True] * 3)
    assert run is backward.variants.whole.run and not chooses and later is not None


def noting(calls, function):
    def noted(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return staticmethod(noted)


def test_what_users_see_of_a_node():
    compiled, (a, b) = settled(product), pair()
    result = compiled(a, b)
    node = result.grad_fn
    assert isinstance(node, torch_compat.node_class(Segment)) and torch_compat.is_node_of(node, Segment)
    assert node.name() == type(node).__name__ == "SegmentBackward"
    assert [edge.variable for edge, _ in node.next_functions] == [a, b]
    assert node.metadata == {} and node.requires_grad
    node.metadata["key"] = 1
    assert result.grad_fn.metadata == {"key": 1} and result.grad_fn is node
    assert node.needs_input_grad == (False,) * 5 + (True, True)
    assert [tuple(each.shape) for each in node._input_metadata] == [(3, 4)]
    assert len(node._raw_saved_tensors) == len(node.saved_tensors) == len(node.backward.saved_slots)
    assert node.recomputation.primals == (a, b) and node.recomputation.versions == [0, 0]
    assert (node.sizes, node.layouts, node.memory, node.watched, node.kept) == ((), None, (), (), None)
    node.anything = 3
    assert result.grad_fn.anything == 3 and compiled(a, b).grad_fn._sequence_nr() == node._sequence_nr() + 1


def test_a_node_dies_with_its_results():
    compiled, (a, b) = settled(product), pair()
    result = compiled(a, b)
    node = weakref.ref(result.grad_fn)
    assert node() is result.grad_fn
    del result
    assert node() is None
    result = compiled(a, b)
    result.grad_fn.cycle, node = [result], weakref.ref(result.grad_fn)
    del result
    gc.collect()
    assert node() is None


def test_a_plan_dies_with_its_function():
    function = functools.partial(product)
    compiled, inputs = settled(function), pair()
    kind = weakref.ref(type(compiled(*inputs).grad_fn))
    function.cycle, dead = compiled, weakref.ref(function)
    del compiled, function
    gc.collect()
    assert dead() is None and (kind() is None or kind() is torch_compat.node_class(Segment))


class Mallinfo(ctypes.Structure):
    """What `mallinfo2` of glibc returns; `uordblks` are the bytes in use."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (*"1234567", "uordblks", "fordblks", "keepcost"))


def bytes_in_use() -> int:
    """The bytes that the process has allocated and not freed, where glibc tells."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    ask.restype = Mallinfo
    return ask().uordblks


def grown(step, inputs) -> tuple[int, int, int]:
    """How much more there is after many calls: objects of Python, references to the inputs, bytes."""
    for _ in range(3):
        step(*inputs)
    gc.collect()
    gc.disable()  # what only the collector frees counts, too
    try:
        blocks, references, used = sys.getallocatedblocks(), [*map(torch_compat.owners_of, inputs)], bytes_in_use()
        for _ in range(CALLS):
            step(*inputs)
        more = max(map(operator.sub, map(torch_compat.owners_of, inputs), references))
        garbage = gc.collect()  # it empties the lists of free tuples, too, which may keep thousands
        return sys.getallocatedblocks() - blocks + garbage, more, bytes_in_use() - used
    finally:
        gc.enable()


def backward(results, inputs):
    sum(each.sum() for each in results).backward()


def retained(results, inputs):
    total = sum(each.sum() for each in results)
    total.backward(retain_graph=True)
    torch.autograd.grad(total, inputs)


def one_after_the_other(results, inputs):
    for each in inputs:
        torch.autograd.grad([result.sum() for result in results], each, retain_graph=each is not inputs[-1])


def differentiated(results, inputs):
    slopes = torch.autograd.grad(sum(each.sum() for each in results), inputs, create_graph=True)
    sum(each.sum() for each in slopes).backward()


USES = {
    "forward": lambda results, inputs: None,
    "backward": backward,
    "retained": retained,
    "all gradients": lambda results, inputs: torch.autograd.grad(results[0].sum(), inputs),
    "some gradients": lambda results, inputs: torch.autograd.grad(results[0].sum(), inputs[:1]),
    "one after the other": one_after_the_other,
    "differentiated": differentiated,
}


@pytest.mark.parametrize(("use", "dynamic"), [*((use, False) for use in USES), ("backward", True)])
def test_nothing_grows(use, dynamic):
    compiled = settled(two_results, pair(2), dynamic=dynamic)

    def step(*inputs):
        USES[use](compiled(*inputs), inputs)

    blocks, owners, used = grown(step, pair(2))
    assert blocks < CALLS / 2 and owners <= 0 and used < 16 * CALLS


def test_hooks_of_saved_tensors():
    compiled, inputs = settled(product), pair()
    for hooks in (lambda: saved_tensors_hooks(lambda x: x * 2, lambda x: x / 2), torch.autograd.graph.save_on_cpu):
        with hooks():
            result = compiled(*inputs)
        node = result.grad_fn
        assert all(torch_compat.unpack_hooks(node, range(len(node._raw_saved_tensors))))
        expected = torch.autograd.grad(product(*inputs).sum(), inputs)
        torch.testing.assert_close(torch.autograd.grad(result.sum(), inputs), expected)

    def fail(_):
        raise ZeroDivisionError("cannot pack")

    with saved_tensors_hooks(fail, fail), pytest.raises(ZeroDivisionError, match="cannot pack"):
        compiled(*inputs)
    with saved_tensors_hooks(lambda x: x, fail):
        result = compiled(*inputs)
    with pytest.raises(ZeroDivisionError, match="cannot pack"):
        result.sum().backward()
    compiled(*inputs).sum().backward()


def test_hooks_of_tensors_and_nodes():
    def steps(function) -> list:
        (a, b), seen = [torch.full((2,), 0.5, requires_grad=True) for _ in range(2)], []
        result = function(a, b)
        result.retain_grad()
        result.register_hook(lambda g: seen.append(("result", g.tolist())) or g * 2)
        a.register_hook(lambda g: seen.append(("a", g.tolist())))
        b.register_post_accumulate_grad_hook(lambda b: seen.append(("b", b.grad.tolist())))
        result.grad_fn.register_prehook(lambda g: seen.append(("pre", g[0].tolist())))
        result.grad_fn.register_hook(lambda g, t: seen.append(("post", t[0].tolist())))
        result.sum().backward()
        return [*sorted(seen), result.grad.tolist(), a.grad.tolist()]

    assert steps(settled(scaled, [torch.rand(2, requires_grad=True) for _ in range(2)])) == steps(scaled)


def scaled(a, b):
    return a * b


def test_errors_are_those_of_eager():
    compiled, (a, b) = settled(product), pair()
    result = compiled(a, b).sum()
    result.backward(retain_graph=True)
    result.backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        result.backward()
    result = compiled(a, b).sum()
    with torch.no_grad():
        a.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()
    a.grad = None
    compiled(a, b).sum().backward()
    torch.testing.assert_close(a.grad, torch.autograd.grad(product(a, b).sum(), a)[0])


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # older versions of torch
def test_the_profiler_sees_the_node():
    compiled, inputs = settled(product), pair()
    with torch.profiler.profile(record_shapes=True) as profile:
        compiled(*inputs).sum().backward()
    forward = next(each for each in profile.events() if each.name == "Segment")
    backward = next(each for each in profile.events() if each.name == "SegmentBackward")
    assert forward.sequence_nr == backward.sequence_nr >= 0


def test_anomaly_mode(recwarn):
    compiled, inputs = settled(product), pair()
    with torch.autograd.set_detect_anomaly(True):
        result = compiled(*inputs)
        assert any("exp" in line for line in result.grad_fn.metadata["traceback_"])
        with pytest.raises(RuntimeError, match="returned nan values"):
            result.backward(torch.full((3, 4), torch.nan, dtype=torch.float64))
    result = compiled(*inputs)
    with torch.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="returned nan values"):
        result.backward(torch.full((3, 4), torch.nan, dtype=torch.float64))


@pytest.mark.parametrize("count", [3, 40])
def test_compiled_autograd(count):
    """It asks for the type and size of each input of a node."""
    leaves = [torch.rand(2, requires_grad=True) for _ in range(count)]
    compiled = settled(product_of_all, leaves)
    expected = torch.autograd.grad(product_of_all(*leaves).sum(), leaves)
    for _ in range(2):
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            compiled(*leaves).sum().backward()
        torch.testing.assert_close(tuple(leaf.grad for leaf in leaves), expected)
        for leaf in leaves:
            leaf.grad = None
    torch._dynamo.reset()


def product_of_all(*factors):
    return functools.reduce(operator.mul, factors).sin()


def batched(results, inputs, _):
    tangents = [torch.rand(5, *each.shape, dtype=each.dtype) for each in results]
    return torch.autograd.grad(results, inputs, tangents, is_grads_batched=True)


def at_a_level(results, inputs, tangents):
    with torch.autograd.forward_ad.dual_level():
        return torch.autograd.grad(results, inputs, tangents)


def under_autocast(results, inputs, tangents):
    with torch.autocast("cpu", torch.bfloat16):
        return torch.autograd.grad(results, inputs, tangents)


def twice(results, inputs, tangents):
    first = torch.autograd.grad(results, inputs, tangents, create_graph=True)
    return torch.autograd.grad(sum(each.sum() for each in first), inputs)


def slopes(results, inputs, **how):
    return torch.autograd.grad(sum(each.sum() for each in results), inputs, create_graph=True, **how)


def under_anomaly_mode(results, inputs):
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        return slopes(results, inputs)


def under_mixed_precision(results, inputs):
    with torch.autocast("cpu", torch.bfloat16):
        return slopes(results, inputs)


def thrice(results, inputs):
    for _ in range(2):
        results = slopes(results, inputs)
    return results


def of_results(results, inputs):
    """Gradients that depend on the tangents, too."""
    tangents = [torch.full_like(each, 0.5).requires_grad_() for each in results]
    first = torch.autograd.grad(results, inputs, tangents, create_graph=True)
    return [*first, *torch.autograd.grad(sum(each.square().sum() for each in first), tangents, retain_graph=True)]


def packed(results, inputs):
    for raw in results[0].grad_fn._raw_saved_tensors if isinstance(results[0].grad_fn, Segment._backward_cls) else ():
        raw.register_hooks(lambda value: value.clone(), lambda value: value)
    return slopes(results, inputs)


DERIVATIVES = {
    "all": slopes,
    "some gradients": lambda results, inputs: slopes(results, inputs[:1]),
    "one result": lambda results, inputs: slopes(results[:1], inputs),
    "repeated": lambda results, inputs: [*slopes(results, inputs), *slopes(results, inputs[1:])],
    "thrice": thrice,
    "of results": of_results,
    "under mixed precision": under_mixed_precision,
    "under anomaly mode": under_anomaly_mode,
    "freed": lambda results, inputs: slopes(results, inputs, retain_graph=False),
    "packed": packed,
}
"""Ways to compute gradients that are differentiable."""


def run_derivative(way, function, inputs):
    """The gradients and, if nothing was freed, those of their sum and of a result."""
    results = function(*inputs)
    first = DERIVATIVES[way](results, inputs)
    if way == "freed":
        return first
    loss = sum(each.square().sum() for each in first) + results[1].sum()
    return [*first, *torch.autograd.grad(loss, inputs)]


@pytest.mark.parametrize("way", DERIVATIVES)
def test_derivatives_are_those_of_eager(way):
    compiled, inputs = settled(two_results), pair()
    expected = run_derivative(way, two_results, inputs)
    for _ in range(3):
        torch.testing.assert_close(run_derivative(way, compiled, inputs), expected)


def laid_out(change):
    """All gradients, with tangents that are laid out in another way."""
    return lambda results, inputs, tangents: torch.autograd.grad(results, inputs, [*map(change, tangents)])


WAYS = {
    "all": torch.autograd.grad,
    "some gradients": lambda results, inputs, tangents: torch.autograd.grad(results, inputs[:1], tangents),
    "the others": lambda results, inputs, tangents: torch.autograd.grad(results, inputs[1:], tangents),
    "one result": lambda results, inputs, tangents: torch.autograd.grad(results[1:], inputs, tangents[1:]),
    "expanded": lambda results, inputs, _: torch.autograd.grad([each.sum() for each in results], inputs),
    "transposed": laid_out(lambda tangent: tangent.t().contiguous().t()),
    "a parameter": laid_out(torch.nn.Parameter),
    "batched": batched,
    "at a forward-mode level": at_a_level,
    "under autocast": under_autocast,
    "twice": twice,
}


@pytest.mark.parametrize("way", WAYS)
def test_backwards_are_those_of_eager(way):
    """The usual ones and all others, of a class of nodes that is settled."""
    compiled, inputs = settled(two_results), pair()
    tangents = [torch.rand(3, 4, dtype=torch.float64) for _ in range(2)]
    answers = []
    for function in (two_results, compiled):
        torch.manual_seed(0)  # `batched` draws tangents
        answers.append(WAYS[way](function(*inputs), inputs, tangents))
    torch.testing.assert_close(*answers)


def test_gradients_one_after_the_other():
    """What a backward leaves for others is kept."""

    def function(a, b):
        return a.exp() + b.sin()

    compiled, (a, b) = settled(function), pair()
    result = compiled(a, b).sum()
    (first,) = torch.autograd.grad(result, a)
    (second,) = torch.autograd.grad(result, b)
    torch.testing.assert_close([first, second], [a.exp().detach(), b.cos().detach()])
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(result, a)


def test_conjugated_tangents():
    inputs = [torch.rand(3, dtype=torch.complex128, requires_grad=True) for _ in range(2)]
    compiled, tangent = (
        settled(lambda a, b: a * b, [each.detach().abs().requires_grad_() for each in inputs]),
        inputs[0].detach(),
    )
    compiled(*inputs).backward(tangent)
    for each in inputs:
        each.grad = None
    compiled(*inputs).backward(tangent.conj())
    ours = [each.grad for each in inputs]
    torch.testing.assert_close(ours, [*torch.autograd.grad(inputs[0] * inputs[1], inputs, tangent.conj())])


def test_a_leaf_that_is_returned_stays_a_leaf():
    def function(a, b):
        return a, a * b

    compiled, (a, b) = settled(function), pair()
    first, second = compiled(a, b)
    assert a.is_leaf and b.is_leaf and a.grad_fn is None and second.grad_fn is not None
    torch.autograd.backward((first, second), [torch.ones_like(a)] * 2)
    torch.testing.assert_close([a.grad, b.grad], [1 + b.detach(), a.detach()])


def test_asking_for_leaves_raises_nothing_inside(implementation, monkeypatch):
    """Torch answers the question whether it wants the gradient of a leaf by a slow exception."""
    compiled, inputs = settled(product), pair()
    if implementation == "c++":
        monkeypatch.setattr(torch._C, "_will_engine_execute_node", lambda _: pytest.fail("torch was asked"))
    expected = torch.autograd.grad(product(*inputs).sum(), inputs)
    torch.testing.assert_close(torch.autograd.grad(compiled(*inputs).sum(), inputs), expected)
    torch.testing.assert_close(torch.autograd.grad(compiled(*inputs).sum(), inputs[:1]), expected[:1])


def test_symbolic_sizes():
    compiled = settled(product, dynamic=True)
    for rows in (5, 6, 5):
        inputs = pair(rows, 4)
        expected = torch.autograd.grad(product(*inputs).sum(), inputs)
        torch.testing.assert_close(torch.autograd.grad(compiled(*inputs).sum(), inputs), expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.parametrize("is_first", [True, False])
def test_dynamo_sees_no_frame_of_a_graph(is_first):
    """It is active where `autograd.grad` breaks a graph, and would compile what a backward calls."""
    compiled, codes = aotgrad.aot_function(product, aotgrad.nop) if is_first else settled(product), []
    inputs = pair()
    for wanted in (inputs, inputs[:1]):
        result, expected = compiled(*inputs).sum(), torch.autograd.grad(product(*inputs).sum(), wanted)
        step = functools.partial(torch.autograd.grad, inputs=wanted)
        with torch_compat.reset_dynamo():
            outer = torch.compile(lambda: step(result * 7), backend=lambda g, _: codes.append(g.code) or g.forward)  # noqa: B023
            torch.testing.assert_close(outer(), tuple(7 * each for each in expected))
    # With a default device, Dynamo records a method in place of the operator.
    assert len(codes) == 2 and all(("* 7" in code or ".mul(7)" in code) and "exp" not in code for code in codes)


def test_many_threads():
    compiled = settled(product)
    failed: list[str] = []

    def work(seed: int) -> None:
        inputs = [torch.full((3, 4), 0.1 * seed, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        expected = torch.autograd.grad(product(*inputs).sum(), inputs)
        for _ in range(50):
            result = compiled(*inputs).sum()
            for how in ({"create_graph": True}, {"retain_graph": True}, {}):
                if not torch.allclose(torch.autograd.grad(result, inputs, **how)[0], expected[0]):
                    failed.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed


def test_where_torch_makes_nodes_in_another_way_python_does(implementation, monkeypatch, caplog):
    monkeypatch.setattr(torch_compat, "makes_node", lambda function: False)
    native_node.nodes_fit.cache_clear()
    with caplog.at_level(logging.DEBUG, "aotgrad.native"):
        compiled, inputs = settled(product), pair()
        settled(two_results)
    native_node.nodes_fit.cache_clear()
    assert type(compiled(*inputs).grad_fn) is torch_compat.node_class(Segment)
    assert caplog.text.count("autograd nodes are made in Python") == (implementation == "c++")
