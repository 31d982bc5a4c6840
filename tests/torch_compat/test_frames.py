"""Feature tests of `aotgrad/torch_compat/frames.py`."""

from __future__ import annotations

import traceback

import pytest
import torch

from aotgrad import torch_compat as compat


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fails):
        return x * 2 if fails == "later" else 1 / 0

    @staticmethod
    def backward(ctx, gradient):
        raise ZeroDivisionError


@torch.library.custom_op("aotgrad_compat::fails", mutates_args=())
def fails(x: torch.Tensor) -> torch.Tensor:
    raise ZeroDivisionError


fails.register_autograd(lambda ctx, gradient: gradient)


def found_in_frames(find, function):
    with pytest.raises(ZeroDivisionError) as caught:
        function()
    found = (find(frame) for frame, _ in traceback.walk_tb(caught.value.__traceback__))
    return [each for each in found if each is not None]


def test_called_in():
    x = torch.ones(2, requires_grad=True)
    assert found_in_frames(compat.called_in, lambda: Failing.apply(x, "now")) == [Failing]
    op = torch.ops.aotgrad_compat.fails.default
    found = found_in_frames(compat.called_in, lambda: fails(x))
    assert found[0] is op and {compat.op_of_formula(each) for each in found if isinstance(each, type)} == {op}


class WithContext(Failing):
    """Has its forward and the saving apart."""

    @staticmethod
    def forward(x):
        return 1 / 0

    @staticmethod
    def setup_context(ctx, inputs, output): ...


class Decorated(Failing):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x):
        return 1 / 0


@pytest.mark.parametrize("function", [WithContext, Decorated])
def test_other_forwards_that_are_called(function):
    x = torch.ones(2, requires_grad=True)
    assert found_in_frames(compat.called_in, lambda: function.apply(x)) == [function]


def test_differentiated_in():
    result = Failing.apply(torch.ones(2, requires_grad=True), "later")
    assert found_in_frames(compat.differentiated_in, result.sum().backward) == [Failing]


def test_op_of_formula():
    assert compat.op_of_formula(Failing) is None
