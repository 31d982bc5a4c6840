"""Parameters that are DTensors and are gathered where they are read (SimpleFSDP): one graph holds the collectives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.utils import parametrize
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import aotgrad
from tests.distributed.programs import Model, assert_same, tokens, train


def gathered(parameter: DTensor) -> Tensor:
    full = parameter.redistribute(placements=[Replicate()])
    return full.to_local(grad_placements=[Partial("avg")])


def policy(context, op, *args, **kwargs) -> CheckpointPolicy:
    of_collectives = op.namespace == "_c10d_functional"
    return CheckpointPolicy.MUST_RECOMPUTE if of_collectives else CheckpointPolicy.PREFER_SAVE


def gathered_twice(parameter: DTensor) -> Tensor:
    """The backward gathers the parameter once more, as FSDP does."""
    contexts = partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(gathered, parameter, use_reentrant=False, context_fn=contexts)


class Gathered(nn.Module):
    def forward(self, parameter: DTensor) -> Tensor:
        return gathered(parameter)


def with_properties(module: nn.Module, read: Callable[[DTensor], Tensor]) -> None:
    """Reads of a parameter go through `read`."""
    properties = {name: property(lambda self, name=name: read(self._parameters[name])) for name in module._parameters}
    module.__class__ = type(f"Sharded{type(module).__name__}", (type(module),), properties)


def with_parametrizations(module: nn.Module) -> None:
    for name in list(module._parameters):
        parametrize.register_parametrization(module, name, Gathered(), unsafe=True)


WAYS: dict[str, Callable[[nn.Module], None]] = {
    "properties": partial(with_properties, read=gathered),
    "properties, gathered twice": partial(with_properties, read=gathered_twice),
    "parametrizations": with_parametrizations,
}


def sharded(mesh: DeviceMesh, way: str) -> nn.Module:
    torch.manual_seed(0)
    model = Model(blocks=1)
    for module in list(model.modules()):
        for name, parameter in module._parameters.items():
            module._parameters[name] = nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)]))
        if module._parameters:
            WAYS[way](module)
    return model


def batches() -> list[Tensor]:
    return [tokens(10 * step + dist.get_rank()) for step in range(3)]


def steps(way: str, backend: str) -> None:
    mesh = init_device_mesh("cpu", (2,))
    expected = train(sharded(mesh, way), batches())
    ours = sharded(mesh, way)
    graphs = []

    def counted(module, inputs):
        graphs.append(module)
        return aotgrad.DynamoBackend(backend)(module, inputs)

    ours.compile(backend=counted, fullgraph=True)
    assert_same(train(ours, batches()), expected, backend)
    assert len(graphs) == 1


@pytest.mark.parametrize("way", WAYS)
def test_steps_are_those_of_eager(two_ranks, way: str) -> None:
    two_ranks.run(steps, way, "eager")


def test_steps_through_inductor(two_ranks) -> None:
    two_ranks.run(steps, "properties", "inductor")


def test_without_dynamo(two_ranks) -> None:
    two_ranks.run(without_dynamo, "eager")


def without_dynamo(backend: str) -> None:
    mesh = init_device_mesh("cpu", (2,))
    expected = train(sharded(mesh, "properties"), batches())
    assert_same(train(aotgrad.aot_module(sharded(mesh, "properties"), backend), batches()), expected, backend)
