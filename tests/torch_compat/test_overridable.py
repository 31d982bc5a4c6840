"""Functions in Python whose calls a mode sees as a whole, and what they call."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from aotgrad import torch_compat as compat


class Noting(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


def test_functions_that_call_others():
    found = compat.functions_calling({F.linear})
    assert F.multi_head_attention_forward in found and F.layer_norm not in found
    assert compat.functions_calling(()) == set()


def test_without_its_check_a_function_shows_what_it_calls():
    x = torch.randn(3)
    with Noting() as mode:
        result = compat.without_override_check(F.gumbel_softmax)(x, hard=True)
    assert F.gumbel_softmax not in mode.seen and torch.Tensor.softmax in mode.seen
    assert result.sum() == 1
