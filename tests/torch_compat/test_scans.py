"""Feature tests of `aotgrad/torch_compat/scans.py`."""

from __future__ import annotations

import torch
from torch._higher_order_ops.partitioner import HopGraphMinCutPartitioner

from aotgrad import torch_compat as compat


def step(carry, x):
    new = (carry * x).exp()
    return new, (new * carry).sin()


def results_of_a_step():
    arguments = (torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True))
    made = HopGraphMinCutPartitioner.create_partitioned_graph(step, arguments, always_recompute_complex_exprs=True)
    return made.fw_gm(*[argument.detach() for argument in arguments])


def test_a_step_returns_separate_results():
    shared = results_of_a_step()
    with compat.separate_results_of_scans():
        separate = results_of_a_step()
    assert len({result.data_ptr() for result in shared}) < len(shared)
    kept = {result.data_ptr() for result in separate}
    assert len(kept) == len(separate) == len(shared) and all(map(torch.equal, separate, shared))
