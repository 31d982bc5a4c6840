"""Feature tests of `aotgrad/torch_compat/casting_kernels.py`."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import Tracing


class SeesAutocast(TorchDispatchMode):
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.seen = torch.is_autocast_enabled("cpu")
        return op(*args, **(kwargs or {}))


def test_a_dispatch_mode_does_not_see_autocast():
    with torch.autocast("cpu"), SeesAutocast() as mode:
        torch.ones(2).sin()
    assert mode.seen is False


def test_each_op_has_a_kernel_at_its_key():
    for op, key in compat.CASTING_KERNELS.items():
        assert torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)
    assert torch.linalg.pinv in compat.CASTING_FUNCTIONS


def test_a_kernel_is_recorded_with_its_casts(fake_mode):
    def recorded(enabled):
        trace = Tracing(fake_mode, torch.ones(2, 3))
        with trace.active() as x, torch.autocast("cpu", enabled=enabled), compat.note_autocast(trace.functional_mode):
            torch.linalg.pinv(x)
        return trace.recorded()

    (op,) = [op for op in compat.CASTING_KERNELS if "pinv" in op.name()]
    assert compat.REWRITES[op] is compat.run_casting_kernel
    assert recorded(False) == [str(op)]
    assert str(op) not in recorded(True) and "aten._to_copy.default" in recorded(True)
