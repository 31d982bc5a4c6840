"""Helpers of the feature tests for tracing."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.fx as fx
from torch import nn
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

from aotgrad import torch_compat as compat

aten = torch.ops.aten


def symbolic(fake_mode, *sizes: int) -> torch.Tensor:
    """A fake tensor with symbolic sizes in all dimensions."""
    return compat.dynamic_fake(fake_mode, torch.ones(sizes), dims=range(len(sizes)), index=0)


class Tracing:
    """An open trace of one argument `x`."""

    def __init__(self, fake_mode, value: torch.Tensor, decompositions=None) -> None:
        self.tracer = compat.PythonKeyTracer()
        self.tracer.graph = fx.Graph(tracer_cls=compat.PythonKeyTracer)
        self.tracer.root = nn.Module()
        self.tracer.tensor_attrs = {}
        self.fake = value if isinstance(value, compat.FakeTensor) else fake_mode.from_tensor(value, static_shapes=True)
        node = self.tracer.graph.placeholder("x")
        compat.track_tensor_tree(self.fake, fx.Proxy(node, self.tracer), constant=None, tracer=self.tracer)
        self.functional_mode = compat.functional_mode(lambda: torch.empty(0))
        self.proxy_mode = compat.ProxyTorchDispatchMode(self.tracer, "symbolic")
        self.fake_mode, self.decompositions = fake_mode, decompositions or {}

    @contextlib.contextmanager
    def active(self):
        with self.fake_mode, self.proxy_mode, compat.decompose(self.decompositions), self.functional_mode:
            yield compat.to_functional(self.fake)

    def recorded(self) -> list[str]:
        return [str(node.target) for node in self.tracer.graph.nodes if node.op == "call_function"]


VIEWS_TO_TRY = {
    torch.ops.aten.alias.default: (),
    torch.ops.aten.as_strided.default: ([2, 2], [1, 2], 1),
    torch.ops.aten.detach.default: (),
    torch.ops.aten.diagonal.default: (),
    torch.ops.aten.expand.default: ([3, 2, 4],),
    torch.ops.aten.permute.default: ([1, 0],),
    torch.ops.aten.select.int: (1, 2),
    torch.ops.aten.slice.Tensor: (1, 1, 3),
    torch.ops.aten.split.Tensor: (1, 0),
    torch.ops.aten.split_with_sizes.default: ([1, 3], 1),
    torch.ops.aten.squeeze.default: (),
    torch.ops.aten.squeeze.dim: (0,),
    torch.ops.aten.squeeze.dims: ([0, 1],),
    torch.ops.aten.t.default: (),
    torch.ops.aten.transpose.int: (0, 1),
    torch.ops.aten.unbind.int: (1,),
    torch.ops.aten.unfold.default: (1, 2, 1),
    torch.ops.aten.unsqueeze.default: (1,),
    torch.ops.aten.view.default: ([4, 2],),
    compat.unsafe_view: ([8],),
}


inductor = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


def graph_of_sin_cos(fake_mode, like: torch.Tensor | None = None) -> tuple[fx.GraphModule, torch.Tensor]:
    fake = fake_mode.from_tensor(torch.ones(4) if like is None else like, static_shapes=True)
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = fake
    sin = graph.call_function(aten.sin.default, (x,))
    cos = graph.call_function(aten.cos.default, (sin,))
    sin.meta["val"] = cos.meta["val"] = fake
    graph.output((cos,))
    return fx.GraphModule({}, graph), fake


def symbolic_fake():
    mode = compat.FakeTensorMode(shape_env=compat.ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
    return mode, mode.from_tensor(torch.ones(6, 4), symbolic_context=context)


def raised(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None
