"""Feature tests of `aotgrad/torch_compat/inductor/lowerings.py`."""

from __future__ import annotations

import types

import pytest
import torch
import torch.fx as fx
from torch._inductor.utils import fresh_cache

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import inductor

aten = torch.ops.aten


@inductor
def test_inductor_knows_offsets_in_memory_from_the_trace():
    from torch._inductor.lowering import lowerings
    from torch._inductor.virtualized import V

    op, graph = aten.sym_storage_offset.default, types.SimpleNamespace(current_node=types.SimpleNamespace(meta={"val": 6}))
    before = lowerings.get(op)
    with compat.use_traced_offsets(), V.set_graph_handler(graph):
        assert lowerings[op](None) == 6
    assert lowerings.get(op) is before


@inductor
def test_inductor_converts_complex_numbers_by_a_kernel_of_aten():
    from torch._inductor import graph, lowering

    op = torch.ops.prims.convert_element_type.default
    before = lowering.fallback_handler
    x = torch.tensor(1j, requires_grad=True)
    with torch.no_grad():
        assert op(x, torch.complex128).requires_grad and not aten._to_copy(x, dtype=torch.complex128).requires_grad
    with compat.use_aten_conversions():
        assert lowering.fallback_handler is graph.fallback_handler is not before
    assert lowering.fallback_handler is graph.fallback_handler is before


@inductor
def test_as_strided_of_an_input_counts_from_its_storage(fake_mode):
    """For a slice with and without an offset, and for a slice of it."""
    fake = fake_mode.from_tensor(torch.arange(8.0)[2:], static_shapes=True)
    graph = fx.Graph()
    x = graph.placeholder("x")
    row = graph.call_function(aten.slice.Tensor, (x, 0, 1, 5))
    starts = [(x, (), 2), (x, (0,), 0), (x, (3,), 3), (row, (), 3), (row, (1,), 1)]
    views = [graph.call_function(aten.as_strided.default, (of, (2,), (1,), *offset)) for of, offset, _ in starts]
    results = [graph.call_function(aten.mul.Tensor, (view, 1.0)) for view in views]
    graph.output(tuple(results))
    for node in graph.nodes:
        if node.op != "output":
            args = fx.node.map_arg(node.args, lambda arg: arg.meta["val"])
            node.meta["val"] = fake if node is x else node.target(*args)
    settings = compat.inductor_graph_settings(cudagraphs=False)
    with fresh_cache(), compat.inductor_context(fake_mode, "default"), compat.count_input_offsets():
        module = fx.GraphModule({}, graph)
        compiled = compat.inductor_compile(module, [fake], static_input_idxs=[], is_inference=True, **settings)
    found = compiled([torch.arange(8.0)[2:]])
    assert [result.tolist() for result in found] == [[start, start + 1] for _, _, start in starts]


@inductor
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex operators")
def test_inductor_views_a_value_as_another_dtype_with_the_strides_of_the_trace():
    from torch._inductor.lowering import lowerings

    def double(x):
        value = x * 1
        value.view(torch.int32).mT.mul_(2)
        return value.real.sum(0)

    op, x = aten.view.dtype, torch.ones(3, 4, dtype=torch.complex64)
    before = lowerings[op]
    with fresh_cache(), compat.view_traced_strides():
        assert lowerings[op] is not before
        assert torch.equal(torch.compile(double, backend="inductor")(x), double(x))
    assert lowerings[op] is before


@inductor
def test_inductor_gives_a_number_of_the_host_a_buffer():
    """Only for kernels of another device: on a CPU, kernels read each other's memory."""
    from torch._inductor.graph import GraphLowering

    before = GraphLowering.call_function
    with fresh_cache(), compat.keep_host_numbers():
        assert GraphLowering.call_function is not before
        x, y = torch.ones(4), torch.tensor([0.5, 2.0])
        assert torch.equal(torch.compile(lambda x, y: x * (y[0] + 1), backend="inductor")(x, y), torch.full((4,), 1.5))
    assert GraphLowering.call_function is before
