"""Programs with DTensors of the kinds that PyTorch's own tests have, beside those of `dtensor_programs.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor import ones as ones_of_shards
from torch.distributed.tensor.experimental import local_map
from torch.distributed.tensor.parallel import loss_parallel
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils.checkpoint import checkpoint

from tests.subclasses.catalogue import Program, run_module
from tests.subclasses.dtensor_programs import S0, S1, P, R, by_layers, line, placed, redistributed, square
from tests.subclasses.programs import described, outcome, plain, two
from tests.subclasses.upstream_programs import from_first, over


def then(after: Callable[..., torch.Tensor]) -> Callable:
    """A run in which eager ops on DTensors follow the function."""
    return lambda function, arguments: outcome(lambda *some: after(function(*some), *some), arguments)


def of_sizes(*sizes: tuple[int, ...], leaf: bool = False) -> Callable:
    """A run with DTensors of several sizes, which are marked as dynamic."""

    def run(function: Callable, arguments: list[Any]) -> Any:
        found = []
        for size in sizes:
            x = placed(*size, leaf=leaf)
            for dim in range(len(size)):
                torch._dynamo.mark_dynamic(x, dim)
            found.append(outcome(function, [x]))
        return found

    return run


def of_placements(*placements: Any) -> Callable:
    return lambda function, arguments: [outcome(function, [placed(2, 4, on=each)]) for each in placements]


def permuted_norm(x, weight, bias):
    normed = nn.functional.layer_norm(x.permute(0, 2, 1).contiguous(), (8,), weight, bias, 1e-5)
    return normed.permute(0, 2, 1)


def of_another_mesh(x):
    return DTensor.from_local(x, MESHES_OF_CALLS[-1], S1, run_check=False).sin().to_local()


MESHES_OF_CALLS: list[Any] = []


def with_equal_meshes(function: Callable, arguments: list[Any]) -> Any:
    found = []
    for _ in range(2):
        MESHES_OF_CALLS.append(init_device_mesh("cpu", (4,)))
        found.append(outcome(function, arguments))
    return found


def accumulated(function: Callable, arguments: list[Any]) -> Any:
    """Two calls with backwards, whose gradients are added."""
    return [outcome(function, arguments) for _ in range(2)]


def asks_of_mesh(x):
    mesh = x.device_mesh
    return x * (mesh.size(0) + mesh.get_local_rank() + mesh.ndim + (mesh.device_type == "cpu"))


def asks_of_placements(x):
    number = 0
    for each in x.placements:
        number += 1 * each.is_replicate() + 2 * each.is_partial() + 4 * each.is_shard() + 8 * each.is_shard(0)
    return x * number


def small_or_large(x):
    return (x * x if x.size(0) <= 32 else x + x).to_local()


def unevenly_reduced(x):
    partial = DTensor.from_local(x, line(), P, run_check=False, shape=(3, 7, 5), stride=(35, 5, 1))
    return redistributed(partial, *S1)


def in_two_regions(x, w):
    return checkpoint(lambda some: redistributed((some @ w).relu(), *R), x, use_reentrant=False)


mapped = local_map(lambda x, y: x.sin() @ y, out_placements=list(S0), in_placements=(list(S0), list(R)))


def run_sharded_loss(function: Callable, arguments: list[Any]) -> Any:
    with loss_parallel():
        return outcome(function, arguments)


def classes() -> Any:
    return distribute_tensor(torch.tensor([0, 3, 5]), line(), R)


def of_unknown_rows(function: Callable, arguments: list[Any]) -> Any:
    """A run with DTensors whose number of rows a trace does not know."""
    found = []
    for rows in (2, 3, 1):
        x = placed(rows, 4)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        found.append(outcome(function, [x]))
    return found


def of_pieces(function: Callable, arguments: list[Any]) -> Any:
    return [outcome(function, [placed(8, 4, on=R, requires_grad=False), size]) for size in (2, 3, 4)]


def in_some_calls(function: Callable, arguments: list[Any]) -> Any:
    return [outcome(function, [placed(2, 4, requires_grad=requires_grad)]) for requires_grad in (False, True, False)]


def in_two(x):
    return [redistributed(piece, *R).to_local()[0] for piece in torch.tensor_split(x, 2)]


def through_local(x):
    made = DTensor.from_local(x.to_local().sin(), line(), S0, run_check=False)
    return made.detach(), made


def reshaped_product(x, y):
    left = DTensor.from_local(x.reshape(2, 4), line(), S0, run_check=False)
    right = DTensor.from_local(y.reshape(4, 2), line(), S1, run_check=False)
    return redistributed(left @ right, *R).to_local()


def log_probabilities(x):
    return redistributed(nn.functional.log_softmax(x, 1, dtype=torch.float32), *R).to_local()[0]


def strided_shards() -> DTensor:
    placements = (_StridedShard(0, split_factor=2), Shard(0))
    return DTensor.from_local(plain(2, 4).detach(), square(), placements, run_check=False).requires_grad_()


def over_two(function: Callable, arguments: list[Any]) -> Any:
    locals_ = [two(rows, 4, requires_grad=False) for rows in (2, 3, 5)]
    made = [DTensor.from_local(local, line(), S0, run_check=False).requires_grad_() for local in locals_]
    return [outcome(function, [each]) for each in made]


def indices(*values: int) -> Any:
    return DTensor.from_local(torch.tensor(values), line(), R, run_check=False)


def around_a_break(x):
    y, mesh = x * 2, square()["tp"]
    placements = y.placements
    torch._dynamo.graph_break()
    made = DTensor.from_local(y.to_local().sin(), mesh, placements, run_check=False)
    return made.to_local() * y.device_mesh.size()


def asked(function: Callable, arguments: list[Any]) -> Any:
    """A run whose other results are a placement and a mesh."""
    result, placement, mesh = function(*arguments)
    return [described(result), placement, mesh == line()]


to_two = local_map(
    lambda x, y: (x.sin() @ y, y.sum(0)), out_placements=(list(S0), list(R)), in_placements=(list(S0), list(R))
)
moved = local_map(
    lambda x, y: x.sin() @ y, out_placements=list(S0), in_placements=(list(S0), list(R)), redistribute_inputs=True
)
with_gradients_of = local_map(
    lambda x, y: x.sin() @ y,
    out_placements=list(S0),
    in_placements=(list(S0), list(R)),
    in_grad_placements=(list(S0), list(P)),
)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


UPSTREAM: dict[str, tuple] = {
    "of several sizes": (lambda x: (x * x).to_local(), list, of_sizes((4, 4), (6, 8), (10, 10))),
    "sizes compared": (small_or_large, list, of_sizes((4, 4), (6, 8), (16, 8))),
    "of several sizes, a gradient of another form": (
        lambda x: redistributed(torch.cat((x, x), 0), *R).to_local()[0],
        list,
        of_sizes((4, 4), (6, 8), (10, 12), leaf=True),
    ),
    "of several sizes, placements of the gradient": (
        lambda x: x.to_local(grad_placements=P) * 2,
        list,
        of_sizes((4, 4), (6, 8), (10, 12), leaf=True),
    ),
    "expanded gradients that are added": (
        lambda x: redistributed(x.sum(0), *R).to_local(),
        lambda: [placed(4, 4)],
        accumulated,
    ),
    "of several placements": (asks_of_placements, list, of_placements(R, S0, S1)),
    "concatenated": (
        lambda x, y: redistributed(torch.cat((x, y), 0), *R).to_local()[0],
        lambda: [placed(4, 4), placed(4, 4, seed=1)],
        outcome,
        True,
    ),
    "pieces": (lambda x: [y.sin() for y in x.chunk(2, 1)], lambda: [placed(2, 4, requires_grad=False)]),
    "partial result used after the call": (lambda x: x + x, lambda: [placed(4, 4, on=P)], then(lambda y, x: y @ y)),
    "permuted norm": (
        permuted_norm,
        lambda: [placed(2, 2, 8, on=S1), placed(8, on=R, seed=1), placed(8, on=R, seed=2)],
        then(lambda y, x, *_: (y @ x).permute(0, 2, 1)),
    ),
    "of equal meshes": (of_another_mesh, lambda: [plain(4, 4)], with_equal_meshes),
    "several questions to the mesh": (asks_of_mesh, lambda: [placed(2, 4)]),
    "unevenly reduced": (unevenly_reduced, lambda: [plain(3, 7, 5).detach()]),
    "checkpointed": (in_two_regions, lambda: [placed(2, 4), placed(4, 3, on=R, seed=1)]),
    "mapped over local parts": (mapped, lambda: [placed(2, 4), placed(4, 3, on=R, seed=1)]),
    "loss of sharded classes": (
        nn.functional.cross_entropy,
        lambda: [placed(3, 2, on=S1), classes()],
        run_sharded_loss,
    ),
    "autograd function": (lambda x: Doubled.apply(x), lambda: [placed(2, 4)]),
    "embedding": (nn.functional.embedding, lambda: [classes(), placed(2, 4, on=S0)]),
    "sharded embedding of a width": (nn.functional.embedding, lambda: [classes(), placed(8, 1, on=S1)]),
    "factories": (lambda x: torch.zeros_like(x) + torch.ones_like(x) * x, lambda: [placed(2, 4)]),
    "clipped by its norm": (lambda x: x / torch.linalg.vector_norm(x).clamp(min=1), lambda: [placed(2, 4)]),
    "several losses": (lambda x: (x.sum(), (x * x).mean()), lambda: [placed(2, 4)]),
    "products of three": (lambda x, y, z: torch.bmm(x, y) + z, lambda: [placed(1, 2, 2, seed=seed) for seed in range(3)]),
    "in two, symbolic sizes": (in_two, lambda: [placed(4, 4)], outcome, True),
    "in pieces of several sizes": (lambda x, size: torch.split(x, size, 0), list, of_pieces, True),
    "of unknown rows": (lambda x: x.sin() * 2, list, of_unknown_rows),
    "of unknown rows, summed": (lambda x: redistributed(x, *R).to_local().sum(0), list, of_unknown_rows),
    "of unknown rows, squared": (lambda x: (x.t() @ x).to_local(), list, of_unknown_rows),
    "requires grad in some calls": (lambda x: (x * x).to_local(), list, in_some_calls),
    "log probabilities, symbolic sizes": (log_probabilities, lambda: [placed(4, 4, on=S1)], run_sharded_loss, True),
    "changed beside another": (
        lambda x, y: (x.sin(), y.add_(2))[0],
        lambda: [placed(2, 4) * 1, placed(2, 4, requires_grad=False)],
    ),
    "through a local one, and detached": (through_local, lambda: [placed(2, 4)]),
    "backward from one of two": (lambda x: (x.sin(), x.cos()), lambda: [placed(2, 4)], from_first),
    "product of reshaped ones": (reshaped_product, lambda: [plain(8), plain(8, seed=2)]),
    "from local, placements of the gradient": (
        lambda x: DTensor.from_local(x, line(), R, run_check=False, grad_placements=list(P)).sin().to_local(),
        lambda: [plain(2, 4)],
    ),
    "full tensor, placements of the gradient": (
        lambda x: x.full_tensor(grad_placements=list(P)).sin(),
        lambda: [placed(2, 4)],
    ),
    "redistributed in another dtype": (
        lambda x: x.redistribute(line(), R, forward_dtype=torch.float32, backward_dtype=torch.float64).sin(),
        lambda: [placed(2, 4)],
    ),
    "strided shards": (lambda x: x.sin() * x, lambda: [strided_shards()]),
    "no rows on some ranks": (
        lambda x: x.sin() * 2,
        lambda: [distribute_tensor(torch.ones(3, 3, dtype=torch.float64), line(), S0).requires_grad_()],
    ),
    "extremes": (lambda x: redistributed(x.amax(0), *R), lambda: [placed(2, 4, requires_grad=False)]),
    "means": (lambda x: redistributed(x.mean(0), *R).sin(), lambda: [placed(2, 4)]),
    "flattened": (lambda x: x.flatten() * 2, lambda: [placed(2, 4)]),
    "unflattened": (lambda x: x.unflatten(0, (4, 2)).sin(), lambda: [placed(2, 4)]),
    "indexed": (lambda x, i: x[i], lambda: [placed(2, 4, on=R), indices(0, 1, 0)]),
    "stacked and chosen": (
        lambda x: torch.stack([torch.where(x > 0, x, torch.zeros_like(x)), x.cumsum(1)], 1),
        lambda: [placed(2, 4)],
    ),
    "largest ones": (lambda x: x.topk(2, 1)[0].sum(), lambda: [placed(2, 4)]),
    "mapped to two results": (to_two, lambda: [placed(2, 4), placed(4, 3, on=R, seed=1)]),
    "mapped and moved": (moved, lambda: [placed(8, 4, on=R), placed(4, 3, on=R, seed=1)]),
    "mapped, placements of gradients": (with_gradients_of, lambda: [placed(2, 4), placed(4, 3, on=R, seed=1)]),
    "over TwoTensor, symbolic sizes": (lambda x: x.sin() * x.shape[0], list, over_two, True),
    "with ones made inside": (
        lambda x: x * ones_of_shards(8, 4, dtype=torch.float64, device_mesh=line(), placements=S0),
        lambda: [placed(2, 4)],
    ),
    "placements and a mesh over a graph break": (around_a_break, lambda: [placed(2, 4)]),
    "a placement and the mesh are results": (
        lambda x: (x * 2, x.placements[0], x.device_mesh),
        lambda: [placed(2, 4)],
        asked,
    ),
    "from local, another size in each call": (
        lambda x: DTensor.from_local(x, line(), S0, run_check=False) * 2,
        list,
        over(lambda n: [plain(n, 4)], 2, 3, 5, 2),
    ),
    "from local, symbolic sizes": (
        lambda x: DTensor.from_local(x, line(), S0, run_check=False) * x.shape[0],
        list,
        over(lambda n: [plain(n, 4)], 2, 3, 5, 2),
        True,
    ),
    "from local, a result and its loss, symbolic sizes": (
        lambda x, w: (y := DTensor.from_local(x, line(), S0, run_check=False) @ w, y.square().mean()),
        list,
        over(lambda n: [plain(n, 4), placed(4, 3, on=R)], 2, 3),
        True,
    ),
    "from local, losses of several sizes": (
        lambda x: DTensor.from_local(x, line(), S0, run_check=False).square().mean(),
        list,
        over(lambda n: [plain(n, 4)], 2, 3, 5),
    ),
    "of no gradient beside one": (lambda x, y: x * y.detach() + y, lambda: [placed(2, 4), placed(8, 4, on=R, seed=1)]),
}


def closes_over() -> Callable:
    held = placed(2, 4, on=R, requires_grad=False)
    return lambda x: held.to_local(grad_placements=S0) + x


def hooked() -> nn.Module:
    """A module with a hook that leaves and enters DTensors."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 4, dtype=torch.float64)
    for name, parameter in list(layer.named_parameters()):
        setattr(layer, name, nn.Parameter(DTensor.from_local(parameter.detach(), line(), R, run_check=False)))

    def hook(module: nn.Module, inputs: Sequence[Any], output: Any) -> Any:
        local = output.to_local(grad_placements=output.placements) + 2
        return DTensor.from_local(local, line(), output.placements, run_check=False)

    layer.register_forward_hook(hook)
    return layer


