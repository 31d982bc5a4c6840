"""Feature tests of `aotgrad/torch_compat/parallel_modules.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable import replicate
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from aotgrad import torch_compat as compat


@pytest.fixture(autouse=True)
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


KINDS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "fully_shard": fully_shard,
    "replicate": replicate,
    "DistributedDataParallel": DistributedDataParallel,
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_module_is_as_before(kind: str) -> None:
    module = KINDS[kind](nn.Linear(2, 2))
    for _ in range(2):
        with compat.refused_parallel_modules(), pytest.raises(RuntimeError, match=compat.PARALLEL_MODULE):
            module(torch.ones(3, 2))
        module(torch.ones(3, 2)).sum().backward()
        assert all(parameter.grad is not None for parameter in module.parameters())


def test_a_group_whose_first_module_has_run_is_refused() -> None:
    modules = nn.Linear(2, 2), nn.Linear(2, 2)
    model = nn.Sequential(*modules)
    fully_shard(list(modules))
    fully_shard(model)

    def refused(*values):
        with compat.refused_parallel_modules(), pytest.raises(RuntimeError, match=compat.PARALLEL_MODULE):
            modules[1](torch.ones(3, 2))

    handle = modules[0].register_forward_hook(refused)
    model(torch.ones(3, 2))
    handle.remove()
    model(torch.ones(3, 2)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_older_class_is_refused() -> None:
    """It needs an accelerator, so there is only a part of it."""
    module = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(module)
    with compat.refused_parallel_modules(), pytest.raises(RuntimeError, match=compat.PARALLEL_MODULE):
        module(torch.ones(3, 2))


def test_other_threads_run_such_modules() -> None:
    module = DistributedDataParallel(nn.Linear(2, 2))
    with ThreadPoolExecutor(1) as other, compat.refused_parallel_modules():
        assert other.submit(module, torch.ones(3, 2)).result().shape == (3, 2)
