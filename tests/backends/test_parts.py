"""A result that is a part of a constant keeps the memory of the whole, through Inductor's passes."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.fx as fx
from torch.fx.experimental.proxy_tensor import make_fx

from aotgrad.backends.parts import keep_memory_of_parts
from aotgrad.graph.ends import outputs_of
from aotgrad.torch_compat import inductor_joint_passes

FUNCTIONS = {
    "strided": lambda x: (torch.full((8,), 0.0).as_strided((2,), (1,)),),
    "item of a split": lambda x: (torch.full((8,), 3.0).split(2)[1], x * 2),
    "twice": lambda x: (torch.full((4, 6), 0.0)[1:][:, 2:],),
    "as another dtype": lambda x: (torch.full((4,), 1j).view(torch.float32)[1::2],),
    "beside a write": lambda x: (torch.full((8,), 2.0)[2:], x.add_(1))[:1],
    "size of an input": lambda x: (torch.full((16,), 0.0)[: x.shape[0] // 2],),
}


def folded(module: fx.GraphModule, keep: bool) -> fx.GraphModule:
    graph = module.graph
    with keep_memory_of_parts(graph, len(outputs_of(graph))) if keep else contextlib.nullcontext():
        inductor_joint_passes(module)
    graph.lint()
    module.recompile()
    return module


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_a_part_of_a_constant_keeps_its_memory(function, mode: str) -> None:
    x = torch.arange(8.0)
    expected = function(x)
    (found, *_) = folded(make_fx(function, tracing_mode=mode)(x), True)(x)
    assert torch.equal(found, expected[0])
    assert found.untyped_storage().nbytes() == expected[0].untyped_storage().nbytes()


def test_without_it_the_part_becomes_a_constant_of_its_own() -> None:
    """If this fails, Inductor keeps the memory, and `keep_memory_of_parts` can go."""
    x = torch.arange(8.0)
    (found,) = folded(make_fx(FUNCTIONS["strided"], tracing_mode="fake")(x), False)(x)
    assert found.untyped_storage().nbytes() == 8
