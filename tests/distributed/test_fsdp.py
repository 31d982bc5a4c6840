"""`fully_shard` (FSDP2): as in eager, and nothing keeps the memory of unsharded parameters."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.multiprocessing.reductions import StorageWeakRef

import aotgrad
from tests.distributed.programs import WIDTH, Model, assert_same, compiled, gradients, tokens, train

LOW = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def sharded(backend: str | None, part: str, **settings) -> nn.Module:
    """A model with a group for each block and one for the rest. `part` is compiled: the blocks, the model or all in one."""
    torch.manual_seed(0)
    model = Model()
    for block in model.blocks if part != "whole, one group" else ():
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    if backend is not None:
        for module in model.blocks if part == "blocks" else [model]:
            compiled(module, backend)
    return model


def batches() -> list[Tensor]:
    return [tokens(10 * step + dist.get_rank()) for step in range(3)]


SETTINGS = {
    "resharded": {"reshard_after_forward": True},
    "kept": {"reshard_after_forward": False},
    "mixed precision": {"mp_policy": LOW, "reshard_after_forward": True},
}
PARTS = ("blocks", "whole", "whole, one group")


def steps(backend: str, part: str, settings: dict) -> None:
    expected = train(sharded(None, part, **settings), batches())
    tolerance = {"rtol": 0.02, "atol": 1e-3} if "mp_policy" in settings else {}
    assert_same(train(sharded(backend, part, **settings), batches()), expected, backend, **tolerance)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("part", PARTS)
def test_steps_are_those_of_eager(two_ranks, part: str, settings: str) -> None:
    two_ranks.run(steps, "aotgrad_eager", part, SETTINGS[settings])


@pytest.mark.parametrize(("part", "settings"), [("blocks", "resharded"), ("whole", "mixed precision")])
def test_steps_through_inductor(two_ranks, part: str, settings: str) -> None:
    two_ranks.run(steps, "aotgrad", part, SETTINGS[settings])


# --- Memory ----------------------------------------------------------------------------------------------------------


class SavedStorages(torch.autograd.graph.saved_tensors_hooks):
    """The storages of the tensors that are saved for a backward."""

    def __init__(self) -> None:
        self.references: list[StorageWeakRef] = []
        super().__init__(self.pack, lambda tensor: tensor)

    def pack(self, tensor: Tensor) -> Tensor:
        self.references.append(StorageWeakRef(tensor.untyped_storage()))
        return tensor

    def sizes(self) -> list[int]:
        """The bytes of those that are still in memory."""
        distinct = {reference.cdata: reference for reference in self.references if not reference.expired()}
        return [torch.UntypedStorage._new_with_weak_ptr(cdata).nbytes() for cdata in distinct]


def gathered(model: nn.Module) -> int:
    """The bytes of unsharded parameters of the blocks that are in memory."""
    groups = [block._get_fsdp_state()._fsdp_param_group for block in model.blocks]
    values = [value for group in groups for parameter in group.fsdp_params for value in parameter.all_gather_outputs]
    assert len(values) == 12
    return sum(value.untyped_storage().nbytes() for value in values)


def memory(backend: str, part: str, settings: dict) -> None:
    model = sharded(backend, part, **settings)
    size = 2 * WIDTH * WIDTH * (2 if "mp_policy" in settings else 4)
    for batch in batches():
        with (saved := SavedStorages()):
            loss = model(batch)
        assert loss.grad_fn is not None and len(saved.sizes()) > 3
        assert (gathered(model) == 0) == settings["reshard_after_forward"]
        assert (size in saved.sizes()) == (not settings["reshard_after_forward"]), saved.sizes()
        loss.backward()
        assert gathered(model) == 0
        assert size not in saved.sizes()
        model.zero_grad()


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("part", ["blocks", "whole"])
@pytest.mark.parametrize("backend", [None, "aotgrad_eager"])
def test_unsharded_parameters_are_freed(two_ranks, backend: str | None, part: str, settings: str) -> None:
    two_ranks.run(memory, backend, part, SETTINGS[settings])


def test_unsharded_parameters_are_freed_with_inductor(two_ranks) -> None:
    two_ranks.run(memory, "aotgrad", "blocks", SETTINGS["resharded"])


# --- Other programs --------------------------------------------------------------------------------------------------


def accumulation(backend: str) -> None:
    def run(backend: str | None) -> list:
        model = sharded(backend, "blocks", reshard_after_forward=True)
        for k, batch in enumerate(batches()):
            model.set_requires_gradient_sync(k == 2)
            model(batch).backward()
        with torch.no_grad():
            loss = model(batch)
        return [gradients(model), loss, model(batch).detach()]

    assert_same(run(backend), run(None), backend)


def test_accumulation_and_evaluation(two_ranks) -> None:
    two_ranks.run(accumulation, "aotgrad_eager")


def checkpointed(backend: str) -> None:
    def run(backend: str | None) -> list:
        torch.manual_seed(0)
        model = Model()
        for k, block in enumerate(model.blocks):
            model.blocks[k] = checkpoint_wrapper(block if backend is None else compiled(block, backend))
            fully_shard(model.blocks[k])
        return train(fully_shard(model), batches())

    assert_same(run(backend), run(None), backend)


def test_checkpointed_blocks(two_ranks) -> None:
    two_ranks.run(checkpointed, "aotgrad_eager")


def replicated(backend: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicated", "sharded"))
    expected = train(sharded(None, "whole", mesh=mesh), batches())
    assert_same(train(sharded(backend, "whole", mesh=mesh), batches()), expected, backend)


def test_groups_that_are_replicated(four_ranks) -> None:
    four_ranks.run(replicated, "aotgrad_eager")


def without_dynamo(backend: str) -> None:
    def run(backend: str | None) -> list:
        torch.manual_seed(0)
        model = Model()
        for k, block in enumerate(model.blocks):
            model.blocks[k] = block if backend is None else aotgrad.aot_module(block, backend)
            fully_shard(model.blocks[k])
        fully_shard(model)
        return [(loss, list(found.values())) for loss, found in train(model, batches())]

    assert_same(run(backend), run(None), backend)


def test_blocks_compiled_without_dynamo(two_ranks) -> None:
    two_ranks.run(without_dynamo, "eager")


def compiled_around(backend: str) -> None:
    """The hooks of the module that is compiled run around its forward."""

    def run(backend: str | None) -> list:
        torch.manual_seed(0)
        model = fully_shard(Model())
        model = model if backend is None else aotgrad.aot_module(model, backend)
        return [(loss, list(found.values())) for loss, found in train(model, batches())]

    assert_same(run(backend), run(None), backend)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_sharded_as_a_whole_and_compiled_without_dynamo(two_ranks, backend: str) -> None:
    two_ranks.run(compiled_around, backend)
