"""Feature tests of `aotgrad/torch_compat/inductor/reinplacing.py`."""

from __future__ import annotations

import pytest
import torch
import torch.fx as fx
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.fx_passes import reinplace
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx

from aotgrad import torch_compat as compat


def writes_to_a_part(x, y, swapped):
    doubled = x * 2
    return doubled.index_put((swapped,), y[:2])


def writes_over_what_it_reads(x, y, swapped):
    doubled = x * 2
    return doubled.index_put((swapped,), doubled[:2] + y[:2])


def adds_decayed(x, y, swapped):
    (result,) = torch._foreach_add([x], [y + x * 0.1])
    return x.copy_(result)


def adds_flipped(x, y, swapped):
    (result,) = torch._foreach_add([x], [y + x.flip(0)])
    return x.copy_(result)


@pytest.mark.parametrize(("dtype", "in_place"), [(torch.float32, True), (torch.complex64, False)])
def test_indexed_writes_of_complex_numbers_are_not_made_in_place(dtype, in_place: bool) -> None:
    args = torch.ones(3, dtype=dtype), torch.ones(3, dtype=dtype), torch.tensor([1, 0])
    graph: fx.Graph = make_fx(writes_to_a_part, tracing_mode="fake")(*args).graph
    with compat.check_reads_of_targets():
        reinplace.reinplace_inplaceable_ops_core(graph)
    assert ("aten.index_put_.default" in {str(node.target) for node in graph.nodes}) == in_place


@pytest.mark.parametrize(
    ("function", "in_place"),
    [(writes_to_a_part, True), (writes_over_what_it_reads, False), (adds_decayed, True), (adds_flipped, False)],
)
def test_only_writes_that_read_elsewhere_are_made_in_place(function, in_place: bool) -> None:
    graph: fx.Graph = make_fx(function, tracing_mode="fake")(torch.ones(3), torch.ones(3), torch.tensor([1, 0])).graph
    with compat.check_reads_of_targets():
        reinplace.reinplace_inplaceable_ops_core(graph)
    targets = {str(node.target) for node in graph.nodes}
    assert (
        targets & {"aten.index_put_.default", "aten._foreach_add_.List"}
        if in_place
        else not any("index_put_" in target or "foreach_add_" in target for target in targets)
    )


def puts_into(view):
    return lambda x, swapped: view(x * 2).index_put((swapped,), torch.ones(2, dtype=view(x).dtype))


@pytest.mark.parametrize(("view", "in_place"), [(lambda x: x.t()[0], True), (lambda x: x.view(torch.int32)[0], False)])
def test_writes_into_views_as_another_dtype_are_not_made_in_place(view, in_place: bool) -> None:
    graph: fx.Graph = make_fx(puts_into(view), tracing_mode="fake")(torch.ones(2, 2), torch.tensor([1, 0])).graph
    with compat.keep_writes_to_converted_views():
        reinplace.reinplace_inplaceable_ops_core(graph)
    assert ("aten.index_put_.default" in {str(node.target) for node in graph.nodes}) == in_place


def writes_flipped(x):
    return (x.copy_(x.flip(0).view(1, 3).view(3)),)


def writes_doubled(x):
    return (x.copy_((x * 2).view(1, 3).view(3)),)


@pytest.mark.parametrize(("function", "is_apart"), [(writes_flipped, True), (writes_doubled, False)])
def test_what_is_written_is_computed_first_if_it_is_read_elsewhere(function, is_apart: bool) -> None:
    graph = make_fx(function, dict(compat.inductor_decompositions()), tracing_mode="fake")(torch.ones(3))
    with compat.buffer_written_values(), fresh_cache():
        call, (code,) = run_and_get_code(compile_fx_inner, graph, [torch.ones(3)])
    x = torch.arange(3.0)
    call([x])
    assert torch.equal(x, function(torch.arange(3.0))[0])
    assert ("buf0 = " in code) is is_apart


def concatenates_and_writes(x):
    product = x @ x
    return product, torch.cat([product, x]).index_put((torch.tensor([0, 1]),), x[0] @ x)


def test_cat_copies_its_inputs_if_its_result_is_written() -> None:
    x = torch.arange(9.0).view(3, 3)
    graph = make_fx(concatenates_and_writes, dict(compat.inductor_decompositions()), tracing_mode="fake")(x)
    with compat.copy_into_written_concatenations(), fresh_cache():
        call = compile_fx_inner(graph, [x])
    assert all(map(torch.equal, call([x]), concatenates_and_writes(x)))
