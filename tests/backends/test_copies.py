"""Results share memory with arguments and with each other as in eager, although Inductor removes clones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.fx as fx
from torch._inductor.utils import fresh_cache
from torch.fx.experimental.proxy_tensor import make_fx

import aotgrad
from aotgrad.backends.copies import keep_output_memory


def two_clones(x):
    y = x * 2
    return y.clone(), y.clone()


def a_clone_and_one_of_a_part(x):
    y = x * 2
    return y.clone(), y[1:].clone()


def a_clone_and_what_is_joined_of_one(x):
    y = x * 2
    return y.clone(), torch.cat([y]), y.repeat(1)


def views_of_one(x):
    y = x * 2
    return y[1:], y.view(2, 2), y


def part_written_and_cloned(x):
    x[1:].add_(1)
    return x.clone(), x.clone()


def part_written_and_part_cloned(x):
    last = x[3:]
    last.sub_(last)
    return x[:1].clone()


def elements_written_and_cloned(x):
    x.index_put_((torch.tensor([1, 2]),), torch.tensor(5.0))
    return x.clone()


def list_written_and_cloned(x):
    torch._foreach_add_([x], 1)
    return x.clone()


def written_and_returned(x):
    x[1:].add_(1)
    return x, x[:2]


def cloned_between_writes(x):
    x[0].add_(1)
    first = x.clone()
    x[0].add_(1)
    return first


def elements_cloned_between_writes(x):
    x.index_put_((torch.tensor([1, 2]),), torch.tensor(5.0))
    first = x.clone()
    x.mul_(2)
    return first


def list_cloned_between_writes(x):
    torch._foreach_neg_([x])
    torch._foreach_neg_([x])
    first = x.clone()
    x.add_(1)
    second = x[1:].clone()
    x.sub_(3)
    return first, second


def computed_and_written_from(x):
    first = x.index_put((torch.tensor([0]),), torch.tensor(5.0))
    x.copy_(first + 1)
    return first


def folded_beside_a_write(x):
    x.add_(1)
    return torch.ones_like(x).view(2, 2).cumsum(0), x.clone()


def part_of_a_constant_beside_a_write(x):
    x.add_(1)
    constant = torch.zeros(8)
    part = constant[4:]
    return part, constant, x * 1


FUNCTIONS = [
    two_clones,
    a_clone_and_one_of_a_part,
    a_clone_and_what_is_joined_of_one,
    views_of_one,
    part_written_and_cloned,
    part_written_and_part_cloned,
    elements_written_and_cloned,
    list_written_and_cloned,
    written_and_returned,
    cloned_between_writes,
    elements_cloned_between_writes,
    list_cloned_between_writes,
    computed_and_written_from,
    folded_beside_a_write,
    part_of_a_constant_beside_a_write,
]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("copy", [torch.clone, lambda x: x * 1, torch.Tensor.t], ids=["clone", "product", "view"])
def test_a_write_does_not_read_what_another_write_has_left(copy: Callable, backend: str) -> None:
    def swap(x, y):
        before = copy(x).clone()
        x.copy_(y)
        y.copy_(before)

    mine, expected = ([torch.arange(4.0).view(2, 2), torch.ones(2, 2)] for _ in range(2))
    options = {"min_graph_ops": 0} if backend == "inductor" else {}
    with fresh_cache():
        aotgrad.aot_function(swap, backend, keep_inference_input_mutations=True, options=options)(*mine)
    swap(*expected)
    torch.testing.assert_close(mine, expected)


def values_and_sharing(function: Callable, requires_grad: bool) -> tuple[Sequence[torch.Tensor], list[list[bool]]]:
    x = torch.arange(4.0).requires_grad_(requires_grad) * 1
    results = function(x)
    tensors = [x, *(results if isinstance(results, tuple) else (results,))]
    storages = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return tensors, [[one == other for other in storages] for one in storages]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_memory_is_shared_as_in_eager(function: Callable, requires_grad: bool) -> None:
    torch._dynamo.reset()
    options = {"min_graph_ops": 0, "cache": False}
    with fresh_cache():
        for compiled in (
            torch.compile(function, backend="aotgrad", options=options),
            aotgrad.aot_function(function, "inductor", options={"min_graph_ops": 0}),
            aotgrad.aot_function(function, "inductor", keep_inference_input_mutations=True, options={"min_graph_ops": 0}),
        ):
            found, expected = values_and_sharing(compiled, requires_grad), values_and_sharing(function, requires_grad)
            torch.testing.assert_close(found[0], expected[0])
            assert found[1] == expected[1]


def without_clones(graph: fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


@pytest.mark.parametrize(
    ("function", "clones"),
    [(two_clones, 1), (views_of_one, 0), (lambda x: (x.clone(), x), 1), (lambda x: (x * 2).clone(), 0)],
)
def test_what_comes_to_share_memory_is_copied(function: Callable, clones: int) -> None:
    graph = make_fx(function, tracing_mode="fake")(torch.ones(4)).graph
    with keep_output_memory(graph):
        without_clones(graph)
    graph.lint()
    assert len(graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)) == clones
