"""Effects happen once, in the order of the function, in the forward and under every partitioner."""

import pytest
import torch

import aotgrad


def speaks(x):
    torch.ops.aten._print("first")
    y = x.sin()
    torch.ops.aten._print("second")
    return y * y


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("partitioner", ["min_cut", "save_all", "recompute_all"])
def test_effects_happen_once_and_in_order(capfd, partitioner, requires_grad):
    x = torch.ones(3, requires_grad=requires_grad)
    compiled = aotgrad.aot_function(speaks, aotgrad.nop, options={"partitioner": partitioner})
    for _ in range(2):
        out = compiled(x)
        assert capfd.readouterr().out.split() == ["first", "second"]
        assert torch.equal(out, x.sin() ** 2)
    if requires_grad:
        out.sum().backward()
        assert capfd.readouterr().out == ""
