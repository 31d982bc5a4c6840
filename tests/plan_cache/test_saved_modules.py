"""Compiled modules are copied, pickled and saved as their original modules."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.errors import NotPicklable

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 2))


def installed(module: nn.Module) -> nn.Module:
    with aotgrad.install():
        return torch.compile(module)


COMPILE = {
    "aot_module": lambda module: aotgrad.aot_module(module, aotgrad.nop, dynamic=None, options={"plan_limit": 3}),
    "aotgrad": lambda module: torch.compile(module, backend="aotgrad"),
    "aotgrad_eager": lambda module: torch.compile(module, backend="aotgrad_eager"),
    "installed": installed,
}


def through_pickle(module: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(module))


def through_torch(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("how", COMPILE)
@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_torch])
@pytest.mark.parametrize("is_called", [True, False], ids=["called", "new"])
def test_a_copy_is_compiled_and_separate(how, copied, is_called):
    torch._dynamo.reset()
    compiled, x = COMPILE[how](model()), torch.randn(4, 3)
    if is_called:
        compiled(x).sum().backward()
    again = copied(compiled)
    assert type(again).__name__ == type(compiled).__name__ and again.training
    assert {name: value.tolist() for name, value in again.state_dict().items()} == {
        name: value.tolist() for name, value in compiled.state_dict().items()
    }
    result, expected = again(x), compiled(x)
    torch.testing.assert_close(result, expected)
    again.zero_grad(), compiled.zero_grad()
    result.sum().backward(), expected.sum().backward()
    for one, other in zip(again.parameters(), compiled.parameters(), strict=True):
        assert one is not other
        torch.testing.assert_close(one.grad, other.grad)
    if how == "aot_module":
        assert len(again.plans()) == 1 and again.plan_cache.compiler.options == compiled.plan_cache.compiler.options


def test_state_dicts_go_between_compiled_and_plain_modules():
    plain, compiled = model(), aotgrad.aot_module(model(), aotgrad.nop)
    assert list(plain.state_dict()) == list(compiled.state_dict())
    compiled.load_state_dict(plain.state_dict())
    x = torch.randn(4, 3)
    torch.testing.assert_close(compiled(x), plain(x))
    file = io.BytesIO()
    torch.save(compiled.state_dict(), file)
    file.seek(0)
    plain.load_state_dict(torch.load(file))


def test_a_part_of_a_saved_module():
    """Inside another module, and twice."""
    part = aotgrad.aot_module(nn.Linear(3, 3), aotgrad.nop)
    whole = through_pickle(nn.Sequential(part, nn.Tanh(), part))
    assert whole[0] is whole[2] and type(whole[0]).__name__ == "AOTLinear"
    x = torch.randn(2, 3)
    assert torch.equal(whole(x), part(part(x).tanh()))


def test_a_compiler_that_cannot_be_pickled_is_named():
    compiled = aotgrad.aot_module(nn.Linear(3, 3), aotgrad.nop, lambda graph, inputs: graph.forward)
    for save in (through_pickle, through_torch):
        with pytest.raises(NotPicklable, match="and 'bw_compiler' cannot be pickled") as raised:
            save(compiled)
        assert isinstance(raised.value, pickle.PicklingError)
    assert copy.deepcopy(compiled)(torch.ones(1, 3)).shape == (1, 3)
