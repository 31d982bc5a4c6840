"""DTensors in one process that stands for four, against eager. Collectives of such a group do nothing."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.utils._pytree as pytree
from torch.distributed.tensor import DTensor, Replicate, Shard

import aotgrad
from tests.fake_processes import skip_if_scattered_is_unwritten
from tests.subclasses.catalogue import Program
from tests.subclasses.dtensor_programs import S0, S1, R, dtensor_programs, four_processes, line, redistributed
from tests.subclasses.dtensor_upstream import dtensor_upstream
from tests.subclasses.programs import WAYS, compiled, described, outcome, plain
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


COMPILED_BY_INDUCTOR = (
    "DTensor: of unknown rows, squared",
    "DTensor: a placement and the mesh are results",
    "DTensor, pieces: split",
    "DTensor, pieces: beside their base",
)


@pytest.mark.filterwarnings("ignore:.*_functional_collectives:FutureWarning")  # the other names are new
@pytest.mark.parametrize("way", [way for way in WAYS if "inductor" in way])
@pytest.mark.parametrize("name", COMPILED_BY_INDUCTOR)
def test_as_eager_by_inductor(name, way) -> None:
    check(programs()[name], way)


def local(x, on=S0):
    return DTensor.from_local(x, line(), on, run_check=False)


def of_sharded_product(y):
    """The gradient of a replicated result is sharded."""
    rows = torch.ones(y.shape[0] // 4, *y.shape[1:], dtype=y.dtype)
    return (y * local(rows)).sum()


OTHER_FORMS = {  # a function of plain tensors, and a loss of its results whose gradients have other placements
    "sum": (lambda x: local(x) * 2, lambda y: y.sum()),
    "of several dimensions": (lambda x: local(torch.stack([x, x.cos()], 1)).sin().transpose(1, 2), lambda y: y.sum()),
    "sharded product": (lambda x: local(x, R).sin(), of_sharded_product),
    "other shards": (lambda x: local(x).sin(), lambda y: (y * redistributed(y.detach(), *S1)).sum()),
    "two results": (lambda x: (local(x) * 2, local(x).sin()), lambda y, z: y.sum() + z.sum()),
    "passed on": (lambda x: ((y := local(x) * 2), y.sin()), lambda y, z: z.sum()),
    "passed on and added": (lambda x: ((y := local(x) * 2), y.sin()), lambda y, z: y.cos().sum() + z.sum()),
    "a view": (lambda x: ((y := local(x) * 2), y.t()), lambda y, z: z.sum()),
    "beside a plain one": (lambda x: (x.sin(), local(x).sin()), lambda y, z: y.sum() + z.sum().to_local()),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OTHER_FORMS)
def test_plans_of_gradients_of_another_form(name, way, dynamic) -> None:
    """From the third size on, one plan serves all sizes."""
    function, loss = OTHER_FORMS[name]
    ours, missed = compiled(function, way, dynamic), []
    for rows in (8, 12, 20, 8, 28, 16, 32, 36, 40, 44, 48):
        before, found = aotgrad.counters["misses"], []
        for run in (ours, function):
            x = plain(rows, 4)
            results = run(x)
            loss(*results if isinstance(results, (tuple, list)) else [results]).backward()
            found.append([described(x.grad), *map(described, pytree.tree_leaves(results))])
        assert found[0] == found[1]
        missed.append(aotgrad.counters["misses"] - before)
    assert not any(missed[2:])


@pytest.mark.parametrize("way", ["eager halves", "dynamo, eager halves"])
def test_a_gradient_of_rows_that_do_not_divide_takes_another_plan(way) -> None:
    """Its part is no fraction of the result that is the same for all sizes: three of nine rows, and three of twelve."""

    def gradients(function):
        for rows in (9, 12, 8, 10, 24, 9, 16):
            x = plain(rows, 4)
            y = function(x)
            y.backward(redistributed(local(torch.ones(rows, 4, dtype=x.dtype), R), *S0))
            yield described(x.grad)

    def function(x):
        return local(x, R).sin()

    assert list(gradients(compiled(function, way, dynamic=True))) == list(gradients(function))


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
