"""Backends that break their contract, under the option `verify_results`: the error says which result of which graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import aotgrad
from aotgrad import torch_compat
from aotgrad.backends import Backend
from aotgrad.debug import failure_of
from aotgrad.errors import BackendError

OPTIONS = {"verify_results": True}


class Changed(Backend):
    """Runs graphs, and passes what they get and return through a function."""

    name = "mine"

    def __init__(self, change, unsupported=()):
        self.change, self.unsupported = change, unsupported

    def supports(self, node):
        return node.target not in self.unsupported

    def compile(self, graph, inputs, role):
        return lambda *args: self.change(args, graph(*args))


def program(x: Tensor, w: Tensor) -> Tensor:
    return (x.sin() * w).exp()


def run(backend: Backend, calls: int = 1, **options) -> None:
    compiled = aotgrad.aot_function(program, backend, options={**OPTIONS, **options})
    for _ in range(calls):
        compiled(torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)).sum().backward()


def changes_an_input(args, results):
    args[0].add_(1)
    return results


BROKEN = {
    "drops a result": (lambda args, results: results[:-1], "returned [0-9]+ values from the forward graph"),
    "another dtype": (
        lambda args, results: [result.double() for result in results],
        "output 0 of the forward graph .* has dtype torch.float64 and not torch.float32",
    ),
    "other strides": (
        lambda args, results: [result.detach().t().contiguous().t() for result in results],
        r"output 0 of the forward graph .* has stride \[1, 3\] and not \[4, 1\]",
    ),
    "another size": (lambda args, results: [result[:2] for result in results], r"has shape \(2, 4\) and not \(3, 4\)"),
    "arrays": (lambda args, results: [result.detach().numpy() for result in results], "has the type ndarray and not Tensor"),
    "None": (lambda args, results: [None for _ in results], "has the type NoneType and not Tensor"),
    "an input": (
        lambda args, results: [args[0], *results[1:]],
        r"output 0 of the forward graph \(`.*exp\(\)`\) is in the memory of the input primals_1; in the trace it is new",
    ),
    "a view of an input": (lambda args, results: [args[1].detach()[:], *results[1:]], "is in the memory of the input"),
    "one result twice": (lambda args, results: [results[0]] * len(results), "is (in|not in) (the )?memory of"),
    "copies of what is saved": (lambda args, results: [each.clone() for each in results], "is in memory of its own"),
    "a history": (
        lambda args, results: [results[0].detach().requires_grad_(), *results[1:]],
        "output 0 of the forward graph .* requires grad",
    ),
    "changes an input": (changes_an_input, "the forward graph changes its input primals_1, which the trace does not"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_breaks_the_contract_is_found(what):
    change, message = BROKEN[what]
    with pytest.raises(BackendError, match=f"backend 'mine' .*{message}"):
        run(Changed(change))


@pytest.mark.parametrize("what", ["another dtype", "other strides", "arrays", "an input", "changes an input"])
def test_a_part_between_islands_is_named(what):
    change, _ = BROKEN[what]
    with pytest.raises(BackendError, match="part 0 of the forward graph"):
        run(Changed(change, unsupported=[torch.ops.aten.exp.default]))


def test_without_the_option_nothing_is_checked():
    run(Changed(changes_an_input), verify_results=False)


def test_a_list_and_memory_of_another_owner_are_fine():
    run(Changed(lambda args, results: list(results)), calls=2)
    run(Changed(lambda args, results: results), calls=2)
    run(Changed(lambda args, results: results, unsupported=[torch.ops.aten.exp.default]), calls=2)


def test_a_backward_is_checked_too():
    def of_backward(args, results):
        return results if results[-1] is not None else [results[0].double(), None]

    with pytest.raises(BackendError, match=r"gradient of primal 0 of the backward graph .*has dtype torch.float64"):
        run(Changed(of_backward))


def test_memory_of_an_earlier_call_is_found():
    buffers: dict[int, Tensor] = {}

    def in_one_buffer(args, results):
        first = buffers.setdefault(len(results), results[0])
        return [first.detach().copy_(results[0].detach()), *results[1:]]

    compiled = aotgrad.aot_function(program, Changed(in_one_buffer), options=OPTIONS)
    with torch.no_grad():
        compiled(torch.ones(3, 4), torch.ones(3, 4))
        with pytest.raises(BackendError, match=r"output 0 .*is in the memory of output 0 of an earlier call"):
            compiled(torch.ones(3, 4), torch.ones(3, 4))


def test_a_graph_that_was_compiled_for_the_first_sizes():
    class OfFirstSizes(Backend):
        name = "mine"

        def compile(self, graph, inputs, role):
            first: list[Tensor] = []

            def run(*args):
                results = graph(*args)
                first.append(results[0])
                return [torch.zeros_like(first[0])]

            return run

    compiled = aotgrad.aot_function(lambda x: x.sin(), OfFirstSizes(), dynamic=True, options=OPTIONS)
    compiled(torch.ones(5))
    with pytest.raises(BackendError, match=r"has shape \(5,\) and not \(7,\)"):
        compiled(torch.ones(7))


def test_a_write_that_the_graph_has_is_none_to_complain_about():
    x = torch.ones(3)
    aotgrad.aot_function(lambda x: x.add_(1) * 2, "eager", options={**OPTIONS, "keep_input_mutations": True})(x)
    torch.testing.assert_close(x, torch.full((3,), 2.0))


def test_nothing_is_kept_alive():
    compiled = aotgrad.aot_function(lambda x: x.sin(), "eager", options=OPTIONS)
    compiled(torch.ones(3))
    graph = compiled.plans()[0].executable.compiled.forward
    reference = torch_compat.memory_reference(args := torch.ones(3))
    (result,) = graph([args])
    of_result = torch_compat.memory_reference(result)
    del args, result
    assert reference.expired() and of_result.expired()


@pytest.mark.parametrize("what", ["another dtype", "other strides", "an input", "changes an input"])
def test_a_graph_alone_fails_in_the_same_way(what):
    change, _ = BROKEN[what]
    graph = torch.fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (x, w)),))
    module = torch.fx.GraphModule({}, graph)
    failure = failure_of(module, [torch.randn(3, 4), torch.randn(3, 4)], Changed(change))
    assert failure is not None and failure.kind == "BackendError"
