"""`LazyGraphModule`: a graph module like any other, except that it generates its code on demand."""

import copy
import pickle

import pytest
import torch
import torch.fx as fx

from aotgrad.graph.lazy_module import LazyGraphModule

X = torch.tensor([-1.0, 2.0])


def make() -> LazyGraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.relu, (x,)))
    return LazyGraphModule(torch.nn.Module(), graph)


def has_code(module: fx.GraphModule) -> bool:
    return "forward" in vars(type(module))


def change(module: fx.GraphModule) -> None:
    """Make `relu` a `neg`."""
    next(node for node in module.graph.nodes if node.op == "call_function").target = torch.neg
    module.recompile()


def test_code_is_made_by_the_first_call_only():
    module = make()
    assert not has_code(module)
    assert torch.equal(module(X), X.relu())
    assert has_code(module)


def test_two_modules_do_not_share_their_code():
    first, second = make(), make()
    change(second)
    assert torch.equal(first(X), X.relu()) and torch.equal(second(X), X.neg())


def test_a_changed_graph_gets_other_code():
    module = make()
    module(X)
    change(module)
    assert not has_code(module)
    assert torch.equal(module(X), X.neg())


def test_a_method_that_was_taken_before_stays_what_it_was():
    module = make()
    forward = module.forward
    change(module)
    assert torch.equal(forward(X), X.relu())


@pytest.mark.parametrize("read", [lambda module: module.code, str, lambda module: module.print_readable(print_output=False)])
def test_reading_it_shows_the_code(read):
    module = make()
    assert "torch.relu(x)" in read(module)
    change(module)
    assert "torch.neg(x)" in read(module)


def test_errors_show_the_line_of_the_graph():
    module = make()
    with pytest.raises(TypeError, match="relu"):
        module("no tensor")


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_run(duplicate):
    for module in (make(), called := make()):
        called(X)
        again = duplicate(module)
        change(module)
        assert torch.equal(again(X), X.relu())


def test_a_pickle_is_a_plain_graph_module():
    assert not isinstance(pickle.loads(pickle.dumps(make())), LazyGraphModule)


@pytest.mark.parametrize("read", [str, pickle.dumps, copy.deepcopy, lambda module: module.code])
def test_the_graph_stays_its_own(read):
    module = make()
    read(module)
    assert module.graph.owning_module is module
