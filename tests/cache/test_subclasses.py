"""Functions of wrapper subclasses: they are traced in every process, and their halves are read from the disk.

python -m tests.cache.test_subclasses "dynamo, eager halves" FILE        runs the programs and saves what they computed
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nested import nested_tensor_from_jagged
from torch.testing._internal.two_tensor import TwoTensor

import aotgrad
from tests.subclasses.catalogue import scaled
from tests.subclasses.dtensor_programs import four_processes, line
from tests.subclasses.programs import WAYS, eight_bits, outcome, plain, two

REPOSITORY = Path(__file__).parents[2]
MISS, HIT = {"cache_misses": 1, "compilations": 1}, {"cache_hits": 1, "compilations": 1}

pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does


def rows(*lengths: int, requires_grad: bool = True) -> torch.Tensor:
    values = plain(sum(lengths), 4).detach()
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return nested_tensor_from_jagged(values, offsets).detach().requires_grad_(requires_grad)


PROGRAMS: dict[str, tuple[Callable, Callable[[], list]]] = {
    "argument": (lambda x: x.sin() * x, lambda: [two(3, 4)]),
    "changed argument": (lambda x: (x.mul_(2), x.exp())[1], lambda: [two(3, 4, requires_grad=False)]),
    "result": (lambda x: TwoTensor(x.sin(), x.cos()).exp(), lambda: [plain(3).detach()]),
    "views": (lambda x: (y := x * 2, y.view(-1), x.t())[1:], lambda: [two(3, 4)]),
    "gradient of another form": (lambda w, x: x @ w, lambda: [eight_bits(True), plain(2, 2)]),
    "context that is compared": (lambda x: x.sin() * x, lambda: [scaled({"a", "b"}, True)]),
    "jagged": (lambda x, y: (x + y).sin() * x, lambda: [x := rows(2, 1), x.detach() * 2]),
    "jagged result": (lambda x: nested_tensor_from_jagged(x.sin(), torch.tensor([0, 2, 3])), lambda: [plain(3).detach()]),
}


def compiled(function: Callable, way: str, dynamic: bool | None = None) -> Callable:
    """The function, compiled as in a new process, with the cache on disk."""
    backend = "eager" if "eager" in way else "inductor"
    if not way.startswith("dynamo"):
        return aotgrad.aot_function(function, backend, dynamic=dynamic, options={"cache": True})
    torch._dynamo.reset()
    name = "aotgrad_eager" if backend == "eager" else "aotgrad"
    return torch.compile(function, backend=name, options={"min_graph_ops": 0}, dynamic=dynamic)


@pytest.mark.parametrize("way", [way for way in WAYS if "eager" in way])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_second_start_only_traces(name, way, counted) -> None:
    function, arguments = PROGRAMS[name]
    expected = outcome(function, arguments())
    for counts in (MISS, HIT):
        assert outcome(compiled(function, way), arguments()) == expected
        assert each_once(counted()) == counts


def each_once(counts: dict[str, int]) -> dict[str, int]:
    """The counters without numbers: a gradient of another form makes another plan."""
    return dict.fromkeys(counts, 1)


def run_in_another_process(way: str, folder: Path) -> tuple[str, dict[str, int]]:
    """What the programs compute in another process, as text, and its counters."""
    path = folder / "outcome.json"
    subprocess.run([sys.executable, "-m", __name__, way, str(path)], cwd=REPOSITORY, check=True, timeout=600)
    return json.loads(path.read_text())


@pytest.mark.parametrize("way", [WAYS[0], WAYS[3]])
def test_another_process_finds_what_one_has_made(way, tmp_path) -> None:
    expected = [repr(outcome(*each)) for each in programs_of_another_process(way)]
    for counter, other in (("cache_misses", "cache_hits"), ("cache_hits", "cache_misses")):
        found, counters = run_in_another_process(way, tmp_path)
        assert found == expected
        assert counters[counter] == len(expected) and other not in counters and "cache_failures" not in counters
    assert counters.get("artefact_misses", 0) == 0 and (counters.get("artefact_hits", 0) > 0) == ("inductor" in way)


def programs_of_another_process(way: str) -> list[tuple[Callable, list]]:
    names = ("argument",) if "inductor" in way else ("argument", "gradient of another form", "jagged")
    return [(function, arguments()) for function, arguments in map(PROGRAMS.__getitem__, names)]


def main(way: str, path: str) -> None:
    torch.set_num_threads(1)
    found = [repr(outcome(compiled(function, way), arguments)) for function, arguments in programs_of_another_process(way)]
    Path(path).write_text(json.dumps([found, dict(aotgrad.counters)]))


# --- What decides whether an entry is found ----------------------------------------------------------------------------


def class_with(factor: float) -> type:
    """A class whose source differs in a number: ops multiply by it."""

    class Times(torch.Tensor):
        @staticmethod
        def __new__(cls, values):
            return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)

        def __init__(self, values):
            self.values_ = values

        def __tensor_flatten__(self):
            return ["values_"], None

        @staticmethod
        def __tensor_unflatten__(parts, context, size, stride):
            return Times(parts["values_"])

        @classmethod
        def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
            if op in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
                return Times(op(args[0].values_))
            args = pytree.tree_map_only(Times, lambda each: each.values_ * factor, args)
            return pytree.tree_map_only(torch.Tensor, Times, op(*args, **(kwargs or {})))

    return Times


@pytest.mark.parametrize("way", [way for way in WAYS if "eager" in way])
def test_another_source_of_the_class(way, counted) -> None:
    """Both classes have the same module and name."""
    for factor, counts in ((2.0, MISS), (2.0, HIT), (3.0, MISS)):
        kind = class_with(factor)
        function, arguments = lambda x: x.sin() + 1, lambda kind=kind: [kind(plain(3).detach())]
        assert outcome(compiled(function, way), arguments()) == outcome(function, arguments())
        assert counted() == counts


@pytest.mark.parametrize("way", [way for way in WAYS if "eager" in way])
def test_another_context(way, counted) -> None:
    """The function reads the context. One that it does not read is no part of the graph, but of the result."""

    def run(held: Any, function: Callable) -> Any:
        assert outcome(compiled(function, way), [scaled(held)]) == outcome(function, [scaled(held)])
        result = compiled(function, way)(scaled(held))
        assert getattr(result, "held", held) == held
        return counted()

    for factor, misses in ((2.0, 1), (2.0, 0), (3.0, 1)):
        found = run({"constant": factor}, lambda x: x.scale * x.held["constant"])
        assert found.get("cache_misses", 0) == misses and "cache_failures" not in found
    for factor, misses in ((2.0, 1), (3.0, 0)):
        assert run({"constant": factor}, lambda x: x.sin()).get("cache_misses", 0) == misses


def test_symbolic_sizes(counted) -> None:
    def function(x):
        return (x * x.shape[0]).sin()

    for counts in (MISS, HIT):
        ours = compiled(function, "dynamo, eager halves", dynamic=True)
        for count in (3, 5):
            assert outcome(ours, [two(count, 4)]) == outcome(function, [two(count, 4)])
        assert counted() == counts


@pytest.mark.filterwarnings("ignore:.*_functional_collectives:FutureWarning")  # the other names are new
@pytest.mark.parametrize("way", [way for way in WAYS if "eager" in way])
def test_distributed(way, counted) -> None:
    """DTensors as arguments and inside: Dynamo passes the mesh, which is no tensor."""
    with four_processes():
        mesh = line()

        def inside(x: torch.Tensor) -> torch.Tensor:
            return DTensor.from_local(x, mesh, [Shard(0)]).redistribute(mesh, [Replicate()]).to_local() * 2

        def sharded() -> torch.Tensor:
            return DTensor.from_local(plain(2, 4).detach(), mesh, [Shard(0)]).requires_grad_()

        for function, make in ((lambda x: x.sin() * x, sharded), (inside, lambda: plain(2, 4))):
            expected = outcome(function, [make()])
            for counts in (MISS, HIT):
                assert outcome(compiled(function, way), [make()]) == expected
                assert each_once(counted()) == counts


def test_gradients_of_gradients(counted) -> None:
    def second(function: Callable) -> Any:
        x = two(3)
        (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (gradient * gradient).sum().backward()
        return outcome(lambda: x.grad, [])

    function = PROGRAMS["argument"][0]
    for _ in range(2):
        assert second(compiled(function, "dynamo, eager halves")) == second(function)
    assert counted()["cache_hits"] == 1


if __name__ == "__main__":
    main(*sys.argv[1:])
