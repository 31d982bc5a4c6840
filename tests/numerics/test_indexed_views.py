"""Views by an index with several items have eager's history, also with symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from .against_eager import ALL, compiled

INDICES: dict[str, Callable[[Tensor], Tensor]] = {
    "every_second_column": lambda x: x[:, ::2],
    "rows": lambda x: x[1:, :],
    "a_column": lambda x: x[:, 1],
    "another_dimension": lambda x: x[:, None],
    "without_the_last_row": lambda x: x[:-1, :, None],
    "all_by_its_size": lambda x: x[: x.shape[0], 1:],
    "all_of_all": lambda x: x[:, :],
    "the_rest": lambda x: x[..., :],
    "a_tuple_of_one": lambda x: x[(slice(None),)],
    "all": lambda x: x[:],
    "all_and_a_column": lambda x: x[:][:, 1],
    "narrowed": lambda x: x.narrow(0, 0, x.shape[0])[:, 1],
    "sliced_by_the_op": lambda x: torch.ops.aten.slice(x, 0, 0, 2**63 - 1)[:, 1],
    "of_a_value_inside": lambda x: (x * 1)[:, ::2],
}


def history(tensor: Tensor) -> list[str]:
    """The names of the autograd nodes up to the computed base, or the argument."""
    found, node = [], tensor.grad_fn
    while node is not None and any(word in node.name() for word in ("Slice", "Select", "Alias", "Unsqueeze", "View")):
        found.append(node.name())
        node = node.next_functions[0][0]
    return found


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_the_history_of_a_view(index: Callable, backend: str, dynamic: bool) -> None:
    under_test = compiled(index, backend, dynamic=dynamic)
    for rows in (4, 5):
        x = torch.randn(rows, 6, requires_grad=True)
        expected: Any = index(x)
        found = under_test(x)
        assert torch.equal(found, expected)
        assert history(found) == history(expected)
        assert (found._base is None) == (expected._base is None)
        assert found.stride() == expected.stride()
        for mine, eager in zip(*(torch.autograd.grad(y.square().sum(), x) for y in (found, expected)), strict=True):
            torch.testing.assert_close(mine, eager)
