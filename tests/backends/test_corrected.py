"""Each correction of Inductor: without it a result is wrong or cannot be compiled, with it all are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.utils import fresh_cache

from aotgrad.backends import corrected

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")


def losses(x, target):
    return F.multilabel_margin_loss(x.sin(), target)


def put_into_expanded(x, index, values):
    return (x * 2).expand(3, 4).index_put((torch.arange(3), index), values)


def put_a_number(x):
    y = x.clone()
    y[0] = 0.25
    return y.sin()


def write_read_and_write(x):
    columns = x.as_strided_scatter(x.as_strided((5,), (5,), 1) * 2, (5,), (5,), 1)
    rows = columns.as_strided((4, 5), (5, 1), 5)
    return columns.as_strided_scatter(rows.flip(0), (4, 5), (5, 1), 5)


@torch.library.custom_op("aotgrad_tests::add_into", mutates_args=("out",))
def add_into(x: torch.Tensor, out: torch.Tensor) -> None:
    out.add_(x)


def add_into_a_view(x, out):
    torch.ops.aotgrad_tests.add_into(x.detach()[0], out[1])
    return x.sin() * out


@dataclass(frozen=True)
class Case:
    """A function that is wrong, or cannot be compiled, without a correction."""

    function: Callable
    make_args: Callable[[], tuple[torch.Tensor, ...]]
    dynamic: bool = False

    def is_right(self) -> bool:
        torch._dynamo.reset()
        with fresh_cache():
            options = {"min_graph_ops": 0, "cache": False}
            compiled = torch.compile(self.function, backend="aotgrad", dynamic=self.dynamic, options=options)
            try:
                result = compiled(*self.make_args())
            except BackendCompilerFailed:
                return False
        return torch.allclose(result, self.function(*self.make_args()))


CASES = {
    "targets end at the first -1": Case(
        losses, lambda: (torch.arange(8.0).view(2, 4), torch.tensor([[3, -1, 1, -1], [0, 2, -1, 1]]))
    ),
    "index_put into an expanded tensor": Case(
        put_into_expanded, lambda: (torch.arange(4.0), torch.tensor([0, 2, 2]), torch.tensor([1.0, 2.0, 3.0]))
    ),
    "constants without dimensions": Case(put_a_number, lambda: (torch.arange(4.0),)),
    "offsets in memory": Case(
        add_into_a_view,
        lambda: (torch.ones(3, 4, requires_grad=True), torch.arange(40.0).view(10, 4)[2:5]),
        dynamic=True,
    ),
    "reads between two writes": Case(write_read_and_write, lambda: (torch.arange(25.0),)),
}


def test_every_correction_has_a_case() -> None:
    assert set(CASES) == set(corrected.CORRECTIONS)


@pytest.mark.parametrize("name", CASES)
def test_with_a_correction_a_result_is_right(name: str) -> None:
    assert CASES[name].is_right()


@pytest.mark.skipif(torch.__version__ >= "2.14", reason="corrections are for the oldest torch that is supported")
@pytest.mark.parametrize("name", CASES)
def test_a_correction_is_needed(name: str, monkeypatch) -> None:
    """If this fails, torch does it right now, and the correction is to go."""
    others = {other: correction for other, correction in corrected.CORRECTIONS.items() if other != name}
    monkeypatch.setattr(corrected, "CORRECTIONS", others)
    assert not CASES[name].is_right()
