"""DTensors in one process that stands for four, against eager. Collectives of such a group do nothing."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

import aotgrad
from tests.fake_processes import skip_if_scattered_is_unwritten
from tests.subclasses.catalogue import Program
from tests.subclasses.dtensor_programs import dtensor_programs, four_processes, line
from tests.subclasses.dtensor_upstream import dtensor_upstream
from tests.subclasses.programs import WAYS, compiled, outcome, plain
from tests.subclasses.test_catalogue import check


def programs() -> dict[str, Program]:
    return {f"{program.group}: {program.name}": program for program in (*dtensor_programs(), *dtensor_upstream())}


with four_processes():
    NAMES = list(programs())
FAILURES = {  # the messages of errors
    ("DTensor: mesh made inside", "dynamo"): "was specified to have member",  # Dynamo
    ("DTensor: embedding", "dynamo"): "Please convert all Tensors to FakeTensors",  # Dynamo
    ("DTensor: several losses", ""): "Replicate",  # placements of a gradient of one of several results
}
SCATTERED = (
    "DTensor: module split by sequence",
    "DTensor: placements of sizes that do not divide",
    "DTensor: unevenly reduced",
)
"""Programs with a collective whose result the fake processes of older versions of torch do not write."""


@pytest.fixture(scope="module", autouse=True)
def mesh():
    with four_processes():
        yield line()


@pytest.mark.filterwarnings("ignore:.*_functional_collectives:FutureWarning")  # the other names are new
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does
@pytest.mark.parametrize("way", [way for way in WAYS if "eager" in way])
@pytest.mark.parametrize("name", NAMES)
def test_as_eager(name, way) -> None:
    if name in SCATTERED:
        skip_if_scattered_is_unwritten()
    reason = FAILURES.get((name, "")) or FAILURES.get((name, way.split(",")[0]))
    with contextlib.nullcontext() if reason is None else pytest.raises(Exception, match=reason):
        check(programs()[name], way)


@pytest.mark.parametrize("way", WAYS)
def test_redistribution_inside(way, mesh) -> None:
    def function(x):
        return DTensor.from_local(x, mesh, [Shard(0)]).redistribute(mesh, [Replicate()]).to_local() * 2

    assert outcome(compiled(function, way), [plain(3)]) == outcome(function, [plain(3)])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.skipif(not hasattr(torch._dynamo.config, "force_compile_during_fx_trace"), reason="this torch lacks it")
def test_a_compiled_region_inside() -> None:
    torch._dynamo.reset()
    region = torch.compile(lambda x: x * 2 + 1, backend="invoke_subgraph")

    def function(x):
        return region(x + 1).sum()

    x = plain(2, 4)
    with torch._dynamo.config.patch(force_compile_during_fx_trace=True):
        result = aotgrad.aot_function(function, "eager")(DTensor.from_local(x, line(), [Shard(0)], run_check=False))
    result.backward()
    assert x.grad.tolist() == [[2] * 4] * 2


@pytest.mark.parametrize("placement", [Replicate(), Shard(0)], ids=str)
def test_an_island_gets_and_returns_a_dtensor(placement):
    @aotgrad.island
    def exponential(x):
        assert isinstance(x, DTensor)
        return (x * 2).exp()

    def function(x):
        return exponential(x.sin()).cos()

    found = []
    for run in (function, aotgrad.aot_function(function, "eager", options={"min_graph_ops": 0})):
        x = DTensor.from_local(torch.arange(4.0), line(), [placement], run_check=False).requires_grad_()
        result = run(x)
        result.backward(torch.ones_like(result))
        assert result.placements == x.grad.placements == (placement,)
        found.append((result.to_local().detach(), x.grad.to_local()))
    torch.testing.assert_close(*found)