def in_shards(module: nn.Module) -> nn.Module:
    """The module with parameters in shards of rows."""

    def shard(name: str, part: nn.Module, mesh: Any) -> None:
        for key, parameter in list(part.named_parameters(recurse=False)):
            part.register_parameter(key, nn.Parameter(distribute_tensor(parameter.detach(), mesh, S0)))

    return distribute_module(module, line(), shard)


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = in_shards(nn.Embedding(8, 4, dtype=torch.float64))

    def forward(self, x):
        return redistributed(self.table(x), *S1)


class Gathered(nn.Module):
    """Gathers the whole parameters of each layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(in_shards(nn.Linear(8, 8, dtype=torch.float64)) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.linear(x, layer.weight.full_tensor(), layer.bias.full_tensor()).relu()
        return x


def dtensor_upstream() -> Iterator[Program]:
    """All programs of this file, inside of `four_processes`."""
    for name, (function, arguments, *rest) in UPSTREAM.items():
        run, dynamic = (*rest, *(outcome, None)[len(rest) :])
        yield Program("DTensor", name, function, arguments, run, dynamic)
    yield Program("DTensor", "module with a sharded table", Embedded(), lambda: [indices(0, 3, 5, 7)], run_module)
    yield Program("DTensor", "module that gathers", Gathered(), lambda: [plain(4, 8)], run_module)
    yield Program("DTensor", "closed over", closes_over(), lambda: [plain(2, 4)])
    yield Program("DTensor", "module with a hook", hooked(), lambda: [placed(2, 4, on=R, requires_grad=False)], run_module)
    yield Program("DTensor", "module, replicated input", by_layers(), lambda: [plain(4, 8).detach()], run_module)
