"""Behind Dynamo, arguments without memory of their own: a caller's fake tensors, and tensors of a functionalization."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops.wrap import wrap
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from aotgrad.torch_compat import FakeTensorMode

BACKENDS = ("aotgrad_eager", "aotgrad")


def change_and_sum(x):
    return x.add_(1.0) + torch.relu(x)


def in_a_region(x):
    return wrap(lambda some: some.add_(1.0) * 2, x)


def compiled(function, backend: str):
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True, options={"min_graph_ops": 0})


@pytest.mark.parametrize("dims", [DimDynamic.STATIC, DimDynamic.DUCK])
@pytest.mark.parametrize("backend", BACKENDS)
def test_fakes_of_the_caller(backend: str, dims: DimDynamic) -> None:
    function = compiled(lambda x: x.sin() * 2, backend)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        for shape in ((3, 4), (4, 5)):
            how = StatelessSymbolicContext(dynamic_sizes=[dims] * 2)
            x = mode.from_tensor(torch.ones(shape, requires_grad=True), symbolic_context=how)
            y = function(x)
            assert y.fake_mode is mode and y.requires_grad and tuple(y.shape) == shape
            y.sum().backward()
            assert x.grad.fake_mode is mode and tuple(x.grad.shape) == shape


@pytest.mark.parametrize("function", [change_and_sum, in_a_region])
@pytest.mark.parametrize("backend", BACKENDS)
def test_functionalize_around(backend: str, function) -> None:
    x, y = torch.arange(-2.0, 2.0), torch.arange(-2.0, 2.0)
    torch.testing.assert_close(torch.func.functionalize(compiled(function, backend))(x), function(y))
    assert x.equal(y)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_of_a_functionalization(backend: str) -> None:
    x, y = torch.arange(-2.0, 2.0), torch.arange(-2.0, 2.0)
    torch._enable_functionalization(reapply_views=False)
    try:
        result = compiled(change_and_sum, backend)(functional := torch._to_functional_tensor(x))
        for each in (result, functional):
            torch._sync(each)
    finally:
        torch._disable_functionalization()
    assert torch._from_functional_tensor(result).equal(change_and_sum(y))
    assert torch._from_functional_tensor(functional).equal(y)
