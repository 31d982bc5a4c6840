"""Graphs with calls that a backend keeps whole are stored, and read back for a backend that keeps the same functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import handle_torch_function, has_torch_function

import aotgrad
from aotgrad.backends import KeptBackward
from tests.backends.test_keep import CASES, Keeping, assert_like_eager, tensors

STORED = {"linear": {F.linear}, "einsum": {torch.einsum}, "mask": {F.scaled_dot_product_attention}}
STORED |= {"one_tensor_twice": {torch.Tensor.matmul}, "interpolate": {F.interpolate}}


class Stored(Keeping):
    def cache_key(self):
        return "stored"


@pytest.mark.parametrize("dynamo", [False, True], ids=["aot_function", "dynamo"])
@pytest.mark.parametrize("name", STORED)
def test_kept_calls_are_read_back(name, dynamo, counted):
    function, shapes, _ = CASES[name]
    options = {} if dynamo else {"cache": True}
    found = []
    for counter in ("cache_misses", "cache_hits"):
        backend = Stored(STORED[name])
        assert_like_eager(function, backend, tensors(*shapes), dynamo=dynamo, **options)
        assert counted()[counter] == 1
        gradients = [each for each in backend.targets("backward") if isinstance(each, KeptBackward)]
        described = [(each.function, each.inputs, each.outputs, each.args, each.kwargs) for each in gradients]
        found.append((backend.targets("forward"), described))
    assert found[0] == found[1] and found[0][1]


def test_gradients_of_gradients_of_a_stored_function():
    function, shapes, _ = CASES["linear"]
    for _ in range(2):
        assert_like_eager(function, Stored({F.linear}), tensors(*shapes), order=2, cache=True)


def test_other_kept_functions_are_another_entry(counted):
    function, shapes, _ = CASES["linear"]
    for keep in ({F.linear}, {F.linear, F.gelu}, {torch.Tensor.matmul}, {torch.matmul}):
        assert_like_eager(function, Stored(keep), tensors(*shapes), cache=True)
        assert counted()["cache_misses"] == 1


def of_the_user(x):
    if has_torch_function((x,)):
        return handle_torch_function(of_the_user, (x,), x)
    return x.sin() * 2


def test_functions_that_torch_does_not_know_are_compiled_in_each_process(counted):
    for _ in range(2):
        assert_like_eager(lambda x: of_the_user(x).cos(), Stored({of_the_user}), tensors((3,)), cache=True)
        assert counted()["cache_bypasses"] == 1


def test_a_file_names_the_function_that_has_no_name_elsewhere(tmp_path):
    compiled = aotgrad.aot_function(lambda x: of_the_user(x).cos(), Keeping({of_the_user}))
    compiled(torch.ones(3))
    with pytest.raises(aotgrad.errors.ShippingError, match=r"of_the_user, which the backend keeps \(`keep`\)"):
        aotgrad.save(compiled, tmp_path / "plan")
